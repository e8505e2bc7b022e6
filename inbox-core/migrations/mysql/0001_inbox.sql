-- Each statement can be run again: MariaDB and MySQL commit every one of them by itself.

-- One row per (consumer, message) whose effect is committed: the dedup key, written by the claim.
CREATE TABLE IF NOT EXISTS inbox_processed_messages (
    message_id     VARBINARY(255) NOT NULL CHECK (message_id <> ''),
    consumer_name  VARBINARY(255) NOT NULL CHECK (consumer_name <> ''),
    received_at    DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    message_type   TEXT,
    correlation_id TEXT,
    payload_hash   VARBINARY(33),
    claim_nonce    BIGINT UNSIGNED,
    PRIMARY KEY (message_id, consumer_name),
    KEY inbox_processed_messages_received_at (received_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per message that failed for good. Removed by a person only.
CREATE TABLE IF NOT EXISTS inbox_dead_letters (
    id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    entry_key       VARBINARY(64) NOT NULL UNIQUE,
    source          TEXT NOT NULL,
    consumer_name   VARBINARY(255),
    message_id      VARBINARY(8000),
    message_type    TEXT,
    handler         TEXT,
    reason          VARCHAR(255) NOT NULL,
    failure         TEXT NOT NULL,
    attempts        INT NOT NULL,
    headers         LONGTEXT NOT NULL,
    payload         LONGBLOB NOT NULL,
    first_failed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    last_failed_at  DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    replayed_at     DATETIME(6),
    replays         INT NOT NULL DEFAULT 0,
    replayed_by     TEXT,
    KEY inbox_dead_letters_open (message_id(255), consumer_name, replayed_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per (consumer, message) with at least one counted failure; removed by success. Its starts are those that
-- nobody saw end.
CREATE TABLE IF NOT EXISTS inbox_attempts (
    message_id      VARBINARY(255) NOT NULL,
    consumer_name   VARBINARY(255) NOT NULL,
    attempts        INT NOT NULL,
    first_failed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    last_failed_at  DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    last_failure    TEXT NOT NULL,
    starts          INT NOT NULL DEFAULT 0,
    PRIMARY KEY (message_id, consumer_name),
    KEY inbox_attempts_last_failed_at (last_failed_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
