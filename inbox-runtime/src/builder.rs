use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use inbox_core::{
    Capabilities, ConsumerName, Finding, HandlerOn, HandlerSpec, InboxDatabase, Inspection,
    Isolation, Layout, Learned, MigrationError, Needs, Requirements, Requisites, Severity,
    SharedState, Source, StateMap, Tables, TransactionOptions,
};
use sqlx::Pool;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backoff::RetryPolicy;
use crate::checks::{self, Demands, SourceFacts, Storable};
use crate::gate::Gate;
use crate::hold::Hold;
use crate::inbox::{Inbox, Routed};
use crate::monitor::Monitor;
use crate::purge::{Purge, PurgePolicy};
use crate::queue::Queue;
use crate::route::{Callable, PerTransaction, Registered, Route};
use crate::solitude::Solitude;
use crate::testing::StepHook;
use crate::worker::Shared;

/// What is added to a handler's time limit before the server ends an idle transaction by itself.
const IDLE_MARGIN: Duration = Duration::from_secs(30);

/// How long a claim waits for a copy elsewhere while every other worker waits for it.
const CLAIM_WAIT_ALONE: Duration = Duration::from_millis(50);

/// How many messages share a transaction if nothing else is said.
const SHARING: usize = 16;

/// How long a broker may take to tell its settings before the inbox is built without them.
const LEARN_LIMIT: Duration = Duration::from_secs(5);

/// The most deliveries that a source may have unsettled if nothing else is said.
const MOST_PREFETCHED: usize = 4096;

/// Creates or upgrades the inbox tables under their default names.
///
/// Safe to run from several processes at once, and beside the application's own migrations: it keeps a ledger
/// of its own.
///
/// # Errors
///
/// [`MigrationError`] says what could not be done.
pub async fn migrate<Db: InboxDatabase>(pool: &Pool<Db>) -> Result<(), MigrationError> {
    migrate_tables(pool, &Tables::default()).await
}

/// Creates or upgrades the inbox tables under names of your own.
///
/// # Errors
///
/// [`MigrationError`] says what could not be done.
pub async fn migrate_tables<Db: InboxDatabase>(
    pool: &Pool<Db>,
    tables: &Tables,
) -> Result<(), MigrationError> {
    // Names first: no statement is sent with a name that was not checked.
    tables.check()?;
    let mut conn = pool.acquire().await?;
    // The migrator's lock belongs to the session; an error or a dropped future would leave it to the pool.
    conn.close_on_drop();
    Db::migrate(&mut conn, tables).await
}

/// The configuration of an [`Inbox`]. [`InboxBuilder::build`] checks all of it.
#[must_use = "nothing is checked or run before `.build()`"]
pub struct InboxBuilder<Db: InboxDatabase> {
    pool: Pool<Db>,
    sources: Vec<(String, Box<dyn Source>)>,
    id_scopes: Vec<(String, String)>,
    shared_id_spaces: Vec<BTreeSet<String>>,
    handlers: Vec<Candidate<Db>>,
    state: StateMap,
    repeated_state: Vec<&'static str>,
    ignored: BTreeSet<String>,
    tables: Tables,
    migrate: bool,
    concurrency: Option<usize>,
    prefetch: Option<usize>,
    messages_per_transaction: Option<usize>,
    share_at_once: bool,
    claim_wait: Duration,
    commit_wait: Duration,
    grace: Duration,
    longest_hold: Duration,
    lease: Option<Duration>,
    poll: Duration,
    retry: RetryPolicy,
    broken_after: u32,
    ack_after_flush: bool,
    keep_collisions: bool,
    behind_pooler: bool,
    retention: Duration,
    purge: Option<PurgePolicy>,
    redelivery_windows: Vec<(String, Duration)>,
    hook: StepHook,
}

/// A handler that was given to the builder and not checked yet.
struct Candidate<Db: InboxDatabase> {
    spec: HandlerSpec,
    requirements: Requirements,
    handler: Box<dyn Callable<Db>>,
}

