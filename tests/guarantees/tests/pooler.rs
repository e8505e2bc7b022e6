//! C14: behind PgBouncer in transaction mode, with the settings that the documentation asks for: each transaction has
//! another session of the server, of which there are two.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::recorded::Recorded;
use inbox_guarantees::{
    EventLog, OrderPlaced, Running, Sandbox, TestDatabase as _, all_acked, bill, environment,
    eventually, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::dead_letters::{DeadLetterError, DeadLetterQuery, DeadLetters};
use inbox_runtime::{
    Attempt, Capabilities, HandlerError, Inbox, InboxBuilder, MessageId, PurgePolicy, RetryPolicy,
    Tables, Tx, inbox_handler,
};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, PgPool, Postgres, Row as _};

const CLIENTS: u32 = 8;

#[inbox_handler(consumer = "billing", on = "OrderPlaced")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    Ok(())
}

#[inbox_handler(consumer = "billing", on = "Flaky")]
async fn second_time_lucky(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
    attempt: Attempt,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    match attempt.0 {
        1 => Err(HandlerError::new("not yet")),
        _ => Ok(()),
    }
}

#[inbox_handler(consumer = "billing", on = "OrderPlaced")]
async fn reject(_order: OrderPlaced, _tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Err(HandlerError::reject("not today"))
}

#[inbox_handler(consumer = "billing", on = "Escaping")]
async fn commit(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    (&mut **tx).execute(sqlx::raw_sql("COMMIT")).await?;
    Ok(())
}

/// The options of connections through the pooler to the database of a test.
fn through_pooler(sandbox: &Sandbox<Postgres>) -> PgConnectOptions {
    let pooler: PgConnectOptions = environment("PGBOUNCER_URL").parse().unwrap();
    let direct = sandbox.pool.connect_options();
    pooler.database(direct.get_database().unwrap())
}

fn pool(options: PgConnectOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(CLIENTS)
        .connect_lazy_with(options)
}

fn builder(pool: PgPool) -> InboxBuilder<Postgres> {
    Inbox::builder(pool)
        .concurrency(CLIENTS as usize - 1)
        .retry(RetryPolicy::default().first_delay(Duration::from_millis(20)))
}

