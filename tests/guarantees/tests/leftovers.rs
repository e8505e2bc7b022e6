//! What a handler leaves half-done on its session decides about no message: not about its own, and not about the
//! one that comes next.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use futures_util::StreamExt as _;
use inbox_guarantees::dispatch::is_shared;
use inbox_guarantees::script::{Script, Stage, Step, run, swallow};
use inbox_guarantees::{
    OrderPlaced, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
};
use inbox_runtime::{Handler, HandlerError, MessageId, State, Tx, inbox_handler};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor as _, MySql, Postgres, Sqlite};

/// A row that only COMMIT refuses.
const ORPHAN: &str = "INSERT INTO child VALUES ('nobody')";
const CHILD: &str =
    "CREATE TABLE child (account text REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)";

async fn stage<H: Handler>(sandbox: &Sandbox<H::Db>, script: Script, handler: H) -> Stage
where
    H::Db: TestDatabase,
{
    Stage::start(&sandbox.pool, script, handler, |builder| builder).await
}

/// What each database lets a handler leave behind.
trait Leftovers: TestDatabase {
    /// Lets the session, or what is left of the transaction, write no more, and is done with it.
    const READ_ONLY: &str;
}

impl Leftovers for Postgres {
    const READ_ONLY: &str = "SET TRANSACTION READ ONLY";
}

impl Leftovers for MySql {
    const READ_ONLY: &str = "SET SESSION TRANSACTION READ ONLY";
}

impl Leftovers for Sqlite {
    const READ_ONLY: &str = "PRAGMA query_only = ON";
}

