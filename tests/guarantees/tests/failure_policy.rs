//! Whatever fails, a message is neither lost nor applied twice, nor does it loop or block its neighbours: what was once
//! found to be otherwise.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use inbox_guarantees::dispatch::{Serve as _, assert_runs, in_one_transaction};
use inbox_guarantees::outage::OwnDatabase;
use inbox_guarantees::proxy::{AtCommit, Proxied as _};
use inbox_guarantees::script::{Script, ScriptDatabase, Stage, Step, run};
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
    order, workers,
};
use inbox_runtime::brokers::{LostAck, MemoryBroker};
use inbox_runtime::dead_letters::{DeadLetterQuery, DeadLetters};
use inbox_runtime::testing::Step as PathStep;
use inbox_runtime::{
    Capabilities, Condition, Envelope, Handler, HandlerError, Inbox, InboxBuilder, MessageId,
    Monitor, RetryPolicy, State, Tables, Tx, inbox_handler,
};

fn other(id: &str, amount: u32) -> Envelope {
    Envelope::new(format!(r#"{{"account":"acc-1","amount":{amount}}}"#))
        .id(id)
        .message_type("OrderPlaced")
}

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
    let builder = Inbox::builder(sandbox.pool.clone())
        .source("orders", source)
        .messages_per_transaction(1)
        .serve(handler)
        .state(script.clone())
        .concurrency(workers::<H::Db>(2))
        .prefetch(16)
        .longest_hold(Duration::from_millis(1))
        .poll_interval(Duration::from_millis(20))
        .retry(
            RetryPolicy::default()
                .first_delay(Duration::from_millis(50))
                .longest_delay(Duration::from_millis(100)),
        );
    watched(configure(builder)).await.1
}

async fn watched<Db: TestDatabase>(builder: InboxBuilder<Db>) -> (Monitor, Running) {
    let inbox = builder.build().await.expect("the inbox");
    (inbox.monitor(), Running::start(inbox))
}

/// What two processes share of a message.
struct Copies<Db: TestDatabase> {
    runs: Arc<AtomicUsize>,
    go: Arc<tokio::sync::Semaphore>,
    pool: sqlx::Pool<Db>,
}

const COUNTED: &str = "SELECT concat(message_id, ' ', attempts, '+', starts) FROM inbox_attempts";

async fn letters<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> DeadLetters<Db> {
    DeadLetters::open(sandbox.pool.clone(), &Tables::default())
        .await
        .unwrap()
}

async fn parked<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> i64 {
    Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_messages").await
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

    /// One failure, then a dead letter.
    #[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 1)]
    pub(super) async fn charge_once(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await
    }

    /// Another message under the id of one that is parked is acked and told nowhere, where collisions are kept.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_collision_with_a_parked_message_is_kept_where_that_is_asked_for() {
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.dead_letter_collisions().retry(
                RetryPolicy::default().first_delay(Duration::from_secs(2)).longest_delay(Duration::from_secs(2)))
        }).await;
        broker.publish("orders", order("m-1"));
        eventually("parked", || async { parked(&sandbox).await == 1 }).await;
        all_acked(&broker).await;
        broker.publish("orders", other("m-1", 7));
        all_acked(&broker).await;
        eventually("the second try", || async { sandbox.ledger_rows("m-1").await == 1 }).await;
        eventually("nothing waits", || async { parked(&sandbox).await == 0 }).await;
        running.stop().await;
        assert_eq!(sandbox.balance("acc-1").await, 100);
        assert_eq!(sandbox.dead_letters().await, ["collision"], "the other message is gone without a trace");
    }

    #[inbox_handler(consumer = "billing", on = "Refunded")]
    async fn refund_only(_order: OrderPlaced, _tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        Ok(())
    }

    /// K16: a message that waited for a consumer which does not take its type any more is a dead letter, and holds its
    /// id like any other: for copies from the broker, for a replay and for a discard.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_dead_letter_of_what_waited_in_vain_holds_its_id() {
        let sandbox = Db::fresh(6).await;
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let stage = Stage::start(&sandbox.pool, script, charge_once::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        stage.stop().await;
        let letters = letters(&sandbox).await;
        let id = letters.list(&DeadLetterQuery::new()).await.unwrap().entries[0].id;
        letters.replay(id, "ada").await.unwrap();
        let stage = Stage::start(&sandbox.pool, Script::default(), refund_only::handler(), |builder| {
            builder.poll_interval(Duration::from_millis(20))
        })
        .await;
        eventually("nothing waits", || async { parked(&sandbox).await == 0 }).await;
        stage.stop().await;
        let open = letters.list(&DeadLetterQuery::new()).await.unwrap().entries;
        assert_eq!(open.len(), 1);
        assert_eq!((open[0].reason.as_str(), open[0].attempts), ("unknown_type", 1));
        let stage = Stage::start(&sandbox.pool, Script::default(), charge::handler(), |builder| {
            builder.poll_interval(Duration::from_millis(20))
        })
        .await;
        for id in ["m-1", "m-2", "m-1"] {
            stage.deliver(id).await;
        }
        assert_eq!(stage.script.runs("m-1"), 0, "it ran although its dead letter is open");
        assert_eq!(sandbox.ledger_rows("m-1").await + sandbox.claims("m-1").await, 0);
        letters.replay(id, "ada").await.unwrap();
        eventually("the replay", || async { sandbox.ledger_rows("m-1").await == 1 }).await;
        eventually("nothing waits", || async { parked(&sandbox).await == 0 }).await;
        stage.deliver("m-1").await;
        stage.stop().await;
        for id in ["m-1", "m-2"] {
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(Db::texts(&sandbox.pool, COUNTED).await, [""; 0]);
    }

    /// The first run fails while the second, of a copy in another process, waits for its claim. That one goes on when
    /// the failure is counted, or as good as counted.
    #[inbox_handler(consumer = "billing", timeout = "50s", max_attempts = 3)]
    async fn fail_before_a_copy(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(copies): State<Arc<Copies<Db>>>,
    ) -> Result<(), HandlerError> {
        let is_first = copies.runs.fetch_add(1, Ordering::SeqCst) == 0;
        bill!(Db, order, id, tx);
        if is_first {
            let _ = copies.go.acquire().await.unwrap();
            return Err("the first one fails".into());
        }
        let deadline = tokio::time::Instant::now() + Duration::from_secs(1);
        while tokio::time::Instant::now() < deadline
            && Db::number(&copies.pool, "SELECT count(*) FROM inbox_attempts").await == 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Whoever processed it did not know of the failure, so whoever counted that forgets it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_failure_that_is_counted_while_a_copy_is_processed_elsewhere_is_forgotten() {
        let sandbox = Db::fresh(10).await;
        let copies = Arc::new(Copies { runs: Arc::default(), go: Arc::new(tokio::sync::Semaphore::new(0)), pool: sandbox.another_pool(2).await });
        let mut running = Vec::new();
        let brokers = [MemoryBroker::new(), MemoryBroker::new()];
        let claims = Arc::new(AtomicUsize::new(0));
        for broker in &brokers {
            let seen = Arc::clone(&claims);
            let inbox = Inbox::builder(sandbox.another_pool(6).await)
                .source("orders", broker.source("orders").behave_as(Capabilities::new()))
                .serve(fail_before_a_copy::handler())
                .state(copies.clone())
                .concurrency(1)
                .retry(RetryPolicy::default().first_delay(Duration::from_millis(50)))
                .on_step(move |step, _| {
                    if step == PathStep::BeforeClaim {
                        seen.fetch_add(1, Ordering::SeqCst);
                    }
                })
                .build()
                .await
                .unwrap();
            running.push(Running::start(inbox));
        }
        brokers[0].publish("orders", order("m-1"));
        eventually("the first run", || async { copies.runs.load(Ordering::SeqCst) == 1 }).await;
        brokers[1].publish("orders", order("m-1"));
        eventually("the copy is at its claim", || async { claims.load(Ordering::SeqCst) == 2 }).await;
        // Until it waits there.
        tokio::time::sleep(Duration::from_millis(200)).await;
        copies.go.add_permits(1);
        for broker in &brokers {
            all_acked(broker).await;
        }
        for running in running {
            running.stop().await;
        }
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(Db::texts(&sandbox.pool, COUNTED).await, [""; 0], "counted against a message that was processed");
    }

    /// A count that is gone when the claim is won (here: a person discards the dead letter between the counted start
    /// and the claim) must not make the path panic for ever, nor kill the message.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_discard_between_the_counted_start_and_the_claim_leaves_a_message_that_is_processed() {
        let sandbox = Db::fresh(6).await;
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let letters = letters(&sandbox).await;
        let discarded = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&discarded);
        let pool = sandbox.pool.clone();
        let stage = Stage::start(&sandbox.pool, script, charge_once::handler(), move |builder| {
            builder.on_step(move |step, id| {
                if step != PathStep::BeforeClaim || id != "m-1" || done.load(Ordering::SeqCst) {
                    return;
                }
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(async {
                    let page = letters.list(&DeadLetterQuery::new()).await.unwrap();
                    if let Some(entry) = page.entries.first() {
                        let before = Db::texts(&pool, COUNTED).await;
                        let discarded = letters.discard(entry.id, "ada").await.unwrap();
                        eprintln!("{before:?} {} {:?}", discarded.forgot_failures, Db::texts(&pool, COUNTED).await);
                        done.store(true, Ordering::SeqCst);
                    }
                }));
            })
        }).await;
        stage.broker.lose_ack("orders", "m-1", 1, LostAck::Disconnect);
        stage.publish("m-1");
        eventually("the discard", || async { discarded.load(Ordering::SeqCst) }).await;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(15);
        while sandbox.ledger_rows("m-1").await == 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
        assert_eq!(sandbox.ledger_rows("m-1").await, 1, "it is never processed");
        stage.stop().await;
    }

    /// Fails until its downstream is there.
    #[inbox_handler(consumer = "billing", max_attempts = 3)]
    async fn relies(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(downstream): State<Arc<AtomicBool>>) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        if downstream.load(Ordering::SeqCst) { Ok(()) } else { Err("downstream is away".into()) }
    }

    /// "no more dead letters until one succeeds; the messages are kept and tried again": tried again they must be,
    /// when the handler is repaired.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_waited_for_a_broken_handler_is_tried_when_it_is_repaired() {
        const ALL: usize = 12;
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let downstream = Arc::new(AtomicBool::new(false));
        let running = start(&sandbox, &broker, &Script::default(), relies::handler(), |builder| {
            builder.state(Arc::clone(&downstream)).broken_after(2)
        }).await;
        for number in 0..ALL {
            broker.publish("orders", order(&format!("m-{number}")));
        }
        all_acked(&broker).await;
        // It is at least the third try of those that are not dead: the time of several.
        eventually("two are dead", || async { sandbox.dead_letters().await.len() >= 2 }).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        downstream.store(true, Ordering::SeqCst);
        eventually("nothing waits", || async { parked(&sandbox).await == 0 }).await;
        running.stop().await;
        let dead = sandbox.dead_letters().await.len();
        // Two workers may each make one more.
        assert!(dead <= 4, "{dead} of {ALL} are dead letters; {:?}", sandbox.dead_letter_texts().await);
        assert_eq!(sandbox.ledger_total().await, (ALL - dead) as i64);
    }

    #[inbox_handler(consumer = "billing", max_attempts = 3)]
    async fn asks_for_ever(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(script): State<Script>) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await?;
        match id.as_str() {
            "max" => Err(HandlerError::retry_after(Duration::MAX, "never again")),
            "aeon" => Err(HandlerError::retry_after(Duration::from_secs(60 * 60 * 24 * 365 * 10_000), "in 10,000 years")),
            _ => Ok(()),
        }
    }

    /// A delay longer than the database, or the process, can count.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_delay_that_nobody_can_count_waits_all_the_same() {
        for (id, hold) in [("aeon", 1), ("max", 1), ("max", 0)] {
            let sandbox = Db::fresh(6).await;
            let broker = MemoryBroker::new();
            let script = Script::default();
            let source = broker.source("orders");
            let source = if hold == 1 { source.behave_as(Capabilities::new()) } else {
                source.behave_as(Capabilities::new().longest_delay(Duration::MAX))
            };
            let inbox = Inbox::builder(sandbox.pool.clone()).source("orders", source).messages_per_transaction(1)
                .serve(asks_for_ever::handler()).state(script.clone()).concurrency(1)
                .longest_hold(Duration::from_millis(1)).poll_interval(Duration::from_millis(20))
                .build().await.unwrap();
            let running = Running::start(inbox);
            broker.publish("orders", order(id));
            broker.publish("orders", order("m-2"));
            eventually("the neighbour", || async { sandbox.ledger_rows("m-2").await == 1 }).await;
            tokio::time::sleep(Duration::from_secs(4)).await;
            running.stop().await;
            let dead = sandbox.dead_letter_texts().await;
            assert_runs(script.runs(id), 1, &format!("{id}/{hold}: it asked for more time than that; dead: {dead:?}"));
        }
    }

    /// What another database answers, or this one to a message that asks too much of it, each time.
    #[inbox_handler(consumer = "billing", max_attempts = 3)]
    async fn depends(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(script): State<Script>) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await?;
        if id.as_str().starts_with("bad") {
            // Of another pool.
            return Err(sqlx::Error::PoolTimedOut.into());
        }
        Ok(())
    }

    /// Another database that is away is the handler's failure: its messages must not fill the prefetch for ever.
    #[tokio::test(flavor = "multi_thread")]
    async fn messages_that_need_another_database_block_nobody_while_it_is_away() {
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let script = Script::default();
        let running = start(&sandbox, &broker, &script, depends::handler(), |builder| builder.prefetch(4)).await;
        for number in 0..6 {
            broker.publish("orders", order(&format!("bad-{number}")));
        }
        broker.publish("orders", order("good"));
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while sandbox.ledger_rows("good").await == 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (done, runs, counted) = (sandbox.ledger_rows("good").await, script.runs("bad-0"), sandbox.attempts("bad-0").await);
        running.stop().await;
        assert_eq!(done, 1, "the neighbour waits; bad-0 was run {runs} times, {counted} counted");
    }

    #[inbox_handler(consumer = "billing", timeout = "5s", max_attempts = 3)]
    async fn chaotic(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(calm): State<Arc<AtomicBool>>) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        if calm.load(Ordering::SeqCst) {
            return Ok(());
        }
        match fastrand::u32(0..100) {
            0..30 => Err("out of stock".into()),
            30..35 => panic!("index out of bounds"),
            35..45 => Err(HandlerError::reject("never")),
            45..60 => {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(100..700))).await;
                if fastrand::bool() { Ok(()) } else { Err("too late".into()) }
            }
            _ => Ok(()),
        }
    }

    /// Dead and claimed: at every instant at most one of them, and in the end everything once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn dead_and_processed_exclude_each_other_in_chaos() {
        const MANY: usize = 60;
        let sandbox = Db::fresh(12).await;
        let broker = MemoryBroker::new();
        let calm = Arc::new(AtomicBool::new(false));
        let mut inboxes = Vec::new();
        for number in 0..2 {
            let pool = sandbox.another_pool(6).await;
            let inbox = Inbox::builder(pool)
                .source("orders", broker.source("orders").behave_as(Capabilities::new()))
                .serve(chaotic::handler())
                .messages_per_transaction(if number == 0 { 1 } else { 8 })
                .state(Arc::clone(&calm))
                .concurrency(workers::<Db>(3))
                .prefetch(16)
                .claim_wait(Duration::from_millis(300))
                .lease(Duration::from_millis(250))
                .longest_hold(Duration::from_millis(1))
                .poll_interval(Duration::from_millis(20))
                .broken_after(1_000_000)
                .retry(RetryPolicy::default().first_delay(Duration::from_millis(30)).longest_delay(Duration::from_millis(120)))
                .build().await.unwrap();
            inboxes.push(Running::start(inbox));
        }
        let operators: Vec<_> = (0..2).map(|number| {
            let (pool, calm) = (sandbox.pool.clone(), Arc::clone(&calm));
            tokio::spawn(async move {
                let letters = DeadLetters::open(pool, &Tables::default()).await.unwrap();
                while !calm.load(Ordering::SeqCst) {
                    let _ = letters.replay_all(&DeadLetterQuery::new(), &format!("ada-{number}"), |_| {}).await;
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(5..60))).await;
                }
            })
        }).collect();
        let sampler = {
            let (pool, calm) = (sandbox.pool.clone(), Arc::clone(&calm));
            tokio::spawn(async move {
                let mut found = (0, 0, 0);
                while !calm.load(Ordering::SeqCst) {
                    found.0 += Db::number(&pool, "SELECT count(*) FROM inbox_processed_messages c JOIN inbox_dead_letters d \
                        ON d.message_id = c.message_id AND d.consumer_name = c.consumer_name WHERE d.replayed_at IS NULL").await;
                    found.1 += Db::number(&pool, "SELECT count(*) FROM inbox_processed_messages c JOIN inbox_messages m \
                        ON m.message_id = c.message_id AND m.consumer_name = c.consumer_name WHERE m.status = 'pending'").await;
                    found.2 += Db::number(&pool, "SELECT count(*) FROM inbox_dead_letters d JOIN inbox_messages m \
                        ON m.message_id = d.message_id AND m.consumer_name = d.consumer_name WHERE m.status = 'pending' AND d.replayed_at IS NULL").await;
                }
                found
            })
        };
        for round in 0..3 {
            for number in 0..MANY {
                broker.publish_copies("orders", order(&format!("m-{number}")), 1 + u32::from(number % 3 == 0));
            }
            tokio::time::sleep(Duration::from_secs(4)).await;
            if round == 1 { broker.disconnect("orders"); }
        }
        calm.store(true, Ordering::SeqCst);
        let found = sampler.await.unwrap();
        for operator in operators { operator.await.unwrap(); }
        // On a busy machine a message takes longer than the lease of the two: they would take it from each other for ever.
        for running in inboxes { running.stop().await; }
        let builder = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders").behave_as(Capabilities::new()))
            .serve(chaotic::handler())
            .state(Arc::clone(&calm))
            .concurrency(workers::<Db>(3))
            // What was leased at the moment of the stop comes when that lease is over: within the minute below.
            .lease(Duration::from_secs(10))
            .poll_interval(Duration::from_millis(20));
        let (_, running) = watched(builder).await;
        all_acked(&broker).await;
        let letters = letters(&sandbox).await;
        eventually("nothing waits or is dead", || async {
            let _ = letters.replay_all(&DeadLetterQuery::new(), "ada", |_| {}).await;
            parked(&sandbox).await == 0 && letters.count(&DeadLetterQuery::new()).await.unwrap() == 0
        }).await;
        running.stop().await;
        for number in 0..MANY {
            sandbox.assert_stored_once(&format!("m-{number}")).await;
        }
        // The other two may be met for a moment, when a lease ran out while its message was in work: it comes once more,
        // and is a duplicate, or dead already.
        assert_eq!(found.0, 0, "processed and dead at once: {found:?}");
    }

    /// What is due is tried, however much of it there is: not a prefetch of them every poll interval.
    #[tokio::test(flavor = "multi_thread")]
    async fn many_parked_messages_that_are_due_do_not_wait_for_a_poll_each() {
        const MANY: usize = 160;
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        let script = (0..MANY).fold(Script::default(), |script, number| {
            script.once(&format!("m-{number}"), [Step::Fail("not today")])
        });
        // As out of the box.
        let running = start(&sandbox, &broker, &script, charge::handler(), |builder| {
            builder.prefetch(8).poll_interval(Duration::from_secs(1))
                .retry(RetryPolicy::default().first_delay(Duration::from_secs(1)).longest_delay(Duration::from_secs(1)))
        }).await;
        for number in 0..MANY {
            broker.publish("orders", order(&format!("m-{number}")));
        }
        all_acked(&broker).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        let done = sandbox.ledger_total().await;
        running.stop().await;
        assert_eq!(done, MANY as i64, "due for 5 s, and not tried: an idle inbox leases 8 a second");
    }

    #[inbox_handler(consumer = "shipping", on = "Shipped")]
    async fn ship(_order: OrderPlaced, _tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        Ok(())
    }

    /// A message that a person replays is leased by an instance that ignores its type.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_replayed_message_is_not_dropped_by_an_instance_that_ignores_its_type() {
        let sandbox = Db::fresh(6).await;
        let broker = MemoryBroker::new();
        // The service that lacks the handler.
        let builder = || Inbox::builder(sandbox.pool.clone()).poll_interval(Duration::from_millis(20)).concurrency(1);
        let inbox = builder().source("orders", broker.source("orders")).serve(ship::handler()).build().await.unwrap();
        let running = Running::start(inbox);
        broker.publish("orders", order("m-1"));
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(sandbox.dead_letters().await, ["unknown_type"]);
        // Another service on the same tables, with a source of its own, which ignores such messages on it.
        let inbox = builder().source("shipments", broker.source("shipments")).serve(ship::handler())
            .ignore(["OrderPlaced"]).build().await.unwrap();
        let running = Running::start(inbox);
        let letters = letters(&sandbox).await;
        let id = letters.list(&DeadLetterQuery::new()).await.unwrap().entries[0].id;
        letters.replay(id, "ada").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let open = letters.count(&DeadLetterQuery::new()).await.unwrap();
        let waits = parked(&sandbox).await;
        running.stop().await;
        assert!(open == 1 || waits == 1, "the replayed message is gone: neither waiting nor an open dead letter");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_entry_that_is_opened_again_meanwhile_is_not_discarded() {
        discard_races(charge_once::handler()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_entry_that_is_kept_beside_a_discarded_one_holds_the_id() {
        keeps_beside(charge_once::handler()).await;
    }

    /// A statement that asks too much each time is the message's, not the server's, fault.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_asks_too_much_of_the_database_is_counted() {
        let sandbox = Db::fresh(6).await;
        let script = Script::default().always("m-1", [run(Db::ASKS_TOO_MUCH)]);
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
        stage.publish("m-1");
        eventually("four runs", || async {
            stage.script.runs("m-1") >= 4 || !sandbox.dead_letters().await.is_empty()
        })
        .await;
        let counted = sandbox.attempts("m-1").await;
        let dead = sandbox.dead_letters().await;
        stage.stop().await;
        assert_eq!(
            dead,
            ["attempts_exhausted"],
            "{counted} counted of at least 4 runs: it runs for ever"
        );
    }

    /// What cannot be parked at once is no further failure of its message.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_cannot_be_parked_at_once_is_not_run_until_it_is_dead() {
        let sandbox = Db::fresh(6).await;
        Db::run(&sandbox.pool, Db::REFUSE_PARKING).await;
        let broker = MemoryBroker::new();
        let script = Script::default().always("m-1", [Step::Fail("come back in an hour")]);
        let hour = Duration::from_secs(3600);
        let builder = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders").behave_as(Capabilities::new()))
            .messages_per_transaction(1)
            .serve(charge::handler())
            .state(script.clone())
            .longest_hold(Duration::from_millis(1))
            .concurrency(1)
            .retry(RetryPolicy::default().first_delay(hour).longest_delay(hour));
        let (monitor, running) = watched(builder).await;
        broker.publish("orders", order("m-1"));
        eventually("it could not be parked more often than it may fail", || async {
            monitor.total().infrastructure > 3
        })
        .await;
        Db::run(&sandbox.pool, Db::ALLOW_PARKING).await;
        all_acked(&broker).await;
        let (waits, dead, runs) = (parked(&sandbox).await, sandbox.dead_letters().await, script.runs("m-1"));
        running.stop().await;
        assert_eq!(
            (waits, dead.len()),
            (1, 0),
            "within seconds it was run {runs} times, and is {dead:?}, with a delay of an hour between two tries"
        );
    }

    /// What is down is told so.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_that_is_away_is_not_healthy_because_the_intake_has_no_room() {
        let database = OwnDatabase::<Db>::behind_a_proxy(6).await;
        let broker = MemoryBroker::new();
        let script = Script::default().first(
            "m-1",
            [vec![Step::Fail("not today")], vec![Step::Sleep(Duration::from_secs(4))]],
        );
        let inbox = Inbox::builder(database.pool(4))
            .source("orders", broker.source("orders").behave_as(Capabilities::new()))
            .messages_per_transaction(1)
            .serve(charge::handler())
            .state(script.clone())
            .concurrency(1)
            .prefetch(*in_one_transaction().end())
            .longest_hold(Duration::from_millis(1))
            .poll_interval(Duration::from_millis(20))
            .lease(Duration::from_secs(15))
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(50)))
            .build()
            .await
            .unwrap();
        let monitor = inbox.monitor();
        let running = Running::start(inbox);
        broker.publish("orders", order("m-1"));
        eventually("the parked run", || async { script.runs("m-1") == 2 }).await;
        database.stop_at_once();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut up = 0;
        for _ in 0..70 {
            up += usize::from(monitor.health().database == Condition::Up);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        database.again();
        eventually("the end", || async { database.sandbox.ledger_rows("m-1").await == 1 }).await;
        running.stop().await;
        assert_eq!(up, 0, "of 70 looks at a database that is away found it up");
    }

    #[inbox_handler(consumer = "billing", on = "Refunded")]
    async fn refund(_order: OrderPlaced, _tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        Ok(())
    }

    /// A replayed message that was processed meanwhile (its copy came) and is leased by an instance whose consumer does not
    /// take its type is a duplicate, and no dead letter.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_was_processed_is_no_dead_letter_where_its_consumer_has_another_handler() {
        let sandbox = Db::fresh(6).await;
        let script = Script::default().once("m-1", [Step::Fail("not today")]);
        let stage = Stage::start(&sandbox.pool, script, charge_once::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        let letters = letters(&sandbox).await;
        let id = letters.list(&DeadLetterQuery::new()).await.unwrap().entries[0].id;
        stage.stop().await;
        letters.replay(id, "ada").await.unwrap();
        let due_in = async |seconds: i64| {
            let due = Db::in_seconds(seconds);
            Db::run(&sandbox.pool, &format!("UPDATE inbox_messages SET next_attempt_at = {due}")).await;
        };
        due_in(3600).await;
        let stage = Stage::start(&sandbox.pool, Script::default(), charge_once::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        stage.stop().await;
        let processed = sandbox.ledger_rows("m-1").await;
        due_in(0).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .register(refund::handler())
            .concurrency(1)
            .poll_interval(Duration::from_millis(20))
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        eventually("nothing waits", || async { parked(&sandbox).await == 0 }).await;
        running.stop().await;
        let open = letters.list(&DeadLetterQuery::new()).await.unwrap().entries;
        let reasons: Vec<_> = open.iter().map(|entry| entry.reason.clone()).collect();
        assert_eq!(
            reasons.len() as i64 + processed,
            1,
            "processed {processed} times and an open dead letter {reasons:?}"
        );
    }
}

