//! An inbox whose runtime, or whose `run_until`, is dropped: at any moment, and at each packet to or from its database.

use std::future::pending;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use inbox_guarantees::tap::{From, Listener, Tap};
use inbox_guarantees::{
    OrderPlaced, Running, Sandbox, TestDatabase, all_acked, bill, eventually, on_each_database,
    order, workers,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{
    Attempt, Batch, Envelope, Handler, HandlerError, HandlerFuture, HandlerSpec, Inbox,
    InboxBuilder, Incoming, MessageId, Requirements, RetryPolicy, Tx, inbox_handler,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{MySql, Pool, Postgres};

use crate::{assert_consistent, assert_each_once};

/// A number of an attempt at which what fails at first does so no more.
const LATER: u32 = 2;

/// What the id says that the handler is to do, behind its booking.
fn obey(id: &MessageId, attempt: u32) -> Result<(), HandlerError> {
    match id.as_str().split('-').next() {
        Some("dead") => Err("fails always".into()),
        Some("deadly") => Err(HandlerError::reject("is not wanted")),
        Some("retry") if attempt < LATER => Err("fails at first".into()),
        _ => Ok(()),
    }
}

/// The message with this id, for an account of two.
fn message(id: &str) -> Envelope {
    if id.starts_with("broken") {
        Envelope::new("{}").id(id).message_type("OrderPlaced")
    } else {
        order(id)
    }
}

on_each_database! {
    // One attempt more than failures and starts that nobody can help: what a dropped COMMIT counts may arrive late.
    #[inbox_handler(consumer = "billing", max_attempts = 3)]
    async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        Attempt(attempt): Attempt,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        obey(&id, attempt)
    }

    #[inbox_handler(consumer = "billing", max_attempts = 3, batch(max = 4, linger = "2ms"))]
    async fn charge_many(orders: Batch<OrderPlaced>, tx: &mut Tx<Db>) -> Result<(), HandlerError> {
        for order in &orders {
            bill!(Db, **order, order.id(), tx);
        }
        orders.iter().try_for_each(|order| obey(order.id(), LATER))
    }

    /// All of these for a handler that is patient with the messages in its hands when a process ends: they end many.
    #[derive(Debug)]
    struct Patient<H>(H);

    impl<H: Handler<Db = Db>> Handler for Patient<H> {
        type Db = Db;

        const SPEC: HandlerSpec = H::SPEC.max_attempts(1000);

        fn requirements(needs: &mut Requirements) {
            H::requirements(needs);
        }

        fn call<'a>(&'a self, incoming: &'a [Incoming<'_>], tx: &'a mut Tx<Db>) -> HandlerFuture<'a> {
            self.0.call(incoming, tx)
        }
    }

    fn register_patient(builder: InboxBuilder<Db>, way: Way) -> InboxBuilder<Db> {
        match way {
            Way::Alone => builder.register(Patient(charge::handler())).messages_per_transaction(1),
            Way::Batches => builder.register(Patient(charge_many::handler())),
            _ => builder.register(Patient(charge::handler())).messages_per_transaction(4).share_at_once(),
        }
    }

    #[allow(dead_code, reason = "no packets go to SQLite")]
    pub(super) fn register(builder: InboxBuilder<Db>, way: Way) -> InboxBuilder<Db> {
        match way {
            Way::Alone => builder.register(charge::handler()).messages_per_transaction(1),
            Way::Shared => builder.register(charge::handler()).messages_per_transaction(4).share_at_once(),
            Way::Batches => builder.register(charge_many::handler()),
            Way::Flush => builder.register(charge::handler()).ack_after_flush(),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_runtime_dropped_at_any_moment_leaves_its_pool_clean_and_no_half_work() {
        const ROUNDS: u64 = 100;
        let ways = [Way::Alone, Way::Shared, Way::Batches];
        let mut random = fastrand::Rng::with_seed(7);
        let sandbox = Db::fresh(4).await;
        let broker = MemoryBroker::new();
        let mut all = Vec::new();
        for round in 0..ROUNDS {
            let way = ways[random.usize(..ways.len())];
            warm_up(&sandbox.pool).await;
            let building = inbox(&sandbox.pool, &broker, "orders", workers::<Db>(3), |builder| register_patient(builder, way));
            let inbox = building.await;
            for (number, kind) in ["m", "m", "m", "retry", "m", "deadly", "m", "broken"].iter().enumerate() {
                let id = format!("{kind}-{round}-{number}");
                broker.publish_copies("orders", message(&id), random.u32(1..3));
                all.push(id);
            }
            let lives = Duration::from_micros(random.u64(..25_000));
            let in_background = random.bool();
            // A thread that may wait, outside of this runtime.
            tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
                runtime.spawn(inbox.run_until(pending()));
                std::thread::sleep(lives);
                if in_background {
                    runtime.shutdown_background();
                } else {
                    drop(runtime);
                }
            })
            .await
            .unwrap();
            assert_consistent(&sandbox).await;
            if round % 10 == 0 {
                eventually("nobody has a connection", || async {
                    sandbox.pool.num_idle() == usize::try_from(sandbox.pool.size()).unwrap()
                })
                .await;
                Db::assert_clean(&sandbox.pool).await;
            }
        }
        let building = inbox(&sandbox.pool, &broker, "orders", workers::<Db>(3), |builder| register_patient(builder, Way::Shared));
        let running = Running::start(building.await);
        all_acked(&broker).await;
        running.stop().await;
        // What was in work at more ends than it has attempts is given up, and that on a slow database is some of it.
        let ended = "SELECT message_id FROM inbox_dead_letters WHERE failure LIKE '%ended with their process%'";
        let given_up = Db::texts(&sandbox.pool, ended).await;
        assert!(given_up.len() < all.len() / 10, "{given_up:?}");
        all.retain(|id| !given_up.contains(id));
        assert_each_once(&sandbox, &all).await;
        assert_consistent(&sandbox).await;
        Db::assert_clean(&sandbox.pool).await;
    }
}

