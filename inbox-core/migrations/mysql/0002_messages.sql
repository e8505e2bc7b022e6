-- One row per (consumer, message) that waits in the database: for its next attempt, or to be replayed. The consumer ''
-- stands for whoever takes its type.
CREATE TABLE IF NOT EXISTS inbox_messages (
    id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer_name   VARBINARY(255) NOT NULL,
    message_id      VARBINARY(255) NOT NULL,
    source          TEXT NOT NULL,
    status          VARCHAR(16) NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'processing', 'done')),
    headers         LONGTEXT NOT NULL,
    payload         LONGBLOB NOT NULL,
    stored_at       DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    next_attempt_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    claimed_at      DATETIME(6),
    claimed_by      TEXT,
    claim_token     VARCHAR(255),
    UNIQUE (message_id, consumer_name),
    KEY inbox_messages_due (status, next_attempt_at),
    KEY inbox_messages_claimed (status, claimed_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
