//! What a session has to be like when a message is claimed on it, and what ends a statement on it.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, MySql, Pool, Row as _,
};

use super::{Flavour, Interruption, backquoted, literal, run};

/// How long an attempt to end a statement may take.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(10);

/// Settings that a handler can change for those who come after it, in the order in which they are set. There is no
/// way to reset all of them at once.
const SETTINGS: [&str; 21] = [
    "sql_mode",
    "time_zone",
    "character_set_client",
    "character_set_results",
    "character_set_connection",
    "collation_connection",
    "lc_time_names",
    "foreign_key_checks",
    "unique_checks",
    "sql_safe_updates",
    "sql_select_limit",
    "sql_auto_is_null",
    "max_join_size",
    "sql_big_selects",
    "completion_type",
    "div_precision_increment",
    "group_concat_max_len",
    "default_storage_engine",
    "default_week_format",
    "lock_wait_timeout",
    "wait_timeout",
];
/// Those that MySQL has not, or does not let everybody set.
const MARIADB_SETTINGS: [&str; 6] = [
    "auto_increment_increment",
    "auto_increment_offset",
    "innodb_strict_mode",
    "max_statement_time",
    "idle_transaction_timeout",
    "check_constraint_checks",
];
const LOCK_WAIT: &str = "innodb_lock_wait_timeout";
const AUTOCOMMIT: &str = "autocommit";

/// What a prepared session knows besides its connection.
///
/// The driver counts one transaction from [`prepare`](super::InboxDatabase::prepare) to
/// [`reset`](super::InboxDatabase::reset), so that a handler's savepoints are savepoints: it does not know of XA.
#[derive(Debug)]
pub struct MySqlGuard {
    /// The XA transaction that is open or may be.
    pub(super) transaction: Option<Transaction>,
    /// The savepoint of the message in work, where each has one.
    pub(super) step: Option<String>,
    /// Sets the settings as they were when the pool handed the session out.
    pub(super) own_settings: String,
    /// Sets what only our transactions change.
    restore: String,
    /// `innodb_lock_wait_timeout` as it was then.
    pub(super) own_lock_wait: String,
    /// What cannot be set back, as it was then.
    state: String,
    interrupt: Option<Interrupt>,
    /// A COMMIT that waits for a replica must not be cut short: it would be visible, and not replicated.
    pub(super) is_committing: bool,
    flavour: Flavour,
}

/// An XA transaction of ours. Its name cannot be guessed, so that nobody else ends it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transaction {
    pub(super) nonce: u64,
}

impl Transaction {
    pub(super) fn new() -> Self {
        Self {
            nonce: fastrand::u64(1..),
        }
    }

    /// Its name between quotes.
    pub(super) fn name(self) -> String {
        format!("'inbox_{:016x}'", self.nonce)
    }

    /// What its claims are recognised by.
    pub(super) fn mark(self) -> String {
        self.nonce.to_string()
    }
}

/// How to end what runs on a session.
#[derive(Clone)]
struct Interrupt {
    options: Arc<MySqlConnectOptions>,
    /// A lock of the session, by which another one finds it: numbers of connections begin anew with the server.
    lock: String,
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt")
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

impl Interrupt {
    async fn run(self) -> Result<(), sqlx::Error> {
        let mut conn = self.options.connect().await?;
        let session: Option<i64> = sqlx::query_scalar("SELECT CAST(IS_USED_LOCK(?) AS SIGNED)")
            .bind(&self.lock)
            .fetch_one(&mut conn)
            .await?;
        if let Some(session) = session {
            run(&mut conn, format!("KILL CONNECTION {session}")).await?;
        }
        conn.close().await
    }
}

impl MySqlGuard {
    pub(super) async fn of(
        conn: &mut MySqlConnection,
        pool: &Pool<MySql>,
        flavour: Flavour,
    ) -> Result<Self, sqlx::Error> {
        let mut names: Vec<&str> = SETTINGS.to_vec();
        if flavour.is_mariadb {
            names.extend(MARIADB_SETTINGS);
        }
        names.extend([
            flavour.isolation(),
            flavour.read_only(),
            LOCK_WAIT,
            AUTOCOMMIT,
        ]);
        let values = values_of(conn, &names).await?;
        let value = |name: &str| {
            let of_name = names.iter().zip(&values).find(|(other, _)| **other == name);
            of_name.map_or_else(String::new, |(_, value)| value.clone())
        };
        let mut own_settings = "SET SESSION autocommit = 1, timestamp = DEFAULT".to_owned();
        for name in names.iter().filter(|name| **name != AUTOCOMMIT) {
            let _ = write!(own_settings, ", {name} = {}", value(name));
        }
        Ok(Self {
            transaction: None,
            step: None,
            own_settings,
            restore: format!("SET SESSION autocommit = {}", value(AUTOCOMMIT)),
            own_lock_wait: value(LOCK_WAIT),
            state: state_of(conn, flavour).await?,
            interrupt: Some(Interrupt {
                options: pool.connect_options(),
                lock: format!("inbox_{:016x}", fastrand::u64(..)),
            }),
            is_committing: false,
            flavour,
        })
    }

    /// Sets the settings back, and takes locks of the handlers away; what is between them and the end is left out of
    /// neither transaction.
    pub(super) fn settling_text(&self) -> String {
        let mut text = format!("{}; DO RELEASE_ALL_LOCKS()", self.own_settings);
        if let Some(interrupt) = &self.interrupt {
            let _ = write!(text, "; DO GET_LOCK('{}', 0)", interrupt.lock);
        }
        text
    }

