//! A shutdown, orderly or not, leaves nothing half done.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use inbox_guarantees::dispatch::{Serve as _, in_one_transaction, is_shared};
use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, eventually, on_each_database, order,
    workers,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{HandlerError, Inbox, MessageId, State, Tx, Verdict, inbox_handler};

/// How long a handler takes, and how many have started.
#[derive(Clone)]
struct Slowness {
    takes: Duration,
    started: Arc<AtomicUsize>,
}

impl Slowness {
    fn of(takes: Duration) -> Self {
        Self {
            takes,
            started: Arc::default(),
        }
    }

    fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }
}

const PREFETCHED: usize = 20;

on_each_database! {
    #[inbox_handler(consumer = "billing", timeout = "5m")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId, State(slowness): State<Slowness>) -> Result<(), HandlerError> {
        // Before the work: the others wait for the first one's row lock, and are cut off in a statement.
        slowness.started.fetch_add(1, Ordering::SeqCst);
        bill!(Db, order, id, tx);
        if !slowness.takes.is_zero() {
            tokio::time::sleep(slowness.takes).await;
        }
        Ok(())
    }

    /// Starts an inbox, fills its hands, and stops it.
    async fn stopped_with(takes: Duration, grace: Duration) -> (inbox_guarantees::Sandbox<Db>, MemoryBroker, inbox_runtime::Stopped, Slowness, Duration) {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let slowness = Slowness::of(takes);
        let running_at_once = workers::<Db>(3);
        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .state(slowness.clone())
            .concurrency(running_at_once)
            .prefetch(running_at_once + PREFETCHED)
            .grace(grace)
            .build()
            .await
            .unwrap();
        for number in 0..running_at_once + PREFETCHED {
            broker.publish("orders", order(&format!("m-{number}")));
        }
        // One more, which stays with the broker.
        broker.publish("orders", order("later"));
        let running = Running::start(inbox);
        eventually("all hands full", || async {
            slowness.started() >= running_at_once
                && broker.queue_state("orders").outstanding == running_at_once + PREFETCHED
        })
        .await;
        let asked = Instant::now();
        let stopped = running.stop().await;
        (sandbox, broker, stopped, slowness, asked.elapsed())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn running_handlers_finish_within_the_grace_and_the_prefetched_go_back() {
        // Those that share a transaction run one after another.
        let takes = Duration::from_millis(if is_shared() { 150 } else { 700 });
        let (sandbox, broker, stopped, slowness, _) = stopped_with(takes, Duration::from_secs(30)).await;
        let running_at_once = workers::<Db>(3);
        let all = running_at_once + PREFETCHED;
        let finished = slowness.started();
        let may = running_at_once..=running_at_once * in_one_transaction().end();
        assert!(may.contains(&finished), "{finished}, not {may:?}: no new transaction starts");
        assert_eq!(stopped.cut_off, 0);
        assert_eq!(stopped.handed_back, all - finished);
        let settled = broker.settled();
        let acked = settled.iter().filter(|s| s.verdict == Verdict::Ack).count();
        assert_eq!((acked, settled.len()), (finished, all));
        assert_eq!(sandbox.ledger_total().await, acked as i64);
        assert_eq!(sandbox.claims_total().await, acked as i64);
        assert_eq!(broker.queue_state("orders").ready, all - finished + 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn handlers_that_outlast_the_grace_are_cut_off_and_leave_nothing() {
        let grace = Duration::from_secs(1);
        let (sandbox, broker, stopped, slowness, took) = stopped_with(Duration::from_secs(60), grace).await;
        let running_at_once = workers::<Db>(3);
        assert_eq!(slowness.started(), running_at_once, "no new handler starts");
        assert_eq!(stopped.cut_off, running_at_once);
        // What was not started, and what shared a transaction with what was cut off.
        let most = PREFETCHED + if is_shared() { running_at_once } else { 0 };
        assert!((PREFETCHED..=most).contains(&stopped.handed_back), "{stopped:?}");
        assert!(took >= grace && took < grace + Duration::from_secs(5), "{took:?}");
        assert!(broker.settled().iter().all(|s| s.verdict != Verdict::Ack));
        assert_eq!(sandbox.ledger_total().await, 0);
        assert_eq!(sandbox.claims_total().await, 0);
        assert_eq!(sandbox.balance("acc-1").await, 0);
        assert_eq!(Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_attempts").await, 0, "it counts nothing");
        assert_eq!(broker.queue_state("orders").ready, running_at_once + PREFETCHED + 1, "all of it comes again");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dropping_run_until_anywhere_leaves_no_open_transaction_and_no_half_work() {
        let sandbox = Db::fresh(10).await;
        let broker = MemoryBroker::new();
        let rounds: u64 = 200;
        for round in 0..rounds {
            let inbox = Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders"))
                .serve(charge::handler())
                .state(Slowness::of(Duration::ZERO))
                .concurrency(workers::<Db>(3))
                .build()
                .await
                .unwrap();
            for number in 0..4 {
                broker.publish("orders", order(&format!("m-{round}-{number}")));
            }
            let running = tokio::spawn(inbox.run_until(pending()));
            // From "before the first statement" to "when all is done", in uneven steps.
            tokio::time::sleep(Duration::from_micros(round * 7919 % 12_000)).await;
            running.abort();
            let _ = running.await;
            if round % 3 == 0 {
                // Not always: the next round's workers also meet the last one's.
                eventually("the workers gone", || async { broker.queue_state("orders").outstanding == 0 }).await;
            }
        }
        eventually("the last workers gone", || async { broker.queue_state("orders").outstanding == 0 }).await;
        // Dropped means stopped: nobody takes what comes now.
        broker.publish("orders", order("late"));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(sandbox.ledger_rows("late").await, 0);
        // An ack follows a commit, and what is not acked is with the broker.
        let acked = broker.settled().iter().filter(|s| s.verdict == Verdict::Ack).count();
        assert!(sandbox.ledger_total().await >= acked as i64);
        assert_eq!(sandbox.claims_total().await, sandbox.ledger_total().await);
        Db::assert_clean(&sandbox.pool).await;

        let inbox = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .state(Slowness::of(Duration::ZERO))
            .build()
            .await
            .unwrap();
        let running = Running::start(inbox);
        all_acked(&broker).await;
        running.stop().await;
        let all = 4 * rounds as i64 + 1;
        assert_eq!(sandbox.ledger_total().await, all);
        assert_eq!(sandbox.claims_total().await, all);
        assert_eq!(sandbox.balance("acc-1").await, 100 * all);
        assert!(sandbox.dead_letters().await.is_empty());
        assert_eq!(Db::number(&sandbox.pool, "SELECT count(*) FROM inbox_attempts").await, 0);
        Db::assert_clean(&sandbox.pool).await;
    }
}

mod statements_on_mysql {
    use super::*;
    use sqlx::MySql;

    #[inbox_handler(consumer = "billing", timeout = "10m")]
    async fn sleep_on_the_server(
        order: OrderPlaced,
        tx: &mut Tx<MySql>,
        id: MessageId,
    ) -> Result<(), HandlerError> {
        bill!(MySql, order, id, tx);
        sqlx::query("DO SLEEP(600)").execute(&mut *tx).await?;
        Ok(())
    }

    /// The server goes on with the statement of a client that is gone, and keeps its locks.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_statement_of_a_handler_that_was_cut_off_has_ended_when_the_process_does() {
        let sandbox = MySql::fresh(6).await;
        let url = sandbox.url.clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        // A process: nothing goes on in the background when it is over.
        let process = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let pool = inbox_guarantees::mysql_pool(url.parse().unwrap(), 4).await;
                let broker = MemoryBroker::new();
                broker.publish("orders", order("m-1"));
                let inbox = Inbox::builder(pool)
                    .source("orders", broker.source("orders"))
                    .register(sleep_on_the_server::handler())
                    .concurrency(1)
                    .grace(Duration::ZERO)
                    .build()
                    .await
                    .unwrap();
                inbox.run_until(async { drop(stopped.await) }).await
            })
        });
        let at_it = "SELECT count(*) FROM information_schema.PROCESSLIST \
                     WHERE DB = DATABASE() AND INFO LIKE 'DO SLEEP%'";
        eventually("the statement runs", || async {
            MySql::number(&sandbox.pool, at_it).await == 1
        })
        .await;
        stop.send(()).unwrap();
        let stopped = tokio::task::spawn_blocking(|| process.join().unwrap())
            .await
            .unwrap();
        assert_eq!(stopped.cut_off, 1);
        eventually("the statement has ended", || async {
            MySql::number(&sandbox.pool, at_it).await == 0
        })
        .await;
        MySql::assert_clean(&sandbox.pool).await;
        assert_eq!(sandbox.ledger_total().await, 0);
    }
}