impl<Db: InboxDatabase> InboxBuilder<Db> {
    pub(crate) fn new(pool: Pool<Db>) -> Self {
        Self {
            pool,
            sources: Vec::new(),
            id_scopes: Vec::new(),
            shared_id_spaces: Vec::new(),
            handlers: Vec::new(),
            state: StateMap::new(),
            repeated_state: Vec::new(),
            ignored: BTreeSet::new(),
            tables: Tables::default(),
            migrate: false,
            concurrency: None,
            prefetch: None,
            messages_per_transaction: None,
            share_at_once: false,
            claim_wait: Duration::from_secs(5),
            commit_wait: Duration::from_secs(30),
            grace: Duration::from_secs(25),
            longest_hold: Duration::from_secs(1),
            lease: None,
            poll: Duration::from_secs(1),
            retry: RetryPolicy::default(),
            broken_after: 25,
            ack_after_flush: false,
            keep_collisions: false,
            behind_pooler: false,
            retention: Duration::from_secs(14 * 24 * 60 * 60),
            purge: Some(PurgePolicy::default()),
            redelivery_windows: Vec::new(),
            hook: StepHook::default(),
        }
    }

    /// Adds a source under a name, by which handlers can choose it (`from = "orders"`) and which is stored with
    /// its dead letters.
    pub fn source(mut self, name: impl Into<String>, source: impl Source) -> Self {
        self.sources.push((name.into(), Box::new(source)));
        self
    }

    /// Puts `scope/` in front of every id of a source, for sources whose producers make their ids without
    /// knowing of each other. The scope becomes part of the stored id: changing it makes every message new.
    pub fn id_scope(mut self, source: impl Into<String>, scope: impl Into<String>) -> Self {
        self.id_scopes.push((source.into(), scope.into()));
        self
    }

    /// States that one id means the same message in all of these sources.
    pub fn shared_id_space<S: Into<String>>(
        mut self,
        sources: impl IntoIterator<Item = S>,
    ) -> Self {
        self.shared_id_spaces
            .push(sources.into_iter().map(Into::into).collect());
        self
    }

    /// Registers a handler: `.register(charge::handler())`.
    pub fn register<H: HandlerOn<Db>>(mut self, handler: H) -> Self {
        let mut requirements = Requirements::default();
        H::requirements(&mut requirements);
        self.handlers.push(Candidate {
            spec: H::SPEC,
            requirements,
            handler: Box::new(handler),
        });
        self
    }

    /// Gives handlers a value that they take as `State<T>`; one value per type.
    pub fn state<T: SharedState>(mut self, value: T) -> Self {
        if !self.state.insert(value) {
            self.repeated_state.push(std::any::type_name::<T>());
        }
        self
    }

    /// Acks messages of these types that no handler takes, without a row and without a dead letter.
    pub fn ignore<S: Into<String>>(mut self, types: impl IntoIterator<Item = S>) -> Self {
        self.ignored.extend(types.into_iter().map(Into::into));
        self
    }

    /// Sets schema and names of the tables.
    pub fn tables(mut self, tables: Tables) -> Self {
        self.tables = tables;
        self
    }

    /// Runs the migrations in [`InboxBuilder::build`].
    pub const fn migrate_on_start(mut self) -> Self {
        self.migrate = true;
        self
    }

