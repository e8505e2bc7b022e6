//! The settings of a server as a session of the pool sees them, and what would break the guarantee.

use std::time::Duration;

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Executor as _};

use super::super::{Finding, Requisites, schema_findings};
use super::session::text_of;
use super::{Flavour, number, run};
use crate::tables::Tables;

/// Below this a message may well be larger than what a dead letter can store.
const SMALL_PACKET: u64 = 16 * 1024 * 1024;

/// The database that holds the tables: the one asked for, else the connection's own.
pub(super) async fn database(
    conn: &mut MySqlConnection,
    tables: &Tables,
) -> Result<Option<String>, sqlx::Error> {
    if let Some(schema) = tables.schema_name() {
        return Ok(Some(schema.to_owned()));
    }
    let row = conn.fetch_one(sqlx::raw_sql("SELECT DATABASE()")).await?;
    text_of(&row, 0)
}

pub(super) async fn flavour(conn: &mut MySqlConnection) -> Result<Flavour, sqlx::Error> {
    let row = conn.fetch_one(sqlx::raw_sql("SELECT VERSION()")).await?;
    let version = text_of(&row, 0)?.unwrap_or_default();
    let mut flavour = Flavour::of_version(&version);
    if flavour.is_mariadb {
        // A plugin, switched on by default.
        flavour.has_user_variables = conn
            .fetch_one(sqlx::raw_sql(
                "SELECT COUNT(*) FROM information_schema.USER_VARIABLES",
            ))
            .await
            .is_ok();
    }
    Ok(flavour)
}

/// What is wrong with the tables.
pub(super) async fn judge_tables(
    conn: &mut MySqlConnection,
    tables: &Tables,
    database: &str,
    findings: &mut Vec<Finding>,
) -> Result<(), sqlx::Error> {
    let is_folded = setting(conn, "lower_case_table_names").await? != Some("0".to_owned());
    let is = move |found: &str, name: &str| {
        if is_folded {
            found.to_lowercase() == name.to_lowercase()
        } else {
            found == name
        }
    };
    let columns = pairs(
        conn,
        "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ?",
        database,
    )
    .await?;
    findings.extend(schema_findings(tables, |table| {
        columns
            .iter()
            .filter(|(t, _)| is(t, table))
            .map(|(_, column)| column.clone())
            .collect()
    }));
    let processed = tables.processed_name();
    let has = |column: Option<&str>| {
        let mut of_claims = columns.iter().filter(|(t, _)| is(t, processed));
        of_claims.any(|(_, found)| column.is_none_or(|column| column == found))
    };
    if has(None) && !has(Some("claim_nonce")) {
        findings.push(Finding::problem(format!(
            "the table {processed:?} has no column claim_nonce; run `inbox_runtime::migrate(&pool)` or add \
             `.migrate_on_start()`"
        )));
    }
    let engines = pairs(
        conn,
        "SELECT TABLE_NAME, COALESCE(ENGINE, 'none: it is a view') FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = ?",
        database,
    )
    .await?;
    for table in [
        processed,
        tables.dead_letters_name(),
        tables.attempts_name(),
        tables.messages_name(),
    ] {
        let engine = engines.iter().find(|(t, _)| is(t, table));
        if let Some((_, engine)) = engine.filter(|(_, engine)| engine != "InnoDB") {
            findings.push(Finding::problem(format!(
                "the engine of the table {table:?} is {engine}: only InnoDB has transactions here; run \
                 `ALTER TABLE {table} ENGINE = InnoDB`"
            )));
        }
    }
    Ok(())
}

