//! Messages with the same order key are worked on one after another, by one worker at a time, and nobody else waits
//! for them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_guarantees::dispatch::{Serve as _, in_one_transaction, is_shared, runs};
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
    workers,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Envelope, Handler, HandlerError, Headers, Inbox, InboxBuilder, MessageId, Monitor, RetryPolicy,
    State, Tx, inbox_handler,
};
use sqlx::{MySql, Postgres, Sqlite};

/// What handlers saw of each other.
#[derive(Clone, Default)]
struct Witness(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The key of each handler that runs.
    running: Vec<String>,
    /// Keys that were in work twice at once.
    overlapping: HashSet<String>,
    /// The most handlers at once.
    most: usize,
    /// For each key, the messages in the order in which they were begun.
    begun: HashMap<String, Vec<String>>,
    /// How many runs of a message fail.
    failing: HashMap<String, usize>,
}

impl Witness {
    fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn begin(&self, key: &str, id: &MessageId) -> bool {
        self.seen(|seen| {
            if seen.running.iter().any(|running| running == key) {
                seen.overlapping.insert(key.to_owned());
            }
            seen.running.push(key.to_owned());
            seen.most = seen.most.max(seen.running.len());
            let begun = seen.begun.entry(key.to_owned()).or_default();
            begun.push(id.as_str().to_owned());
            match seen.failing.get_mut(id.as_str()) {
                Some(failures) if *failures > 0 => {
                    *failures -= 1;
                    true
                }
                _ => false,
            }
        })
    }

    fn end(&self, key: &str) {
        self.seen(|seen| {
            let place = seen.running.iter().position(|running| running == key);
            seen.running.remove(place.unwrap());
        });
    }
}

fn keyed(key: &str, number: usize) -> Envelope {
    Envelope::new(format!(r#"{{"account":"{key}","amount":1}}"#))
        .id(id(key, number))
        .message_type("OrderPlaced")
        .key(key)
        .header("x-key", key.to_owned())
}

fn id(key: &str, number: usize) -> String {
    format!("{key}-{number}")
}

/// Four workers, on SQLite its one.
struct Shop<Db: TestDatabase> {
    sandbox: Sandbox<Db>,
    broker: MemoryBroker,
    witness: Witness,
    monitor: Monitor,
    running: Running,
}

impl<Db: TestDatabase> Shop<Db> {
    async fn with<H: Handler<Db = Db>>(
        handler: H,
        keys: &[&str],
        configure: impl FnOnce(InboxBuilder<Db>) -> InboxBuilder<Db>,
    ) -> Self {
        let sandbox = Db::fresh(8).await;
        for key in keys {
            let account = format!("INSERT INTO accounts (id, balance) VALUES ('{key}', 0)");
            Db::run(&sandbox.pool, &account).await;
        }
        let broker = MemoryBroker::new();
        let witness = Witness::default();
        let builder = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .serve(handler)
            .state(witness.clone())
            .concurrency(workers::<Db>(4))
            .prefetch(200)
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(300)));
        let inbox = configure(builder).build().await.unwrap();
        Self {
            monitor: inbox.monitor(),
            running: Running::start(inbox),
            sandbox,
            broker,
            witness,
        }
    }

    /// In turn, so that messages with the same key never come behind each other.
    fn publish(&self, keys: &[&str], each: usize) {
        for number in 0..each {
            for key in keys {
                self.broker.publish("orders", keyed(key, number));
            }
        }
    }

    async fn every_effect_is_there_once(&self, keys: &[&str], each: usize) {
        for key in keys {
            let balance = self.sandbox.balance(key).await;
            assert_eq!(balance, i64::try_from(each).unwrap(), "{key}");
        }
        let all = i64::try_from(keys.len() * each).unwrap();
        assert_eq!(self.sandbox.ledger_total().await, all);
        assert_eq!(self.sandbox.claims_total().await, all);
    }
}

/// How the server is asked for the deadlocks in one database.
trait Deadlocks {
    const DEADLOCKS: Option<&str> = None;
}

impl Deadlocks for Postgres {
    const DEADLOCKS: Option<&str> =
        Some("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()");
}

impl Deadlocks for MySql {}

impl Deadlocks for Sqlite {}

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

