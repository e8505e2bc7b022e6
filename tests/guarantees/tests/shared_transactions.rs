//! Messages that wait for the same handler share a transaction, and nothing of the promise changes by that: each has
//! its effect once, and none pays for what another does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_guarantees::script::{Script, ScriptDatabase, Stage, Step, run, swallow};
use inbox_guarantees::{
    OrderPlaced, Sandbox, TestDatabase, all_acked, bill, on_each_database, order,
};
use inbox_runtime::testing::Step as PathStep;
use inbox_runtime::{Handler, HandlerError, MessageId, State, Tx, inbox_handler};

/// As many messages as come to lie before the worker.
const MANY: usize = 120;

/// The steps of the path, in the order in which one worker took them.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<PathStep>>>);

impl Steps {
    /// The largest number of handlers that ran before a commit.
    fn most_in_one_transaction(&self) -> usize {
        let mut most = 0;
        let mut now = 0;
        for step in &*self.0.lock().unwrap() {
            match step {
                PathStep::AfterHandler => now += 1,
                PathStep::AfterCommit => now = 0,
                _ => {}
            }
            most = most.max(now);
        }
        most
    }
}

struct Armed;

impl Drop for Armed {
    fn drop(&mut self) {
        panic!("dropped before its time");
    }
}

#[derive(Debug)]
struct Textless;

impl std::fmt::Display for Textless {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("there is no text");
    }
}

impl std::error::Error for Textless {}

fn id(number: usize) -> String {
    format!("m-{number}")
}

/// One worker with many messages before it.
struct Crowd<Db: TestDatabase> {
    sandbox: Sandbox<Db>,
    stage: Stage,
    steps: Steps,
}

impl<Db: TestDatabase + ScriptDatabase> Crowd<Db> {
    async fn of<H: Handler<Db = Db>>(handler: H, script: Script, together: usize) -> Self {
        let sandbox = Db::fresh(4).await;
        let steps = Steps::default();
        let seen = steps.clone();
        let stage = Stage::start(&sandbox.pool, script, handler, |builder| {
            builder
                .prefetch(64)
                .messages_per_transaction(together)
                .on_step(move |step, _| seen.0.lock().unwrap().push(step))
        })
        .await;
        Self {
            sandbox,
            stage,
            steps,
        }
    }

    async fn deliver(&self, times: usize) {
        for _ in 0..times {
            for number in 0..MANY {
                self.stage.publish(&id(number));
            }
        }
        all_acked(&self.stage.broker).await;
    }

    /// Every message was acked as often as it was delivered, and stored once; only m-60 may be a dead letter.
    async fn harmed_nobody(&self, dead: &[&str]) {
        assert!(
            self.steps.most_in_one_transaction() > 1,
            "nothing was shared"
        );
        assert_eq!(self.sandbox.dead_letters().await, dead);
        let balance = self.sandbox.balance("acc-1").await;
        let stored = MANY - dead.len();
        assert_eq!(balance, 100 * i64::try_from(stored).unwrap());
        for number in (0..MANY).filter(|number| *number != 60 || dead.is_empty()) {
            let id = id(number);
            assert_eq!(self.sandbox.ledger_rows(&id).await, 1, "{id}");
            assert_eq!(self.sandbox.claims(&id).await, 1, "{id}");
            assert_eq!(self.sandbox.attempts(&id).await, 0, "{id}");
            assert_eq!(self.stage.acks(&id), 1, "{id}");
        }
        if !dead.is_empty() {
            assert_eq!(self.sandbox.ledger_rows("m-60").await, 0);
            assert_eq!(self.sandbox.claims("m-60").await, 0);
            assert_eq!(self.stage.acks("m-60"), 1);
        }
    }