    /// How many messages are processed at once (default 4; SQLite: 1, and no more). Each takes a connection of
    /// the pool while it has work.
    pub const fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = Some(workers);
        self
    }

    /// How many messages of one handler may share a transaction. The default is 16 for messages with an order key
    /// (the handler's `order_by`, or the key of a source that orders by it) and with a concurrency of 1, and else 1,
    /// which means that none do.
    ///
    /// A shared commit is what makes many small messages fast. Messages share one only when they wait anyway, none
    /// waits for others to come. When a shared transaction fails, each of its messages is tried alone, so what a
    /// handler does outside of its transaction can happen once more. For the 200 messages after a failure each has a
    /// savepoint, so that the next one that fails is taken back alone.
    ///
    /// What a handler sets for its transaction (`SET LOCAL`, `set_config(.., true)`, `SET ROLE`, temporary tables) is
    /// there for the messages behind it in the same transaction as well. A handler that sets something, the tenant of
    /// row-level security for example, sets it for every message before it does anything else, or has
    /// `own_transaction = true`.
    ///
    /// With several workers, transactions that change many rows in the order of their messages meet in the rows that
    /// they have in common: then they wait for each other, or end in a deadlock, which costs a second. An order key
    /// that says which rows a message changes (`order_by = "payload:/account"`) keeps them apart: messages with the
    /// same key go to the same worker. Without one, raise this only where messages that are in work at the same time
    /// seldom touch the same rows.
    pub const fn messages_per_transaction(mut self, messages: usize) -> Self {
        self.messages_per_transaction = Some(messages);
        self
    }

    /// How many unsettled deliveries each source may have. The default is twice as many as can be in work, and at most
    /// 4,096 or two batches: the concurrency times [`messages_per_transaction`](Self::messages_per_transaction), or
    /// times the largest batch of a handler.
    pub const fn prefetch(mut self, deliveries: usize) -> Self {
        self.prefetch = Some(deliveries);
        self
    }

    /// How long a claim waits for a copy of the message that another process has in work (default 5 s). After
    /// that the delivery is tried again later; it counts nothing.
    pub const fn claim_wait(mut self, wait: Duration) -> Self {
        self.claim_wait = wait;
        self
    }

    /// How long a COMMIT may take before its outcome counts as unknown (default 30 s).
    pub const fn commit_wait(mut self, wait: Duration) -> Self {
        self.commit_wait = wait;
        self
    }

    /// How long running handlers get at a shutdown (default 25 s).
    pub const fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How long a delivery whose handler failed may be held in memory on a broker without delays (default 1 s); it
    /// keeps its place in the prefetch meanwhile. A longer delay is waited for in the database: the message is parked in
    /// `inbox_messages` and then acked.
    pub const fn longest_hold(mut self, hold: Duration) -> Self {
        self.longest_hold = hold;
        self
    }

    /// For how long a message that waited in the database is in the hands of one worker (default: twice as long as the
    /// longest handler, a claim and a commit may take, and half a minute more). When a process ends with such messages in
    /// work, they are tried again after that time.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How often the database is asked for parked and replayed messages that are due (default 1 s). A message that this
    /// process itself parked is tried when it is due.
    pub const fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll = interval;
        self
    }

    /// Lets commits not wait for the disk while more messages wait, and acks their messages after the next commit
    /// that does (PostgreSQL only). For slow disks: as fast as `synchronous_commit = off`, without its loss.
    ///
    /// A worker acks in groups of up to 64, at the latest when it has no more messages, or with the first commit 50 ms
    /// after the first of the group. A crash of the server before that takes back effect and claim together, and the
    /// redelivery does both again: no message is lost or applied twice.
    ///
    /// What it weakens: other sessions can see an effect that a crash then takes back until the redelivery. What they
    /// do by it (a mail, a message sent by something else) is not taken back. And the processes of one consumer must
    /// all have this option, or none: one without it acks a duplicate whose original may not be durable yet.
    ///
    /// Not behind a pooler that gives each transaction another server session (PgBouncer's transaction mode): the
    /// session that committed must be the one that flushes, and a flush elsewhere is refused.
    pub const fn ack_after_flush(mut self) -> Self {
        self.ack_after_flush = true;
        self
    }

    /// States that a pooler in transaction mode stands between (PostgreSQL only): each transaction may have another
    /// session of the server. `build()` refuses such a pooler without this.
    ///
    /// PgBouncer needs these settings, so that nothing which a handler, the driver or the inbox leaves in a session of
    /// the server reaches the next transaction in it:
    ///
    /// ```ini
    /// pool_mode = transaction
    /// server_reset_query = DISCARD ALL
    /// server_reset_query_always = 1
    /// ignore_startup_parameters = extra_float_digits
    /// ```
    ///
    /// and the inbox's pool needs
    /// [`statement_cache_capacity(0)`](https://docs.rs/sqlx/0.9/sqlx/postgres/struct.PgConnectOptions.html#method.statement_cache_capacity).
    /// Migrations run over a direct connection: they lock a session. Of what is done with this pool outside of handlers,
    /// statements with parameters need a transaction.
    ///
    /// What it costs: statements are prepared anew for each transaction, and claims have a round trip of their own. And
    /// what a handler does after it ended our transaction itself is not prevented from being durable, only found
    /// out: the message is kept as escaped.
    pub const fn behind_transaction_pooler(mut self) -> Self {
        self.behind_pooler = true;
        self
    }

    /// Sets delays and limits of retries; a handler's own delays (`retry(first = .., longest = ..)`) come first.
    pub const fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How long a processed message is remembered (default 14 days; from 1 minute to 100 years). After that it is
    /// removed by the [purge](Self::purge), and the message would be a new one if it came again: processed twice.
    ///
    /// So it must be longer than a message can come again: refused is what is not at least an hour longer than the
    /// window of each source, which its adapter knows ([`Capabilities::redelivery_window`]) or
    /// [`redelivery_window`](Self::redelivery_window) states. Counted failures that nothing needs any more go after
    /// the same time. Never removed are dead letters, messages that wait in the database, and claims of either.
    ///
    /// [`Capabilities::redelivery_window`]: crate::Capabilities::redelivery_window
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets how what is older than the [retention](Self::retention) is removed. Every process has the task for it, and
    /// one at a time does the work. It takes a connection of the pool for each batch, if there is one to spare.
    pub const fn purge(mut self, policy: PurgePolicy) -> Self {
        self.purge = Some(policy);
        self
    }

    /// Removes nothing: this process sends no delete, and the tables grow unless another one does, or a program of
    /// yours. The [retention](Self::retention) still says how long claims are kept, and must be long enough.
    pub const fn without_purge(mut self) -> Self {
        self.purge = None;
        self
    }

    /// States how long a source can deliver a message again, in all: also after an ack, by whatever people and
    /// programs do to it (a replay from a dead letter queue, offsets that are set back). The longest time counts that is
    /// stated here or known to the adapter. RabbitMQ knows none: what was acked is gone there, but a queue of dead
    /// letters can be moved back after weeks.
    pub fn redelivery_window(mut self, source: impl Into<String>, window: Duration) -> Self {
        self.redelivery_windows.push((source.into(), window));
        self
    }

    /// After how many messages in a row that used up their attempts, without one success between them, a
    /// consumer makes no more dead letters until a message succeeds (default 25). It keeps a broken dependency
    /// from draining a queue into the dead letters.
    pub const fn broken_after(mut self, messages: u32) -> Self {
        self.broken_after = messages;
        self
    }

    /// Keeps a message as a dead letter with the reason `collision` when another one with another payload was processed
    /// under its id. The claim of the processed one stays. Without this (the default) it is a duplicate like any other,
    /// and an error event tells.
    ///
    /// Leave it off where honest retries differ in their bytes: producers that serialise a message anew for each send,
    /// webhooks with a counter of pending deliveries, SNS envelopes. Payloads are compared by the hash that the claim
    /// stored; a claim without one, or with one of another algorithm, is compared with nothing.
    ///
    /// Such an entry is replayed only by
    /// [`replay_anyway`](crate::dead_letters::DeadLetters::replay_anyway).
    pub const fn dead_letter_collisions(mut self) -> Self {
        self.keep_collisions = true;
        self
    }

    /// Lets as many messages share a transaction from the start as otherwise do when that has gone well for a while.
    #[cfg(feature = "testing")]
    pub const fn share_at_once(mut self) -> Self {
        self.share_at_once = true;
        self
    }

    /// Calls `hook` at each step of the path with the message id.
    #[cfg(feature = "testing")]
    pub fn on_step(
        mut self,
        hook: impl Fn(crate::testing::Step, &str) + Send + Sync + 'static,
    ) -> Self {
        self.hook = StepHook::new(hook);
        self
    }

    /// Checks everything and makes the inbox. Messages are taken only by [`Inbox::run_until`].
    ///
    /// # Errors
    ///
    /// [`BuildError`] lists every problem at once: handlers that take the same messages, missing state, unknown
    /// sources, identities that a broker makes up, sizes that do not fit, tables that are missing or older than
    /// this version, settings under which a commit is not durable.
    pub async fn build(self) -> Result<Inbox<Db>, BuildError> {
        let concurrency = self.concurrency.unwrap_or(Db::MAX_CONCURRENCY.unwrap_or(4));
        let prefetch = self
            .prefetch
            .unwrap_or_else(|| self.default_prefetch(concurrency));
        let mut problems = self.static_problems(concurrency, prefetch);
        let inspection = match self.tables.check() {
            Ok(()) => self.look_at_database(&mut problems).await,
            Err(error) => {
                problems.extend(error.problems().iter().cloned());
                None
            }
        };
        let storable = inspection.as_ref().map(|inspection| Storable {
            database: Db::NAME,
            bytes: inspection.largest_payload.0,
            limited_by: inspection.largest_payload.1,
        });
        let demands: Vec<_> = self
            .sources
            .iter()
            .map(|(name, _)| self.demands_on(name, prefetch, storable.clone()))
            .collect();
        let learned = self.ask_brokers(&demands).await;
        for (demands, learned) in demands.iter().zip(&learned) {
            problems.extend(demands.unmet(learned));
        }
        let (Some(inspection), Some(concurrency), Some(prefetch), true) = (
            inspection,
            NonZeroUsize::new(concurrency),
            NonZeroUsize::new(prefetch),
            problems.is_empty(),
        ) else {
            return Err(BuildError { problems });
        };
        let sources = demands.into_iter().zip(learned).collect();
        self.assemble(inspection, concurrency, prefetch, sources)
    }

    /// What each source can do, by its broker's own settings where the broker can be asked.
    async fn ask_brokers(&self, demands: &[Demands]) -> Vec<Learned> {
        let asked = self.sources.iter().zip(demands);
        let asked = asked.map(async |((name, source), demands)| {
            // Wrong by itself, which is told already: it may not know whom to ask.
            if !source.problems().is_empty() {
                return Learned::new(source.capabilities());
            }
            let why = match tokio::time::timeout(LEARN_LIMIT, source.learn(&demands.needs)).await {
                Ok(Ok(learned)) => return learned,
                Ok(Err(error)) => with_causes(&error),
                Err(_) => format!("it did not answer within {LEARN_LIMIT:?}"),
            };
            tracing::warn!(
                source = %name,
                system = source.system(),
                error = %why,
                "the broker cannot be asked for its settings; they are checked when the source is opened"
            );
            Learned::new(source.capabilities())
        });
        futures_util::future::join_all(asked).await
    }

    /// What a source has to go with.
    fn demands_on(&self, name: &str, prefetch: usize, storable: Option<Storable>) -> Demands {
        let specs = self.handlers.iter().map(|candidate| candidate.spec);
        let handlers: Vec<_> = specs
            .filter(|spec| spec.from.is_empty() || spec.from.contains(&name))
            .collect();
        let longest_timeout = handlers.iter().map(|spec| spec.timeout).max();
        let most_attempts = handlers.iter().map(|spec| spec.max_attempts).max();
        let stated = self.redelivery_windows.iter();
        let stated = stated.filter(|(source, _)| source == name);
        Demands {
            source: name.to_owned(),
            needs: Needs::new(
                NonZeroUsize::new(prefetch).unwrap_or(NonZeroUsize::MIN),
                longest_timeout.unwrap_or_default(),
                most_attempts.unwrap_or_default(),
            ),
            handlers,
            retention: self.retention,
            redelivery_window: stated.map(|(_, window)| *window).max(),
            storable,
        }
    }

    /// Twice what can be in work. Without an order key messages share a transaction only with a concurrency of 1, and
    /// whether they have one is not known before they come.
    fn default_prefetch(&self, concurrency: usize) -> usize {
        let batches = self
            .handlers
            .iter()
            .filter_map(|candidate| candidate.spec.batch);
        let largest = batches
            .map(|batch| batch.max)
            .chain([self.sharing(concurrency).most(), 1])
            .max()
            .unwrap_or(1);
        concurrency
            .saturating_mul(2)
            .saturating_mul(largest)
            .min(MOST_PREFETCHED.max(2 * largest))
    }

    /// How many messages may share a transaction.
    fn sharing(&self, concurrency: usize) -> PerTransaction {
        let unordered = if concurrency == 1 { SHARING } else { 1 };
        let ordered = self.messages_per_transaction.unwrap_or(SHARING);
        PerTransaction {
            ordered,
            unordered: self.messages_per_transaction.unwrap_or(unordered),
            at_first: if self.share_at_once { ordered } else { 1 },
        }
    }

    /// What is wrong without looking at the database.
    fn static_problems(&self, concurrency: usize, prefetch: usize) -> Vec<String> {
        let specs: Vec<_> = self
            .handlers
            .iter()
            .map(|candidate| candidate.spec)
            .collect();
        let facts: Vec<_> = self
            .sources
            .iter()
            .map(|(name, source)| SourceFacts {
                name: name.clone(),
                id_sources: source.id_sources(),
                id_scope: self.scope_of(name),
                problems: source.problems(),
            })
            .collect();
        let mut problems = checks::handlers(&specs, &facts, Db::ISOLATION_LEVELS, Db::NAME);
        for candidate in &self.handlers {
            for missing in candidate.requirements.missing(&self.state) {
                problems.push(format!(
                    "{} needs `State<{}>`, which was not given; add `.state(value)`",
                    checks::place(&candidate.spec),
                    missing.type_name()
                ));
            }
        }
        for repeated in &self.repeated_state {
            problems.push(format!("`.state(..)` was given two values of type `{repeated}`; wrap one in a type of its own"));
        }
        for (name, _) in &self.id_scopes {
            if !self.sources.iter().any(|(source, _)| source == name) {
                problems.push(format!(
                    "id_scope names the source `{name}`, which does not exist"
                ));
            }
        }
        for (name, window) in &self.redelivery_windows {
            if !self.sources.iter().any(|(source, _)| source == name) {
                problems.push(format!(
                    "redelivery_window({name:?}, {window:?}) names the source `{name}`, which does not exist"
                ));
            }
        }
        problems.extend(checks::retention(self.retention));
        problems.extend(self.purge.iter().flat_map(PurgePolicy::problems));
        for ignored in &self.ignored {
            let taken = specs
                .iter()
                .find(|spec| spec.on.contains(&ignored.as_str()));
            if let Some(spec) = taken {
                problems.push(format!(
                    "the type `{ignored}` is ignored, but {} takes it",
                    checks::place(spec)
                ));
            }
        }
        problems.extend(checks::sources(&facts, &specs));
        problems.extend(checks::id_spaces(&specs, &facts, &self.shared_id_spaces));
        problems.extend(checks::sizes(
            concurrency,
            prefetch,
            Db::pool_size(&self.pool),
            Db::MAX_CONCURRENCY,
            Db::NAME,
        ));
        problems.extend(self.retry.problems());
        problems.extend(checks::retries(&specs, &self.retry));
        for (name, value, shortest, longest) in [
            (
                "claim_wait",
                self.claim_wait,
                Duration::from_millis(1),
                Duration::from_secs(10 * 60),
            ),
            (
                "commit_wait",
                self.commit_wait,
                Duration::from_millis(10),
                Duration::from_secs(60 * 60),
            ),
            (
                "grace",
                self.grace,
                Duration::ZERO,
                Duration::from_secs(24 * 60 * 60),
            ),
            (
                "poll_interval",
                self.poll,
                Duration::from_millis(10),
                Duration::from_secs(60 * 60),
            ),
            (
                "lease",
                self.lease_time(),
                Duration::from_millis(100),
                Duration::from_secs(7 * 24 * 60 * 60),
            ),
            (
                "longest_hold",
                self.longest_hold,
                Duration::from_millis(1),
                Duration::from_secs(24 * 60 * 60),
            ),
        ] {
            if value < shortest || value > longest {
                problems.push(format!(
                    "{name}({value:?}) must be between {shortest:?} and {longest:?}"
                ));
            }
        }
        if self.messages_per_transaction == Some(0) {
            problems.push(
                "messages_per_transaction(0): no message would have a transaction; give 1 or more"
                    .to_owned(),
            );
        }
        if self.ack_after_flush && !Db::COMMITS_ASYNCHRONOUSLY {
            problems.push(format!(
                "ack_after_flush() is for PostgreSQL: {} has no commit that is flushed later; remove it",
                Db::NAME
            ));
        }
        if self.ack_after_flush && self.behind_pooler {
            problems.push(
                "ack_after_flush() needs the session that committed, which behind_transaction_pooler() cannot promise; \
                 remove one of them"
                    .to_owned(),
            );
        }
        for spec in &specs {
            if let Some(batch) = spec.batch.filter(|batch| batch.max > prefetch) {
                problems.push(format!(
                    "{} takes batches of up to {}, which prefetch({prefetch}) never fills; raise the one or lower \
                     the other",
                    checks::place(spec),
                    batch.max
                ));
            }
        }
        if self.broken_after == 0 {
            problems.push(
                "broken_after(0) would keep every dead letter from being made; give 1 or more"
                    .to_owned(),
            );
        }
        problems
    }

    /// The time after which a message that waited in the database is somebody else's.
    fn lease_time(&self) -> Duration {
        let handlers = self.handlers.iter();
        let longest = handlers.map(|candidate| candidate.spec.timeout).max();
        self.lease.unwrap_or_else(|| {
            (longest.unwrap_or_default() + self.claim_wait + self.commit_wait) * 2
                + Duration::from_secs(30)
        })
    }

    /// Migrates if asked to, then looks at tables and settings.
    async fn look_at_database(&self, problems: &mut Vec<String>) -> Option<Inspection<Db>> {
        if self.migrate
            && let Err(error) = migrate_tables(&self.pool, &self.tables).await
        {
            problems.push(format!("migrate_on_start: {}", with_causes(&error)));
            return None;
        }
        let longest_handler = self
            .handlers
            .iter()
            .map(|candidate| candidate.spec.timeout)
            .max()
            .unwrap_or_default();
        let requisites = Requisites {
            claim_wait: self.claim_wait,
            longest_handler,
            behind_pooler: self.behind_pooler,
        };
        let looked = async {
            let mut conn = self.pool.acquire().await?;
            let inspection = Db::inspect(&mut conn, &self.tables, &requisites).await?;
            drop(conn);
            let shares = !self.behind_pooler && Db::share_sessions(&self.pool).await?;
            Ok::<_, sqlx::Error>((inspection, shares))
        };
        let inspection = match looked.await {
            Ok((inspection, shares)) => {
                if shares {
                    problems.push(Finding::SHARED_SESSIONS.to_owned());
                }
                inspection
            }
            Err(error) => {
                problems.push(format!(
                    "the database cannot be inspected: {}",
                    with_causes(&error)
                ));
                return None;
            }
        };
        for finding in &inspection.findings {
            match finding.severity {
                Severity::Problem => problems.push(finding.text.clone()),
                Severity::Warning => tracing::warn!(database = Db::NAME, "{}", finding.text),
            }
        }
        Some(inspection)
    }

    fn scope_of(&self, source: &str) -> Option<String> {
        self.id_scopes
            .iter()
            .find(|(name, _)| name == source)
            .map(|(_, scope)| scope.clone())
    }

    fn assemble(
        mut self,
        inspection: Inspection<Db>,
        concurrency: NonZeroUsize,
        prefetch: NonZeroUsize,
        asked: Vec<(Demands, Learned)>,
    ) -> Result<Inbox<Db>, BuildError> {
        let lease = self.lease_time();
        let layout = Arc::new(Layout::new(inspection.statements));
        let options = |isolation, idle_limit| TransactionOptions {
            isolation,
            claim_wait: self.claim_wait,
            idle_limit,
        };
        let mut handlers = Vec::with_capacity(self.handlers.len());
        for Candidate { spec, handler, .. } in std::mem::take(&mut self.handlers) {
            let consumer = ConsumerName::new(spec.consumer).map_err(|error| BuildError {
                problems: vec![error.to_string()],
            })?;
            let of_handler = options(spec.isolation, spec.timeout.saturating_add(IDLE_MARGIN));
            let begin = layout.begin_text(&of_handler);
            let begin_alone = layout.begin_text(&TransactionOptions {
                claim_wait: self.claim_wait.min(CLAIM_WAIT_ALONE),
                ..of_handler
            });
            handlers.push(Arc::new(Registered::new(
                consumer,
                spec,
                handler,
                begin,
                begin_alone,
                self.retry,
                self.sharing(concurrency.get()),
            )));
        }
        let begin = layout.begin_text(&options(Isolation::ReadCommitted, IDLE_MARGIN));
        let monitor = Monitor::new(
            handlers
                .iter()
                .map(|handler| (handler.consumer.clone(), Arc::clone(&handler.tally)))
                .collect(),
            self.sources.iter().map(|(name, _)| name.clone()).collect(),
            self.broken_after,
        );
        let ignored = Arc::new(std::mem::take(&mut self.ignored));
        let any_source = Route {
            source: String::new(),
            system: "inbox",
            capabilities: Capabilities::new(),
            id_sources: Vec::new(),
            id_scope: None,
            handlers: handlers.clone(),
            ignored: Arc::clone(&ignored),
        };
        let sources = std::mem::take(&mut self.sources)
            .into_iter()
            .zip(asked)
            .map(|((name, source), (demands, learned))| {
                let route = Route {
                    system: source.system(),
                    capabilities: learned.capabilities,
                    id_sources: source.id_sources(),
                    id_scope: self.scope_of(&name),
                    handlers: handlers
                        .iter()
                        .filter(|handler| handler.listens_to(&name))
                        .cloned()
                        .collect(),
                    ignored: Arc::clone(&ignored),
                    source: name,
                };
                Routed {
                    source: Arc::from(source),
                    route: Arc::new(route),
                    demands,
                }
            })
            .collect();
        let queue = Queue::new(concurrency.get());
        let stop = CancellationToken::new();
        let shared = Shared {
            gate: Gate::new(Arc::clone(&queue)),
            hold: Hold::new(Arc::clone(&queue), stop.clone()),
            concurrency: concurrency.get(),
            pool: self.pool,
            layout,
            state: self.state,
            begin,
            claim_wait: self.claim_wait,
            commit_wait: self.commit_wait,
            longest_hold: self.longest_hold,
            lease,
            poll: self.poll,
            solitude: Solitude::new(concurrency.get()),
            parked: Notify::new(),
            retry: self.retry,
            broken_after: self.broken_after,
            ack_after_flush: self.ack_after_flush,
            keep_collisions: self.keep_collisions,
            behind_pooler: self.behind_pooler,
            hook: self.hook,
            monitor,
            stop,
            cut_off: CancellationToken::new(),
        };
        let shared = Arc::new(shared);
        let purge = self.purge.map(|policy| Purge {
            shared: Arc::clone(&shared),
            retention: self.retention,
            policy,
        });
        Ok(Inbox {
            shared,
            sources,
            any_source,
            prefetch,
            concurrency,
            grace: self.grace,
            purge,
            queue,
        })
    }
}

impl<Db: InboxDatabase> fmt::Debug for InboxBuilder<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let handlers: Vec<_> = self
            .handlers
            .iter()
            .map(|candidate| candidate.spec.name)
            .collect();
        let sources: Vec<_> = self.sources.iter().map(|(name, _)| name).collect();
        f.debug_struct("InboxBuilder")
            .field("handlers", &handlers)
            .field("sources", &sources)
            .finish_non_exhaustive()
    }
}

/// Everything that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildError {
    problems: Vec<String>,
}

impl BuildError {
    /// One sentence for each problem, naming the value and the remedy.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => write!(f, "the inbox cannot start: {one}"),
            many => {
                write!(f, "the inbox cannot start, {} problems:", many.len())?;
                many.iter()
                    .try_for_each(|problem| write!(f, "\n- {problem}"))
            }
        }
    }
}

impl std::error::Error for BuildError {}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    inbox_core::FailureText::of_error(error).as_str().to_owned()
}