/// What is wrong with the server, or with the settings that the pool's sessions have.
pub(super) async fn judge_server(
    conn: &mut MySqlConnection,
    flavour: Flavour,
    requisites: &Requisites,
) -> Result<Vec<Finding>, sqlx::Error> {
    let mut findings = Vec::new();
    if !flavour.is_supported() {
        findings.push(Finding::problem(format!(
            "the server is {flavour}: MariaDB 10.6 or MySQL 8.0, or a later one, is needed"
        )));
    }
    if requisites.behind_pooler {
        findings.push(Finding::problem(
            "on MariaDB and MySQL the inbox needs sessions of its own: remove `.behind_transaction_pooler()`, and \
             connect directly",
        ));
    }
    for name in ["read_only", "super_read_only"] {
        if is_on(setting(conn, name).await?.as_deref()) {
            findings.push(Finding::problem(format!(
                "{name} is on: the server is a replica; connect the pool to the primary, the claim is a write"
            )));
        }
    }
    if !is_on(setting(conn, "autocommit").await?.as_deref()) {
        findings.push(Finding::problem(
            "autocommit is off on the pool's sessions: what is to be committed by itself would not be; leave it on",
        ));
    }
    let flush = setting(conn, "innodb_flush_log_at_trx_commit").await?;
    if let Some(flush) = flush.filter(|flush| flush != "1") {
        findings.push(Finding::warning(format!(
            "innodb_flush_log_at_trx_commit = {flush}: a crash of the server can lose a commit after its message was \
             acked; set it to 1"
        )));
    }
    if is_on(setting(conn, "log_bin").await?.as_deref()) {
        let sync = setting(conn, "sync_binlog").await?;
        if let Some(sync) = sync.filter(|sync| sync != "1") {
            findings.push(Finding::warning(format!(
                "sync_binlog = {sync}: a crash of the server can lose a commit after its message was acked; set it to 1"
            )));
        }
        if setting(conn, "binlog_format").await?.as_deref() == Some("STATEMENT") {
            findings.push(Finding::problem(
                "binlog_format = STATEMENT: the server refuses writes at the isolation level READ COMMITTED; set it \
                 to ROW or MIXED",
            ));
        }
    }
    let packet = packet(conn).await?;
    if packet < SMALL_PACKET {
        findings.push(Finding::warning(format!(
            "max_allowed_packet = {packet}: a message of about that size can be neither processed nor kept as a dead \
             letter; set it above the largest message, for example to {SMALL_PACKET}"
        )));
    }
    for name in ["idle_transaction_timeout", "wait_timeout"] {
        let limit = setting(conn, name).await?;
        let limit = limit.and_then(|text| text.parse().ok()).filter(|s| *s > 0);
        if let Some(limit) = limit.map(Duration::from_secs)
            && limit < requisites.longest_handler
        {
            findings.push(Finding::warning(format!(
                "{name} = {} s is shorter than the longest handler timeout of {} s: a handler that waits for \
                 something else than the database is cut off earlier",
                limit.as_secs(),
                requisites.longest_handler.as_secs_f64()
            )));
        }
    }
    if let Some(refusal) = refusal_of_xa(conn).await? {
        findings.push(Finding::problem(format!(
            "the server refuses XA transactions ({refusal}), which keep a handler in its transaction; Galera clusters \
             have none, so use a server outside of one"
        )));
    }
    Ok(findings)
}

/// Why there are no XA transactions.
async fn refusal_of_xa(conn: &mut MySqlConnection) -> Result<Option<String>, sqlx::Error> {
    let name = format!("'inbox_{:016x}'", fastrand::u64(..));
    let probe = format!("XA START {name}; XA END {name}; XA ROLLBACK {name}");
    match run(conn, probe).await {
        Ok(()) => Ok(None),
        Err(error) if number(&error).is_some() => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

/// A setting as the session sees it; `None` where the server has none of that name.
async fn setting(conn: &mut MySqlConnection, name: &str) -> Result<Option<String>, sqlx::Error> {
    let query = format!("SHOW VARIABLES WHERE Variable_name = '{name}'");
    let row = conn
        .fetch_optional(sqlx::raw_sql(AssertSqlSafe(query)))
        .await?;
    row.map_or(Ok(None), |row| text_of(&row, 1))
}

fn is_on(value: Option<&str>) -> bool {
    value.is_some_and(|value| !matches!(value, "OFF" | "0" | ""))
}

async fn pairs(
    conn: &mut MySqlConnection,
    query: &'static str,
    database: &str,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let rows: Vec<MySqlRow> = sqlx::query(query).bind(database).fetch_all(conn).await?;
    rows.iter()
        .map(|row| {
            Ok((
                text_of(row, 0)?.unwrap_or_default(),
                text_of(row, 1)?.unwrap_or_default(),
            ))
        })
        .collect()
}

/// The largest packet that the server takes, in bytes.
pub(super) async fn packet(conn: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    let packet = setting(conn, "max_allowed_packet").await?;
    Ok(packet
        .and_then(|text| text.parse().ok())
        .unwrap_or(u64::MAX))
}
