//! How often the inbox asks the database, exactly: what a message costs besides the statements of its handler.
#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inbox_guarantees::round_trips::{RoundTrip, RoundTrips};
use inbox_guarantees::tap::Tap;
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase as _, all_acked, bill, eventually, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{HandlerError, Inbox, MessageId, State, Tx, inbox_handler};
use sqlx::Postgres;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::Semaphore;

#[derive(Clone)]
struct Gate(Arc<Semaphore>);

/// Two statements; `gate-..` waits before them.
#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
    State(gate): State<Gate>,
) -> Result<(), HandlerError> {
    if id.as_str().starts_with("gate") {
        gate.0.acquire().await.map_err(|_| "closed")?.forget();
    }
    bill!(Postgres, order, id, tx);
    Ok(())
}

/// One worker behind a proxy, which has done enough to have everything prepared.
struct Scene {
    sandbox: Sandbox<Postgres>,
    broker: MemoryBroker,
    gate: Gate,
    trips: RoundTrips,
    running: Running,
    _tap: Tap,
}

impl Scene {
    async fn with(messages_per_transaction: usize) -> Self {
        let sandbox = Postgres::fresh(2).await;
        let direct: PgConnectOptions = sandbox.url.parse().unwrap();
        let server: SocketAddr = format!("{}:{}", direct.get_host(), direct.get_port())
            .parse()
            .unwrap();
        let trips = RoundTrips::default();
        let tap = trips.tap(server).await;
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .connect_lazy_with(direct.port(tap.address().port()));
        let broker = MemoryBroker::new();
        let gate = Gate(Arc::new(Semaphore::new(0)));
        let inbox = Inbox::builder(pool)
            .source("orders", broker.source("orders"))
            .register(charge::handler())
            .state(gate.clone())
            .concurrency(1)
            .prefetch(500)
            // What asks for parked messages has a connection of its own, and is not counted here.
            .poll_interval(Duration::from_secs(60 * 60))
            .messages_per_transaction(messages_per_transaction)
            .without_purge();
        let running = Running::start(inbox.build().await.unwrap());
        let scene = Self {
            sandbox,
            broker,
            gate,
            trips,
            running,
            _tap: tap,
        };
        // It asks once at its start, and its pool looks at the connection behind it.
        eventually("parked messages were asked for", || async {
            let trips = scene.trips.seen();
            let asked = trips.iter().position(|trip| trip.says("next_attempt_at"));
            asked.is_some_and(|asked| trips[asked..].iter().any(|trip| trip.asked.is_empty()))
        })
        .await;
        // The driver prepares each statement where it is first run, also the one for duplicates.
        for _ in 0..2 {
            scene.publish(["warm"]);
            all_acked(&scene.broker).await;
        }
        scene
    }

    fn publish<S: AsRef<str>>(&self, ids: impl IntoIterator<Item = S>) {
        for id in ids {
            self.broker.publish("orders", order(id.as_ref()));
        }
    }

    /// What is asked while these lie before the worker, from the moment on at which the handler of the message before
    /// them goes on.
    async fn under_backlog(&self, ids: Vec<String>) -> Vec<RoundTrip> {
        let before = self.broker.queue_state("orders").outstanding;
        assert_eq!(before, 0);
        let gate = format!("gate-{}", ids[0]);
        self.publish([&gate]);
        self.publish(&ids);
        eventually("all lie before the worker", || async {
            self.broker.queue_state("orders").outstanding == ids.len() + 1
        })
        .await;
        eventually("the first one is in its handler", || async {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                       AND state = 'idle in transaction'";
            Postgres::number(&self.sandbox.pool, sql).await == 1
        })
        .await;
        let _ = self.trips.take();
        self.gate.0.add_permits(1);
        all_acked(&self.broker).await;
        self.trips.take()
    }

    async fn end(self, messages: i64) {
        self.running.stop().await;
        assert_eq!(self.sandbox.ledger_total().await, messages);
        assert_eq!(self.sandbox.claims_total().await, messages);
    }
}

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m-{n}")).collect()
}

fn listed(trips: &[RoundTrip]) -> String {
    let lines = trips
        .iter()
        .map(|trip| format!("{} {:?}", trip.statements, trip.asked));
    lines.collect::<Vec<_>>().join("\n")
}

fn statements(trips: &[RoundTrip]) -> Vec<usize> {
    trips.iter().map(|trip| trip.statements).collect()
}

/// BEGIN with everything that a transaction starts with, and the claim.
const CLAIM: usize = 11;
/// The lock timeout of several claims ends in a statement of its own.
const CLAIMS: usize = 12;
/// Role, fence, durability, COMMIT.
const SEAL: usize = 4;
/// Each of the handler's own.
const OWN: usize = 1;

