//! A handler of batches sees each message once, new and decoded, and a message that does not work harms no other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
    order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Batch, Envelope, Handler, HandlerError, Inbox, InboxBuilder, InboxDatabase, RetryPolicy, State,
    Tx, Verdict, inbox_handler,
};
use sqlx::{AssertSqlSafe, Executor as _, Postgres};

/// What a handler of batches was called with, and what it is to do.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    /// The ids of each call.
    calls: Vec<Vec<String>>,
    /// What calls with a message do after their work.
    does: HashMap<String, Does>,
    /// How long each call takes.
    takes: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Fail,
    Reject,
    Panic,
    Hang,
    Commit,
    RollBack,
}

impl Calls {
    fn noted<T>(&self, look: impl FnOnce(&mut Noted) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn all(&self) -> Vec<Vec<String>> {
        self.noted(|noted| noted.calls.clone())
    }

    fn with(id: &str, does: Does) -> Self {
        let calls = Self::default();
        calls.noted(|noted| noted.does.insert(id.to_owned(), does));
        calls
    }

    /// Enters a call; what to do at its end, and how long it takes.
    fn enter(&self, ids: Vec<String>) -> (Option<Does>, Duration) {
        self.noted(|noted| {
            let does = ids.iter().find_map(|id| noted.does.get(id).copied());
            noted.calls.push(ids);
            (does, noted.takes)
        })
    }

    async fn play<Db>(&self, ids: Vec<String>, tx: &mut Tx<Db>) -> Result<(), HandlerError>
    where
        Db: InboxDatabase,
        for<'t> &'t mut Tx<Db>: sqlx::Executor<'t, Database = Db>,
    {
        let (does, takes) = self.enter(ids);
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        match does {
            None => Ok(()),
            Some(Does::Fail) => Err("told to".into()),
            Some(Does::Reject) => Err(HandlerError::reject("told to")),
            Some(Does::Panic) => panic!("told to"),
            Some(Does::Hang) => std::future::pending().await,
            Some(Does::Commit) => end(tx, "COMMIT").await,
            Some(Does::RollBack) => end(tx, "ROLLBACK").await,
        }
    }
}

async fn end<Db>(tx: &mut Tx<Db>, how: &'static str) -> Result<(), HandlerError>
where
    Db: InboxDatabase,
    for<'t> &'t mut Tx<Db>: sqlx::Executor<'t, Database = Db>,
{
    // On MariaDB and SQLite it is refused, which is an error.
    let _ = tx.execute(sqlx::raw_sql(AssertSqlSafe(how))).await;
    Ok(())
}

fn ids(batch: &Batch<OrderPlaced>) -> Vec<String> {
    batch
        .iter()
        .map(|order| order.id().as_str().to_owned())
        .collect()
}

fn id(number: usize) -> String {
    format!("m-{number}")
}

/// As many messages as wait before the one worker begins.
const MANY: usize = 64;

/// One worker before which messages wait.
struct Ledger<Db: TestDatabase> {
    sandbox: Sandbox<Db>,
    broker: MemoryBroker,
    calls: Calls,
    running: Running,
}

impl<Db: TestDatabase> Ledger<Db> {
    /// Publishes, then starts the inbox, so that everything waits when the first batch is taken.
    async fn with<H: Handler<Db = Db>>(
        handler: H,
        calls: Calls,
        messages: impl IntoIterator<Item = Envelope>,
        configure: impl FnOnce(InboxBuilder<Db>) -> InboxBuilder<Db>,
    ) -> Self {
        let sandbox = Db::fresh(4).await;
        let broker = MemoryBroker::new();
        for message in messages {
            broker.publish("orders", message);
        }
        let builder = Inbox::builder(sandbox.pool.clone())
            .source("orders", broker.source("orders"))
            .register(handler)
            .state(calls.clone())
            .concurrency(1)
            .prefetch(200)
            .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)));
        let inbox = configure(builder).build().await.unwrap();
        Self {
            running: Running::start(inbox),
            sandbox,
            broker,
            calls,
        }
    }

    fn acks(&self, id: &str) -> usize {
        let settled = self.broker.settled();
        let acks = settled.iter().filter(|settled| {
            settled.message_id.as_deref() == Some(id) && settled.verdict == Verdict::Ack
        });
        acks.count()
    }

    /// All but `dead` are stored and acked once.
    async fn harmed_nobody_but(&self, dead: &[usize]) {
        for number in 0..MANY {
            let id = id(number);
            let stored = i64::from(!dead.contains(&number));
            assert_eq!(self.sandbox.ledger_rows(&id).await, stored, "{id}");
            assert_eq!(self.sandbox.claims(&id).await, stored, "{id}");
            assert_eq!(self.acks(&id), 1, "{id}");
        }
        let stored = i64::try_from(MANY - dead.len()).unwrap();
        assert_eq!(self.sandbox.balance("acc-1").await, 100 * stored);
        assert_eq!(self.sandbox.dead_letters().await.len(), dead.len());
    }
}

