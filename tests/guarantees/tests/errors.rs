//! Which error means what: only a handler's own failures count against its message, conflicts are tried again
//! within bounds, and what is the database's fault loses and counts nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use inbox_guarantees::dispatch::{assert_runs, runs};
use inbox_guarantees::script::{Script, ScriptDatabase, Stage, Step, run, swallow};
use inbox_guarantees::{
    OrderPlaced, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database, order,
};
use inbox_runtime::{
    Handler, HandlerError, MessageId, RetryPolicy, State, Tx, Verdict, inbox_handler,
};

on_each_database! {
    #[inbox_handler(consumer = "billing", timeout = "1s", max_attempts = 2)]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await
    }

    #[inbox_handler(consumer = "billing", max_attempts = 5, retry(first = "200ms"))]
    async fn charge_with_delays(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await
    }

    /// A fresh database and a worker on it.
    pub(super) async fn stage(script: Script) -> (Sandbox<Db>, Stage) {
        let sandbox = Db::fresh(4).await;
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
        (sandbox, stage)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_panics_is_counted_and_its_worker_goes_on() {
        let (sandbox, stage) = stage(Script::default().once("m-1", [Step::Panic("boom")])).await;
        stage.publish("m-1");
        stage.deliver("m-2").await;
        for id in ["m-1", "m-2"] {
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(stage.script.runs("m-1"), 2);
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
        assert_eq!(sandbox.attempts("m-1").await, 0, "success forgets the failures");
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failing_message_waits_as_its_handler_says_and_holds_nobody_up() {
        let sandbox = Db::fresh(4).await;
        let script = Script::default().always("m-1", [Step::Fail("always")]);
        // The builder's delays would be over much sooner.
        let stage = Stage::start(&sandbox.pool, script, charge_with_delays::handler(), |builder| {
            builder.retry(RetryPolicy::default().first_delay(Duration::from_millis(1)))
        })
        .await;
        let good: Vec<String> = (0..20).map(|n| format!("good-{n}")).collect();
        stage.publish("m-1");
        for id in &good {
            stage.publish(id);
        }
        eventually("the good ones are acked", || async { good.iter().all(|id| stage.acks(id) == 1) }).await;
        let runs_before = stage.script.runs("m-1");
        all_acked(&stage.broker).await;
        assert!(runs_before < *runs(5).end(), "the good ones waited for the retries");
        for id in &good {
            sandbox.assert_stored_once(id).await;
        }
        let starts = stage.script.starts("m-1");
        assert_runs(starts.len(), 5, "max_attempts is 5");
        // Each wait is at least its step: 200, 400, 800, 1600 ms. There is none before it is alone.
        let alone = &starts[starts.len() - 5..];
        for (n, pair) in alone.windows(2).enumerate() {
            let gap = pair[1] - pair[0];
            assert!(gap >= Duration::from_millis(200 << n), "wait {n} is too short: {gap:?}");
        }
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert_eq!(stage.acks("m-1"), 1);
        assert_eq!(sandbox.ledger_rows("m-1").await + sandbox.claims("m-1").await, 0);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_missing_claim_table_counts_nothing_and_its_return_is_noticed() {
        let (sandbox, stage) = stage(Script::default()).await;
        stage.deliver("m-0").await;
        Db::run(&sandbox.pool, "ALTER TABLE inbox_processed_messages RENAME TO gone").await;
        stage.publish("m-1");
        eventually("two tries", || async { stage.verdicts("m-1").len() >= 2 }).await;
        let handed_back = stage.acks("m-1") == 0;
        Db::run(&sandbox.pool, "ALTER TABLE gone RENAME TO inbox_processed_messages").await;
        all_acked(&stage.broker).await;
        assert!(handed_back, "acked without a claim");
        assert_eq!(stage.script.runs("m-1"), 1, "the handler ran without a claim");
        assert_eq!(sandbox.attempts("m-1").await, 0);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_copy_that_is_held_elsewhere_counts_nothing_and_is_settled_by_its_end() {
        for committed in [false, true] {
            let sandbox = Db::fresh(4).await;
            let stage = Stage::start(&sandbox.pool, Script::default(), charge::handler(), |builder| {
                builder.claim_wait(Duration::from_millis(200))
            })
            .await;
            let mut elsewhere = sandbox.pool.begin().await.unwrap();
            let claim = "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('m-1', 'billing')";
            sqlx::query::<Db>(claim).execute(&mut *elsewhere).await.unwrap();
            stage.publish("m-1");
            eventually("two tries", || async { stage.verdicts("m-1").len() >= 2 }).await;
            let (acks, runs) = (stage.acks("m-1"), stage.script.runs("m-1"));
            if committed {
                elsewhere.commit().await.unwrap();
            } else {
                elsewhere.rollback().await.unwrap();
            }
            all_acked(&stage.broker).await;
            assert_eq!((acks, runs), (0, 0), "while the copy is open elsewhere");
            assert_eq!(sandbox.attempts("m-1").await, 0);
            assert_eq!(stage.acks("m-1"), 1);
            assert_eq!(sandbox.claims("m-1").await, 1);
            let expected = if committed { 0 } else { 1 };
            assert_eq!(sandbox.ledger_rows("m-1").await, expected);
            assert_eq!(stage.script.runs("m-1"), usize::from(!committed));
            assert_eq!(sandbox.dead_letters().await, [""; 0]);
            stage.stop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_times_out_leaves_nothing_and_frees_its_locks() {
        for step in [Step::Sleep(Duration::from_secs(30)), swallow(<Db as Long>::STATEMENT)] {
            let sandbox = Db::fresh(4).await;
            let retry = RetryPolicy::default().first_delay(Duration::from_secs(3));
            let script = Script::default().once("m-1", [step]);
            let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder.retry(retry)).await;
            stage.publish("m-1");
            eventually("the time-out", || async { !stage.verdicts("m-1").is_empty() }).await;
            assert_eq!(stage.acks("m-1"), 0);
            let freed = Instant::now();
            Db::run(&sandbox.pool, "UPDATE accounts SET balance = balance WHERE id = 'acc-1'").await;
            assert!(freed.elapsed() < Duration::from_secs(2), "the account stayed locked");
            assert_eq!(sandbox.ledger_total().await + sandbox.claims_total().await, 0);
            assert_eq!(sandbox.attempts("m-1").await, 1);
            all_acked(&stage.broker).await;
            sandbox.assert_stored_once("m-1").await;
            assert_eq!(stage.script.runs("m-1"), 2);
            stage.stop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn many_messages_in_a_row_that_fail_stop_the_dead_letters_until_one_succeeds() {
        let mut script = Script::default();
        let ids: Vec<String> = (0..28).map(|n| format!("bad-{n}")).collect();
        for id in &ids {
            script = script.always(id, [Step::Fail("the dependency is down")]);
        }
        let sandbox = Db::fresh(4).await;
        let retry = RetryPolicy::default()
            .first_delay(Duration::from_millis(10))
            .longest_delay(Duration::from_millis(100));
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| {
            builder.retry(retry).broken_after(25)
        })
        .await;
        for id in &ids {
            stage.publish(id);
        }
        eventually("25 dead letters, and three that are tried on", || async {
            sandbox.dead_letters().await.len() == 25
                && ids.iter().filter(|id| stage.script.runs(id) > *runs(3).end()).count() == 3
        })
        .await;
        assert_eq!(sandbox.dead_letters().await.len(), 25);
        // The success lets the others go.
        stage.deliver("good").await;
        assert_eq!(sandbox.dead_letters().await.len(), 28);
        assert_eq!(sandbox.ledger_total().await, 1);
        stage.stop().await;
    }
}

/// MariaDB has no constraint that waits for COMMIT.
mod deferred_constraints {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_that_one_refuses_is_counted_and_ends_as_a_dead_letter_on_postgres() {
        refused(postgres::charge::handler()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_that_one_refuses_is_counted_and_ends_as_a_dead_letter_on_sqlite() {
        refused(sqlite::charge::handler()).await;
    }

    async fn refused<Db: TestDatabase, H: Handler<Db = Db>>(handler: H) {
        let sandbox = Db::fresh(4).await;
        let table = "CREATE TABLE refunds (ledger_id BIGINT NOT NULL REFERENCES accounts_of_refunds (id) \
                     DEFERRABLE INITIALLY DEFERRED)";
        Db::run(
            &sandbox.pool,
            "CREATE TABLE accounts_of_refunds (id BIGINT PRIMARY KEY)",
        )
        .await;
        Db::run(&sandbox.pool, table).await;
        let insert = run("INSERT INTO refunds (ledger_id) VALUES (7)");
        let script = Script::default().always("m-1", [insert]);
        let stage = Stage::start(&sandbox.pool, script, handler, |builder| builder).await;
        stage.publish("m-1");
        stage.deliver("m-2").await;
        assert_runs(stage.script.runs("m-1"), 2, "max_attempts is 2");
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert!(sandbox.dead_letter_texts().await[0].contains("COMMIT was refused"));
        assert_eq!(
            sandbox.ledger_rows("m-1").await + sandbox.claims("m-1").await,
            0
        );
        assert_eq!(stage.acks("m-1"), 1);
        sandbox.assert_stored_once("m-2").await;
        stage.stop().await;
    }
}

/// A statement that runs for much longer than the handler may.
trait Long {
    const STATEMENT: &'static str;
}

impl Long for sqlx::Postgres {
    const STATEMENT: &'static str = "SELECT pg_sleep(30)";
}

impl Long for sqlx::MySql {
    // SLEEP would notice by itself that its client is gone.
    const STATEMENT: &'static str = "SELECT BENCHMARK(1000000000000, MD5('a'))";
}

impl Long for sqlx::Sqlite {
    const STATEMENT: &'static str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000000) \
         SELECT count(*) FROM n";
}

/// A message with this conflict in each of its runs.
async fn conflicts_in_every_run<Db: TestDatabase + ScriptDatabase>(
    handler: impl Handler<Db = Db>,
    conflict: String,
) {
    let script = Script::default().always("m-1", [run(conflict)]);
    let sandbox = Db::fresh(4).await;
    let retry = RetryPolicy::default()
        .first_delay(Duration::from_secs(2))
        .transient_runs(5);
    let stage = Stage::start(&sandbox.pool, script, handler, |builder| {
        builder.retry(retry)
    })
    .await;
    stage.publish("m-1");
    stage.publish("m-2");
    eventually("m-2 is acked", || async { stage.acks("m-2") == 1 }).await;
    let runs_before = stage.script.runs("m-1");
    eventually("the bound is reached", || async {
        !stage.verdicts("m-1").is_empty()
    })
    .await;
    assert!(
        runs_before < *runs(5).end(),
        "m-2 waited for the retries of m-1"
    );
    assert!(
        matches!(stage.verdicts("m-1")[..], [Verdict::HandBack { delay: Some(delay) }] if delay > Duration::from_secs(1))
    );
    let starts = stage.script.starts("m-1");
    assert_runs(starts.len(), 5, "transient_runs is 5");
    // Each wait is at least its step: 10, 20, 40, 80 ms. There is none before it is alone.
    let alone = &starts[starts.len() - 5..];
    for (n, pair) in alone.windows(2).enumerate() {
        assert!(
            pair[1] - pair[0] >= Duration::from_millis(10 << n),
            "wait {n} is too short"
        );
    }
    assert_eq!(sandbox.attempts("m-1").await, 1);
    assert_eq!(sandbox.ledger_rows("m-1").await, 0);
    stage.stop().await;
}

mod on_postgres {
    use super::postgres::{charge, stage};
    use super::*;
    use sqlx::Postgres;

    fn raise(code: &str) -> String {
        format!("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_conflict_is_tried_again_within_the_first_attempt() {
        let mut script = Script::default();
        let codes = ["40001", "40P01", "55P03"];
        for code in codes {
            script = script
                .once(code, [run(raise(code))])
                // As seen through an error type that keeps no source.
                .once(&format!("hidden {code}"), [Step::RunHidden(raise(code))]);
        }
        let (sandbox, stage) = stage(script).await;
        for id in codes
            .iter()
            .flat_map(|code| [(*code).to_owned(), format!("hidden {code}")])
        {
            stage.deliver(&id).await;
            assert_eq!(stage.script.runs(&id), 2, "{id}");
            // Not handed back in between, and no attempt counted.
            assert_eq!(stage.verdicts(&id), [Verdict::Ack], "{id}");
            sandbox.assert_stored_once(&id).await;
        }
        let ever = "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'inbox_attempts'";
        assert_eq!(Postgres::number(&sandbox.pool, ever).await, 0);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_conflict_in_every_run_is_handed_back_after_the_bound_and_holds_nobody_up() {
        conflicts_in_every_run(charge::handler(), raise("40001")).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_lock_timeout_of_the_claim_is_not_the_handlers() {
        let look = || [run("SHOW lock_timeout")];
        let nowait = [
            run("SET LOCAL lock_timeout = '50ms'"),
            run("UPDATE accounts SET balance = balance WHERE id = 'acc-2'"),
        ];
        let script = Script::default().always("m-1", look()).once("m-2", nowait);
        let (sandbox, stage) = stage(script).await;
        stage.deliver("m-1").await;
        assert_eq!(stage.script.answers("m-1"), ["0"]);
        // A lock that the handler does not get in its own time is a conflict, not a copy elsewhere.
        let mut holder = sandbox.pool.begin().await.unwrap();
        sqlx::query("UPDATE accounts SET balance = balance WHERE id = 'acc-2'")
            .execute(&mut *holder)
            .await
            .unwrap();
        stage.deliver("m-2").await;
        holder.rollback().await.unwrap();
        assert_eq!(stage.script.answers("m-2"), ["", "error 55P03"]);
        assert_eq!(stage.script.runs("m-2"), 2);
        assert_eq!(stage.verdicts("m-2"), [Verdict::Ack]);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn missing_privileges_count_nothing_and_their_return_is_noticed() {
        for right in [
            "INSERT ON inbox_processed_messages",
            "SELECT ON inbox_dead_letters",
            // Needed only behind a counted failure.
            "DELETE ON inbox_attempts",
        ] {
            let (sandbox, stage) = stage(Script::default().once("m-1", [Step::Fail("once")])).await;
            let user: String = sqlx::query_scalar("SELECT current_user::text")
                .fetch_one(&sandbox.pool)
                .await
                .unwrap();
            let behind_a_failure = right.starts_with("DELETE");
            if behind_a_failure {
                Postgres::run(&sandbox.pool, &format!("REVOKE {right} FROM {user}")).await;
                stage.publish("m-1");
            } else {
                stage.deliver("m-0").await;
                Postgres::run(&sandbox.pool, &format!("REVOKE {right} FROM {user}")).await;
                stage.publish("m-1");
            }
            // What the database does not let us forget is held, not handed back.
            eventually("three tries", || async {
                stage.verdicts("m-1").len() >= 3 || stage.script.runs("m-1") >= 3
            })
            .await;
            let acked = stage.acks("m-1");
            let counted =
                Postgres::number(&sandbox.pool, "SELECT sum(attempts) FROM inbox_attempts").await;
            Postgres::run(&sandbox.pool, &format!("GRANT {right} TO {user}")).await;
            all_acked(&stage.broker).await;
            assert_eq!(acked, 0, "{right}");
            assert_eq!(
                counted,
                i64::from(behind_a_failure),
                "{right}: only the handler's own failure"
            );
            sandbox.assert_stored_once("m-1").await;
            assert_eq!(sandbox.dead_letters().await, [""; 0], "{right}");
            stage.stop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_backend_that_an_administrator_ends_is_an_outage_and_counts_nothing() {
        let end = [run("SELECT pg_terminate_backend(pg_backend_pid())")];
        let (sandbox, stage) = stage(Script::default().always("m-1", end)).await;
        stage.publish("m-1");
        stage.publish("m-2");
        eventually("more tries than attempts", || async {
            stage.script.runs("m-1") > 3
        })
        .await;
        assert_eq!(stage.acks("m-1"), 0);
        assert_eq!(sandbox.attempts("m-1").await, 0);
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_that_the_message_itself_loses_is_counted() {
        let idle = [
            run("SET LOCAL idle_in_transaction_session_timeout = '100ms'"),
            Step::Sleep(Duration::from_millis(500)),
            run("SELECT 1"),
        ];
        let (sandbox, stage) = stage(Script::default().always("m-1", idle)).await;
        stage.publish("m-1");
        stage.deliver("m-2").await;
        assert_runs(stage.script.runs("m-1"), 2, "max_attempts is 2");
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert_eq!(
            sandbox.ledger_rows("m-1").await + sandbox.claims("m-1").await,
            0
        );
        sandbox.assert_stored_once("m-2").await;
        stage.stop().await;
    }
}

mod on_mysql {
    use super::mysql::{charge, stage};
    use super::*;
    use inbox_guarantees::Running;
    use inbox_runtime::Inbox;
    use inbox_runtime::brokers::MemoryBroker;
    use sqlx::{Executor as _, MySql};

    fn signal(number: u16) -> String {
        format!("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_conflict_is_tried_again_within_the_first_attempt() {
        let mut script = Script::default();
        let numbers = [1213, 1205, 1020];
        for number in numbers {
            script = script
                .once(&number.to_string(), [run(signal(number))])
                // As seen through an error type that keeps no source.
                .once(
                    &format!("hidden {number}"),
                    [Step::RunHidden(signal(number))],
                );
        }
        let (sandbox, stage) = stage(script).await;
        for id in numbers
            .iter()
            .flat_map(|number| [number.to_string(), format!("hidden {number}")])
        {
            stage.deliver(&id).await;
            assert_eq!(stage.script.runs(&id), 2, "{id}");
            // Not handed back in between, and no attempt counted.
            assert_eq!(stage.verdicts(&id), [Verdict::Ack], "{id}");
            sandbox.assert_stored_once(&id).await;
        }
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_conflict_in_every_run_is_handed_back_after_the_bound_and_holds_nobody_up() {
        conflicts_in_every_run(charge::handler(), signal(1213)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_outage_that_the_server_tells_counts_nothing() {
        // Too many connections, shutdown, disk full.
        let script = Script::default().first(
            "m-1",
            [1040, 1053, 1021]
                .map(|number| vec![run(signal(number))])
                .into_iter()
                .chain([Vec::new()]),
        );
        let (sandbox, stage) = stage(script).await;
        stage.deliver("m-1").await;
        assert_eq!(stage.script.runs("m-1"), 4, "max_attempts is 2");
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
        sandbox.assert_stored_once("m-1").await;
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_lock_timeout_of_the_claim_is_not_the_handlers() {
        let look = || [run("SELECT @@innodb_lock_wait_timeout")];
        let nowait = [
            run("SET SESSION innodb_lock_wait_timeout = 0"),
            run("UPDATE accounts SET balance = balance WHERE id = 'acc-2'"),
        ];
        let script = Script::default()
            .always("m-1", look())
            .once("m-2", nowait)
            .always("m-3", look());
        let (sandbox, stage) = stage(script).await;
        stage.deliver("m-1").await;
        // A lock that the handler does not get in its own time is a conflict, not a copy elsewhere.
        let mut holder = sandbox.pool.begin().await.unwrap();
        holder
            .execute("UPDATE accounts SET balance = balance WHERE id = 'acc-2'")
            .await
            .unwrap();
        stage.deliver("m-2").await;
        holder.rollback().await.unwrap();
        stage.deliver("m-3").await;
        assert_eq!(stage.script.answers("m-1"), ["50"]);
        assert_eq!(stage.script.answers("m-2"), ["", "error HY000"]);
        assert_eq!(stage.script.runs("m-2"), 2);
        assert_eq!(stage.verdicts("m-2"), [Verdict::Ack]);
        assert_eq!(stage.script.answers("m-3"), ["50"]);
        sandbox.assert_stored_once("m-2").await;
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_that_is_killed_under_a_handler_is_counted() {
        let kill = [swallow("KILL CONNECTION CONNECTION_ID()"), run("SELECT 1")];
        let (sandbox, stage) = stage(Script::default().always("m-1", kill)).await;
        stage.publish("m-1");
        stage.deliver("m-2").await;
        assert_runs(stage.script.runs("m-1"), 2, "max_attempts is 2");
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
        assert_eq!(
            sandbox.ledger_rows("m-1").await + sandbox.claims("m-1").await,
            0
        );
        sandbox.assert_stored_once("m-2").await;
        stage.stop().await;
    }

    /// When whoever holds the claim rolls back, all who wait for it get a shared lock first, and all but one a deadlock.
    #[tokio::test(flavor = "multi_thread")]
    async fn of_copies_that_wait_for_a_claim_that_is_rolled_back_one_is_processed() {
        let sandbox = MySql::fresh(9).await;
        let mut holder = sandbox.pool.begin().await.unwrap();
        holder
            .execute("INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('m-1', 'billing')")
            .await
            .unwrap();
        let script = Script::default();
        let mut waiting = Vec::new();
        for _ in 0..3 {
            let broker = MemoryBroker::new();
            let inbox = Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders"))
                .register(charge::handler())
                .state(script.clone())
                .concurrency(1)
                .claim_wait(Duration::from_secs(20));
            let running = Running::start(inbox.build().await.unwrap());
            broker.publish("orders", order("m-1"));
            waiting.push((broker, running));
        }
        let claims = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                      WHERE DB = DATABASE() AND INFO LIKE 'INSERT INTO%inbox_processed_messages%'";
        eventually("three claims that wait", || async {
            MySql::number(&sandbox.pool, claims).await == 3
        })
        .await;
        holder.rollback().await.unwrap();
        for (broker, running) in waiting {
            all_acked(&broker).await;
            running.stop().await;
        }
        assert_eq!(script.runs("m-1"), 1);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.attempts("m-1").await, 0);
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
    }

    /// The lock that a refused claim leaves on the existing one must not outlive the look at it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_duplicate_leaves_no_lock_on_the_claim() {
        let (sandbox, stage) = stage(Script::default()).await;
        stage.deliver("m-1").await;
        stage.deliver("m-1").await;
        assert_eq!(stage.acks("m-1"), 2);
        MySql::run(
            &sandbox.pool,
            "SET STATEMENT innodb_lock_wait_timeout = 0 FOR DELETE FROM inbox_processed_messages",
        )
        .await;
        stage.stop().await;
    }
}

mod on_sqlite {
    use super::sqlite::charge;
    use super::*;
    use inbox_guarantees::sqlite_pool;
    use sqlx::Sqlite;

    /// In its first run, writes past its transaction: what that answers is SQLITE_BUSY.
    #[inbox_handler(consumer = "billing")]
    async fn meets_itself(
        order: OrderPlaced,
        tx: &mut Tx<Sqlite>,
        id: MessageId,
        State(script): State<Script>,
        State(other): State<sqlx::SqlitePool>,
    ) -> Result<(), HandlerError> {
        bill!(Sqlite, order, id, tx);
        script.play(&id, tx).await?;
        if script.runs(id.as_str()) == 1 {
            let mut conn = other.acquire().await?;
            sqlx::raw_sql("PRAGMA busy_timeout = 0; BEGIN IMMEDIATE")
                .execute(&mut *conn)
                .await?;
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_busy_database_is_tried_again_within_the_first_attempt() {
        let sandbox = Sqlite::fresh(4).await;
        let other = sqlite_pool(sandbox.url.as_ref(), 1).await;
        let stage = Stage::start(
            &sandbox.pool,
            Script::default(),
            meets_itself::handler(),
            |builder| builder.state(other),
        )
        .await;
        stage.deliver("m-1").await;
        assert_eq!(stage.script.runs("m-1"), 2);
        assert_eq!(stage.verdicts("m-1"), [Verdict::Ack]);
        sandbox.assert_stored_once("m-1").await;
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn writers_wait_for_each_other_instead_of_failing() {
        let sandbox = Sqlite::fresh(4).await;
        let other = sqlite_pool(sandbox.url.as_ref(), 4).await;
        let slow = [
            run("SELECT count(*) FROM ledger"),
            Step::Sleep(Duration::from_millis(100)),
        ];
        let ids: Vec<String> = (0..10).map(|n| format!("m-{n}")).collect();
        let script = |slow: &[Step]| {
            ids.iter().fold(Script::default(), |script, id| {
                script.always(id, slow.to_vec())
            })
        };
        let one = Stage::start(&sandbox.pool, script(&slow), charge::handler(), |builder| {
            builder
        })
        .await;
        let two = Stage::start(&other, script(&slow), charge::handler(), |builder| builder).await;
        for (n, id) in ids.iter().enumerate() {
            let stage = if n % 2 == 0 { &one } else { &two };
            stage.broker.publish("orders", order(id));
        }
        all_acked(&one.broker).await;
        all_acked(&two.broker).await;
        for (n, id) in ids.iter().enumerate() {
            let stage = if n % 2 == 0 { &one } else { &two };
            assert_eq!(stage.verdicts(id), [Verdict::Ack], "{id}");
            assert_eq!(stage.script.runs(id), 1);
            sandbox.assert_stored_once(id).await;
        }
        one.stop().await;
        two.stop().await;
    }
}