on_each_database! {
    /// Bills, slowly, and fails where it was told to.
    #[inbox_handler(consumer = "billing")]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        headers: Headers,
        State(witness): State<Witness>,
    ) -> Result<(), HandlerError> {
        let key = headers.get_str("x-key").unwrap().to_owned();
        let fails = witness.begin(&key, &id);
        let pause = if key == "slow" { 200 } else { 3 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        witness.end(&key);
        bill!(Db, order, id, tx);
        if fails {
            return Err("told to".into());
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn messages_with_one_key_are_never_in_work_at_once_and_keep_their_order() {
        let shop = Shop::<Db>::with(charge::handler(), &KEYS, |builder| builder).await;
        shop.publish(&KEYS, 40);
        all_acked(&shop.broker).await;
        shop.every_effect_is_there_once(&KEYS, 40).await;
        shop.witness.seen(|seen| {
            assert_eq!(seen.overlapping, HashSet::new());
            assert!(
            seen.most > 1 || workers::<Db>(4) == 1,
            "different keys were not in work at once"
        );
            for key in KEYS {
                let in_order: Vec<_> = (0..40).map(|number| id(key, number)).collect();
                assert_eq!(seen.begun[key], in_order);
            }
        });
        shop.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn transactions_that_share_rows_by_key_alone_never_deadlock() {
        let shop = Shop::<Db>::with(charge::handler(), &KEYS, |builder| builder.messages_per_transaction(16)).await;
        shop.publish(&KEYS, 60);
        all_acked(&shop.broker).await;
        shop.every_effect_is_there_once(&KEYS, 60).await;
        // A handler that ran twice was in a transaction that failed.
        shop.witness.seen(|seen| {
            assert!(seen.begun.values().all(|begun| begun.len() == 60));
        });
        // Who is the victim while it makes its claim runs no handler.
        let total = shop.monitor.total();
        assert_eq!((total.conflicts, total.in_progress_elsewhere), (0, 0), "{total:?}");
        if let Some(deadlocks) = Db::DEADLOCKS {
            // The server counts with a delay, and with a deadlock of its own it waits a second first.
            assert_eq!(Db::number(&shop.sandbox.pool, deadlocks).await, 0);
        }
        shop.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_whose_message_failed_goes_on_and_the_message_follows_later() {
        // Time enough for all others, before its last run.
        let retry = RetryPolicy::default().first_delay(Duration::from_millis(600));
        let shop = Shop::<Db>::with(charge::handler(), &KEYS, |builder| builder.retry(retry)).await;
        // Perhaps with its neighbours, which counts nothing, and once alone at least.
        let failures = 2.max(*runs(1).end());
        shop.witness
            .seen(|seen| seen.failing.insert(id("a", 1), failures));
        shop.publish(&KEYS, 10);
        all_acked(&shop.broker).await;
        shop.every_effect_is_there_once(&KEYS, 10).await;
        shop.witness.seen(|seen| {
            assert_eq!(seen.overlapping, HashSet::new());
            // No order after a failure: its followers do not wait for the retry.
            assert_eq!(seen.begun["a"].last(), Some(&id("a", 1)));
        });
        shop.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_key_with_many_slow_messages_holds_up_no_other() {
        let keys = ["slow", "b", "c"];
        let shop = Shop::<Db>::with(charge::handler(), &keys, |builder| builder).await;
        for number in 0..20 {
            shop.broker.publish("orders", keyed("slow", number));
        }
        shop.publish(&["b", "c"], 30);
        // One worker takes turns: a message of each key.
        let others = if workers::<Db>(4) == 1 { 10 } else { 30 };
        eventually("the others are done", || async {
            shop.sandbox.balance("b").await >= others && shop.sandbox.balance("c").await >= others
        })
        .await;
        let slow = shop.witness.seen(|seen| seen.begun["slow"].len());
        // Those that share a transaction with a slow one wait for it.
        assert!(
            slow < 20 || is_shared(),
            "the others waited for the slow key"
        );
        all_acked(&shop.broker).await;
        assert_eq!(shop.sandbox.balance("slow").await, 20);
        shop.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_shutdown_hands_back_what_waits_behind_its_own_key() {
        let shop = Shop::<Db>::with(charge::handler(), &["slow"], |builder| builder).await;
        for number in 0..30 {
            shop.broker.publish("orders", keyed("slow", number));
        }
        eventually("the first one runs", || async {
            shop.witness.seen(|seen| seen.begun.contains_key("slow"))
        })
        .await;
        let begun_before = shop.witness.seen(|seen| seen.begun["slow"].len());
        let stopped = shop.running.stop().await;
        let begun = shop.witness.seen(|seen| seen.begun["slow"].len());
        assert!(
            begun <= begun_before + in_one_transaction().end(),
            "a handler was started after the stop"
        );
        assert_eq!(stopped.handed_back, 30 - begun);
        let done = i64::try_from(begun).unwrap();
        assert_eq!(shop.sandbox.balance("slow").await, done);
    }
}
