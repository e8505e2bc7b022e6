//! One run on one database.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::{join_all, join4};
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::servers::OwnServer;
use inbox_guarantees::{Sandbox, environment, unique};
use inbox_runtime::brokers::QueueKind;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::consume::Duty;
use crate::counts::{Counts, Happened};
use crate::database::{Engine, SoakDatabase};
use crate::fleet::Fleet;
use crate::message::{ACCOUNTS, Message, PLACES, account, account_name};
use crate::options::Options;
use crate::producer::Producer;
use crate::progress;
use crate::servers::{Victim, strike};
use crate::tally::Tally;
use crate::verdict::{Verdict, judge, outcomes};

/// Without any new outcome for so long, what is missing will not come.
const PATIENCE: Duration = Duration::from_secs(30);

/// When no process has told anything for so long, it may have nothing in its hands.
const QUIET: Duration = Duration::from_millis(500);

/// One in so many messages is published again after all is done.
const LONG_AFTER: usize = 8;

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) engine: Engine,
    pub(crate) happened: Happened,
    pub(crate) verdict: Verdict,
    /// The log of its consumers, where that is of interest.
    pub(crate) log_file: Option<PathBuf>,
}

struct Run<Db: SoakDatabase> {
    sandbox: Sandbox<Db>,
    queues: Vec<TestQueue>,
    producer: Producer,
    fleet: Fleet,
    counts: Arc<Counts>,
}

/// Lets messages be handled while everything dies, works off what is left, and looks at what became of them.
pub(crate) async fn run<Db: SoakDatabase>(options: &Options) -> Report {
    let counts = Arc::<Counts>::default();
    let folder = environment("INBOX_SOAK_SERVERS");
    let lend = |name| Arc::new(OwnServer::lent(name, &folder));
    let broker = lend("rabbitmq");
    let amqp = broker.url("AMQP_URL");

    let mut run = Run::<Db>::prepare(options, &amqp, &counts).await;
    let log_file = run.fleet.log_file().to_owned();
    let progress = tokio::spawn(progress::show(Db::ENGINE, Arc::clone(&counts)));

    // The broker takes seconds to come back, and without it there is nothing to be done. At first only the rest dies.
    let time = options.time_for_each();
    let mut victims = vec![Victim {
        server: broker,
        peace: (time / 2).min(Duration::from_secs(8))..(time * 3 / 4).min(Duration::from_secs(15)),
    }];
    victims.extend(Db::SERVER.map(|name| Victim {
        server: lend(name),
        peace: Duration::from_millis(500)..Duration::from_secs(4),
    }));
    let messages = run.under_fire(options, victims).await;
    let mut left = run.work_off(&messages).await;
    let mut verdict = judge(&run.sandbox, &messages).await;
    if left.is_empty() && verdict.is_good() {
        run.producer
            .publish(messages.iter().step_by(LONG_AFTER))
            .await;
        left = run.work_off(&messages).await;
        verdict = judge(&run.sandbox, &messages).await;
    }
    verdict.wrong.append(&mut left);
    verdict.wrong.append(&mut counts.now().surprises);
    Db::assert_clean(&run.sandbox.pool).await;

    progress.abort();
    let happened = counts.now().clone();
    progress::done(Db::ENGINE, &happened);
    let log_file = if verdict.is_good() {
        let _ = std::fs::remove_file(log_file);
        None
    } else {
        run.sandbox.keep();
        Some(log_file)
    };
    Report {
        engine: Db::ENGINE,
        happened,
        verdict,
        log_file,
    }
}

impl<Db: SoakDatabase> Run<Db> {
    async fn prepare(options: &Options, amqp: &str, counts: &Arc<Counts>) -> Self {
        let sandbox = Db::fresh(4).await;
        for consumer in PLACES.iter().flat_map(|place| place.consumers) {
            let rows: Vec<String> = (0..ACCOUNTS)
                .map(|number| format!("('{}', 0)", account(consumer, &account_name(number))))
                .collect();
            let sql = format!(
                "INSERT INTO accounts (id, balance) VALUES {}",
                rows.join(", ")
            );
            Db::run(&sandbox.pool, &sql).await;
        }
        let queues = join_all(
            PLACES
                .iter()
                .map(|_| TestQueue::on(amqp, QueueKind::Quorum, &[])),
        )
        .await;
        let names: Vec<String> = queues.iter().map(|queue| queue.name.clone()).collect();
        let duty = Duty {
            engine: Db::ENGINE,
            database: sandbox.url.clone(),
            amqp: amqp.to_owned(),
            queues: names.clone(),
            seed: 0,
            dies_at: None,
            log_file: std::env::temp_dir()
                .join(unique("inbox-soak"))
                .with_extension("log"),
            log: options.log.clone(),
        };
        Self {
            sandbox,
            queues,
            producer: Producer::new(amqp, names, Arc::clone(counts)),
            fleet: Fleet::new(duty, Arc::clone(counts), options.killers),
            counts: Arc::clone(counts),
        }
    }

    /// Produces while processes and servers die. All servers run at the end, and no process.
    async fn under_fire(&self, options: &Options, victims: Vec<Victim>) -> Vec<Message> {
        let mut rng = Rng::with_seed(options.seed);
        let time = options.time_for_each();
        let (over, end) = watch::channel(false);
        let messages = self.producer.produce(
            rng.fork(),
            options.rate,
            options.killers,
            Instant::now() + time,
        );
        let servers = victims
            .into_iter()
            .map(|victim| strike(victim, rng.fork(), Arc::clone(&self.counts), end.clone()));
        let servers: Vec<_> = servers.collect();
        let processes =
            (0..Db::PROCESSES).map(|_| self.fleet.clone().live_and_die(rng.fork(), end.clone()));
        let timer = async {
            tokio::time::sleep(time).await;
            over.send_replace(true);
        };
        let (messages, _, _, ()) =
            join4(messages, join_all(servers), join_all(processes), timer).await;
        messages
    }

    /// Lets processes live until nothing is left to do, and stops them: what they did not do in time.
    async fn work_off(&mut self, messages: &[Message]) -> Vec<String> {
        for queue in std::mem::take(&mut self.queues) {
            // Its connection was that to a server that is gone.
            self.queues.push(queue.after_restart().await);
        }
        let expected = messages.iter().flat_map(Message::expected).count();
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let (over, end) = watch::channel(false);
            let processes =
                (0..Db::PROCESSES).map(|_| tokio::spawn(self.fleet.clone().live(end.clone())));
            let processes: Vec<_> = processes.collect();
            self.until_quiet(expected).await;
            over.send_replace(true);
            for process in processes {
                process.await.expect("a process did not shut down");
            }
            let mut left = Vec::new();
            for (queue, place) in self.queues.iter().zip(PLACES) {
                match queue.left().await {
                    0 => {}
                    // Copies that waited go back at a shutdown.
                    messages => left.push(format!(
                        "{messages} messages are left in the queue of {}",
                        place.name
                    )),
                }
            }
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
        }
    }

    /// Waits until there are as many outcomes as expected, no message is with the broker and the processes have nothing
    /// more to tell, or until nothing happens any more.
    async fn until_quiet(&self, expected: usize) {
        let mut last = (0, Tally::default());
        let mut since = Instant::now();
        while since.elapsed() < PATIENCE {
            let now = (outcomes(&self.sandbox).await, self.counts.now().tally);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let mut ready = 0;
            for queue in &self.queues {
                ready += queue.seen().await.ready;
            }
            if now.0 >= expected && ready == 0 && since.elapsed() > QUIET {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