/// A start that was forgotten although the answer was lost.
mod on_mysql {
    use super::mysql::charge;
    use super::*;
    use sqlx::Executor as _;
    use sqlx::MySql;
    use sqlx::mysql::MySqlPoolOptions;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_whose_end_was_noted_without_an_answer_does_not_stop_the_message() {
        let sandbox = MySql::fresh(6).await;
        let (proxy, options) = MySql::proxy_to(&sandbox).await;
        let proxy = Arc::new(proxy);
        let pool = MySqlPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(2))
            .connect_lazy_with(options);
        // Somebody else has it in work.
        let mut elsewhere = sandbox.pool.begin().await.unwrap();
        elsewhere.execute("INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('m-1', 'billing')").await.unwrap();
        let tries = Arc::new(AtomicUsize::new(0));
        let (seen, striking) = (Arc::clone(&tries), Arc::clone(&proxy));
        let stage = Stage::start(
            &pool,
            Script::default(),
            charge::handler(),
            move |builder| {
                builder
                    .claim_wait(Duration::from_secs(1))
                    .on_step(move |step, _| {
                        if step == PathStep::BeforeClaim && seen.fetch_add(1, Ordering::SeqCst) == 1
                        {
                            striking.at_commits(&[AtCommit::CutAfter]);
                        }
                    })
            },
        )
        .await;
        stage.publish("m-1");
        eventually("the cut", || async { proxy.struck() == 1 }).await;
        elsewhere.rollback().await.unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(15);
        while sandbox.ledger_rows("m-1").await == 0 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(sandbox.dead_letters().await, [""; 0]);
        assert_eq!(
            sandbox.ledger_rows("m-1").await,
            1,
            "never processed after {} tries",
            tries.load(Ordering::SeqCst)
        );
        stage.stop().await;
    }
}

