//! A message that failed and waits longer than its broker can, waits in the database: acked, not forgotten, and in nobody's
//! way (cases C29 and C30, corners K12, K13 and K16).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use inbox_guarantees::dispatch::{Serve as _, assert_runs};
use inbox_guarantees::script::{Script, Step};
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
    order, workers,
};
use inbox_runtime::brokers::{MemoryBroker, MemorySource};
use inbox_runtime::{
    Capabilities, Handler, HandlerError, Inbox, InboxBuilder, MessageId, RetryPolicy, State, Tx,
    inbox_handler,
};

/// A broker without delays: what fails is parked at once.
async fn start<H>(
    sandbox: &Sandbox<H::Db>,
    broker: &MemoryBroker,
    script: &Script,
    handler: H,
    configure: impl FnOnce(InboxBuilder<H::Db>) -> InboxBuilder<H::Db>,
) -> Running
where
    H: Handler,
    H::Db: TestDatabase,
{
    let source = broker.source("orders").behave_as(Capabilities::new());
    start_on(sandbox, source, script, handler, configure).await
}

async fn start_on<H>(
    sandbox: &Sandbox<H::Db>,
    source: MemorySource,
    script: &Script,
    handler: H,
    configure: impl FnOnce(InboxBuilder<H::Db>) -> InboxBuilder<H::Db>,
) -> Running
where
    H: Handler,
    H::Db: TestDatabase,
{
    let builder = Inbox::builder(sandbox.pool.clone())
        .source("orders", source)
        .messages_per_transaction(1)
        .serve(handler)
        .state(script.clone())
        .concurrency(workers::<H::Db>(2))
        .prefetch(8)
        .longest_hold(Duration::from_millis(1))
        .poll_interval(Duration::from_millis(50))
        .retry(RetryPolicy::default().first_delay(Duration::from_millis(200)));
    Running::start(configure(builder).build().await.expect("the inbox"))
}

/// Messages that wait in the database.
async fn parked<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> i64 {
    Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_messages").await
}

async fn nothing_waits<Db: TestDatabase>(sandbox: &Sandbox<Db>) {
    eventually("nothing waits in the database", || async {
        parked(sandbox).await == 0
    })
    .await;
}

