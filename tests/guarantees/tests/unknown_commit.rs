//! A COMMIT whose answer does not come back is neither success nor failure: nothing is acked on it and nothing
//! is counted: a claim on the primary says that it was committed, no claim says nothing, and then the redelivery's claim
//! finds out (corners K6 and K7).

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inbox_guarantees::dispatch::{self, Serve as _};
use inbox_guarantees::proxy::{AtCommit, FaultProxy, Proxied};
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_server, order,
};
use inbox_runtime::brokers::{Effect, MemoryBroker};
use inbox_runtime::{
    Attempt, HandlerError, Inbox, InboxBuilder, MessageId, State, Tx, Verdict, inbox_handler,
};
use sqlx::pool::PoolOptions;
use sqlx::{PgPool, Pool, Postgres};

#[derive(Clone, Default)]
struct Entered(Arc<AtomicU32>);

impl Entered {
    fn times(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A proxy to the server of `sandbox`, and a pool of three connections through it.
async fn through_a_proxy<Db: Proxied>(sandbox: &Sandbox<Db>) -> (FaultProxy, Pool<Db>) {
    let (proxy, options) = Db::proxy_to(sandbox).await;
    let pool = PoolOptions::new()
        .max_connections(3)
        .acquire_timeout(Duration::from_secs(2))
        .connect_lazy_with(options);
    (proxy, pool)
}

/// Waits for that many settles.
async fn settled(broker: &MemoryBroker, count: u64) {
    tokio::time::timeout(Duration::from_secs(30), broker.until_settled(count))
        .await
        .unwrap_or_else(|_| panic!("not {count} settles: {:?}", broker.settled()));
}

fn acks(broker: &MemoryBroker) -> usize {
    let settled = broker.settled();
    settled
        .iter()
        .filter(|settled| settled.verdict == Verdict::Ack)
        .count()
}

/// Everything was handed back until the one ack at the end.
fn assert_acked_once_at_the_end(broker: &MemoryBroker) {
    let settled = broker.settled();
    assert!(
        settled.len() >= 2,
        "the unknown outcome was not handed back: {settled:?}"
    );
    assert!(
        settled.iter().all(|settled| settled.effect == Effect::Done),
        "{settled:?}"
    );
    assert_eq!(acks(broker), 1, "{settled:?}");
    assert_eq!(
        settled.last().map(|last| last.verdict),
        Some(Verdict::Ack),
        "{settled:?}"
    );
}

/// The claim was found before the broker was asked for anything. Only with acks after a flush it is handed back once:
/// the session that found the claim cannot flush what a lost one committed.
fn assert_acked_at_once(broker: &MemoryBroker) {
    let settled = broker.settled();
    let verdicts: Vec<_> = settled.iter().map(|settled| settled.verdict).collect();
    let hand_backs = usize::from(dispatch::acks_after_a_flush());
    assert_eq!(verdicts.len(), 1 + hand_backs, "{settled:?}");
    assert_eq!(verdicts.last(), Some(&Verdict::Ack), "{settled:?}");
    assert_eq!(acks(broker), 1, "{settled:?}");
}

on_each_server! {
    #[inbox_handler(consumer = "billing", timeout = "5s")]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(entered): State<Entered>,
        Attempt(attempt): Attempt,
    ) -> Result<(), HandlerError> {
        // A count that the success forgets again would have been one all the same.
        if attempt != 1 {
            return Err(HandlerError::reject("the unknown outcome was counted"));
        }
        entered.0.fetch_add(1, Ordering::SeqCst);
        bill!(Db, order, id, tx);
        if id.as_str().starts_with("rejected") {
            return Err(HandlerError::reject("never"));
        }
        Ok(())
    }

    pub(super) fn builder(pool: Pool<Db>, broker: &MemoryBroker, entered: &Entered) -> InboxBuilder<Db> {
        Inbox::builder(pool)
            .source("orders", broker.source("orders"))
            .serve(charge::handler())
            .state(entered.clone())
            .concurrency(1)
            .claim_wait(Duration::from_millis(300))
            .commit_wait(Duration::from_secs(1))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_cut_before_commit_is_executed_is_not_acked_and_the_effect_is_stored_once() {
        let sandbox = Db::fresh(3).await;
        let (proxy, pool) = through_a_proxy(&sandbox).await;
        let (broker, entered) = (MemoryBroker::new(), Entered::default());
        let inbox = builder(pool, &broker, &entered).build().await.unwrap();
        proxy.at_commits(&[AtCommit::CutBefore]);
        broker.publish("orders", order("m-1"));
        let running = Running::start(inbox);

        settled(&broker, 1).await;
        assert_eq!(proxy.struck(), 1);
        assert_eq!(acks(&broker), 0);
        all_acked(&broker).await;
        assert_acked_once_at_the_end(&broker);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(entered.times(), 2);
        assert_eq!(sandbox.attempts("m-1").await, 0);
        running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_connection_cut_after_commit_was_executed_is_acked_when_the_claim_was_found() {
        let sandbox = Db::fresh(3).await;
        let (proxy, pool) = through_a_proxy(&sandbox).await;
        let (broker, entered) = (MemoryBroker::new(), Entered::default());
        let inbox = builder(pool, &broker, &entered).build().await.unwrap();
        proxy.at_commits(&[AtCommit::CutAfter]);
        broker.publish("orders", order("m-1"));
        let running = Running::start(inbox);

        all_acked(&broker).await;
        assert_eq!(proxy.struck(), 1);
        assert_acked_at_once(&broker);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(entered.times(), 1);
        assert_eq!(sandbox.attempts("m-1").await, 0);
        running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn commits_lost_many_times_in_a_row_count_no_attempt_and_make_no_dead_letter() {
        let sandbox = Db::fresh(3).await;
        let (proxy, pool) = through_a_proxy(&sandbox).await;
        let (broker, entered) = (MemoryBroker::new(), Entered::default());
        let inbox = builder(pool, &broker, &entered).build().await.unwrap();
        // One more than the handler's max_attempts.
        proxy.at_commits(&[AtCommit::CutBefore; 6]);
        broker.publish("orders", order("m-1"));
        let running = Running::start(inbox);
        all_acked(&broker).await;
        assert_eq!(proxy.struck(), 6);
        assert_eq!(entered.times(), 7);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.attempts("m-1").await, 0);
        assert!(sandbox.dead_letters().await.is_empty());
        running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_commit_without_an_answer_ends_as_unknown_and_is_found_committed() {
        let sandbox = Db::fresh(3).await;
        let (proxy, pool) = through_a_proxy(&sandbox).await;
        let (broker, entered) = (MemoryBroker::new(), Entered::default());
        let inbox = builder(pool, &broker, &entered).build().await.unwrap();
        proxy.at_commits(&[AtCommit::FreezeAfter]);
        broker.publish("orders", order("m-1"));
        let running = Running::start(inbox);
        eventually("the commit is executed", || async {
            sandbox.claims("m-1").await == 1
        })
        .await;
        assert!(
            broker.settled().is_empty(),
            "settled although COMMIT has no answer"
        );
        all_acked(&broker).await;
        assert_acked_at_once(&broker);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(entered.times(), 1);
        assert_eq!(sandbox.attempts("m-1").await, 0);
        running.stop().await;
    }

    /// The partition leaves the claim locked by a session that will never commit: nobody may conclude anything
    /// from that until the server has ended it.
    #[tokio::test(flavor = "multi_thread")]
    async fn while_a_cut_off_commit_holds_the_claim_its_redelivery_is_neither_acked_nor_counted() {
        let sandbox = Db::fresh(3).await;
        let (proxy, pool) = through_a_proxy(&sandbox).await;
        let (broker, entered) = (MemoryBroker::new(), Entered::default());
        let inbox = builder(pool, &broker, &entered).build().await.unwrap();
        proxy.at_commits(&[AtCommit::FreezeBefore]);
        broker.publish("orders", order("m-1"));
        let running = Running::start(inbox);
        // Unknown, and then twice in work elsewhere.
        settled(&broker, 3).await;
        assert_eq!(acks(&broker), 0);
        assert_eq!(entered.times(), 1);
        assert_eq!(sandbox.claims("m-1").await, 0);
        proxy.cut();
        all_acked(&broker).await;
        assert_acked_once_at_the_end(&broker);
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(entered.times(), 2);
        assert_eq!(sandbox.attempts("m-1").await, 0);
        running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dead_letter_whose_commit_has_no_answer_is_kept_once_and_then_acked() {
        for strike in [AtCommit::CutBefore, AtCommit::CutAfter] {
            let sandbox = Db::fresh(3).await;
            let (proxy, pool) = through_a_proxy(&sandbox).await;
            let (broker, entered) = (MemoryBroker::new(), Entered::default());
            let inbox = builder(pool, &broker, &entered).build().await.unwrap();
            proxy.at_commits(&[strike]);
            broker.publish("orders", order("rejected-1"));
            let running = Running::start(inbox);
            all_acked(&broker).await;
            assert_eq!(proxy.struck(), 1);
            assert_acked_once_at_the_end(&broker);
            assert_eq!(sandbox.dead_letters().await, ["rejected"], "{strike:?}");
            assert_eq!(sandbox.claims("rejected-1").await, 0, "{strike:?}");
            assert_eq!(sandbox.ledger_total().await, 0, "{strike:?}");
            running.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_a_missing_standby_is_not_acked_before_it_ends() {
    let server = OwnServer::start("postgres");
    let (admin, app) = (server.url("POSTGRES_ADMIN_URL"), server.url("POSTGRES_URL"));
    let sandbox = Sandbox::on_server(&admin, &app, 4).await;
    let admin = PgPool::connect(&admin).await.unwrap();
    let set = async |sql: &str| {
        Postgres::run(&admin, sql).await;
        Postgres::run(&admin, "SELECT pg_reload_conf()").await;
    };
    let (broker, entered) = (MemoryBroker::new(), Entered::default());
    let inbox = postgres::builder(sandbox.pool.clone(), &broker, &entered)
        .build()
        .await
        .unwrap();
    set("ALTER SYSTEM SET synchronous_standby_names = 'missing'").await;
    eventually("the server waits for a standby", || async {
        let texts = Postgres::texts(&admin, "SHOW synchronous_standby_names").await;
        texts == ["missing"]
    })
    .await;
    broker.publish("orders", order("m-1"));
    let running = Running::start(inbox);

    eventually("COMMIT waits", || async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        Postgres::number(&admin, waiting).await >= 1
    })
    .await;
    // The unknown outcome, and then twice a copy in work elsewhere: the server's session still holds the claim.
    settled(&broker, 3).await;
    assert_eq!(acks(&broker), 0, "{:?}", broker.settled());
    assert_eq!(entered.times(), 1);

    set("ALTER SYSTEM RESET synchronous_standby_names").await;
    all_acked(&broker).await;
    assert_acked_once_at_the_end(&broker);
    assert_eq!(entered.times(), 1);
    sandbox.assert_stored_once("m-1").await;
    assert_eq!(sandbox.attempts("m-1").await, 0);
    running.stop().await;
}