/// How messages are dispatched.
#[derive(Debug, Clone, Copy)]
enum Way {
    Alone,
    Shared,
    Batches,
    Flush,
}

/// An inbox on what the broker has in `queue`.
async fn inbox<Db: TestDatabase>(
    pool: &Pool<Db>,
    broker: &MemoryBroker,
    queue: &str,
    concurrency: usize,
    register: impl FnOnce(InboxBuilder<Db>) -> InboxBuilder<Db>,
) -> Inbox<Db> {
    let retry = RetryPolicy::default()
        .first_delay(Duration::from_millis(2))
        .longest_delay(Duration::from_millis(10));
    let builder = Inbox::builder(pool.clone())
        .source("orders", broker.source(queue))
        .concurrency(concurrency)
        .prefetch(20)
        .broken_after(u32::MAX)
        .retry(retry);
    register(builder).build().await.unwrap()
}

/// Opens as many connections as the pool may have, so that they belong to this runtime.
async fn warm_up<Db: TestDatabase>(pool: &Pool<Db>) {
    let mut all = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        all.push(pool.acquire().await.unwrap());
    }
}

/// Holds one packet back until somebody has been told of it and has done what he wants.
#[derive(Clone, Default)]
struct Tripwire(Arc<Mutex<Option<Armed>>>);

struct Armed {
    /// Packets that still pass.
    left: usize,
    told: mpsc::Sender<mpsc::Sender<()>>,
}

impl Tripwire {
    /// Stops the packet behind so many others, in whichever direction it goes. What is received then lets it pass when it
    /// is dropped.
    fn arm(&self, packets: usize) -> mpsc::Receiver<mpsc::Sender<()>> {
        let (told, tells) = mpsc::channel();
        *self.lock() = Some(Armed {
            left: packets,
            told,
        });
        tells
    }

