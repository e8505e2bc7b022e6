/// Makes `&mut Tx<$db>` an executor, so that a handler's `.execute(&mut *tx)` works as on a connection.
///
/// The trait's methods are generic over the query in a way that only a concrete database can satisfy, so this
/// is a macro and not a blanket impl.
macro_rules! executor_for_tx {
    ($db:ty) => {
        impl<'c> sqlx::Executor<'c> for &'c mut $crate::tx::Tx<$db> {
            type Database = $db;

            fn fetch_many<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> futures_core::stream::BoxStream<
                'e,
                Result<
                    sqlx::Either<
                        <$db as sqlx::Database>::QueryResult,
                        <$db as sqlx::Database>::Row,
                    >,
                    sqlx::Error,
                >,
            >
            where
                'c: 'e,
                E: 'q + sqlx::Execute<'q, $db>,
            {
                let (conn, memory) = self.parts();
                memory.forget();
                Box::pin(futures_util::TryStreamExt::inspect_err(
                    sqlx::Executor::fetch_many(conn, query),
                    |error| memory.note::<$db>(error),
                ))
            }

            fn fetch_optional<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> futures_core::future::BoxFuture<
                'e,
                Result<Option<<$db as sqlx::Database>::Row>, sqlx::Error>,
            >
            where
                'c: 'e,
                E: 'q + sqlx::Execute<'q, $db>,
            {
                let (conn, memory) = self.parts();
                memory.forget();
                Box::pin(futures_util::TryFutureExt::inspect_err(
                    sqlx::Executor::fetch_optional(conn, query),
                    |error| memory.note::<$db>(error),
                ))
            }

            fn prepare_with<'e>(
                self,
                sql: sqlx::SqlStr,
                parameters: &'e [<$db as sqlx::Database>::TypeInfo],
            ) -> futures_core::future::BoxFuture<
                'e,
                Result<<$db as sqlx::Database>::Statement, sqlx::Error>,
            >
            where
                'c: 'e,
            {
                let (conn, memory) = self.parts();
                memory.forget();
                Box::pin(futures_util::TryFutureExt::inspect_err(
                    sqlx::Executor::prepare_with(conn, sql, parameters),
                    |error| memory.note::<$db>(error),
                ))
            }

            // Exists with sqlx-core's feature `offline`, which our manifest switches on for good.
            fn describe<'e>(
                self,
                sql: sqlx::SqlStr,
            ) -> futures_core::future::BoxFuture<
                'e,
                Result<sqlx_core::describe::Describe<$db>, sqlx::Error>,
            >
            where
                'c: 'e,
            {
                sqlx::Executor::describe(self.parts().0, sql)
            }
        }
    };
}

pub(super) use executor_for_tx;
