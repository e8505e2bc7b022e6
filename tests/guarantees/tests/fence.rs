//! A handler that ends the inbox transaction, or breaks it and says `Ok`, is never taken for a success: what
//! the database can prevent is prevented, the rest is found by the fence and told.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use inbox_guarantees::dispatch::{InBatches, assert_runs, is_shared};
use inbox_guarantees::script::{Script, ScriptDatabase, Stage, Step, run, swallow};
use inbox_guarantees::{
    OrderPlaced, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database, unique,
};
use inbox_runtime::{Envelope, Handler, HandlerError, MessageId, State, Tx, inbox_handler};

const LATE: &str = "INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-2', 1, 'late')";

/// What one worker made of m-1, and of m-2 behind it.
struct Trial<Db: TestDatabase> {
    sandbox: Sandbox<Db>,
    stage: Stage,
}

impl<Db: TestDatabase + ScriptDatabase> Trial<Db> {
    async fn start<H: Handler<Db = Db>>(sandbox: Sandbox<Db>, script: Script, handler: H) -> Self {
        let stage = Stage::start(&sandbox.pool, script, handler, |builder| {
            builder.claim_wait(Duration::from_millis(300))
        })
        .await;
        Self { sandbox, stage }
    }

    /// Delivers m-1, then m-2, until both are acked.
    async fn of<H: Handler<Db = Db>>(sandbox: Sandbox<Db>, script: Script, handler: H) -> Self {
        let trial = Self::start(sandbox, script, handler).await;
        trial.stage.publish("m-1");
        trial.stage.deliver("m-2").await;
        trial
    }

    fn answers(&self) -> Vec<String> {
        self.stage.script.answers("m-1")
    }

    fn runs(&self) -> usize {
        self.stage.script.runs("m-1")
    }

    /// What each run of m-1 was answered is this.
    fn assert_answered(&self, answers: &[&str]) {
        assert_eq!(self.answers(), answers.repeat(self.runs()));
    }

    /// Why a message is a dead letter.
    async fn reasons(&self, id: &str) -> Vec<String> {
        let sql = format!("SELECT reason FROM inbox_dead_letters WHERE message_id = '{id}'");
        Db::texts(&self.sandbox.pool, &sql).await
    }

    /// What holds whatever m-1 did: nothing was written behind the transaction's back, every delivery was
    /// settled once and m-1 acked once, and the worker goes on.
    async fn common(self) {
        self.common_with(0).await;
    }

    /// The same where so many writes of [`LATE`] were in the transaction.
    async fn common_with(self, late: i64) {
        assert_eq!(self.stage.acks("m-1"), 1);
        assert_eq!(self.stage.acks("m-2"), 1);
        assert_eq!(
            self.sandbox.ledger_rows("late").await,
            late,
            "a write after the end of the transaction"
        );
        let reasons = self.reasons("m-2").await;
        if reasons.is_empty() {
            self.sandbox.assert_stored_once("m-2").await;
        } else {
            // m-1 made durable what was m-2's too, and a person is told.
            assert!(is_shared(), "{reasons:?}");
            assert_eq!(self.reasons("m-1").await, ["escaped"]);
            assert_eq!(reasons, ["escaped"]);
            assert_eq!(self.sandbox.claims("m-2").await, 1);
            assert!(self.sandbox.ledger_rows("m-2").await <= 1);
        }
        self.stage.stop().await;
    }

    async fn only_dead_letter(&self, reason: &str, words: &[&str]) {
        assert_eq!(self.reasons("m-1").await, [reason]);
        let mut letters = 1;
        let mut words = words;
        if is_shared() && reason == "escaped" && self.reasons("m-2").await == [reason] {
            letters = 2;
            words = &["made the inbox transaction durable itself"];
        }
        assert_eq!(self.sandbox.dead_letters().await.len(), letters);
        let text = self.sandbox.dead_letter_texts().await.concat();
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }

    /// m-1 became durable by its handler's doing.
    async fn escaped(self, words: &[&str]) {
        self.only_dead_letter("escaped", words).await;
        self.sandbox.assert_stored_once("m-1").await;
        assert_eq!(self.runs(), 1, "what escaped was repeated");
        assert_eq!(self.stage.acks("m-1"), 1);
        // Its redelivery is a duplicate and leaves the entry alone.
        self.stage.broker.clear_log();
        self.stage.publish("m-1");
        self.stage.deliver("m-2").await;
        self.only_dead_letter("escaped", words).await;
        assert_eq!(self.runs(), 1, "what escaped was repeated");
        self.common().await;
    }

    /// m-1 left nothing behind but its counted failures, and then its dead letter.
    async fn refused(self, words: &[&str]) {
        self.only_dead_letter("attempts_exhausted", words).await;
        assert_eq!(self.sandbox.ledger_rows("m-1").await, 0);
        assert_eq!(self.sandbox.claims("m-1").await, 0);
        assert_runs(self.runs(), 2, "max_attempts is 2");
        self.common().await;
    }

    async fn processed(self) {
        self.processed_with(0).await;
    }

    async fn processed_with(self, late: i64) {
        assert_eq!(self.sandbox.dead_letter_texts().await, [""; 0]);
        self.sandbox.assert_stored_once("m-1").await;
        assert_eq!(self.runs(), 1);
        self.common_with(late).await;
    }

    /// The handler swallowed the answer to a ROLLBACK, and wrote behind it so often.
    async fn after_rollback(self, late: i64, words: &[&str])
    where
        Db: Prevention,
    {
        assert_eq!(self.answers()[0], Db::ANSWERS[0]);
        if Db::REFUSES_ROLLBACK {
            self.processed_with(late).await;
        } else {
            self.refused(words).await;
        }
    }
}

/// How the database keeps a handler in its transaction.
trait Prevention {
    /// What ROLLBACK, and a write behind it, are answered.
    const ANSWERS: [&'static str; 2];
    /// How it refuses a write outside our transaction.
    const TEXT: &'static str;
    /// What is told of a write in a transaction that the handler began itself, and left open.
    const BEGUN: &'static str;
}

impl Prevention for sqlx::Postgres {
    const ANSWERS: [&'static str; 2] = ["", "error 25006"];
    const TEXT: &'static str = "read-only transaction";
    const BEGUN: &'static str = Self::TEXT;
}

impl Prevention for sqlx::MySql {
    const ANSWERS: [&'static str; 2] = [on_mysql::BY_XA, ""];
    const TEXT: &'static str = "XAER_RMFAIL";
    const BEGUN: &'static str = Self::TEXT;
}

impl Prevention for sqlx::Sqlite {
    const ANSWERS: [&'static str; 2] = ["", on_sqlite::BY_HOOK];
    const TEXT: &'static str = "constraint failed";
    const BEGUN: &'static str = ENDED;
}

const ENDED: &str = "ended the inbox transaction itself";

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

    /// Like [`charge`], and forgets m-1's savepoint with the script's work in it.
    #[inbox_handler(consumer = "billing", max_attempts = 2)]
    async fn forgets(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        let mut inner = tx.savepoint().await?;
        script.play(&id, &mut inner).await?;
        if id.as_str() == "m-1" {
            std::mem::forget(inner);
        } else {
            inner.release().await?;
        }
        Ok(())
    }