/// How many messages a claim, or a seal, of several is for.
fn members(trip: &RoundTrip, of: &str) -> usize {
    let text = trip.asked.concat();
    let several = text.split_once(&format!("EXECUTE inbox_{of}_many_"));
    several.map_or(1, |(_, parameters)| {
        // The first array of a seal holds places, which have commas of their own.
        let array = parameters.split('}').next().unwrap();
        array.matches('"').count() / 2
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_for_which_nothing_waits_costs_two_round_trips_and_fifteen_statements() {
    let scene = Scene::with(1).await;
    for id in ids(10) {
        let _ = scene.trips.take();
        scene.publish([&id]);
        all_acked(&scene.broker).await;
        let trips = scene.trips.take();
        assert_eq!(
            statements(&trips),
            [CLAIM, OWN, OWN, SEAL],
            "{}",
            listed(&trips)
        );
    }
    scene.end(11).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_under_backlog_costs_one_round_trip_and_fifteen_statements() {
    let scene = Scene::with(1).await;
    let trips = scene.under_backlog(ids(50)).await;
    let mut expected = [OWN, OWN, SEAL + CLAIM].repeat(51);
    // Nothing follows on the last one.
    expected[51 * 3 - 1] = SEAL;
    assert_eq!(statements(&trips), expected, "{}", listed(&trips));
    scene.end(52).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_up_to_sixteen_messages_costs_one_round_trip_and_sixteen_statements() {
    let scene = Scene::with(16).await;
    // What several claims need is prepared with the first of them.
    let warm = (0..32).map(|n| format!("warm-{n}")).collect();
    let _ = scene.under_backlog(warm).await;
    let trips = scene.under_backlog(ids(200)).await;
    let seals = trips.iter().filter(|trip| trip.says("COMMIT")).count();
    let mut largest = 0;
    let mut sealed = 0;
    let mut of_handlers = 0;
    for trip in &trips {
        if !trip.says("COMMIT") {
            assert_eq!(trip.statements, OWN, "{}", listed(&trips));
            of_handlers += 1;
            continue;
        }
        let messages = members(trip, "fence");
        assert_eq!(of_handlers, 2 * messages, "{}", listed(&trips));
        let claims = match () {
            () if trip.says("EXECUTE inbox_claim_many_") => CLAIMS,
            () if trip.says("EXECUTE inbox_claim_") => CLAIM,
            () => 0,
        };
        assert_eq!(trip.statements, SEAL + claims, "{}", listed(&trips));
        assert_eq!(
            claims == 0,
            sealed + 1 == seals,
            "only the last has nothing behind it"
        );
        largest = largest.max(messages);
        sealed += 1;
        of_handlers = 0;
    }
    assert_eq!(trips.len(), 201 * 2 + seals);
    assert!(largest > 1, "nothing was shared: {}", listed(&trips));
    scene.end(202 + 33).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_costs_two_round_trips_and_one_under_backlog() {
    let scene = Scene::with(1).await;
    scene.publish(ids(10));
    all_acked(&scene.broker).await;
    for id in ids(10) {
        let _ = scene.trips.take();
        scene.publish([&id]);
        all_acked(&scene.broker).await;
        let trips = scene.trips.take();
        // The claim; what is there, and ROLLBACK.
        assert_eq!(statements(&trips), [CLAIM, 2], "{}", listed(&trips));
    }
    let trips = scene.under_backlog(ids(10)).await;
    let mut expected = vec![OWN, OWN, SEAL + CLAIM];
    expected.extend([2 + CLAIM].repeat(9));
    expected.push(2);
    assert_eq!(statements(&trips), expected, "{}", listed(&trips));
    scene.end(12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_that_share_a_transaction_cost_one_round_trip_for_all() {
    let scene = Scene::with(16).await;
    scene.publish(ids(64));
    all_acked(&scene.broker).await;
    let trips = scene.under_backlog(ids(64)).await;
    let dismissed = trips.iter().filter(|trip| trip.says("ROLLBACK")).count();
    let claims: Vec<usize> = trips
        .iter()
        .filter(|trip| trip.says("EXECUTE inbox_claim_"))
        .map(|trip| members(trip, "claim"))
        .collect();
    // Up to fifteen came with the new message before them, in its transaction, which was claimed before.
    let claimed = claims.iter().sum::<usize>();
    assert!((49..=64).contains(&claimed), "{}", listed(&trips));
    assert!(claims.iter().any(|members| *members > 1), "{claims:?}");
    assert!(dismissed >= claims.len() - 1, "{}", listed(&trips));
    // The new message's two statements, its seal (with a question for the duplicates beside it), and the rest.
    assert!(trips.len() <= 3 + 1 + claims.len(), "{}", listed(&trips));
    scene.end(66).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_gave_its_connection_back_pays_two_round_trips_for_the_next() {
    let scene = Scene::with(1).await;
    let _ = scene.trips.take();
    eventually("the connection is back in the pool", || async {
        scene.trips.seen().len() == 3
    })
    .await;
    let trips = scene.trips.take();
    // Reset, the driver's count of transactions, the pool's own look at the connection.
    assert_eq!(statements(&trips), [13, 1, 0], "{}", listed(&trips));
    scene.publish(["m-0"]);
    all_acked(&scene.broker).await;
    let mut trips = scene.trips.take();
    // The driver may be new to the handler's statements on the pool's other connection.
    trips.retain(|trip| trip.statements > 0 || !trip.says("PREPARE "));
    // The pool's look again, the session's settings; with the claim come two PREPAREs and the settings' COMMIT.
    let expected = [0, 5, 3 + CLAIM, OWN, OWN, SEAL];
    assert_eq!(statements(&trips), expected, "{}", listed(&trips));
    scene.end(2).await;
}
