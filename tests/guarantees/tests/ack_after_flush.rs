//! With acks after a flush, commits wait for the disk in groups, and still no message is acked whose effect a crash of
//! the server can take back.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inbox_guarantees::dispatch::Serve as _;
use inbox_guarantees::script::{Script, Stage, Step, run};
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::testing::Step as PathStep;
use inbox_runtime::{HandlerError, Inbox, MessageId, State, Tx, Verdict, inbox_handler};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Postgres, Sqlite};

#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
    State(script): State<Script>,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    script.play(&id, tx).await
}

fn id(number: usize) -> String {
    format!("m-{number}")
}

/// A server that writes its log only when somebody waits for it.
async fn lazy_server() -> (OwnServer, Sandbox<Postgres>) {
    let server = OwnServer::start("postgres");
    let (admin, app) = (server.url("POSTGRES_ADMIN_URL"), server.url("POSTGRES_URL"));
    let admin_pool = sqlx::PgPool::connect(&admin).await.unwrap();
    for setting in [
        "ALTER SYSTEM SET wal_writer_delay = '10s'",
        "ALTER SYSTEM SET wal_writer_flush_after = 0",
        "ALTER SYSTEM SET fsync = on",
        "SELECT pg_reload_conf()",
    ] {
        Postgres::run(&admin_pool, setting).await;
    }
    let sandbox = Sandbox::on_server(&admin, &app, 4).await;
    (server, sandbox)
}

/// Two workers that ack after a flush.
async fn start(sandbox: &Sandbox<Postgres>, broker: &MemoryBroker, script: Script) -> Running {
    let options: PgConnectOptions = sandbox.url.parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(1))
        .connect_lazy_with(options);
    let inbox = Inbox::builder(pool)
        .source("orders", broker.source("orders"))
        .serve(charge::handler())
        .state(script)
        .concurrency(2)
        .prefetch(500)
        .ack_after_flush()
        .build()
        .await
        .unwrap();
    Running::start(inbox)
}

fn acks(broker: &MemoryBroker) -> HashMap<String, usize> {
    let mut acks = HashMap::new();
    for settled in broker.settled() {
        if settled.verdict == Verdict::Ack {
            *acks
                .entry(settled.message_id.unwrap_or_default())
                .or_default() += 1;
        }
    }
    acks
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_server_takes_back_no_effect_of_a_message_that_was_acked() {
    let (server, sandbox) = lazy_server().await;
    let broker = MemoryBroker::new();
    let running = start(&sandbox, &broker, Script::default()).await;
    let mut published = 0;
    for round in 1..=2 {
        // Far more than fit between two flushes, some of them twice.
        for number in published..published + 600 {
            let copies = if number % 7 == 0 { 2 } else { 1 };
            broker.publish_copies("orders", order(&id(number)), copies);
        }
        published += 600;
        eventually("some are acked", || async {
            acks(&broker).len() >= published - 600 + 100 * round
        })
        .await;
        server.crash();
        let acked = acks(&broker);
        assert!(acked.len() < published, "the crash came too late");
        server.again();
        for id in acked.keys() {
            assert_eq!(
                sandbox.ledger_rows(id).await,
                1,
                "{id} was acked and is lost"
            );
        }
    }
    all_acked(&broker).await;
    let all = i64::try_from(published).unwrap();
    assert_eq!(sandbox.ledger_total().await, all);
    assert_eq!(sandbox.claims_total().await, all);
    assert_eq!(sandbox.balance("acc-1").await, 100 * all);
    assert_eq!(acks(&broker).len(), published);
    assert!(sandbox.dead_letters().await.is_empty());
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_message_does_not_wait_for_another_to_be_durable() {
    let (server, sandbox) = lazy_server().await;
    let broker = MemoryBroker::new();
    let running = start(&sandbox, &broker, Script::default()).await;
    for number in 0..5 {
        broker.publish("orders", order(&id(number)));
        all_acked(&broker).await;
    }
    server.crash();
    server.again();
    assert_eq!(sandbox.ledger_total().await, 5);
    running.stop().await;
}

/// How often a session is lost at most.
const ROUNDS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_lost_before_the_flush_acks_nothing_by_another_ones() {
    let sandbox = Postgres::fresh(4).await;
    let claims = Arc::new(Mutex::new(HashMap::<String, usize>::new()));
    let seen = Arc::clone(&claims);
    // The tenth of each round ends its own session, with commits before it that are not flushed yet.
    let script = (0..ROUNDS).fold(Script::default(), |script, round| {
        script.once(
            &id(round * 20 + 9),
            [
                Step::Sleep(Duration::from_millis(5)),
                run("SELECT pg_terminate_backend(pg_backend_pid())"),
            ],
        )
    });
    let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| {
        builder
            .prefetch(64)
            .messages_per_transaction(1)
            .ack_after_flush()
            .on_step(move |step, id| {
                if step == PathStep::BeforeClaim {
                    *seen.lock().unwrap().entry(id.to_owned()).or_default() += 1;
                }
            })
    })
    .await;
    // On a busy machine the time limit of a flush can pass just before the tenth.
    let mut is_one_looked_up_again = false;
    for round in 0..ROUNDS {
        let numbers = round * 20..(round + 1) * 20;
        for number in numbers.clone() {
            stage.publish(&id(number));
        }
        all_acked(&stage.broker).await;
        for number in numbers.clone() {
            let id = id(number);
            sandbox.assert_stored_once(&id).await;
            assert_eq!(stage.acks(&id), 1, "{id}");
        }
        let claims = claims.lock().unwrap();
        is_one_looked_up_again |= numbers.take(9).any(|number| claims[&id(number)] == 2);
        if is_one_looked_up_again {
            break;
        }
    }
    stage.stop().await;
    assert!(
        is_one_looked_up_again,
        "none of those before it was looked up again: {:?}",
        claims.lock().unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_shutdown_what_is_done_is_flushed_and_acked() {
    let sandbox = Postgres::fresh(4).await;
    let broker = MemoryBroker::new();
    let script = Script::default().always(&id(40), [Step::Sleep(Duration::from_millis(300))]);
    let running = start(&sandbox, &broker, script).await;
    for number in 0..400 {
        broker.publish("orders", order(&id(number)));
    }
    eventually("some are done", || async {
        sandbox.ledger_total().await >= 50
    })
    .await;
    running.stop().await;
    let acked = acks(&broker);
    let done = sandbox.ledger_total().await;
    assert_eq!(i64::try_from(acked.len()).unwrap(), done);
}

#[tokio::test]
async fn a_database_that_flushes_every_commit_refuses_the_option() {
    let sandbox = Sqlite::fresh(2).await;
    let broker = MemoryBroker::new();
    let refused = Inbox::builder(sandbox.pool.clone())
        .source("orders", broker.source("orders"))
        .ack_after_flush()
        .build()
        .await
        .unwrap_err();
    assert!(
        refused
            .problems()
            .iter()
            .any(|problem| problem.contains("ack_after_flush() is for PostgreSQL")),
        "{refused}"
    );
}