    /// m-60 made its neighbours' claims durable with its own: each has its effect or is told.
    async fn lost_nobody(&self) {
        assert!(
            self.steps.most_in_one_transaction() > 1,
            "nothing was shared"
        );
        let dead = self.sandbox.dead_letters().await;
        assert!(dead.iter().all(|reason| reason == "escaped"), "{dead:?}");
        let told = Db::texts(
            &self.sandbox.pool,
            "SELECT message_id FROM inbox_dead_letters",
        )
        .await;
        assert!(told.contains(&id(60)), "{told:?}");
        for number in 0..MANY {
            let id = id(number);
            let rows = self.sandbox.ledger_rows(&id).await;
            assert!(
                rows == 1 || (rows == 0 && told.contains(&id)),
                "{id}: {rows} rows"
            );
            assert_eq!(self.stage.acks(&id), 1, "{id}");
        }
    }
}

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

    pub(super) async fn crowd(script: Script) -> Crowd<Db> {
        let crowd = Crowd::of(charge::handler(), script, 16).await;
        crowd.deliver(1).await;
        crowd
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn messages_that_wait_share_a_transaction_and_have_their_effect_once() {
        let crowd = crowd(Script::default()).await;
        crowd.harmed_nobody(&[]).await;
        assert_eq!(crowd.steps.most_in_one_transaction(), 16);
        crowd.stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_more_messages_share_a_transaction_than_the_builder_says() {
        let crowd = Crowd::of(charge::handler(), Script::default(), 1).await;
        crowd.deliver(1).await;
        assert_eq!(crowd.steps.most_in_one_transaction(), 1);
        assert_eq!(crowd.sandbox.ledger_total().await, i64::try_from(MANY).unwrap());
        crowd.stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn copies_among_messages_that_share_a_transaction_are_duplicates() {
        let crowd = Crowd::of(charge::handler(), Script::default(), 16).await;
        crowd.deliver(3).await;
        assert!(crowd.steps.most_in_one_transaction() > 1);
        for number in 0..MANY {
            crowd.sandbox.assert_stored_once(&id(number)).await;
            assert_eq!(crowd.stage.acks(&id(number)), 3);
            assert_eq!(crowd.stage.script.runs(&id(number)), 1, "a copy was run");
        }
        crowd.stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_fails_costs_its_neighbours_nothing() {
        for step in [
            Step::Fail("out of stock"),
            Step::Panic("index out of bounds"),
            Step::Sleep(Duration::from_secs(5)),
            run("SELECT nothing"),
        ] {
            let crowd = crowd(Script::default().always("m-60", [step])).await;
            crowd.harmed_nobody(&["attempts_exhausted"]).await;
            crowd.stage.stop().await;
        }
    }

    /// The first failure is found out by running the others alone; those soon after it are taken back alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn failures_soon_after_another_run_no_neighbour_again() {
        for step in [Step::Fail("out of stock"), Step::Panic("index out of bounds"), run("SELECT nothing")] {
            let failing: Vec<String> = (20..MANY).step_by(7).map(id).collect();
            let script = failing.iter().fold(Script::default(), |script, id| script.always(id, [step.clone()]));
            let crowd = crowd(script).await;
            assert!(crowd.steps.most_in_one_transaction() > 1, "nothing was shared");
            assert_eq!(crowd.sandbox.dead_letters().await, vec!["attempts_exhausted"; failing.len()]);
            let mut again = 0;
            for id in (0..MANY).map(id) {
                let stored = i64::from(!failing.contains(&id));
                assert_eq!(crowd.sandbox.ledger_rows(&id).await, stored, "{id}");
                assert_eq!(crowd.sandbox.claims(&id).await, stored, "{id}");
                assert_eq!(crowd.stage.acks(&id), 1, "{id}");
                if stored == 1 {
                    again += crowd.stage.script.runs(&id) - 1;
                }
            }
            let stored = i64::try_from(MANY - failing.len()).unwrap();
            assert_eq!(crowd.sandbox.balance("acc-1").await, 100 * stored);
            assert!(again < 16, "{again} runs of neighbours for {} failures", failing.len());
            crowd.stage.stop().await;
        }
    }

    /// In a transaction from which a message was taken back before.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_rolls_back_for_all_is_found_out_among_savepoints() {
        let script = Script::default()
            .once("m-20", [Step::Fail("not yet")])
            .once("m-58", [Step::Fail("not yet")])
            .always("m-60", [swallow("ROLLBACK")]);
        let crowd = crowd(script).await;
        crowd.harmed_nobody(rolled_back::<Db>()).await;
        crowd.stage.stop().await;
    }

    /// m-60 hangs, and what it holds panics when it is dropped for that.
    #[inbox_handler(consumer = "billing", timeout = "300ms", max_attempts = 2)]
    async fn drops_badly(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        if id.as_str() == "m-60" {
            let _armed = Armed;
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    /// m-60 fails with an error that panics when it is asked for its text.
    #[inbox_handler(consumer = "billing", max_attempts = 2)]
    async fn fails_without_a_text(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), Textless> {
        if id.as_str() == "m-60" {
            return Err(Textless);
        }
        let billed: Result<(), HandlerError> = async {
            bill!(Db, order, id, tx);
            Ok(())
        }
        .await;
        billed.map_err(|_| Textless)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_panics_after_its_end_is_a_failure_that_counts() {
        let crowd = Crowd::of(drops_badly::handler(), Script::default(), 16).await;
        crowd.deliver(1).await;
        crowd.harmed_nobody(&["attempts_exhausted"]).await;
        crowd.stage.stop().await;
        let crowd = Crowd::of(fails_without_a_text::handler(), Script::default(), 16).await;
        crowd.deliver(1).await;
        crowd.harmed_nobody(&["attempts_exhausted"]).await;
        crowd.stage.stop().await;
    }

    /// A fault in the path is not counted against the message; its neighbours must not meet it again.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_makes_the_path_panic_does_that_to_its_neighbours_once() {
        let sandbox = Db::fresh(4).await;
        let panics = Mutex::new(2_u32);
        let stage = Stage::start(&sandbox.pool, Script::default(), charge::handler(), |builder| {
            builder.prefetch(64).messages_per_transaction(16).on_step(move |step, id| {
                if step == PathStep::AfterHandler && id == "m-60" {
                    let left = {
                        let mut panics = panics.lock().unwrap();
                        let left = *panics;
                        *panics = left.saturating_sub(1);
                        left
                    };
                    assert_eq!(left, 0, "told to");
                }
            })
        })
        .await;
        for number in 0..MANY {
            stage.publish(&id(number));
        }
        all_acked(&stage.broker).await;
        for number in 0..MANY {
            let id = id(number);
            sandbox.assert_stored_once(&id).await;
            let most = if number == 60 { 3 } else { 2 };
            assert!(stage.script.runs(&id) <= most, "{id} was run {} times", stage.script.runs(&id));
        }
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_is_rejected_costs_its_neighbours_nothing() {
        let crowd = Crowd::of(rejects::handler(), Script::default(), 16).await;
        crowd.deliver(1).await;
        crowd.harmed_nobody(&["rejected"]).await;
        crowd.stage.stop().await;
    }

    #[inbox_handler(consumer = "billing")]
    async fn rejects(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        if id.as_str() == "m-60" {
            return Err(HandlerError::reject("no such product"));
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_undecodable_message_costs_its_neighbours_nothing() {
        let crowd = Crowd::of(charge::handler(), Script::default(), 16).await;
        for number in 0..MANY {
            let message = if number == 60 {
                inbox_runtime::Envelope::new("{").id(id(number)).message_type("OrderPlaced")
            } else {
                order(&id(number))
            };
            crowd.stage.broker.publish("orders", message);
        }
        all_acked(&crowd.stage.broker).await;
        crowd.harmed_nobody(&["undecodable"]).await;
        crowd.stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_rolls_back_for_all_is_found_out_alone() {
        let crowd = crowd(Script::default().always("m-60", [swallow("ROLLBACK")])).await;
        crowd.harmed_nobody(rolled_back::<Db>()).await;
        crowd.stage.stop().await;
    }

    /// Of many claims, its own and one that is not: the others are not committed without them.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_that_removes_some_of_the_claims_is_found_out_alone() {
        let removal = "DELETE FROM inbox_processed_messages WHERE message_id IN ('m-60', 'm-61')";
        let crowd = crowd(Script::default().always("m-60", [run(removal)])).await;
        crowd.harmed_nobody(&["attempts_exhausted"]).await;
        crowd.stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_recovers_is_processed_with_its_failure_forgotten() {
        let crowd = crowd(Script::default().once("m-60", [Step::Fail("not yet")])).await;
        crowd.harmed_nobody(&[]).await;
        // Once with its neighbours, uncounted; then alone.
        assert!(crowd.stage.script.runs("m-60") >= 2);
        crowd.stage.stop().await;
    }
}

/// What a handler becomes that swallows the answer to its ROLLBACK.
fn rolled_back<Db: TestDatabase>() -> &'static [&'static str] {
    if Db::REFUSES_ROLLBACK {
        &[]
    } else {
        &["attempts_exhausted"]
    }
}

mod on_sqlite {
    use super::*;
    use sqlx::Sqlite;

    /// Like `charge`; m-60 takes away the hook that prevents its COMMIT.
    #[inbox_handler(consumer = "billing")]
    async fn unhooks(
        order: OrderPlaced,
        tx: &mut Tx<Sqlite>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Sqlite, order, id, tx);
        if id.as_str() == "m-60" {
            tx.lock_handle().await?.set_commit_hook(|| true);
        }
        script.play(&id, tx).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_handler_commits_for_all_is_told_and_nobody_is_lost() {
        let steps = [run("COMMIT"), Step::Fail("out of stock")];
        let crowd = Crowd::of(
            unhooks::handler(),
            Script::default().always("m-60", steps),
            16,
        )
        .await;
        crowd.deliver(1).await;
        crowd.lost_nobody().await;
        crowd.stage.stop().await;
    }
}

mod on_postgres {
    use super::postgres::crowd;
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_swallowed_error_is_found_out_alone() {
        let crowd = crowd(Script::default().always("m-60", [swallow("SELECT 1/0")])).await;
        crowd.harmed_nobody(&["attempts_exhausted"]).await;
        crowd.stage.stop().await;
    }

    /// What was taken back before the COMMIT has no claim in it, and goes on; the others are told.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_handler_commits_among_savepoints_is_told_and_nobody_is_lost() {
        for steps in [
            vec![run("COMMIT")],
            vec![run("COMMIT AND CHAIN")],
            vec![run("COMMIT"), Step::Fail("out of stock")],
            vec![run("COMMIT"), run("BEGIN"), Step::Fail("out of stock")],
        ] {
            let script = (50..60)
                .fold(Script::default(), |script, number| {
                    script.once(&id(number), [Step::Fail("not yet")])
                })
                .once("m-20", [Step::Fail("not yet")])
                .always("m-60", steps);
            let crowd = crowd(script).await;
            crowd.lost_nobody().await;
            crowd.stage.stop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_swallowed_error_is_found_out_among_savepoints() {
        let script = Script::default()
            .once("m-20", [Step::Fail("not yet")])
            .always("m-60", [swallow("SELECT 1/0")]);
        let crowd = crowd(script).await;
        crowd.harmed_nobody(&["attempts_exhausted"]).await;
        crowd.stage.stop().await;
    }

    /// The claims of what comes next were to travel with the commit. They must not be made twice, and no other session
    /// may wait for them.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_that_is_refused_holds_nobody_up() {
        let sandbox = sqlx::Postgres::fresh(2).await;
        let child = "CREATE TABLE child (account text REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)";
        sqlx::Postgres::run(&sandbox.pool, child).await;
        let orphan = run("INSERT INTO child VALUES ('nobody')");
        let script = Script::default().always("m-60", [orphan]);
        let steps = Steps::default();
        let seen = steps.clone();
        let handler = super::postgres::charge::handler();
        let stage = Stage::start(&sandbox.pool, script, handler, |builder| {
            builder
                .prefetch(64)
                .claim_wait(Duration::from_secs(120))
                .on_step(move |step, _| seen.0.lock().unwrap().push(step))
        })
        .await;
        let crowd = Crowd {
            sandbox,
            stage,
            steps,
        };
        crowd.deliver(1).await;
        crowd.harmed_nobody(&["attempts_exhausted"]).await;
        crowd.stage.stop().await;
    }

    /// What one handler commits for all cannot be taken back, and may be half of its neighbours' work.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_handler_commits_for_all_is_told_and_nobody_is_lost() {
        for steps in [
            vec![run("COMMIT")],
            vec![run("COMMIT AND CHAIN")],
            vec![run("COMMIT"), Step::Fail("out of stock")],
        ] {
            let crowd = crowd(Script::default().always("m-60", steps)).await;
            crowd.lost_nobody().await;
            crowd.stage.stop().await;
        }
    }

    /// The connection is closed at once, the transaction goes on until the server notices.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_handler_commits_after_its_time_is_told_and_nobody_is_lost() {
        // The server looks after its client every 500 ms: not between the end of the time and the COMMIT.
        let steps = [
            Step::Sleep(Duration::from_millis(250)),
            run("SELECT pg_sleep(0.95); COMMIT"),
        ];
        let crowd = crowd(Script::default().always("m-60", steps)).await;
        crowd.lost_nobody().await;
        crowd.stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_handler_commits_for_all_is_told_although_it_cannot_be_at_once() {
        let sandbox = sqlx::Postgres::fresh(4).await;
        refuse_dead_letters(&sandbox, 40).await;
        let script = Script::default().always("m-60", [run("COMMIT")]);
        let steps = Steps::default();
        let seen = steps.clone();
        let handler = super::postgres::charge::handler();
        let stage = Stage::start(&sandbox.pool, script, handler, |builder| {
            builder
                .prefetch(64)
                .on_step(move |step, _| seen.0.lock().unwrap().push(step))
        })
        .await;
        let crowd = Crowd {
            sandbox,
            stage,
            steps,
        };
        crowd.deliver(1).await;
        crowd.lost_nobody().await;
        crowd.stage.stop().await;
    }

    /// The first so many are refused.
    async fn refuse_dead_letters(sandbox: &Sandbox<sqlx::Postgres>, many: usize) {
        let refuse = format!(
            "CREATE SEQUENCE tries; \
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF nextval('tries') <= {many} THEN RAISE disk_full; END IF; RETURN new; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON inbox_dead_letters FOR EACH ROW EXECUTE FUNCTION refuse()"
        );
        sqlx::Postgres::run(&sandbox.pool, &refuse).await;
    }
}