on_each_database! {
    #[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 3)]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await
    }

    /// Like [`charge`]; m-1 leaves answers behind that nobody reads.
    #[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 3)]
    async fn looks_away(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        if id.as_str() == "m-1" {
            for answers in ["SELECT id FROM accounts", "SELECT 1; SELECT 2; SELECT 3; SELECT 4"] {
                let mut rows = sqlx::raw_sql(answers).fetch(&mut *tx);
                let _ = rows.next().await;
            }
        }
        script.play(&id, tx).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn answers_that_a_handler_did_not_read_decide_about_no_message() {
        let sandbox = Db::fresh(2).await;
        let script = Script::default().always("m-1", [swallow("SELECT 42")]);
        let stage = stage(&sandbox, script, looks_away::handler()).await;
        for id in ["m-1", "m-2", "m-3"] {
            stage.publish(id);
        }
        all_acked(&stage.broker).await;
        for id in ["m-1", "m-2", "m-3"] {
            sandbox.assert_stored_once(id).await;
            assert_eq!(stage.script.runs(id), 1, "{id}");
        }
        stage.stop().await;
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_ends_read_only_is_no_success_by_half_and_stops_nobody() {
        let sandbox = Db::fresh(2).await;
        let runs = [vec![Step::Fail("out of stock")], vec![run(Db::READ_ONLY)]];
        let stage = stage(&sandbox, Script::default().first("m-1", runs), charge::handler()).await;
        stage.deliver("m-1").await;
        stage.deliver("m-2").await;
        if sandbox.dead_letters().await.is_empty() {
            sandbox.assert_stored_once("m-1").await;
        } else {
            assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
            assert_eq!(sandbox.ledger_rows("m-1").await + sandbox.claims("m-1").await, 0);
        }
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(stage.script.runs("m-2"), 1);
        stage.stop().await;
        Db::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn another_row_in_the_claims_place_is_not_the_claim() {
        let sandbox = Db::fresh(2).await;
        let replaces = [
            run("DELETE FROM inbox_processed_messages"),
            run("INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('other', 'billing')"),
        ];
        let script = Script::default().once("m-1", replaces);
        let stage = stage(&sandbox, script, charge::handler()).await;
        stage.deliver("m-1").await;
        stage.deliver("m-1").await;
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.claims("other").await, 0);
        stage.stop().await;
    }
}

/// Starts to read a COPY and leaves the rest of it in the connection.
async fn half_read_copy(tx: &mut Tx<Postgres>) {
    if let Ok(mut rows) = tx.copy_out_raw("COPY (SELECT 1) TO STDOUT").await {
        let _ = rows.next().await;
    }
}

/// Like [`postgres::charge`]; in m-1's first run it leaves a COPY half-read, and does not look at what comes after.
#[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 3)]
async fn copies(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
    State(script): State<Script>,
) -> Result<(), HandlerError> {
    let first = script.runs(id.as_str()) == 0;
    bill!(Postgres, order, id, tx);
    if id.as_str() == "m-1" && first {
        tx.execute(ORPHAN).await?;
        half_read_copy(tx).await;
        script.play(&id, tx).await?;
    }
    Ok(())
}

/// What the driver takes for the answers to fence and COMMIT belongs to the statements before.
async fn shifted(ignored: &str) {
    let sandbox = Postgres::fresh(2).await;
    Postgres::run(&sandbox.pool, CHILD).await;
    let script = Script::default().always("m-1", [swallow(ignored)]);
    let stage = stage(&sandbox, script, copies::handler()).await;
    for id in ["m-1", "m-2", "m-3"] {
        stage.publish(id);
    }
    all_acked(&stage.broker).await;
    for id in ["m-1", "m-2", "m-3"] {
        sandbox.assert_stored_once(id).await;
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_belongs_to_another_statement_is_no_commit() {
    shifted("SELECT 42").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_answers_as_a_commit_has_are_no_commit() {
    shifted("SELECT 1; SELECT 2; SELECT 3; SELECT 4").await;
}

/// Like [`postgres::charge`]; m-1 leaves two answers more than were read.
#[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 3)]
async fn copies_twice(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
    State(script): State<Script>,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    if id.as_str() == "m-1" {
        half_read_copy(tx).await;
        half_read_copy(tx).await;
        script.play(&id, tx).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_belongs_to_another_statement_makes_no_duplicate_of_the_next_message() {
    let sandbox = Postgres::fresh(2).await;
    let ignored = [
        swallow("SET LOCAL app.a = 'x'"),
        swallow("SET LOCAL app.b = 'x'"),
    ];
    let script = Script::default().always("m-1", ignored);
    let stage = stage(&sandbox, script, copies_twice::handler()).await;
    for id in ["m-1", "m-2", "m-3"] {
        stage.publish(id);
    }
    all_acked(&stage.broker).await;
    for id in ["m-2", "m-3"] {
        sandbox.assert_stored_once(id).await;
    }
    let kept = sandbox.ledger_rows("m-1").await == 1 || sandbox.dead_letters().await.len() == 1;
    assert!(kept, "m-1 is lost");
    stage.stop().await;
}

macro_rules! halves {
    ($db:ty, $name:ident) => {
        /// Bills in a savepoint and writes once more behind it. In the first run of m-1 and m-3 it asks for a savepoint in a
        /// transaction that has failed, which leaves the driver without one.
        #[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 3)]
        async fn $name(
            order: OrderPlaced,
            tx: &mut Tx<$db>,
            id: MessageId,
            State(script): State<Script>,
        ) -> Result<(), HandlerError> {
            let first = script.runs(id.as_str()) == 0;
            if let Err(error) = script.play(&id, tx).await {
                if first {
                    let _ = tx.savepoint().await.map(drop);
                }
                return Err(error);
            }
            let mut half = tx.savepoint().await?;
            bill!($db, order, id, half);
            half.release().await?;
            tx.execute(
                "INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-2', 1, 'second half')",
            )
            .await?;
            Ok(())
        }
    };
}

halves!(Postgres, halves);
halves!(Sqlite, halves_on_sqlite);

fn raise(code: &str) -> Step {
    run(format!(
        "DO $$ BEGIN RAISE 'conflict' USING ERRCODE = '{code}'; END $$"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_that_failed_does_not_let_the_next_message_commit_by_half() {
    let sandbox = Postgres::fresh(2).await;
    let script = Script::default().once("m-1", [raise("40001")]);
    let stage = stage(&sandbox, script, halves::handler()).await;
    stage.publish("m-1");
    eventually("m-1 ran", || async { stage.script.runs("m-1") > 0 }).await;
    stage.publish("m-2");
    all_acked(&stage.broker).await;
    sandbox.assert_stored_once("m-1").await;
    sandbox.assert_stored_once("m-2").await;
    assert_eq!(sandbox.ledger_rows("second half").await, 2);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_that_failed_leaves_no_open_transaction_to_the_pool() {
    let sandbox = Postgres::fresh(2).await;
    let script = Script::default().once("m-3", [raise("53300")]);
    let stage = stage(&sandbox, script, halves::handler()).await;
    stage.publish("m-3");
    eventually("m-3 ran", || async { stage.script.runs("m-3") > 0 }).await;
    stage.stop().await;
    let mut first = sandbox.pool.acquire().await.unwrap();
    let mut second = sandbox.pool.acquire().await.unwrap();
    first
        .execute("INSERT INTO accounts (id, balance) VALUES ('app-1', 0)")
        .await
        .unwrap();
    second
        .execute("INSERT INTO accounts (id, balance) VALUES ('app-2', 0)")
        .await
        .unwrap();
    let other = sandbox.another_pool(1).await;
    let stored = "SELECT count(*) FROM accounts WHERE id LIKE 'app-%'";
    assert_eq!(Postgres::number(&other, stored).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_savepoint_in_a_transaction_that_has_failed_is_a_failure_that_counts() {
    let sandbox = Postgres::fresh(2).await;
    let script = Script::default().always("m-1", [swallow("SELECT 1/0")]);
    let stage = stage(&sandbox, script, halves::handler()).await;
    stage.deliver("m-1").await;
    assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
    assert_eq!(stage.script.runs("m-1"), 3);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_escape_before_a_savepoint_that_fails_is_told() {
    let sandbox = Postgres::fresh(2).await;
    let script = Script::default().always("m-1", [run("COMMIT")]);
    let stage = stage(&sandbox, script, halves::handler()).await;
    stage.deliver("m-1").await;
    assert_eq!(sandbox.dead_letters().await, ["escaped"]);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_end_after_a_failure_is_a_failure_that_counts() {
    let sandbox = Postgres::fresh(2).await;
    let runs = [
        vec![Step::Fail("out of stock")],
        vec![run("SET TRANSACTION READ ONLY")],
    ];
    let stage = stage(
        &sandbox,
        Script::default().first("m-1", runs),
        postgres::charge::handler(),
    )
    .await;
    stage.deliver("m-1").await;
    assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
    assert_eq!(sandbox.ledger_rows("m-1").await, 0);
    stage.stop().await;
}

/// `swallows` makes a trigger that takes claims away in silence, which MariaDB's cannot do.
async fn swallowed<H: Handler>(handler: H, swallows: &str, no_more: &str)
where
    H::Db: TestDatabase,
{
    let sandbox = H::Db::fresh(2).await;
    H::Db::run(&sandbox.pool, swallows).await;
    let stage = stage(&sandbox, Script::default(), handler).await;
    stage.publish("m-1");
    eventually("several tries", || async {
        stage.verdicts("m-1").len() >= 3
    })
    .await;
    assert_eq!(
        stage.acks("m-1"),
        0,
        "acked without a run and without a claim"
    );
    H::Db::run(&sandbox.pool, no_more).await;
    all_acked(&stage.broker).await;
    sandbox.assert_stored_once("m-1").await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn something_that_swallows_claims_makes_no_duplicates_on_postgres() {
    let swallows = "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; \
                    CREATE TRIGGER swallows BEFORE INSERT ON inbox_processed_messages \
                    FOR EACH ROW EXECUTE FUNCTION swallow()";
    let no_more = "DROP TRIGGER swallows ON inbox_processed_messages";
    swallowed(postgres::charge::handler(), swallows, no_more).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn something_that_swallows_claims_makes_no_duplicates_on_sqlite() {
    let swallows = "CREATE TRIGGER swallows BEFORE INSERT ON inbox_processed_messages \
                    BEGIN SELECT RAISE(IGNORE); END";
    swallowed(sqlite::charge::handler(), swallows, "DROP TRIGGER swallows").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_the_database_that_are_named_like_ours_change_no_id() {
    let sandbox = Postgres::fresh(2).await;
    let same = "CREATE FUNCTION public.convert_from(bytea, text) RETURNS text IMMUTABLE LANGUAGE sql \
                AS $$ SELECT 'same'::text $$";
    Postgres::run(&sandbox.pool, same).await;
    let stage = stage(&sandbox, Script::default(), postgres::charge::handler()).await;
    stage.publish("m-1");
    stage.deliver("m-2").await;
    sandbox.assert_stored_once("m-1").await;
    sandbox.assert_stored_once("m-2").await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_in_a_handlers_search_path_do_not_fool_the_fence() {
    let sandbox = Postgres::fresh(2).await;
    let evil = "CREATE SCHEMA evil; \
                CREATE FUNCTION evil.one(bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS 'SELECT 1::bigint'; \
                CREATE AGGREGATE evil.count(*) (sfunc = evil.one, stype = bigint, initcond = '1')";
    Postgres::run(&sandbox.pool, evil).await;
    let path = "SET LOCAL search_path = evil, pg_catalog, public";
    let script = Script::default().once("m-1", [run(path), run("ROLLBACK AND CHAIN"), run(path)]);
    let stage = stage(&sandbox, script, postgres::charge::handler()).await;
    stage.deliver("m-1").await;
    sandbox.assert_stored_once("m-1").await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_pool_set_stays_as_it_is_whatever_a_backslash_means() {
    let sandbox = Postgres::fresh(2).await;
    let options = PgConnectOptions::clone(&sandbox.pool.connect_options());
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .after_connect(|conn, _| {
            Box::pin(async move {
                conn.execute(r"SET application_name = 'dom\name'").await?;
                Ok(())
            })
        })
        .connect_with(options)
        .await
        .unwrap();
    let script = Script::default()
        .always("m-0", [run("SHOW application_name")])
        .always("m-1", [run("SET standard_conforming_strings = off")])
        .always("m-2", [run("SHOW application_name")]);
    let stage = Stage::start(&pool, script, postgres::charge::handler(), |builder| {
        builder
    })
    .await;
    for id in ["m-0", "m-1", "m-2"] {
        stage.deliver(id).await;
    }
    assert_eq!(stage.script.answers("m-2"), [r"dom\name"]);
    assert_eq!(stage.script.answers("m-0"), stage.script.answers("m-2"));
    stage.stop().await;
}

mod on_sqlite {
    use super::sqlite::charge;
    use super::*;
    use inbox_runtime::Envelope;

    /// SQLite cannot take these back, so the session is closed, and nobody else sees them.
    #[tokio::test(flavor = "multi_thread")]
    async fn settings_and_databases_of_a_handler_end_with_its_message() {
        for (change, look) in [
            (
                "PRAGMA recursive_triggers = ON",
                "SELECT * FROM pragma_recursive_triggers",
            ),
            (
                "PRAGMA ignore_check_constraints = ON",
                "SELECT * FROM pragma_ignore_check_constraints",
            ),
            ("PRAGMA query_only = ON", "SELECT * FROM pragma_query_only"),
            (
                "PRAGMA locking_mode = EXCLUSIVE",
                "SELECT locking_mode = 'exclusive' FROM pragma_locking_mode",
            ),
            (
                "ATTACH ':memory:' AS other",
                "SELECT count(*) FROM pragma_database_list WHERE name = 'other'",
            ),
        ] {
            for end in [None, Some(Step::Fail("out of stock"))] {
                let sandbox = Sqlite::fresh(2).await;
                let fails = end.is_some();
                let script = Script::default()
                    .always("m-1", [Some(swallow(change)), end].into_iter().flatten())
                    .always("m-2", [run(look)]);
                let stage =
                    Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
                stage.deliver("m-1").await;
                stage.deliver("m-2").await;
                assert_eq!(stage.script.answers("m-2"), ["0"], "{change}");
                assert_eq!(sandbox.attempts("m-2").await, 0, "{change}");
                sandbox.assert_stored_once("m-2").await;
                assert_eq!(
                    sandbox.dead_letters().await.len(),
                    usize::from(fails),
                    "{change}"
                );
                stage.stop().await;
                let mut first = sandbox.pool.acquire().await.unwrap();
                let mut second = sandbox.pool.acquire().await.unwrap();
                for conn in [&mut first, &mut second] {
                    let value: i64 = sqlx::query_scalar(look)
                        .fetch_one(&mut **conn)
                        .await
                        .unwrap();
                    assert_eq!(value, 0, "{change}");
                    conn.execute("UPDATE accounts SET balance = balance")
                        .await
                        .unwrap();
                }
            }
        }
    }

    /// m-1 leaves a temporary trigger that swallows what is written to a table of ours.
    async fn swallowing(table: &str) -> (Sandbox<Sqlite>, Stage) {
        let sandbox = Sqlite::fresh(2).await;
        let trigger = format!(
            "CREATE TEMP TRIGGER swallows BEFORE INSERT ON main.{table} BEGIN SELECT RAISE(IGNORE); END"
        );
        let script = Script::default().always("m-1", [run(trigger)]);
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        (sandbox, stage)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_temporary_trigger_of_a_handler_swallows_no_claim_of_the_next_message() {
        let (sandbox, stage) = swallowing("inbox_processed_messages").await;
        stage.deliver("m-2").await;
        sandbox.assert_stored_once("m-2").await;
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_temporary_trigger_of_a_handler_swallows_no_dead_letter() {
        let (sandbox, stage) = swallowing("inbox_dead_letters").await;
        let nameless = Envelope::new(r#"{"account":"acc-1","amount":100}"#);
        stage
            .broker
            .publish("orders", nameless.message_type("OrderPlaced"));
        all_acked(&stage.broker).await;
        assert_eq!(sandbox.dead_letters().await, ["invalid_id"]);
        stage.stop().await;
    }

    /// The constraint takes the whole transaction back, and a savepoint would begin another one.
    const LOSES: &str = "INSERT OR ROLLBACK INTO accounts (id, balance) VALUES ('acc-1', 0)";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_savepoint_after_a_lost_transaction_does_not_let_a_message_commit_by_half() {
        let sandbox = Sqlite::fresh(2).await;
        let script = Script::default().once("m-1", [run(LOSES)]);
        let stage = stage(&sandbox, script, halves_on_sqlite::handler()).await;
        stage.publish("m-1");
        eventually("m-1 ran", || async { stage.script.runs("m-1") > 0 }).await;
        stage.publish("m-2");
        all_acked(&stage.broker).await;
        sandbox.assert_stored_once("m-1").await;
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(sandbox.ledger_rows("second half").await, 2);
        stage.stop().await;
        Sqlite::assert_clean(&sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_savepoint_after_a_lost_transaction_is_a_failure_that_counts() {
        let sandbox = Sqlite::fresh(2).await;
        let script = Script::default().always("m-1", [swallow(LOSES)]);
        let stage = stage(&sandbox, script, halves_on_sqlite::handler()).await;
        stage.deliver("m-1").await;
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert_eq!(stage.script.runs("m-1"), 3);
        assert_eq!(sandbox.ledger_total().await, 0);
        stage.stop().await;
        Sqlite::assert_clean(&sandbox.pool).await;
    }
}

/// A HANDLER that is open holds on to its table, and to what its session may read of it.
mod handlers_of_mysql {
    use super::*;
    use sqlx::MySql;

    #[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 3)]
    async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<MySql>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(MySql, order, id, tx);
        script.play(&id, tx).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_open_handler_ends_with_its_message() {
        let sandbox = MySql::fresh(4).await;
        let script = Script::default()
            .always("m-1", [run("HANDLER accounts OPEN AS left_open")])
            .always("m-2", [swallow("HANDLER left_open READ FIRST")]);
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| {
            builder.messages_per_transaction(1)
        })
        .await;
        // One after the other on the same worker, also without a pause between them.
        for _ in 0..3 {
            for id in ["m-1", "m-2"] {
                stage.publish(id);
                // In a batch they would be one piece of work.
                if is_shared() {
                    all_acked(&stage.broker).await;
                }
            }
        }
        all_acked(&stage.broker).await;
        // ER_UNKNOWN_TABLE
        assert_eq!(stage.script.answers("m-1"), [""]);
        assert_eq!(stage.script.answers("m-2"), ["error 42S02"]);
        for id in ["m-1", "m-2"] {
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
        stage.stop().await;
    }
}