/// What each session of the server has, when both are in use.
async fn assert_untouched(pool: &PgPool, sandbox: &Sandbox<Postgres>) {
    const STATE: &str = "SELECT concat_ws(' ', current_setting('lock_timeout'), current_setting('statement_timeout'), \
         current_setting('default_transaction_read_only'), current_setting('client_connection_check_interval'), \
         current_setting('idle_in_transaction_session_timeout'), current_setting('search_path'), \
         (SELECT count(*) FROM pg_prepared_statements), pg_backend_pid())";
    async fn state(conn: &mut sqlx::PgConnection) -> (String, String) {
        let row = conn.fetch_one(sqlx::raw_sql(STATE)).await.unwrap();
        let state: String = row.get(0);
        let (settings, session) = state.rsplit_once(' ').unwrap();
        (settings.to_owned(), session.to_owned())
    }
    let mut fresh = sandbox.pool.connect_options().connect().await.unwrap();
    let (default, _) = state(&mut fresh).await;
    let (mut one, mut other) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    let (mut one, mut other) = (one.begin().await.unwrap(), other.begin().await.unwrap());
    let (of_one, of_other) = (state(&mut one).await, state(&mut other).await);
    assert_ne!(
        of_one.1, of_other.1,
        "one session of the server for two transactions"
    );
    assert_eq!(of_one.0, default);
    assert_eq!(of_other.0, default);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_processed_once_and_the_sessions_stay_untouched() {
    let log = EventLog::of_process();
    let sandbox = Postgres::fresh(2).await;
    let pool = pool(through_pooler(&sandbox).statement_cache_capacity(0));
    let old = "INSERT INTO inbox_processed_messages (message_id, consumer_name, received_at) \
               SELECT 'old-' || n, 'billing', now() - interval '20 days' FROM generate_series(1, 100) n";
    Postgres::run(&sandbox.pool, old).await;
    let broker = MemoryBroker::new();
    let (source, record) = Recorded::new(broker.source("orders"));
    for n in 1..=450 {
        let copies = if n % 9 == 0 { 2 } else { 1 };
        broker.publish_copies("orders", order(&format!("c14-{n}")), copies);
    }
    let inbox = builder(pool.clone())
        .source("orders", source)
        .serve(charge::handler())
        .behind_transaction_pooler()
        .purge(
            PurgePolicy::default()
                .rows(20)
                .interval(Duration::from_secs(1)),
        )
        .build()
        .await
        .unwrap();
    let running = Running::start(inbox);
    // While more messages wait than there are sessions, others get their turn too.
    eventually("the first ack", || {
        std::future::ready(!record.acks().is_empty())
    })
    .await;
    let mut other = through_pooler(&sandbox).connect().await.unwrap();
    other.execute(sqlx::raw_sql("SELECT 1")).await.unwrap();
    assert!(
        record.acks().len() < 450,
        "another client waited for the backlog"
    );
    all_acked(&broker).await;
    eventually("what is old is purged", || async {
        sandbox.claims_total().await == 450
    })
    .await;
    running.stop().await;
    assert_eq!(record.acks().len(), 500);
    assert_eq!(record.hand_backs(), 0);
    assert_eq!(sandbox.ledger_total().await, 450);
    assert_eq!(sandbox.balance("acc-1").await, 45_000);
    assert_eq!(sandbox.dead_letters().await, [""; 0]);
    let told = log.text();
    let mut of_these = told.lines().filter(|line| line.contains("c14-"));
    assert_eq!(
        of_these.find(|line| line.contains("prepared statement")),
        None
    );
    assert_untouched(&pool, &sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_counted_and_an_escape_is_told() {
    let sandbox = Postgres::fresh(2).await;
    let pool = pool(through_pooler(&sandbox).statement_cache_capacity(0));
    let broker = MemoryBroker::new();
    // Without delays of the broker, what failed waits in the database.
    let source = broker
        .source("orders")
        .behave_as(Capabilities::new().counts_hand_backs(false));
    let inbox = builder(pool.clone())
        .source("orders", source)
        .longest_hold(Duration::from_millis(1))
        .poll_interval(Duration::from_millis(50))
        .serve(charge::handler())
        .serve(second_time_lucky::handler())
        .serve(commit::handler())
        .behind_transaction_pooler()
        .build()
        .await
        .unwrap();
    for n in 0..20 {
        broker.publish("orders", order(&format!("m-{n}")));
        broker.publish("orders", order(&format!("flaky-{n}")).message_type("Flaky"));
    }
    broker.publish("orders", order("escaping").message_type("Escaping"));
    let running = Running::start(inbox);
    all_acked(&broker).await;
    broker.publish("orders", order("escaping").message_type("Escaping"));
    all_acked(&broker).await;
    eventually("what failed is tried again", || async {
        sandbox.ledger_total().await == 41
    })
    .await;
    let waiting = "SELECT count(*) FROM inbox_messages";
    eventually("nothing waits", || async {
        Postgres::number(&sandbox.pool, waiting).await == 0
    })
    .await;
    running.stop().await;
    for n in 0..20 {
        sandbox.assert_stored_once(&format!("m-{n}")).await;
        sandbox.assert_stored_once(&format!("flaky-{n}")).await;
        assert_eq!(sandbox.attempts(&format!("flaky-{n}")).await, 0);
    }
    // It made itself durable, and only a person knows what that means.
    sandbox.assert_stored_once("escaping").await;
    assert_eq!(sandbox.dead_letters().await, ["escaped"]);
    let told = sandbox.dead_letter_texts().await.concat();
    assert!(
        told.contains("ended the inbox transaction itself"),
        "{told}"
    );
    assert_untouched(&pool, &sandbox).await;
}

/// What a person does with dead letters, from several places at once, so that the sessions of the server change hands.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_looked_at_replayed_and_discarded() {
    const LETTERS: usize = 12;
    let sandbox = Postgres::fresh(2).await;
    let pool = pool(through_pooler(&sandbox).statement_cache_capacity(0));
    let refused = DeadLetters::open(pool.clone(), &Tables::default()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("open_behind_transaction_pooler"),
        "{refused}"
    );
    let tables = Tables::default();
    let direct = DeadLetters::open_behind_transaction_pooler(sandbox.pool.clone(), &tables).await;
    let refused = direct.unwrap_err().to_string();
    assert!(
        refused.contains("server_reset_query_always = 1"),
        "{refused}"
    );
    let letters = DeadLetters::open_behind_transaction_pooler(pool.clone(), &Tables::default())
        .await
        .unwrap();

    let broker = MemoryBroker::new();
    let start = async |is_repaired: bool| {
        let builder = builder(pool.clone())
            .concurrency(2)
            .source("orders", broker.source("orders"))
            .poll_interval(Duration::from_millis(20))
            .behind_transaction_pooler();
        let builder = if is_repaired {
            builder.serve(charge::handler())
        } else {
            builder.serve(reject::handler())
        };
        Running::start(builder.build().await.unwrap())
    };
    let running = start(false).await;
    for n in 0..LETTERS {
        broker.publish("orders", order(&format!("m-{n}")));
    }
    all_acked(&broker).await;
    running.stop().await;
    assert_eq!(sandbox.dead_letters().await, ["rejected"; LETTERS]);

    let running = start(true).await;
    let query = DeadLetterQuery::new().page_size(5);
    assert_eq!(letters.count(&query).await.unwrap(), LETTERS as u64);
    let page = letters.list(&query).await.unwrap();
    assert_eq!(page.entries.len(), 5);
    let acts = (0..4).map(|place| {
        let (letters, page) = (letters.clone(), page.clone());
        tokio::spawn(async move {
            let mut discarded = 0;
            for entry in &page.entries {
                let shown = letters.show(entry.id).await;
                match shown {
                    Ok(shown) => assert_eq!(*shown.payload, *order("any").payload),
                    Err(error) => {
                        assert!(matches!(error, DeadLetterError::Unknown { .. }), "{error}");
                    }
                }
                let key = entry.message_id.as_deref().unwrap();
                if (key == "m-9" || key == "m-8") && place > 1 {
                    discarded += usize::from(letters.discard(entry.id, "ada").await.is_ok());
                } else if key != "m-9" && key != "m-8" {
                    letters.replay(entry.id, "ada").await.unwrap();
                }
            }
            discarded
        })
    });
    let mut discarded = 0;
    for act in futures_util::future::join_all(acts).await {
        discarded += act.unwrap();
    }
    assert_eq!(discarded, 2);
    let totals = letters.replay_all(&query, "ada", |_| ()).await.unwrap();
    assert_eq!(totals.queued, LETTERS as u64 - 5);
    eventually("what was not discarded is done", || async {
        sandbox.ledger_total().await == LETTERS as i64 - 2
    })
    .await;
    assert_eq!(letters.count(&query).await.unwrap(), 0);
    running.stop().await;
    for n in (0..LETTERS).filter(|n| *n != 8 && *n != 9) {
        sandbox.assert_stored_once(&format!("m-{n}")).await;
    }
    assert_untouched(&pool, &sandbox).await;
}

/// Start-up can fail to see a pooler, or it comes later: then it costs time.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_nobody_announced_costs_no_message() {
    let sandbox = Postgres::fresh(2).await;
    let direct = PgConnectOptions::clone(&sandbox.pool.connect_options());
    // No connection is used twice, so that all are of the kind that comes later.
    let pool = PgPoolOptions::new()
        .max_connections(CLIENTS)
        .after_release(|_, _| Box::pin(std::future::ready(Ok(false))))
        .connect_lazy_with(direct.statement_cache_capacity(0));
    let broker = MemoryBroker::new();
    let (source, record) = Recorded::new(broker.source("orders"));
    let inbox = builder(pool.clone())
        .source("orders", source)
        .serve(charge::handler())
        .build()
        .await
        .unwrap();
    pool.set_connect_options(through_pooler(&sandbox).statement_cache_capacity(0));
    let running = Running::start(inbox);
    // Many at once, and some that find an idle worker with a session.
    for n in 1..=40 {
        broker.publish_copies("orders", order(&format!("many-{n}")), 2);
    }
    all_acked(&broker).await;
    for n in 1..=5 {
        broker.publish_copies("orders", order(&format!("one-{n}")), 2);
        all_acked(&broker).await;
    }
    running.stop().await;
    assert_eq!(sandbox.ledger_total().await, 45);
    assert_eq!(sandbox.claims_total().await, 45);
    assert_eq!(sandbox.balance("acc-1").await, 4500);
    assert_eq!(record.acks().len(), 90);
    assert_eq!(sandbox.dead_letters().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_a_pooler_is_refused_with_the_remedy() {
    let sandbox = Postgres::fresh(CLIENTS).await;
    let broker = MemoryBroker::new();
    let pooled = through_pooler(&sandbox);
    let uncached = pooled.clone().statement_cache_capacity(0);
    let build = |pool: PgPool| {
        builder(pool)
            .source("orders", broker.source("orders"))
            .register(charge::handler())
    };
    for (refused, remedy) in [
        (
            build(pool(uncached.clone())),
            ".behind_transaction_pooler()",
        ),
        (
            build(pool(pooled)).behind_transaction_pooler(),
            ".statement_cache_capacity(0)",
        ),
        (
            build(sandbox.pool.clone()).behind_transaction_pooler(),
            "server_reset_query_always = 1",
        ),
        (
            build(pool(uncached))
                .behind_transaction_pooler()
                .ack_after_flush(),
            "ack_after_flush()",
        ),
    ] {
        let refused = refused.build().await.unwrap_err();
        assert_eq!(refused.problems().len(), 1, "{refused}");
        assert!(
            refused.problems()[0].contains(remedy),
            "{remedy}: {refused}"
        );
    }
    // With nothing between there is nothing to refuse.
    assert!(build(sandbox.pool.clone()).build().await.is_ok());
}