/// A message that wants to be alone waits for its claim, and everybody with it. SQLite has one writer: while a claim is
/// open elsewhere, nobody goes on.
trait Elsewhere: TestDatabase {
    fn hold(
        pool: &sqlx::Pool<Self>,
    ) -> impl Future<Output = sqlx::Transaction<'static, Self>> + Send;
}

macro_rules! elsewhere {
    ($db:ty) => {
        impl Elsewhere for $db {
            async fn hold(pool: &sqlx::Pool<Self>) -> sqlx::Transaction<'static, Self> {
                let mut tx = pool.begin().await.unwrap();
                for sql in [
                    "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('m-1', 'billing')",
                ] {
                    sqlx::query(sql).execute(&mut *tx).await.unwrap();
                }
                tx
            }
        }
    };
}
elsewhere!(sqlx::Postgres);
elsewhere!(sqlx::MySql);

async fn neighbours_go_on<H: Handler>(handler: H)
where
    H::Db: Elsewhere + ScriptDatabase,
{
    let sandbox = H::Db::fresh(10).await;
    let elsewhere = H::Db::hold(&sandbox.pool).await;
    // The start of whoever has it in work.
    H::Db::run(&sandbox.pool, "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, starts, last_failure) VALUES ('m-1', 'billing', 0, 1, '')").await;
    let broker = MemoryBroker::new();
    let tries = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&tries);
    let inbox = Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .messages_per_transaction(1)
        .serve(handler)
        .state(Script::default())
        .concurrency(4)
        .claim_wait(Duration::from_secs(4))
        .on_step(move |step, id| {
            if step == PathStep::BeforeClaim && id == "m-1" {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    broker.publish("orders", order("m-1"));
    // The first delivery waits in company, the second, a redelivery, alone.
    eventually("a redelivery", || async {
        tries.load(Ordering::SeqCst) == 2
    })
    .await;
    for number in 2..6 {
        broker.publish("orders", order(&format!("m-{number}")));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let done = sandbox.ledger_total().await;
    drop(elsewhere);
    running.stop().await;
    assert_eq!(
        done, 4,
        "neighbours wait for a claim that somebody else holds"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_waited_for_alone_holds_nobody_up_on_postgres() {
    neighbours_go_on(postgres::charge::handler()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_waited_for_alone_holds_nobody_up_on_mysql() {
    neighbours_go_on(mysql::charge::handler()).await;
}

/// While a person discards an entry that was replayed, the replay fails for good: the entry is open again, and must
/// not go with the message.
trait Locks: TestDatabase {
    fn reopen(
        pool: &sqlx::Pool<Self>,
    ) -> impl Future<Output = sqlx::Transaction<'static, Self>> + Send;
    fn commit(tx: sqlx::Transaction<'static, Self>) -> impl Future<Output = ()> + Send;
}

macro_rules! locks {
    ($db:ty) => {
        impl Locks for $db {
            async fn reopen(pool: &sqlx::Pool<Self>) -> sqlx::Transaction<'static, Self> {
                let mut tx = pool.begin().await.unwrap();
                sqlx::query("UPDATE inbox_dead_letters SET replayed_at = NULL")
                    .execute(&mut *tx)
                    .await
                    .unwrap();
                tx
            }
            async fn commit(tx: sqlx::Transaction<'static, Self>) {
                tx.commit().await.unwrap();
            }
        }
    };
}
locks!(sqlx::Postgres);
locks!(sqlx::MySql);
locks!(sqlx::Sqlite);

async fn discard_races<H: Handler>(handler: H)
where
    H::Db: Locks + ScriptDatabase,
{
    let sandbox = H::Db::fresh(10).await;
    let script = Script::default().always("m-1", [Step::Fail("never")]);
    let stage = Stage::start(&sandbox.pool, script, handler, |builder| builder).await;
    stage.deliver("m-1").await;
    stage.stop().await;
    let letters = letters(&sandbox).await;
    let id = letters.list(&DeadLetterQuery::new()).await.unwrap().entries[0].id;
    // As after its replay was queued and leased.
    H::Db::run(
        &sandbox.pool,
        &format!(
            "UPDATE inbox_dead_letters SET replayed_at = {}",
            H::Db::in_seconds(0)
        ),
    )
    .await;
    // What keeps the message after it failed again.
    let failing = H::Db::reopen(&sandbox.pool).await;
    let discarding = tokio::spawn(async move {
        letters
            .discard(id, "ada")
            .await
            .map(|done| done.entry.is_open())
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    H::Db::commit(failing).await;
    let discarded = discarding.await.unwrap();
    assert_eq!(
        sandbox.dead_letters().await.len(),
        1,
        "the message is gone; the discard answered (was open) {discarded:?}"
    );
}

/// After an outage, a parked message is tried as soon as the database is back, and not when its lease has run out. On SQLite
/// a handler that has the file open commits wherever that is: no outage takes its work away.
async fn sooner_than_the_lease<H: Handler>(handler: H)
where
    H::Db: TestDatabase,
{
    let database = OwnDatabase::<H::Db>::behind_a_proxy(6).await;
    let sandbox = &database.sandbox;
    let broker = MemoryBroker::new();
    let script = Script::default().first(
        "m-1",
        [
            vec![Step::Fail("not today")],
            vec![Step::Sleep(Duration::from_secs(1))],
            Vec::new(),
        ],
    );
    let inbox = Inbox::builder(database.pool(4))
        .source(
            "orders",
            broker.source("orders").behave_as(Capabilities::new()),
        )
        .messages_per_transaction(1)
        .serve(handler)
        .state(script.clone())
        .concurrency(1)
        .longest_hold(Duration::from_millis(1))
        .poll_interval(Duration::from_millis(20))
        .retry(RetryPolicy::default().first_delay(Duration::from_millis(50)))
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    broker.publish("orders", order("m-1"));
    eventually("the parked run", || async { script.runs("m-1") == 2 }).await;
    database.stop_at_once();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    database.again();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while sandbox.ledger_rows("m-1").await == 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let done = sandbox.ledger_rows("m-1").await;
    let left = H::Db::texts(&sandbox.pool, "SELECT status FROM inbox_messages").await;
    running.stop().await;
    assert_eq!(done, 1, "20 s after the database came back: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_message_does_not_wait_for_the_end_of_its_lease_after_an_outage_on_postgres() {
    sooner_than_the_lease(postgres::charge::handler()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_message_does_not_wait_for_the_end_of_its_lease_after_an_outage_on_mysql() {
    sooner_than_the_lease(mysql::charge::handler()).await;
}

/// What one database refuses, and how.
trait Refusing: TestDatabase {
    /// Fails because of what it asks for, whatever else the database does.
    const ASKS_TOO_MUCH: &str;

    /// From then on no message can be parked, by an error that asks for another try where the database lets a trigger say so.
    const REFUSE_PARKING: &str;

    /// Ends that.
    const ALLOW_PARKING: &str = "DROP TRIGGER refuse";
}

impl Refusing for sqlx::Postgres {
    // temp_file_limit
    const ASKS_TOO_MUCH: &str = "DO $$ BEGIN RAISE EXCEPTION 'temporary file size exceeds temp_file_limit' \
        USING ERRCODE = '53400'; END $$";
    const REFUSE_PARKING: &str = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        RAISE deadlock_detected; END $$; \
        CREATE TRIGGER refuse BEFORE INSERT ON inbox_messages FOR EACH ROW EXECUTE FUNCTION refuse()";
    const ALLOW_PARKING: &str = "DROP TRIGGER refuse ON inbox_messages";
}

impl Refusing for sqlx::MySql {
    // sort_buffer_size
    const ASKS_TOO_MUCH: &str =
        "SIGNAL SQLSTATE 'HY001' SET MYSQL_ERRNO = 1038, MESSAGE_TEXT = 'Out of sort memory'";
    const REFUSE_PARKING: &str = "CREATE TRIGGER refuse BEFORE INSERT ON inbox_messages FOR EACH ROW \
        SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213";
}

impl Refusing for sqlx::Sqlite {
    // SQLITE_LIMIT_LENGTH
    const ASKS_TOO_MUCH: &str = "SELECT zeroblob(2000000000)";
    const REFUSE_PARKING: &str = "CREATE TRIGGER refuse BEFORE INSERT ON inbox_messages BEGIN \
        SELECT RAISE(ABORT, 'not now'); END";
}

/// In a shared transaction too an open dead letter holds its id, whether or not anything is counted.
async fn held_without_a_count<H: Handler>(handler: H, again: H)
where
    H::Db: ScriptDatabase + TestDatabase,
{
    let sandbox = H::Db::fresh(6).await;
    let script = Script::default().once("m-1", [Step::Fail("not today")]);
    let stage = Stage::start(&sandbox.pool, script, handler, |builder| builder).await;
    stage.deliver("m-1").await;
    stage.stop().await;
    // As after the purge of what nothing open needs.
    H::Db::run(&sandbox.pool, "DELETE FROM inbox_attempts").await;
    let broker = MemoryBroker::new();
    for number in 1..6 {
        broker.publish("orders", order(&format!("m-{number}")));
    }
    let inbox = Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .register(again)
        .messages_per_transaction(16)
        .share_at_once()
        .state(Script::default())
        .concurrency(1)
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    all_acked(&broker).await;
    running.stop().await;
    assert_eq!(
        sandbox.ledger_rows("m-1").await,
        0,
        "processed and dead: alone it is held back, among others it is run"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_without_a_count_holds_its_id_in_a_shared_transaction_on_postgres() {
    held_without_a_count(
        postgres::charge_once::handler(),
        postgres::charge_once::handler(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_without_a_count_holds_its_id_in_a_shared_transaction_on_mysql() {
    held_without_a_count(mysql::charge_once::handler(), mysql::charge_once::handler()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_without_a_count_holds_its_id_in_a_shared_transaction_on_sqlite() {
    held_without_a_count(
        sqlite::charge_once::handler(),
        sqlite::charge_once::handler(),
    )
    .await;
}

/// While a person discards an entry, another message under its id is kept beside it: from then on that one must hold
/// the id.
trait Beside: TestDatabase {
    fn keep_beside(
        pool: &sqlx::Pool<Self>,
    ) -> impl Future<Output = sqlx::Transaction<'static, Self>> + Send;
    fn end(tx: sqlx::Transaction<'static, Self>) -> impl Future<Output = ()> + Send;
}

macro_rules! beside {
    ($db:ty) => {
        impl Beside for $db {
            /// As `keep_beside` in the path does it, up to the withdrawal of the claim.
            async fn keep_beside(pool: &sqlx::Pool<Self>) -> sqlx::Transaction<'static, Self> {
                let mut tx = pool.begin().await.unwrap();
                for sql in [
                    "INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES ('m-1', 'billing')",
                    "INSERT INTO inbox_dead_letters (entry_key, source, consumer_name, message_id, message_type, handler, reason, \
                     failure, attempts, headers, payload) VALUES ('another', 'orders', 'billing', 'm-1', 'OrderPlaced', 'charge', \
                     'held', 'another payload', 1, '{}', 'x')",
                ] {
                    sqlx::query(sql).execute(&mut *tx).await.unwrap();
                }
                tx
            }
            async fn end(mut tx: sqlx::Transaction<'static, Self>) {
                sqlx::query("DELETE FROM inbox_processed_messages").execute(&mut *tx).await.unwrap();
                tx.commit().await.unwrap();
            }
        }
    };
}
beside!(sqlx::Postgres);
beside!(sqlx::MySql);
beside!(sqlx::Sqlite);

/// Whatever is counted against a message: where its claim is there, it was processed.
async fn counted_and_processed<H: Handler>(handler: impl Fn() -> H)
where
    H::Db: TestDatabase + ScriptDatabase,
{
    let sandbox = H::Db::fresh(6).await;
    let stage = Stage::start(&sandbox.pool, Script::default(), handler(), |builder| {
        builder
    })
    .await;
    stage.deliver("m-1").await;
    // As a start that was noted beside the commit of a copy.
    H::Db::run(
        &sandbox.pool,
        "INSERT INTO inbox_attempts (message_id, consumer_name, attempts, starts, last_failure) \
         VALUES ('m-1', 'billing', 3, 2, '')",
    )
    .await;
    stage.deliver("m-1").await;
    stage.stop().await;
    let broker = MemoryBroker::new();
    for number in 1..6 {
        broker.publish("orders", order(&format!("m-{number}")));
    }
    let inbox = Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .register(handler())
        .messages_per_transaction(16)
        .share_at_once()
        .state(Script::default())
        .concurrency(1)
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    all_acked(&broker).await;
    running.stop().await;
    for number in 1..6 {
        sandbox.assert_stored_once(&format!("m-{number}")).await;
    }
    assert_eq!(sandbox.claims_total().await, 5);
    assert_eq!(sandbox.dead_letters().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processed_message_with_a_count_is_a_duplicate_on_postgres() {
    counted_and_processed(postgres::charge_once::handler).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processed_message_with_a_count_is_a_duplicate_on_mysql() {
    counted_and_processed(mysql::charge_once::handler).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processed_message_with_a_count_is_a_duplicate_on_sqlite() {
    counted_and_processed(sqlite::charge_once::handler).await;
}

/// A claim that waits for the transaction in which a dead letter is kept finds that letter when it is won.
async fn kept_while_waiting<H: Handler>(handler: impl Fn() -> H)
where
    H::Db: Beside + ScriptDatabase,
{
    for shared in [false, true] {
        let sandbox = H::Db::fresh(10).await;
        let keeping = H::Db::keep_beside(&sandbox.pool).await;
        let broker = MemoryBroker::new();
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .register(handler())
            .messages_per_transaction(if shared { 16 } else { 1 })
            .state(Script::default())
            .concurrency(1)
            .claim_wait(Duration::from_secs(10))
            .build()
            .await
            .unwrap();
        for number in 1..=if shared { 3 } else { 1 } {
            broker.publish("orders", order(&format!("m-{number}")));
        }
        let running = Running::start(inbox);
        tokio::time::sleep(Duration::from_millis(700)).await;
        H::Db::end(keeping).await;
        all_acked(&broker).await;
        running.stop().await;
        assert_eq!(
            sandbox.ledger_rows("m-1").await,
            0,
            "processed and dead, shared: {shared}"
        );
        assert_eq!(sandbox.dead_letters().await, ["held", "held"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_kept_while_its_claim_is_waited_for_holds_the_id_on_postgres() {
    kept_while_waiting(postgres::charge_once::handler).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_kept_while_its_claim_is_waited_for_holds_the_id_on_mysql() {
    kept_while_waiting(mysql::charge_once::handler).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_kept_while_its_claim_is_waited_for_holds_the_id_on_sqlite() {
    kept_while_waiting(sqlite::charge_once::handler).await;
}

async fn keeps_beside<H: Handler>(handler: H)
where
    H::Db: Beside + ScriptDatabase,
{
    let sandbox = H::Db::fresh(10).await;
    let script = Script::default().once("m-1", [Step::Fail("not today")]);
    let stage = Stage::start(&sandbox.pool, script, handler, |builder| builder).await;
    stage.deliver("m-1").await;
    assert_eq!(sandbox.dead_letters().await, ["attempts_exhausted"]);
    let letters = letters(&sandbox).await;
    let id = letters.list(&DeadLetterQuery::new()).await.unwrap().entries[0].id;
    let keeping = H::Db::keep_beside(&sandbox.pool).await;
    let discarding = tokio::spawn(async move { letters.discard(id, "ada").await });
    tokio::time::sleep(Duration::from_millis(700)).await;
    H::Db::end(keeping).await;
    discarding.await.unwrap().unwrap();
    assert_eq!(sandbox.dead_letters().await, ["held"]);
    stage.deliver("m-1").await;
    let (ledger, dead) = (
        sandbox.ledger_rows("m-1").await,
        sandbox.dead_letters().await,
    );
    stage.stop().await;
    assert_eq!(
        ledger, 0,
        "processed although an entry is open under the id: {dead:?}"
    );
}
