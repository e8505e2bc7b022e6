use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};

use crate::tables::{Tables, substitute};

/// The published SQL files of one database, oldest first.
pub(super) type Published = &'static [(i64, &'static str, &'static str)];

/// A migrator for these tables, with a ledger of its own beside the application's `_sqlx_migrations`. `quoted` is how
/// the database quotes a name.
pub(super) fn migrator(
    published: Published,
    tables: &Tables,
    schema: Option<&str>,
    quoted: fn(&str) -> String,
) -> Migrator {
    let qualified = |name: &str| match schema {
        Some(schema) => format!("{}.{}", quoted(schema), quoted(name)),
        None => quoted(name),
    };
    let words = [
        (
            "inbox_processed_messages",
            qualified(tables.processed_name()),
        ),
        (
            "inbox_processed_messages_received_at",
            quoted(&format!("{}_received_at", tables.processed_name())),
        ),
        ("inbox_dead_letters", qualified(tables.dead_letters_name())),
        (
            "inbox_dead_letters_open",
            quoted(&format!("{}_open", tables.dead_letters_name())),
        ),
        ("inbox_attempts", qualified(tables.attempts_name())),
        (
            "inbox_attempts_last_failed_at",
            quoted(&format!("{}_last_failed_at", tables.attempts_name())),
        ),
        ("inbox_messages", qualified(tables.messages_name())),
        (
            "inbox_messages_due",
            quoted(&format!("{}_due", tables.messages_name())),
        ),
        (
            "inbox_messages_claimed",
            quoted(&format!("{}_claimed", tables.messages_name())),
        ),
    ];
    let migrations = published
        .iter()
        .map(|(version, description, sql)| {
            Migration::new(
                *version,
                (*description).into(),
                MigrationType::Simple,
                AssertSqlSafe(substitute(sql, &words)).into_sql_str(),
                false,
            )
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    migrator.dangerous_set_table_name(qualified(tables.migrations_name()));
    if let Some(schema) = schema {
        migrator.create_schema(quoted(schema));
    }
    migrator
}
