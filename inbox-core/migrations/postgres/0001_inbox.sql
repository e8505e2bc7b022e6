-- One row per (consumer, message) whose effect is committed: the dedup key, written by the claim.
CREATE TABLE inbox_processed_messages (
    message_id     text COLLATE "C" NOT NULL CHECK (message_id <> ''),
    consumer_name  text COLLATE "C" NOT NULL CHECK (consumer_name <> ''),
    received_at    timestamptz NOT NULL DEFAULT now(),
    message_type   text,
    correlation_id text,
    payload_hash   bytea,
    PRIMARY KEY (message_id, consumer_name)
);
CREATE INDEX inbox_processed_messages_received_at ON inbox_processed_messages (received_at);

-- One row per message that failed for good. Removed by a person only.
CREATE TABLE inbox_dead_letters (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entry_key       bytea NOT NULL UNIQUE,
    source          text NOT NULL,
    consumer_name   text COLLATE "C",
    message_id      text COLLATE "C",
    message_type    text,
    handler         text,
    reason          text NOT NULL,
    failure         text NOT NULL,
    attempts        integer NOT NULL,
    headers         text NOT NULL,
    payload         bytea NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT now(),
    last_failed_at  timestamptz NOT NULL DEFAULT now(),
    replayed_at     timestamptz
);
CREATE INDEX inbox_dead_letters_open ON inbox_dead_letters (message_id, consumer_name) WHERE replayed_at IS NULL;

-- One row per (consumer, message) with at least one counted failure; removed by success.
CREATE TABLE inbox_attempts (
    message_id      text COLLATE "C" NOT NULL,
    consumer_name   text COLLATE "C" NOT NULL,
    attempts        integer NOT NULL,
    first_failed_at timestamptz NOT NULL DEFAULT now(),
    last_failed_at  timestamptz NOT NULL DEFAULT now(),
    last_failure    text NOT NULL,
    PRIMARY KEY (message_id, consumer_name)
);
