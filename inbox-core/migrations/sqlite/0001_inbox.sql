-- One row per (consumer, message) whose effect is committed: the dedup key, written by the claim.
CREATE TABLE inbox_processed_messages (
    message_id     TEXT NOT NULL CHECK (message_id <> ''),
    consumer_name  TEXT NOT NULL CHECK (consumer_name <> ''),
    received_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    message_type   TEXT,
    correlation_id TEXT,
    payload_hash   BLOB,
    PRIMARY KEY (message_id, consumer_name)
) WITHOUT ROWID;
CREATE INDEX inbox_processed_messages_received_at ON inbox_processed_messages (received_at);

-- One row per message that failed for good. Removed by a person only.
CREATE TABLE inbox_dead_letters (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    entry_key       BLOB NOT NULL UNIQUE,
    source          TEXT NOT NULL,
    consumer_name   TEXT,
    message_id      TEXT,
    message_type    TEXT,
    handler         TEXT,
    reason          TEXT NOT NULL,
    failure         TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    headers         TEXT NOT NULL,
    payload         BLOB NOT NULL,
    first_failed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    last_failed_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    replayed_at     TEXT
);
CREATE INDEX inbox_dead_letters_open ON inbox_dead_letters (message_id, consumer_name) WHERE replayed_at IS NULL;

-- One row per (consumer, message) with at least one counted failure; removed by success.
CREATE TABLE inbox_attempts (
    message_id      TEXT NOT NULL,
    consumer_name   TEXT NOT NULL,
    attempts        INTEGER NOT NULL,
    first_failed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    last_failed_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    last_failure    TEXT NOT NULL,
    PRIMARY KEY (message_id, consumer_name)
) WITHOUT ROWID;