    fn disarm(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Armed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for Tripwire {
    fn hear(&mut self, _: From, _: &[u8]) {
        let mut place = self.lock();
        let Some(armed) = place.as_mut() else {
            return;
        };
        if let Some(left) = armed.left.checked_sub(1) {
            armed.left = left;
            return;
        }
        let told = armed.told.clone();
        *place = None;
        drop(place);
        let (passes, until) = mpsc::channel();
        // The other connections and the test itself have threads of their own.
        if told.send(passes).is_ok() {
            let _ = until.recv();
        }
    }
}

/// A database behind a proxy.
trait Wired: TestDatabase {
    /// Of so many packets in a row one is dropped at. Odd, for they go to and fro.
    const STEP: usize;

    /// Where its server listens.
    fn server(sandbox: &Sandbox<Self>) -> SocketAddr;

    /// A pool on it through a proxy.
    fn through(sandbox: &Sandbox<Self>, proxy: SocketAddr, connections: u32) -> Pool<Self>;
}

impl Wired for Postgres {
    const STEP: usize = 1;

    fn server(sandbox: &Sandbox<Self>) -> SocketAddr {
        let direct: PgConnectOptions = sandbox.url.parse().unwrap();
        format!("{}:{}", direct.get_host(), direct.get_port())
            .parse()
            .unwrap()
    }

    fn through(sandbox: &Sandbox<Self>, proxy: SocketAddr, connections: u32) -> Pool<Self> {
        let direct: PgConnectOptions = sandbox.url.parse().unwrap();
        PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy_with(direct.port(proxy.port()))
    }
}

impl Wired for MySql {
    // It asks for everything one by one: five times as many.
    const STEP: usize = 5;

    fn server(sandbox: &Sandbox<Self>) -> SocketAddr {
        let (_, place) = sandbox.url.rsplit_once('@').expect("no user in the url");
        let (server, _) = place.split_once('/').expect("no database in the url");
        server.parse().expect("no IP address and port in the url")
    }

    fn through(sandbox: &Sandbox<Self>, proxy: SocketAddr, connections: u32) -> Pool<Self> {
        let direct: MySqlConnectOptions = sandbox.url.parse().unwrap();
        MySqlPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy_with(direct.port(proxy.port()))
    }
}

/// What is dropped when the packet comes.
#[derive(Debug, Clone, Copy)]
enum Dropped {
    /// A runtime that has nothing but the inbox.
    Runtime,
    /// The future of `run_until`. The runtime goes on, and its workers end on their own.
    RunUntil,
}

impl Dropped {
    /// Of so many packets in a row one is dropped at.
    const fn step<Db: Wired>(self) -> usize {
        match self {
            Self::Runtime => Db::STEP,
            // The workers end in their own time, which takes longer.
            Self::RunUntil => 3 * Db::STEP,
        }
    }
}

/// Drops an inbox at each packet that the work on `kinds` takes, from the one behind `first` others; how many there are.
async fn at_each_packet<Db: Wired>(
    dropped: Dropped,
    first: usize,
    way: Way,
    kinds: &[&str],
    register: fn(InboxBuilder<Db>, Way) -> InboxBuilder<Db>,
) -> usize {
    let register = |builder| register(builder, way);
    let sandbox = Db::fresh(3).await;
    let tripwire = Tripwire::default();
    let tap = Tap::to(Db::server(&sandbox), {
        let tripwire = tripwire.clone();
        move || tripwire.clone()
    })
    .await;
    let pool = Db::through(&sandbox, tap.address(), 2);
    for packets in (first..).step_by(dropped.step::<Db>()) {
        let broker = MemoryBroker::new();
        let ids: Vec<String> = kinds
            .iter()
            .enumerate()
            .map(|(number, kind)| format!("{kind}-{way:?}-{packets}-{number}"))
            .collect();
        warm_up(&pool).await;
        let running = inbox(&pool, &broker, "orders", 1, &register).await;
        for id in &ids {
            broker.publish("orders", message(id));
            if id.starts_with("twice") {
                broker.publish("orders", message(id));
            }
        }
        let tells = tripwire.arm(packets);
        let is_done = match dropped {
            Dropped::Runtime => drop_runtime(running, broker.clone(), tells).await,
            Dropped::RunUntil => drop_run_until(running, &broker, tells).await,
        };
        tripwire.disarm();
        eventually("nobody has a connection", || async {
            pool.num_idle() == usize::try_from(pool.size()).unwrap()
        })
        .await;
        Db::assert_clean(&pool).await;
        assert_consistent(&sandbox).await;

        // What is left is done by whoever comes next, on the same pool.
        if !is_done {
            let running = inbox(&pool, &broker, "orders", 1, &register).await;
            let running = Running::start(running);
            all_acked(&broker).await;
            running.stop().await;
        }
        assert_each_once(&sandbox, &ids).await;
        if is_done {
            return packets;
        }
    }
    unreachable!("there are not so many numbers")
}

/// Runs an inbox in a runtime of its own and drops that when the packet comes. Answers whether everything was done before.
async fn drop_runtime<Db: TestDatabase>(
    inbox: Inbox<Db>,
    broker: MemoryBroker,
    tells: mpsc::Receiver<mpsc::Sender<()>>,
) -> bool {
    tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = runtime.spawn(inbox.run_until(async {
            let _ = stopped.await;
        }));
        let ended = runtime.spawn(async move {
            broker.until_idle().await;
            drop(stop);
            running.await.unwrap();
        });
        let passes = first(&tells, || ended.is_finished());
        drop(runtime);
        // Until here the packet has not gone on.
        passes.is_continue()
    })
    .await
    .unwrap()
}

