BEGIN;
-- Consumers that start at the same moment would otherwise meet in CREATE TABLE.
SELECT pg_advisory_xact_lock(hashtextextended('inbox example billing', 0));
CREATE TABLE IF NOT EXISTS example_accounts (id TEXT PRIMARY KEY, balance_cents BIGINT NOT NULL);
-- No unique key on order_id in these two, on purpose: nothing but the inbox prevents a second row.
CREATE TABLE IF NOT EXISTS example_ledger (
    entry BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id TEXT NOT NULL,
    account TEXT NOT NULL,
    amount_cents BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS example_receipts (
    receipt BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id TEXT NOT NULL,
    written_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
COMMIT;