    /// The query for what cannot be set back, with a nonce that proves that the answer is to this query.
    pub(super) fn state_query(&self, nonce: u64) -> String {
        format!("SELECT '{nonce:016x}', {}", state_expression(self.flavour))
    }

    /// An error when the session is not as the pool handed it out, or the driver takes another answer for this one.
    pub(super) fn judge_state(
        &self,
        row: Option<&sqlx::mysql::MySqlRow>,
        nonce: u64,
    ) -> Result<(), sqlx::Error> {
        let row = row.ok_or_else(garbled)?;
        if text_of(row, 0)?.as_deref() != Some(&*format!("{nonce:016x}")) {
            return Err(garbled());
        }
        if text_of(row, 1)?.as_deref() == Some(&self.state) {
            return Ok(());
        }
        Err(sqlx::Error::Protocol(
            "a handler left its session with another database, role or binary logging, or with temporary tables or an \
             open HANDLER"
                .to_owned(),
        ))
    }

    /// Looks at what cannot be set back.
    pub(super) async fn same_state(&self, conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let nonce = fastrand::u64(..);
        let query = self.state_query(nonce);
        let row = conn
            .fetch_optional(sqlx::raw_sql(AssertSqlSafe(query)))
            .await?;
        self.judge_state(row.as_ref(), nonce)
    }

    /// The query for the user variables that handlers left, with a separator before it. Not before the settings are
    /// set back: one of them limits what a query answers.
    pub(super) fn variables_query(&self) -> &'static str {
        if self.flavour.has_user_variables {
            "; SELECT VARIABLE_NAME FROM information_schema.USER_VARIABLES WHERE VARIABLE_VALUE IS NOT NULL"
        } else {
            ""
        }
    }

    /// Takes the values of user variables away.
    pub(super) async fn forget_variables(
        conn: &mut MySqlConnection,
        rows: &[sqlx::mysql::MySqlRow],
    ) -> Result<(), sqlx::Error> {
        let mut text = String::new();
        for row in rows {
            let name = text_of(row, 0)?.unwrap_or_default();
            let before = if text.is_empty() { "SET" } else { "," };
            let _ = write!(text, "{before} @{} = NULL", backquoted(&name));
        }
        if text.is_empty() {
            return Ok(());
        }
        run(conn, text).await
    }

    /// Brings the session back to the state in which the pool handed it out.
    pub(super) async fn restore(&mut self, conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let lock = self.interrupt.take();
        let nonce = fastrand::u64(..);
        let query = format!(
            "{}; {}; {}{}",
            self.settling_text(),
            self.restore,
            self.state_query(nonce),
            self.variables_query()
        );
        let rows = conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(query))).await?;
        let same = self.judge_state(rows.first(), nonce);
        if same.is_err() {
            self.interrupt = lock;
            return same;
        }
        Self::forget_variables(conn, rows.get(1..).unwrap_or_default()).await
    }

    /// Ends what runs on the session, on a connection of its own: the server goes on with the statement of a client
    /// that is gone, and keeps its locks.
    pub(super) fn interrupt(&self) -> Option<Interruption> {
        if self.is_committing || self.transaction.is_none() {
            return None;
        }
        let interrupt = self.interrupt.clone()?;
        Some(Box::pin(async move {
            // Whatever goes wrong, the time limits of the session end it later.
            let _ = sqlx_core::rt::timeout(INTERRUPT_LIMIT, interrupt.run()).await;
        }))
    }
}

/// What of a session cannot be set back.
fn state_expression(flavour: Flavour) -> String {
    let mut parts =
        "HEX(COALESCE(DATABASE(), '')), HEX(COALESCE(CURRENT_ROLE(), '')), @@sql_log_bin"
            .to_owned();
    if flavour.is_mariadb {
        // The only trace that a temporary table or an open HANDLER leaves. One that was dropped or closed again costs
        // the session too.
        parts.push_str(
            ", (SELECT SUM(VARIABLE_VALUE) FROM information_schema.SESSION_STATUS \
             WHERE VARIABLE_NAME IN ('Com_create_temporary_table', 'Com_ha_open'))",
        );
    }
    format!("CONCAT_WS('/', {parts})")
}

async fn state_of(conn: &mut MySqlConnection, flavour: Flavour) -> Result<String, sqlx::Error> {
    let query = format!("SELECT {}", state_expression(flavour));
    let row = conn.fetch_one(sqlx::raw_sql(AssertSqlSafe(query))).await?;
    Ok(text_of(&row, 0)?.unwrap_or_default())
}

/// The values of settings as SQL.
async fn values_of(conn: &mut MySqlConnection, names: &[&str]) -> Result<Vec<String>, sqlx::Error> {
    let columns: Vec<String> = names
        .iter()
        .map(|name| format!("CAST(@@SESSION.{name} AS CHAR)"))
        .collect();
    let query = format!("SELECT {}", columns.join(", "));
    let row = conn.fetch_one(sqlx::raw_sql(AssertSqlSafe(query))).await?;
    (0..names.len())
        .map(|column| Ok(text_of(&row, column)?.map_or_else(|| "NULL".to_owned(), as_sql)))
        .collect()
}

/// A number, or a word between quotes.
fn as_sql(value: String) -> String {
    let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if is_number { value } else { literal(&value) }
}

/// A column as text, whatever its type: what is compared as bytes has none for the driver.
pub(super) fn text_of(
    row: &sqlx::mysql::MySqlRow,
    column: usize,
) -> Result<Option<String>, sqlx::Error> {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(column)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

pub(super) fn garbled() -> sqlx::Error {
    sqlx::Error::Protocol("an answer belongs to another statement".to_owned())
}
