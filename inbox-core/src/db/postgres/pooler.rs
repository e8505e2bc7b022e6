//! Poolers that give each transaction another session of the server: PgBouncer in transaction mode.

use sqlx::postgres::PgConnection;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgPool, Postgres, Row as _, Transaction,
};

use super::{Nonce, PostgresStatements, run};
use crate::db::Finding;

/// How often a session that was there before is looked for.
const LOOKS: usize = 10;

/// What becomes of a session when a transaction ends.
enum Afterwards {
    /// It is still there, with its settings.
    Kept,
    /// Its settings are gone, or it is another one.
    Gone,
}

/// An error unless the connection has the kind of session that the configuration says: what comes next may work by
/// accident, or fail for a reason that says nothing.
pub(super) async fn check(conn: &mut PgConnection, behind_pooler: bool) -> Result<(), sqlx::Error> {
    let wrong = match (afterwards(conn).await?, behind_pooler) {
        (Afterwards::Kept, false) | (Afterwards::Gone, true) => return Ok(()),
        (Afterwards::Gone, false) => Finding::SHARED_SESSIONS,
        (Afterwards::Kept, true) => {
            "behind_transaction_pooler(): what one transaction set is still there in the next. If a pooler in \
             transaction mode stands between, it must reset its sessions (PgBouncer: server_reset_query = DISCARD ALL \
             and server_reset_query_always = 1); if not, remove it"
        }
    };
    Err(sqlx::Error::Configuration(wrong.into()))
}

/// What is wrong with the connection after it had a statement to prepare.
pub(super) fn cache_finding(conn: &PgConnection) -> Option<Finding> {
    (conn.cached_statements_size() > 0).then(|| {
        Finding::problem(
            "behind_transaction_pooler(): the driver keeps prepared statements that the next transaction does not find; \
             give the pool's options `.statement_cache_capacity(0)`",
        )
    })
}

async fn afterwards(conn: &mut PgConnection) -> Result<Afterwards, sqlx::Error> {
    let nonce = Nonce::new();
    // One message to the server, and so a transaction. Without parameters, for those would take two.
    let look = format!(
        "SELECT pg_catalog.concat_ws(' ', pg_catalog.pg_backend_pid(), \
         pg_catalog.current_setting('inbox.session', true)); SET inbox.session = '{}'",
        nonce.as_str()
    );
    let mut seen = Vec::with_capacity(LOOKS);
    for _ in 0..LOOKS {
        let told = answer(conn, look.clone()).await?;
        let (session, setting) = told.split_once(' ').unwrap_or((&told, ""));
        if !seen.iter().any(|seen| seen == session) {
            seen.push(session.to_owned());
            continue;
        }
        if setting != nonce.as_str() {
            return Ok(Afterwards::Gone);
        }
        run(conn, "RESET inbox.session").await?;
        return Ok(Afterwards::Kept);
    }
    Ok(Afterwards::Gone)
}

/// Whether another connection gets a session that one has had, or takes it away.
pub(super) async fn share_sessions(pool: &PgPool) -> Result<bool, sqlx::Error> {
    const SESSION: &str = "SELECT pg_catalog.pg_backend_pid()::text";
    if pool.options().get_max_connections() < 2 {
        return Ok(false);
    }
    let mut one = pool.acquire().await?;
    // The application may have all the others.
    let Ok(mut other) = pool.acquire().await else {
        return Ok(false);
    };
    let own = answer(&mut one, SESSION.to_owned()).await?;
    // More than once, for a pooler that gives its sessions out in turn.
    for _ in 0..3 {
        let mut holding = other.begin().await?;
        let held = answer(&mut holding, SESSION.to_owned()).await?;
        let after = answer(&mut one, SESSION.to_owned()).await?;
        holding.rollback().await?;
        let later = answer(&mut one, SESSION.to_owned()).await?;
        if held == own || after != own || later != own {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A connection for a statement of ours that needs no transaction. With parameters it takes two messages to the server,
/// and behind a pooler only a transaction brings both to the same session.
pub(super) enum OneSession<'c> {
    Own(&'c mut PgConnection),
    Borrowed(Transaction<'c, Postgres>),
}

impl<'c> OneSession<'c> {
    pub(super) async fn of(
        conn: &'c mut PgConnection,
        statements: &PostgresStatements,
    ) -> Result<Self, sqlx::Error> {
        Ok(if statements.behind_pooler {
            Self::Borrowed(conn.begin().await?)
        } else {
            Self::Own(conn)
        })
    }

    pub(super) fn get(&mut self) -> &mut PgConnection {
        match self {
            Self::Own(conn) => conn,
            Self::Borrowed(tx) => tx,
        }
    }

    pub(super) async fn end(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Borrowed(tx) => tx.commit().await,
        }
    }
}

/// The one text that a query answers.
async fn answer(conn: &mut PgConnection, text: String) -> Result<String, sqlx::Error> {
    conn.fetch_one(sqlx::raw_sql(AssertSqlSafe(text)))
        .await?
        .try_get(0)
}