on_each_database! {
    #[inbox_handler(consumer = "billing", timeout = "2s", max_attempts = 3)]
    async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await
    }

    #[inbox_handler(consumer = "notifications")]
    async fn notify(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        let order = OrderPlaced { account: "acc-2".to_owned(), ..order };
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_waits_is_acked_and_tried_again_when_it_is_due() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| builder).await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        eventually("the second try", || async { sandbox.ledger_rows("m-1").await == 1 }).await;
        nothing_waits(&sandbox).await;
        sandbox.assert_stored_once("m-1").await;
        assert_runs(script.runs("m-1"), 2, "one failure, one success");
        let starts = script.starts("m-1");
        let gap = starts[starts.len() - 1].duration_since(starts[starts.len() - 2]);
        assert!(gap >= Duration::from_millis(199), "tried again after {gap:?}");
        assert_eq!(sandbox.attempts("m-1").await, 0, "success forgets the failures");
        running.stop().await;
    }

    /// C29: an hour, at a broker that takes a delivery away after half of one.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_delay_is_never_an_unsettled_delivery() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let script = Script::default().always("m-1", [Step::Fail("not today")]);
        let hour = Duration::from_secs(60 * 60);
        let source = broker.source("orders").behave_as(Capabilities::new().settle_window(hour / 2));
        let running = start_on(&sandbox, source, &script, charge::handler(), |builder| {
            builder.longest_hold(hour * 2).retry(RetryPolicy::default().first_delay(hour).longest_delay(hour * 2))
        })
        .await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        let runs = script.runs("m-1");
        assert_runs(runs, 1, "it failed once");
        let due = format!("SELECT count(*) FROM inbox_messages WHERE next_attempt_at > {}", Db::in_seconds(59 * 60));
        assert_eq!(Db::number(&sandbox.pool, &due).await, 1, "not before its time");
        assert_eq!(sandbox.ledger_total().await + sandbox.claims_total().await, 0);
        assert_eq!(sandbox.attempts("m-1").await, 1);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(script.runs("m-1"), runs);
        running.stop().await;
        assert_eq!(parked(&sandbox).await, 1, "the shutdown takes nothing away");
    }

    /// C30
    #[tokio::test(flavor = "multi_thread")]
    async fn failing_messages_back_off_and_are_in_nobodys_way() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let mut script = Script::default();
        // More than the prefetch: held in memory, they would keep the good ones out.
        for number in 0..12 {
            script = script.always(&format!("bad-{number}"), [Step::Fail("never")]);
        }
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.retry(RetryPolicy::default().first_delay(Duration::from_secs(1)))
        })
        .await;
        for number in 0..12 {
            broker.publish("orders", order(&format!("bad-{number}")));
        }
        for number in 0..20 {
            broker.publish("orders", order(&format!("m-{number}")));
        }
        all_acked(&broker).await;
        for number in 0..20 {
            sandbox.assert_stored_once(&format!("m-{number}")).await;
        }
        assert_eq!(sandbox.dead_letters().await, [""; 0], "they wait for their next try");
        assert_eq!(parked(&sandbox).await, 12);
        eventually("all dead", || async { sandbox.dead_letters().await.len() == 12 }).await;
        nothing_waits(&sandbox).await;
        for number in 0..12 {
            let id = format!("bad-{number}");
            let starts = script.starts(&id);
            assert_runs(starts.len(), 3, "max_attempts is 3");
            let last: Vec<_> = starts.iter().rev().take(3).rev().collect();
            let gaps: Vec<_> = last.windows(2).map(|two| two[1].duration_since(*two[0])).collect();
            assert!(gaps[0] >= Duration::from_millis(999) && gaps[1] >= Duration::from_millis(1999), "{id}: {gaps:?}");
            assert_eq!(sandbox.ledger_rows(&id).await + sandbox.claims(&id).await, 0);
        }
        assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"; 12]);
        running.stop().await;
    }

    /// K16
    #[tokio::test(flavor = "multi_thread")]
    async fn a_copy_of_a_parked_message_does_not_run_and_is_acked() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.retry(RetryPolicy::default().first_delay(Duration::from_secs(2)))
        })
        .await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        let runs = script.runs("m-1");
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        assert_eq!(script.runs("m-1"), runs, "the copy ran");
        assert_eq!(parked(&sandbox).await, 1);
        nothing_waits(&sandbox).await;
        sandbox.assert_stored_once("m-1").await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        assert_eq!(script.runs("m-1"), runs + 1, "a duplicate ran");
        sandbox.assert_stored_once("m-1").await;
        running.stop().await;
    }

    /// K16
    #[tokio::test(flavor = "multi_thread")]
    async fn the_other_consumers_of_a_parked_message_finish_and_it_is_acked_once() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.serve(notify::handler())
        })
        .await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        assert_eq!(sandbox.balance("acc-2").await, 100, "the other consumer is done before the ack");
        nothing_waits(&sandbox).await;
        assert_eq!(broker.settled().len(), 1);
        assert_eq!(sandbox.balance("acc-1").await, 100);
        assert_eq!(sandbox.balance("acc-2").await, 100, "the other consumer ran again");
        assert_eq!(sandbox.claims("m-1").await, 2);
        running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_parked_message_outlives_its_process_and_is_another_ones() {
        let sandbox = Db::fresh(8).await;
        let broker = MemoryBroker::new();
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.retry(RetryPolicy::default().first_delay(Duration::from_secs(1)))
        })
        .await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(parked(&sandbox).await, 1);
        assert_eq!(sandbox.ledger_total().await, 0);
        // Another broker: nothing but the row brings the message back. Two processes want it.
        let [first, second] = [MemoryBroker::new(), MemoryBroker::new()];
        let first = start(&sandbox, &first, &script, charge::handler(), |builder| builder).await;
        let second = start(&sandbox, &second, &script, charge::handler(), |builder| builder).await;
        nothing_waits(&sandbox).await;
        sandbox.assert_stored_once("m-1").await;
        first.stop().await;
        second.stop().await;
        assert_runs(script.runs("m-1"), 2, "one failure, one success");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_whose_worker_died_is_tried_again_when_its_lease_has_run_out() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.retry(RetryPolicy::default().first_delay(Duration::from_secs(1)))
        })
        .await;
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        let taken = "UPDATE inbox_messages SET status = 'processing', claimed_by = 'somebody', claim_token = 'gone', \
                     claimed_at = stored_at";
        Db::run(&sandbox.pool, taken).await;
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.lease(Duration::from_secs(2))
        })
        .await;
        nothing_waits(&sandbox).await;
        sandbox.assert_stored_once("m-1").await;
        running.stop().await;
        let left = Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_attempts").await;
        assert_eq!(left, 0, "a start that ended well is not held against the message");
    }

    /// C42: a row that somebody changed by hand.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_row_that_cannot_be_read_becomes_a_dead_letter_and_stops_nobody() {
        let sandbox = Db::fresh(5).await;
        let broker = MemoryBroker::new();
        let script = Script::default()
            .always("m-1", [Step::Fail("not today")])
            .once("m-2", [Step::Fail("not today")]);
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.retry(RetryPolicy::default().first_delay(Duration::from_secs(1)))
        })
        .await;
        broker.publish("orders", order("m-1"));
        broker.publish("orders", order("m-2"));
        all_acked(&broker).await;
        Db::run(&sandbox.pool, "UPDATE inbox_messages SET headers = '{' WHERE message_id = 'm-1'").await;
        nothing_waits(&sandbox).await;
        sandbox.assert_stored_once("m-2").await;
        assert_eq!(sandbox.dead_letters().await.len(), 1);
        let texts = sandbox.dead_letter_texts().await;
        assert!(texts[0].contains("headers"), "{texts:?}");
        assert_eq!(sandbox.ledger_rows("m-1").await + sandbox.claims("m-1").await, 0);
        running.stop().await;
    }
}
