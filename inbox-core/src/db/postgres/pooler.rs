//! Poolers that give each transaction another session of the server: PgBouncer in transaction mode.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgPool, Row as _};

use super::{Nonce, run};
use crate::db::Finding;

/// How often a session is looked for again that another client has got in between.
const LOOKS: usize = 10;

/// What becomes of a session when a transaction ends.
enum Afterwards {
    /// It is still there, with its settings.
    Kept,
    /// Its settings are gone, or it is another one.
    Gone,
}

/// Whether the connection has the kind of session that the configuration says.
pub(super) async fn finding(
    conn: &mut PgConnection,
    behind_pooler: bool,
) -> Result<Option<Finding>, sqlx::Error> {
    let has_cache = conn.cached_statements_size() > 0;
    let text = match (afterwards(conn).await?, behind_pooler) {
        (Afterwards::Kept, false) => return Ok(None),
        (Afterwards::Gone, false) => Finding::SHARED_SESSIONS.to_owned(),
        (Afterwards::Kept, true) => {
            "behind_transaction_pooler(): what one transaction set is still there in the next. If a pooler in \
             transaction mode stands between, it must reset its sessions (PgBouncer: server_reset_query = DISCARD ALL \
             and server_reset_query_always = 1); if not, remove it"
                .to_owned()
        }
        (Afterwards::Gone, true) if has_cache => {
            "behind_transaction_pooler(): the driver keeps prepared statements that the next transaction does not \
             find; give the pool's options `.statement_cache_capacity(0)`"
                .to_owned()
        }
        (Afterwards::Gone, true) => return Ok(None),
    };
    Ok(Some(Finding::problem(text)))
}

async fn afterwards(conn: &mut PgConnection) -> Result<Afterwards, sqlx::Error> {
    for _ in 0..LOOKS {
        let nonce = Nonce::new();
        // Each text is one message to the server, and a transaction. Without parameters, for those would take two.
        let before = answer(
            conn,
            format!(
                "SET inbox.session = '{}'; SELECT pg_catalog.pg_backend_pid()::text",
                nonce.as_str()
            ),
        )
        .await?;
        let after = answer(
            conn,
            "SELECT pg_catalog.concat_ws(' ', pg_catalog.pg_backend_pid(), \
             pg_catalog.current_setting('inbox.session', true))"
                .to_owned(),
        )
        .await?;
        let (session, setting) = after.split_once(' ').unwrap_or((&after, ""));
        if session != before {
            // Another client has it now, and may have left nothing of what we set.
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

/// Whether another connection gets the session that one has just had, or takes it away.
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
    let before = answer(&mut one, SESSION.to_owned()).await?;
    let mut holding = other.begin().await?;
    let held = answer(&mut holding, SESSION.to_owned()).await?;
    let after = answer(&mut one, SESSION.to_owned()).await?;
    holding.rollback().await?;
    Ok(held == before || after != before)
}

/// The one text that a query answers.
async fn answer(conn: &mut PgConnection, text: String) -> Result<String, sqlx::Error> {
    conn.fetch_one(sqlx::raw_sql(AssertSqlSafe(text)))
        .await?
        .try_get(0)
}
