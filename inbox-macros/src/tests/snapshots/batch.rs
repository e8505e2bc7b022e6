/* #[inbox_handler(consumer = "billing", order_by = "key", batch(max = 500, linger = "5ms"), own_transaction = false)]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>, State(rates): State<Rates>) -> Outcome { Ok(()) } */

#[doc(hidden)]
#[allow(non_camel_case_types)]
struct post {
    _private: (),
}
const _: () = {
    impl post {
        /// The handler, to be registered with the builder of the inbox.
        #[must_use]
        pub const fn handler() -> Self {
            Self { _private: () }
        }
    }
    #[automatically_derived]
    impl ::inbox_core::__private::Handler for post {
        type Db = <Tx<Postgres> as ::inbox_core::__private::HandlerTx>::Db;
        const SPEC: ::inbox_core::__private::HandlerSpec = ::inbox_core::__private::HandlerSpec::new(
                "billing",
                ::core::concat!(::core::module_path!(), "::post"),
                ::core::file!(),
                ::core::line!(),
            )
            .order_by(::inbox_core::__private::OrderBy::Key)
            .batch(
                ::inbox_core::__private::BatchLimits::new(500usize)
                    .linger(::core::time::Duration::from_millis(5u64)),
            )
            .own_transaction(false);
        fn requirements(__needs: &mut ::inbox_core::__private::Requirements) {
            <State<Rates> as ::inbox_core::__private::FromBatch>::requirements(__needs);
        }
        fn call<'a>(
            &'a self,
            __incoming: &'a [::inbox_core::__private::Incoming<'_>],
            __tx: &'a mut ::inbox_core::__private::Tx<Self::Db>,
        ) -> ::inbox_core::__private::HandlerFuture<'a> {
            ::inbox_core::__private::run(
                ::inbox_core::__private::begin_batch_1(
                    __incoming,
                    __tx,
                    <Batch<
                        OrderPlaced,
                    > as ::inbox_core::__private::Messages>::decode_all,
                    <Tx<Postgres> as ::inbox_core::__private::HandlerTx>::lend,
                    <State<Rates> as ::inbox_core::__private::FromBatch>::from_batch,
                    post,
                ),
                <Outcome as ::inbox_core::__private::HandlerOutcome>::into_outcome,
            )
        }
    }
};