/// Runs an inbox in this runtime and drops its `run_until` when the packet comes. Answers whether everything was done
/// before.
async fn drop_run_until<Db: TestDatabase>(
    inbox: Inbox<Db>,
    broker: &MemoryBroker,
    tells: mpsc::Receiver<mpsc::Sender<()>>,
) -> bool {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(inbox.run_until(async {
        let _ = stopped.await;
    }));
    let abort = running.abort_handle();
    let ended = tokio::spawn({
        let broker = broker.clone();
        async move {
            broker.until_idle().await;
            drop(stop);
            running.await.is_ok()
        }
    });
    let is_done = tokio::task::spawn_blocking({
        let ended = ended.abort_handle();
        move || {
            let passes = first(&tells, || ended.is_finished());
            abort.abort();
            // The workers have to hear of it before they hear of the packet.
            std::thread::sleep(Duration::from_millis(2));
            passes.is_continue()
        }
    })
    .await
    .unwrap();
    ended.abort();
    eventually("the workers gone", || async {
        broker.queue_state("orders").outstanding == 0
    })
    .await;
    is_done
}

/// Waits for the packet, or until everything is done without it.
fn first(
    tells: &mpsc::Receiver<mpsc::Sender<()>>,
    is_done: impl Fn() -> bool,
) -> ControlFlow<mpsc::Sender<()>> {
    loop {
        match tells.recv_timeout(Duration::from_millis(5)) {
            Ok(passes) => return ControlFlow::Break(passes),
            Err(_) if is_done() => return ControlFlow::Continue(()),
            Err(_) => {}
        }
    }
}

/// Every kind of message, in every way of dispatch.
async fn at_each_packet_in_each_way<Db: Wired>(
    dropped: Dropped,
    register: fn(InboxBuilder<Db>, Way) -> InboxBuilder<Db>,
) {
    let mut all = Vec::new();
    for kinds in [&["m"][..], &["twice"], &["retry"], &["dead"], &["broken"]] {
        // Elsewhere each time, for they have much in common.
        let first = all.len() % dropped.step::<Db>();
        all.push(at_each_packet(dropped, first, Way::Alone, kinds, register).await);
    }
    let mut ways = vec![Way::Alone, Way::Shared, Way::Batches];
    if Db::COMMITS_ASYNCHRONOUSLY {
        ways.push(Way::Flush);
    }
    for way in ways {
        // Claims are made with the commit before them, and duplicates among them.
        let several = &["m", "twice", "m", "broken", "m"];
        let first = all.len() % dropped.step::<Db>();
        all.push(at_each_packet(dropped, first, way, several, register).await);
    }
    println!("{dropped:?} at so many packets: {all:?}");
    assert!(all.iter().all(|packets| *packets >= 15), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_runtime_dropped_at_any_packet_to_or_from_postgres_leaves_nothing_behind() {
    at_each_packet_in_each_way(Dropped::Runtime, postgres::register).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn run_until_dropped_at_any_packet_to_or_from_postgres_leaves_nothing_behind() {
    at_each_packet_in_each_way(Dropped::RunUntil, postgres::register).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_runtime_dropped_at_any_packet_to_or_from_mysql_leaves_nothing_behind() {
    at_each_packet_in_each_way(Dropped::Runtime, mysql::register).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn run_until_dropped_at_any_packet_to_or_from_mysql_leaves_nothing_behind() {
    at_each_packet_in_each_way(Dropped::RunUntil, mysql::register).await;
}
