use super::super::Statement;
use super::super::dead_letters::holds;
use super::dead_letters::DeadLetterStatements;
use super::retention::RetentionStatements;
use super::stored::StoredStatements;
use super::{Flavour, backquoted};
use crate::tables::Tables;

/// Statement texts of MariaDB and MySQL, resolved at start-up.
#[derive(Debug)]
pub struct MySqlStatements {
    pub(super) claim: Statement,
    pub(super) history: Statement,
    pub(super) payload_hash: Statement,
    pub(super) trace: Statement,
    pub(super) withdraw: Statement,
    pub(super) dead_letters: DeadLetterStatements,
    pub(super) record_failure: Statement,
    pub(super) note_attempt: Statement,
    pub(super) counted: Statement,
    pub(super) record_start: Statement,
    pub(super) forget_start: Statement,
    pub(super) forget_only_start: Statement,
    pub(super) forget_uncounted: Statement,
    pub(super) stored: StoredStatements,
    pub(super) retention: RetentionStatements,
    /// The table of claims, quoted and qualified.
    pub(super) processed: String,
    /// Takes away temporary tables of our names, which would be found before ours, where no other trace of them is.
    pub(super) drop_temporary: String,
    pub(super) flavour: Flavour,
}

impl MySqlStatements {
    pub(super) fn new(tables: &Tables, schema: &str, flavour: Flavour) -> Self {
        let qualified = |name: &str| format!("{}.{}", backquoted(schema), backquoted(name));
        let processed = qualified(tables.processed_name());
        let dead_letters = qualified(tables.dead_letters_name());
        let attempts = qualified(tables.attempts_name());
        let messages = qualified(tables.messages_name());
        let key = "message_id = ? AND consumer_name = ?";
        let now = "UTC_TIMESTAMP(6)";
        let drop_temporary = if flavour.is_mariadb {
            String::new()
        } else {
            format!(
                "DROP TEMPORARY TABLE IF EXISTS {processed}, {dead_letters}, {attempts}, {messages}; "
            )
        };
        Self {
            claim: Statement::new(format!(
                "INSERT INTO {processed} \
                 (message_id, consumer_name, message_type, correlation_id, payload_hash, claim_nonce) \
                 VALUES (?, ?, ?, ?, ?, ?)"
            )),
            history: Statement::new(format!(
                "SELECT CAST(COALESCE((SELECT attempts FROM {attempts} WHERE {key}), 0) AS SIGNED), \
                 CAST(COALESCE((SELECT starts FROM {attempts} WHERE {key}), 0) AS SIGNED), \
                 CAST(EXISTS (SELECT 1 FROM {dead_letters} WHERE {key} AND replayed_at IS NULL AND {holds}) AS SIGNED), \
                 CAST(EXISTS (SELECT 1 FROM {messages} WHERE {key} AND status <> 'done') AS SIGNED)",
                holds = holds()
            )),
            // Locking, for a snapshot of the transaction may be older than the claim.
            payload_hash: Statement::new(format!(
                "SELECT payload_hash FROM {processed} WHERE {key} LOCK IN SHARE MODE"
            )),
            // Locking, so that it waits for the end of a transaction whose COMMIT may still come.
            trace: Statement::new(format!(
                "SELECT claim_nonce FROM {processed} WHERE {key} LOCK IN SHARE MODE"
            )),
            withdraw: Statement::new(format!("DELETE FROM {processed} WHERE {key}")),
            dead_letters: DeadLetterStatements::new(&dead_letters, &attempts, &messages),
            record_failure: Statement::new(format!(
                "INSERT INTO {attempts} (message_id, consumer_name, attempts, last_failure) \
                 VALUES (?, ?, 1, ?) ON DUPLICATE KEY UPDATE attempts = attempts + 1, \
                 starts = GREATEST(starts - ?, 0), last_failed_at = {now}, last_failure = VALUES(last_failure)"
            )),
            // Locks the row, which is there then.
            note_attempt: Statement::new(format!(
                "INSERT INTO {attempts} (message_id, consumer_name, attempts, starts, last_failure) \
                 VALUES (?, ?, 0, 0, '') ON DUPLICATE KEY UPDATE starts = starts"
            )),
            counted: Statement::new(format!(
                "SELECT CAST(attempts AS SIGNED), CAST(starts AS SIGNED) FROM {attempts} WHERE {key} FOR UPDATE"
            )),
            record_start: Statement::new(format!(
                "UPDATE {attempts} SET starts = starts + 1, last_failed_at = {now} WHERE {key}"
            )),
            forget_start: Statement::new(format!(
                "UPDATE {attempts} SET starts = GREATEST(starts - 1, 0) WHERE {key}"
            )),
            forget_only_start: Statement::new(format!(
                "DELETE FROM {attempts} WHERE {key} AND attempts = 0 AND starts <= 1"
            )),
            forget_uncounted: Statement::new(format!(
                "DELETE FROM {attempts} WHERE {key} AND attempts = 0 AND starts = 0"
            )),
            stored: StoredStatements::new(&messages),
            retention: RetentionStatements::new(&processed, &attempts, &dead_letters, &messages),
            processed,
            drop_temporary,
            flavour,
        }
    }
}