fn many() -> impl Iterator<Item = Envelope> {
    (0..MANY).map(|number| order(&id(number)))
}

on_each_database! {
    #[inbox_handler(consumer = "ledger", batch(max = 32), timeout = "1s", max_attempts = 2)]
    pub(super) async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Db>, State(calls): State<Calls>) -> Result<(), HandlerError> {
        for order in &orders {
            bill!(Db, **order, order.id(), tx);
        }
        calls.play(ids(&orders), tx).await
    }

    #[inbox_handler(consumer = "ledger", batch(max = 8, linger = "2s"))]
    async fn post_slowly(orders: Batch<OrderPlaced>, tx: &mut Tx<Db>, State(calls): State<Calls>) -> Result<(), HandlerError> {
        for order in &orders {
            bill!(Db, **order, order.id(), tx);
        }
        calls.play(ids(&orders), tx).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_waits_comes_in_order_in_as_few_calls_as_its_limit_allows() {
        let ledger = Ledger::<Db>::with(post::handler(), Calls::default(), many(), |b| b).await;
        all_acked(&ledger.broker).await;
        ledger.harmed_nobody_but(&[]).await;
        let calls = ledger.calls.all();
        assert_eq!(calls.concat(), (0..MANY).map(id).collect::<Vec<_>>());
        assert!(calls.iter().all(|call| call.len() <= 32), "{calls:?}");
        // The first call may have come before the rest was taken from the source.
        assert!(calls.len() <= 4, "{} calls", calls.len());
        ledger.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn duplicates_and_copies_never_reach_the_handler() {
        let twice = many().chain(many());
        let ledger = Ledger::<Db>::with(post::handler(), Calls::default(), twice, |b| b).await;
        all_acked(&ledger.broker).await;
        // And known ones between new ones.
        for number in 0..2 * MANY {
            ledger.broker.publish("orders", order(&id(number)));
        }
        all_acked(&ledger.broker).await;
        let mut seen = ledger.calls.all().concat();
        seen.sort_by_key(|id| id[2..].parse::<usize>().unwrap());
        assert_eq!(seen, (0..2 * MANY).map(id).collect::<Vec<_>>());
        assert_eq!(ledger.sandbox.ledger_total().await, i64::try_from(2 * MANY).unwrap());
        ledger.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_decoded_is_taken_out_before_the_handler_and_harms_nobody() {
        let broken = [3_usize, 4, 40];
        let messages = (0..MANY).map(|number| match broken.contains(&number) {
            true => Envelope::new("{").id(id(number)).message_type("OrderPlaced"),
            false => order(&id(number)),
        });
        let ledger = Ledger::<Db>::with(post::handler(), Calls::default(), messages, |b| b).await;
        all_acked(&ledger.broker).await;
        ledger.harmed_nobody_but(&broken).await;
        assert_eq!(ledger.sandbox.dead_letters().await, ["undecodable"; 3]);
        let expected: Vec<_> = (0..MANY).filter(|number| !broken.contains(number)).map(id).collect();
        assert_eq!(ledger.calls.all().concat(), expected, "each good one is seen once");
        ledger.running.stop().await;
    }

    async fn is_found(does: Does, reason: &str) {
        let ledger = Ledger::<Db>::with(post::handler(), Calls::with("m-40", does), many(), |b| b).await;
        all_acked(&ledger.broker).await;
        ledger.harmed_nobody_but(&[40]).await;
        assert_eq!(ledger.sandbox.dead_letters().await, [reason]);
        let calls = ledger.calls.all();
        // 32, 16, 8, 4, 2, alone; once more alone for each attempt.
        let with_it = calls.iter().filter(|call| call.contains(&id(40))).count();
        assert!(with_it <= 5 + 1 + 2, "{with_it} calls with it");
        assert!(calls.len() <= 4 + 2 * 5 + 2, "{} calls", calls.len());
        ledger.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_fails_is_found_in_halves_and_harms_nobody() {
        is_found(Does::Fail, "attempts_exhausted").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_is_rejected_is_found_in_halves_and_harms_nobody() {
        is_found(Does::Reject, "rejected").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_panics_is_found_in_halves_and_harms_nobody() {
        is_found(Does::Panic, "attempts_exhausted").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_hangs_is_found_in_halves_and_harms_nobody() {
        is_found(Does::Hang, "attempts_exhausted").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_message_that_rolls_back_for_all_is_found_in_halves_and_harms_nobody() {
        if Db::REFUSES_ROLLBACK {
            let calls = Calls::with("m-40", Does::RollBack);
            let ledger = Ledger::<Db>::with(post::handler(), calls, many(), |builder| builder).await;
            all_acked(&ledger.broker).await;
            ledger.harmed_nobody_but(&[]).await;
            ledger.running.stop().await;
        } else {
            is_found(Does::RollBack, "attempts_exhausted").await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_batch_that_lingers_fills_up_and_one_that_is_full_does_not_wait() {
        let ledger = Ledger::<Db>::with(post_slowly::handler(), Calls::default(), [], |b| b).await;
        for number in 0..8 {
            ledger.broker.publish("orders", order(&id(number)));
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        all_acked(&ledger.broker).await;
        assert_eq!(ledger.calls.all(), [(0..8).map(id).collect::<Vec<_>>()]);
        // Not full: it waits, and then goes as it is.
        ledger.broker.publish("orders", order("last"));
        all_acked(&ledger.broker).await;
        assert_eq!(ledger.calls.all().last().unwrap(), &["last"]);
        ledger.running.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_shutdown_hands_back_a_batch_that_lingers() {
        let ledger = Ledger::<Db>::with(post_slowly::handler(), Calls::default(), [order("m-1")], |b| b).await;
        eventually("it is taken", || async {
            ledger.broker.queue_state("orders").outstanding == 1
        })
        .await;
        let stopped = ledger.running.stop().await;
        assert_eq!((stopped.handed_back, ledger.calls.all().len()), (1, 0));
        assert_eq!(ledger.sandbox.claims_total().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_a_handler_commits_is_told_and_nothing_is_lost() {
    let calls = Calls::with("m-40", Does::Commit);
    let ledger =
        Ledger::<Postgres>::with(postgres::post::handler(), calls, many(), |builder| builder).await;
    all_acked(&ledger.broker).await;
    let told = Postgres::texts(
        &ledger.sandbox.pool,
        "SELECT message_id FROM inbox_dead_letters WHERE reason = 'escaped'",
    )
    .await;
    assert!(told.contains(&id(40)), "{told:?}");
    for number in 0..MANY {
        let id = id(number);
        assert_eq!(ledger.sandbox.ledger_rows(&id).await, 1, "{id}");
        assert_eq!(ledger.acks(&id), 1, "{id}");
    }
    ledger.running.stop().await;
}

/// The set-based form that the documentation shows.
#[inbox_handler(consumer = "ledger", batch(max = 100))]
async fn post_as_a_set(
    orders: Batch<OrderPlaced>,
    tx: &mut Tx<Postgres>,
) -> Result<(), HandlerError> {
    let ids: Vec<&str> = orders.iter().map(|order| order.id().as_str()).collect();
    let accounts: Vec<&str> = orders.iter().map(|order| order.account.as_str()).collect();
    let amounts: Vec<i64> = orders.iter().map(|order| order.amount).collect();
    sqlx::query("SELECT 1 FROM accounts WHERE id = ANY ($1) ORDER BY id FOR UPDATE")
        .bind(&accounts)
        .execute(&mut *tx)
        .await?;
    sqlx::query(
        "INSERT INTO ledger (msg_id, account, amount) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])",
    )
    .bind(&ids)
    .bind(&accounts)
    .bind(&amounts)
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "UPDATE accounts SET balance = balance + due.amount FROM \
         (SELECT account, sum(amount)::bigint AS amount FROM unnest($1::text[], $2::bigint[]) AS o (account, amount) \
         GROUP BY account) AS due WHERE accounts.id = due.account",
    )
    .bind(&accounts)
    .bind(&amounts)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn four_workers_with_sets_of_shared_rows_lose_and_double_nothing() {
    let sandbox = Postgres::fresh(8).await;
    let accounts =
        "INSERT INTO accounts (id, balance) SELECT 'a-' || n, 0 FROM generate_series(0, 9) AS n";
    Postgres::run(&sandbox.pool, accounts).await;
    let broker = MemoryBroker::new();
    let message = |number: usize| {
        Envelope::new(format!(r#"{{"account":"a-{}","amount":1}}"#, number % 10))
            .id(id(number))
            .message_type("OrderPlaced")
    };
    for number in 0..3000 {
        let copies = if number % 3 == 0 { 2 } else { 1 };
        broker.publish_copies("orders", message(number), copies);
    }
    let inbox = Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .register(post_as_a_set::handler())
        .concurrency(4)
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    all_acked(&broker).await;
    assert_eq!(sandbox.ledger_total().await, 3000);
    assert_eq!(sandbox.claims_total().await, 3000);
    for account in 0..10 {
        assert_eq!(sandbox.balance(&format!("a-{account}")).await, 300);
    }
    running.stop().await;
}