    pub(super) async fn of(steps: impl IntoIterator<Item = Step>) -> Trial<Db> {
        let script = Script::default().always("m-1", steps);
        Trial::of(Db::fresh(4).await, script, charge::handler()).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rollback_is_not_taken_for_success() {
        of([swallow("ROLLBACK")]).await.after_rollback(0, &[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_write_slips_through_after_rollback() {
        let trial = of([swallow("ROLLBACK"), swallow(LATE)]).await;
        trial.assert_answered(&<Db as Prevention>::ANSWERS);
        trial.after_rollback(1, &[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_error_of_a_write_after_rollback_is_told() {
        of([swallow("ROLLBACK"), run(LATE)]).await.after_rollback(1, &[<Db as Prevention>::TEXT]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_transaction_begun_after_rollback_is_not_ours() {
        of([swallow("ROLLBACK"), swallow("BEGIN")]).await.after_rollback(0, &[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_write_in_a_transaction_begun_after_rollback_is_lost() {
        of([swallow("ROLLBACK"), swallow("BEGIN"), swallow(LATE)])
            .await
            .after_rollback(1, &[<Db as Prevention>::BEGUN])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_transaction_of_the_handlers_own_after_rollback_stores_nothing() {
        let steps = [swallow("ROLLBACK"), swallow("BEGIN"), swallow(LATE), swallow("COMMIT")];
        of(steps).await.after_rollback(1, &[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn savepoints_that_the_handler_leaves_open_are_committed_with_it() {
        of([run("SAVEPOINT a"), run("SAVEPOINT b")]).await.processed().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_forgotten_savepoint_is_told_and_nothing_behind_it_is_lost_in_silence() {
        let script = Script::default().always("m-1", [run(LATE)]);
        let trial = Trial::of(Db::fresh(4).await, script, forgets::handler()).await;
        trial.refused(&["a savepoint was neither released nor rolled back"]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_removes_its_claim_is_not_committed_without_it() {
        for removal in [
            "DELETE FROM inbox_processed_messages",
            "DELETE FROM inbox_processed_messages WHERE received_at >= '2000-01-01'",
            "UPDATE inbox_processed_messages SET message_id = 'other' WHERE message_id = 'm-1'",
        ] {
            of([run(removal)]).await.refused(&["removed or changed its claim"]).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_claim_that_another_process_committed_meanwhile_is_a_duplicate_and_no_escape() {
        let sandbox = Db::fresh(4).await;
        let script = Script::default().always(
            "m-1",
            [swallow("ROLLBACK"), Step::Sleep(Duration::from_millis(400)), Step::Fail("lost")],
        );
        let trial = Trial::start(sandbox, script, charge::handler()).await;
        trial.stage.publish("m-1");
        eventually("the rollback", || async {
            !trial.answers().is_empty()
        })
        .await;
        let elsewhere = "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('m-1', 'billing'); \
                         INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-1', 100, 'm-1'); \
                         UPDATE accounts SET balance = balance + 100 WHERE id = 'acc-1'";
        Db::run(&trial.sandbox.pool, elsewhere).await;
        trial.stage.deliver("m-2").await;
        assert_eq!(trial.runs(), 1);
        assert_eq!(trial.sandbox.dead_letter_texts().await, [""; 0]);
        trial.sandbox.assert_stored_once("m-1").await;
        trial.common().await;
    }
}

mod on_postgres {
    use super::postgres::{charge, of};
    use super::*;
    use sqlx::Postgres;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_swallowed_error_is_not_taken_for_success() {
        let trial = of([swallow("SELECT 1/0")]).await;
        trial
            .refused(&["although a statement of its had failed", "division by zero"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_of_the_handler_is_told_as_an_escape() {
        of([run("COMMIT")]).await.escaped(&["COMMIT", ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_write_slips_through_after_commit() {
        let trial = of([run("COMMIT"), swallow(LATE)]).await;
        assert_eq!(trial.answers(), ["", "error 25006"]);
        trial.escaped(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn commit_and_chain_is_told_and_what_follows_is_rolled_back() {
        let trial = of([run("COMMIT AND CHAIN"), run(LATE)]).await;
        assert_eq!(trial.answers(), ["", ""]);
        trial.escaped(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rollback_and_chain_is_told_and_what_follows_is_rolled_back() {
        let trial = of([run("ROLLBACK AND CHAIN"), run(LATE)]).await;
        trial.refused(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_transaction_begun_after_commit_cannot_write() {
        let trial = of([
            run("COMMIT"),
            run("BEGIN"),
            swallow(LATE),
            swallow("ROLLBACK"),
            run("BEGIN"),
        ])
        .await;
        assert_eq!(trial.answers()[2], "error 25006");
        trial.escaped(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_aborted_transaction_begun_after_commit_hides_no_escape() {
        of([run("COMMIT"), run("BEGIN"), swallow("SELECT 1/0")])
            .await
            .escaped(&[
                "made the inbox transaction durable itself",
                "division by zero",
            ])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_error_after_commit_hides_no_escape() {
        of([run("COMMIT"), Step::Fail("out of stock")])
            .await
            .escaped(&["out of stock"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_after_commit_hides_no_escape() {
        of([run("COMMIT"), Step::Panic("index out of bounds")])
            .await
            .escaped(&["the handler panicked: index out of bounds"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_time_out_after_commit_hides_no_escape() {
        of([run("COMMIT"), Step::Sleep(Duration::from_secs(30))])
            .await
            .escaped(&["did not finish within 1s"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_lost_connection_after_commit_hides_no_escape() {
        of([
            run("COMMIT"),
            run("SELECT pg_terminate_backend(pg_backend_pid())"),
        ])
        .await
        .escaped(&["made the inbox transaction durable itself"])
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dead_letter_that_cannot_be_stored_at_once_hides_no_escape() {
        let sandbox = Postgres::fresh(4).await;
        let refuse = "CREATE SEQUENCE tries; \
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
            IF nextval('tries') <= 2 THEN RAISE disk_full; END IF; RETURN new; END $$; \
            CREATE TRIGGER refuse BEFORE INSERT ON inbox_dead_letters FOR EACH ROW EXECUTE FUNCTION refuse()";
        Postgres::run(&sandbox.pool, refuse).await;
        let script = Script::default().always("m-1", [run("COMMIT"), Step::Fail("half done")]);
        let trial = Trial::of(sandbox, script, charge::handler()).await;
        trial.escaped(&["COMMIT of its own"]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn session_state_set_before_commit_hides_no_escape() {
        let sandbox = Postgres::fresh(4).await;
        let role = sandbox.role().await;
        let steps = [
            run(format!("SET ROLE {role}")),
            run("COMMIT"),
            Step::Fail("out of stock"),
        ];
        let script = Script::default().always("m-1", steps);
        let trial = Trial::of(sandbox, script, charge::handler()).await;
        trial.escaped(&["out of stock"]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn truncated_claims_are_not_taken_for_success() {
        of([run("TRUNCATE inbox_processed_messages")])
            .await
            .refused(&["removed or changed its claim"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn prepared_statements_that_a_handler_drops_cost_it_its_session_alone() {
        of([run("DEALLOCATE ALL")])
            .await
            .refused(&["does not exist"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn prepared_statements_that_a_handler_drops_harm_no_neighbour_in_its_batch() {
        let script = Script::default().always("m-1", [run("DEALLOCATE ALL")]);
        let handler = InBatches(charge::handler());
        let trial = Trial::of(Postgres::fresh(4).await, script, handler).await;
        assert_eq!(trial.reasons("m-1").await, ["attempts_exhausted"]);
        assert_eq!(trial.reasons("m-2").await, [""; 0]);
        trial.common().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_may_end_as_a_role_that_sees_no_claims() {
        let sandbox = Postgres::fresh(4).await;
        let role = sandbox.role().await;
        let pool = sandbox.pool.clone();
        let script = Script::default().first(
            "m-1",
            [
                vec![Step::Fail("out of stock")],
                vec![run(format!("SET LOCAL ROLE {role}"))],
            ],
        );
        let trial = Trial::of(sandbox, script, charge::handler()).await;
        assert_eq!(trial.runs(), 2);
        trial.sandbox.assert_stored_once("m-1").await;
        assert_eq!(trial.sandbox.dead_letter_texts().await, [""; 0]);
        let counted = Postgres::texts(&pool, "SELECT last_failure FROM inbox_attempts").await;
        assert_eq!(counted, [""; 0], "a success forgets the failures");
        trial.common().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_prepared_transaction_is_not_acked_while_its_end_is_open() {
        let name = unique("prepared");
        let script = Script::default().once("m-1", [run(format!("PREPARE TRANSACTION '{name}'"))]);
        let trial = Trial::start(Postgres::fresh(4).await, script, charge::handler()).await;
        trial.stage.publish("m-1");
        eventually("a second try", || async {
            trial.stage.broker.settled().len() >= 2
        })
        .await;
        // For another account: the row of the first one stays locked.
        let other = Envelope::new(r#"{"account":"acc-2","amount":100}"#);
        trial
            .stage
            .broker
            .publish("orders", other.id("m-2").message_type("OrderPlaced"));
        eventually("m-2", || async { trial.stage.acks("m-2") == 1 }).await;
        let acked_meanwhile = trial.stage.acks("m-1");
        let counted = trial.sandbox.attempts("m-1").await;
        let told = Postgres::texts(
            &trial.sandbox.pool,
            "SELECT last_failure FROM inbox_attempts",
        )
        .await;
        Postgres::run(&trial.sandbox.pool, &format!("ROLLBACK PREPARED '{name}'")).await;
        all_acked(&trial.stage.broker).await;
        assert_eq!(acked_meanwhile, 0);
        assert_eq!(counted, 1, "waiting for a copy counts nothing");
        assert!(told.concat().contains("PREPARE TRANSACTION"), "{told:?}");
        assert_eq!(trial.runs(), 2);
        trial.sandbox.assert_stored_once("m-1").await;
        assert_eq!(trial.sandbox.dead_letter_texts().await, [""; 0]);
        trial.common().await;
    }
}

mod on_mysql {
    use super::mysql::of;
    use super::*;
    use sqlx::{AssertSqlSafe, Executor as _, MySql};

    /// XAER_RMFAIL, by its SQLSTATE.
    pub(super) const BY_XA: &str = "error XAE07";

    /// The handler's second row, which somebody else has locked.
    const SECOND: &str = "UPDATE accounts SET balance = balance + 0 WHERE id = 'acc-2'";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_swallowed_error_leaves_the_transaction_as_it_was() {
        let again = "INSERT INTO accounts (id, balance) VALUES ('acc-1', 0)";
        let trial = of([swallow(again)]).await;
        assert_eq!(trial.answers(), ["error 23000"]);
        trial.processed().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_would_commit_is_refused_and_the_transaction_goes_on() {
        for statement in [
            "COMMIT",
            "START TRANSACTION",
            "CREATE TABLE other (id INT)",
            "TRUNCATE ledger",
            "LOCK TABLES ledger WRITE",
            "XA COMMIT 'other' ONE PHASE",
            "XA PREPARE 'other'",
        ] {
            let trial = of([swallow(statement), swallow(LATE)]).await;
            let answers = trial.answers();
            assert!(
                answers[0].starts_with("error XAE0"),
                "{statement}: {answers:?}"
            );
            assert_eq!(answers[1], "", "{statement}");
            trial.processed_with(1).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_would_commit_leaves_nothing_behind_a_failure() {
        for statement in [
            "COMMIT",
            "CREATE TABLE other (id INT)",
            "SET autocommit = 1",
        ] {
            let steps = [swallow(statement), run(LATE), Step::Fail("out of stock")];
            of(steps).await.refused(&["out of stock"]).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_error_of_a_refused_commit_is_told() {
        of([run("COMMIT")]).await.refused(&["XAER_RMFAIL"]).await;
    }

    /// Like [`charge`], with time for what others do meanwhile.
    #[inbox_handler(consumer = "billing", max_attempts = 2)]
    async fn waits(
        order: OrderPlaced,
        tx: &mut Tx<MySql>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(MySql, order, id, tx);
        script.play(&id, tx).await
    }

    /// m-1 runs into a deadlock in the first of its runs, and goes on with `steps`.
    async fn in_conflict(steps: Vec<Step>, then: Vec<Step>) -> Trial<MySql> {
        let barrier = unique("barrier");
        let sandbox = MySql::fresh(6).await;
        let mut gate = sandbox.pool.acquire().await.unwrap();
        let wait = format!("DO GET_LOCK('{barrier}', 20)");
        gate.execute(sqlx::raw_sql(AssertSqlSafe(wait.clone())))
            .await
            .unwrap();
        let first = std::iter::once(run(wait)).chain(steps).collect();
        let script = Script::default().first("m-1", [first, then]);
        let trial = Trial::start(sandbox, script, waits::handler()).await;

        let mut other = trial.sandbox.pool.begin().await.unwrap();
        // The server undoes whoever has changed less.
        other
            .execute("INSERT INTO ledger (account, amount, msg_id) SELECT 'acc-2', 0, seq FROM seq_1_to_1000")
            .await
            .unwrap();
        other.execute(SECOND).await.unwrap();
        trial.stage.publish("m-1");
        eventually("the handler", || async { trial.runs() == 1 }).await;
        let waiting = tokio::spawn(async move {
            other
                .execute("UPDATE accounts SET balance = balance + 0 WHERE id = 'acc-1'")
                .await
                .unwrap();
            other.commit().await.unwrap();
        });
        // Whoever waits first: the other one's wait is the deadlock.
        gate.execute("DO RELEASE_ALL_LOCKS()").await.unwrap();
        waiting.await.unwrap();
        trial
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_write_slips_through_after_a_swallowed_deadlock() {
        let steps = vec![
            swallow(SECOND),
            swallow(LATE),
            swallow("SAVEPOINT a"),
            swallow(LATE),
            swallow("COMMIT"),
            swallow(LATE),
        ];
        let trial = in_conflict(steps, Vec::new()).await;
        trial.stage.deliver("m-2").await;
        assert_eq!(
            trial.answers(),
            ["", "error 40001", BY_XA, "", BY_XA, BY_XA, BY_XA]
        );
        assert_eq!(trial.runs(), 2);
        assert_eq!(trial.sandbox.dead_letter_texts().await, [""; 0]);
        trial.sandbox.assert_stored_once("m-1").await;
        trial.common().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_swallowed_deadlock_is_told() {
        let trial = in_conflict(vec![swallow(SECOND)], vec![Step::Fail("second")]).await;
        eventually("a counted failure", || async {
            trial.sandbox.attempts("m-1").await >= 1
        })
        .await;
        let pool = &trial.sandbox.pool;
        let told = MySql::texts(pool, "SELECT last_failure FROM inbox_attempts").await;
        let told = told.concat();
        assert!(
            told.contains("although a statement of its had failed") || told == "second",
            "{told:?}"
        );
        trial.stage.deliver("m-2").await;
        trial
            .only_dead_letter("attempts_exhausted", &["second"])
            .await;
        assert_eq!(trial.runs(), 2);
        trial.common().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_deadlock_that_is_told_is_tried_again_uncounted() {
        let trial = in_conflict(
            vec![run(SECOND)],
            vec![Step::Sleep(Duration::from_millis(300))],
        )
        .await;
        eventually("a second run", || async { trial.runs() == 2 }).await;
        assert_eq!(trial.sandbox.attempts("m-1").await, 0);
        trial.stage.deliver("m-2").await;
        assert_eq!(trial.runs(), 2);
        trial.sandbox.assert_stored_once("m-1").await;
        trial.common().await;
    }

    /// In its first run, drops a query after it was sent: its answers come to whoever asks next.
    #[inbox_handler(consumer = "billing", max_attempts = 2)]
    async fn drops_a_query(
        order: OrderPlaced,
        tx: &mut Tx<MySql>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(MySql, order, id, tx);
        script.play(&id, tx).await?;
        if id.as_str() == "m-1" && script.runs("m-1") == 1 {
            let query = sqlx::query("SELECT ? + ? + ?").bind(1).bind(2).bind(3);
            let mut query = std::pin::pin!(query.fetch_all(&mut *tx));
            assert!(futures_util::poll!(&mut query).is_pending());
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_query_that_a_handler_drops_half_way_hides_nothing() {
        let sandbox = MySql::fresh(4).await;
        let trial = Trial::of(sandbox, Script::default(), drops_a_query::handler()).await;
        trial.sandbox.assert_stored_once("m-1").await;
        assert_eq!(trial.sandbox.dead_letters().await, [""; 0]);
        trial.common().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_temporary_table_of_the_claims_name_hides_no_missing_claim() {
        let steps = [run("CREATE TEMPORARY TABLE inbox_processed_messages \
                 (message_id VARBINARY(255), consumer_name VARBINARY(255), claim_nonce BIGINT UNSIGNED)")];
        of(steps).await.refused(&[ENDED]).await;
    }
}

mod on_sqlite {
    use super::sqlite::{charge, of};
    use super::*;
    use sqlx::Sqlite;

    /// SQLITE_CONSTRAINT_COMMITHOOK
    pub(super) const BY_HOOK: &str = "error 531";

    #[tokio::test(flavor = "multi_thread")]
    async fn a_swallowed_error_leaves_the_transaction_as_it_was() {
        let trial = of([swallow(
            "INSERT INTO accounts (id, balance) VALUES ('acc-1', 0)",
        )])
        .await;
        assert_eq!(trial.answers(), ["error 1555"]);
        trial.processed().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_of_the_handler_is_refused() {
        let trial = of([swallow("COMMIT")]).await;
        trial.assert_answered(&[BY_HOOK]);
        trial.refused(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_write_slips_through_after_commit() {
        let trial = of([swallow("COMMIT"), swallow(LATE)]).await;
        trial.assert_answered(&[BY_HOOK; 2]);
        trial.refused(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_transaction_of_the_handlers_own_after_commit_is_refused() {
        let steps = [
            swallow("COMMIT"),
            swallow("BEGIN"),
            swallow(LATE),
            swallow("COMMIT"),
        ];
        let trial = of(steps).await;
        trial.assert_answered(&[BY_HOOK, "", "", BY_HOOK]);
        trial.refused(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_transaction_left_open_after_commit_is_refused() {
        of([swallow("COMMIT"), swallow("BEGIN"), swallow(LATE)])
            .await
            .refused(&[ENDED])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_error_of_a_refused_commit_is_told() {
        of([run("COMMIT")])
            .await
            .refused(&["constraint failed"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_after_commit_leaves_nothing() {
        of([swallow("COMMIT"), Step::Panic("index out of bounds")])
            .await
            .refused(&["the handler panicked: index out of bounds"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_time_out_after_commit_leaves_nothing() {
        of([swallow("COMMIT"), Step::Sleep(Duration::from_secs(30))])
            .await
            .refused(&["did not finish within 1s"])
            .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn insert_or_rollback_is_not_taken_for_success_and_no_write_follows() {
        let steps = [
            swallow("INSERT OR ROLLBACK INTO accounts (id, balance) VALUES ('acc-1', 0)"),
            swallow(LATE),
        ];
        let trial = of(steps).await;
        trial.assert_answered(&["error 1555", BY_HOOK]);
        trial.refused(&[ENDED]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_trigger_that_rolls_back_is_not_taken_for_success_and_no_write_follows() {
        let sandbox = Sqlite::fresh(4).await;
        let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON ledger WHEN NEW.msg_id = 'poison' \
                       BEGIN SELECT RAISE(ROLLBACK, 'poisoned'); END";
        Sqlite::run(&sandbox.pool, trigger).await;
        let poison = "INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-1', 1, 'poison')";
        let script = Script::default().always("m-1", [swallow(poison), swallow(LATE)]);
        let trial = Trial::of(sandbox, script, charge::handler()).await;
        trial.assert_answered(&["error 1811", BY_HOOK]);
        trial.refused(&[ENDED]).await;
    }

    /// A handler can take our hook away by setting one of its own: then the database prevents nothing, and the
    /// fence has to find it.
    #[inbox_handler(consumer = "billing")]
    async fn unhooks(
        order: OrderPlaced,
        tx: &mut Tx<Sqlite>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Sqlite, order, id, tx);
        if id.as_str() == "m-1" {
            tx.lock_handle().await?.set_commit_hook(|| true);
        }
        script.play(&id, tx).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_past_the_hook_is_told_as_an_escape() {
        for end in [None, Some(Step::Fail("out of stock"))] {
            let words = if end.is_some() { "out of stock" } else { ENDED };
            let script =
                Script::default().always("m-1", [Some(run("COMMIT")), end].into_iter().flatten());
            let trial = Trial::of(Sqlite::fresh(4).await, script, unhooks::handler()).await;
            trial.escaped(&["COMMIT", words]).await;
        }
    }
}
