-- One row per (consumer, message) that waits in the database: for its next attempt, or to be replayed. The consumer ''
-- stands for whoever takes its type.
CREATE TABLE inbox_messages (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_name   text COLLATE "C" NOT NULL,
    message_id      text COLLATE "C" NOT NULL,
    source          text NOT NULL,
    status          text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processing', 'done')),
    headers         text NOT NULL,
    payload         bytea NOT NULL,
    stored_at       timestamptz NOT NULL DEFAULT now(),
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    claimed_at      timestamptz,
    claimed_by      text,
    claim_token     text,
    UNIQUE (message_id, consumer_name)
);
CREATE INDEX inbox_messages_due ON inbox_messages (next_attempt_at) WHERE status = 'pending';
CREATE INDEX inbox_messages_claimed ON inbox_messages (claimed_at) WHERE status = 'processing';

-- Starts of an attempt that nobody saw end.
ALTER TABLE inbox_attempts ADD COLUMN starts integer NOT NULL DEFAULT 0;

-- How often a person had it replayed, and who did it last.
ALTER TABLE inbox_dead_letters ADD COLUMN replays integer NOT NULL DEFAULT 0;
ALTER TABLE inbox_dead_letters ADD COLUMN replayed_by text;

-- What is older than the retention is found by it.
CREATE INDEX inbox_attempts_last_failed_at ON inbox_attempts (last_failed_at);
