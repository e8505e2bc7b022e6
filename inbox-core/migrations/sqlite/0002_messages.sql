-- One row per (consumer, message) that waits in the database: for its next attempt, or to be replayed. The consumer ''
-- stands for whoever takes its type.
CREATE TABLE inbox_messages (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_name   TEXT NOT NULL,
    message_id      TEXT NOT NULL,
    source          TEXT NOT NULL,
    status          TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processing', 'done')),
    headers         TEXT NOT NULL,
    payload         BLOB NOT NULL,
    stored_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    next_attempt_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    claimed_at      TEXT,
    claimed_by      TEXT,
    claim_token     TEXT,
    UNIQUE (message_id, consumer_name)
);
CREATE INDEX inbox_messages_due ON inbox_messages (next_attempt_at) WHERE status = 'pending';
CREATE INDEX inbox_messages_claimed ON inbox_messages (claimed_at) WHERE status = 'processing';

-- Starts of an attempt that nobody saw end.
ALTER TABLE inbox_attempts ADD COLUMN starts INTEGER NOT NULL DEFAULT 0;

-- How often a person had it replayed, and who did it last.
ALTER TABLE inbox_dead_letters ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox_dead_letters ADD COLUMN replayed_by TEXT;

-- What is older than the retention is found by it.
CREATE INDEX inbox_attempts_last_failed_at ON inbox_attempts (last_failed_at);
