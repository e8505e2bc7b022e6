//! What to do with a dead letter.
//!
//! A message that failed for good is kept as a dead letter, with its bytes and the reason, and the broker forgets it.
//! It waits there until a person decides. [`DeadLetters`] is how a program does what that person decided, also while
//! the inbox runs, and from several places at once:
//!
//! - **Look**: [`list`](DeadLetters::list) and [`count`](DeadLetters::count) by consumer, source, reason, type and
//!   message id; [`show`](DeadLetters::show) for the whole message.
//! - **Replay**, when the cause is repaired: [`replay`](DeadLetters::replay) queues the message in the database, from
//!   where a running inbox takes it through the ordinary path, with all its attempts. If it fails for good again, its
//!   entry is open again.
//! - **Discard** what nobody needs: [`discard`](DeadLetters::discard).
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn example(pool: sqlx::PgPool) -> Result<(), inbox_runtime::dead_letters::DeadLetterError> {
//! use inbox_runtime::Tables;
//! use inbox_runtime::dead_letters::{DeadLetterQuery, DeadLetterReason, DeadLetters, Replay};
//!
//! let dead_letters = DeadLetters::open(pool, &Tables::default()).await?;
//! let exhausted = DeadLetterQuery::new()
//!     .consumer("billing")
//!     .reason(DeadLetterReason::AttemptsExhausted);
//! for entry in dead_letters.list(&exhausted).await?.entries {
//!     println!("{} {:?}: {}", entry.id, entry.message_id, entry.failure);
//! }
//!
//! // The handler is repaired: first one of them, then the rest.
//! match dead_letters.replay(7, "ada").await? {
//!     Replay::Queued => println!("it will be processed"),
//!     Replay::AlreadyQueued => println!("it waits already, or is in work"),
//!     Replay::Duplicate => println!("it was processed before: nothing is done"),
//!     _ => {}
//! }
//! dead_letters
//!     .replay_all(&exhausted, "ada", |page| println!("{} queued", page.totals.queued))
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # What each reason asks for
//!
//! | reason | what it means | what helps |
//! |---|---|---|
//! | `attempts_exhausted`, `rejected`, `undecodable` | the handler could not | repair it, then replay |
//! | `unknown_type` | no handler takes the type | register one, then replay: whoever takes the type gets it |
//! | `held` | another message under its id is an open dead letter | decide which of both is right, discard the other, replay |
//! | `invalid_id` | it cannot be told from other messages | send it again with an id, then discard |
//! | `escaped` | the handler committed by itself, its effect may be half done | look at the data; replay by force, or discard |
//! | `collision` | another message under its id was processed | repair the producer; replay by force, or discard |

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use inbox_core::{
    Claim, ClaimKey, Claimed, Claims, Envelope, ErrorClass, Existing, InboxDatabase, Inspection,
    InvalidTableNames, Isolation, Layout, MessageId, Requisites, Session, Severity, Tables,
    TransactionOptions,
};
use sqlx::{Pool, Transaction};

use crate::path::{Fault, STATEMENT_LIMIT, limited};

#[doc(no_inline)]
pub use inbox_core::{
    DeadLetterEntry, DeadLetterOrder, DeadLetterQuery, DeadLetterReason, DeadLetterState,
    InvalidDocument, StoredDeadLetter, UnknownReason,
};

/// How long an act waits for a copy of the message that is in work.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

/// How long a COMMIT may take before its outcome counts as unknown.
const COMMIT_WAIT: Duration = Duration::from_secs(30);

/// When the server ends an act whose client is gone.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// How often an act is tried that meets another transaction.
const TRIES: usize = 3;

/// The longest name of who acts, in bytes.
const LONGEST_NAME: usize = 255;

/// The dead letters of an inbox: to look at, to replay and to discard.
///
/// Clones share the pool. What to do with a dead letter is described [here](crate::dead_letters).
pub struct DeadLetters<Db: InboxDatabase> {
    pool: Pool<Db>,
    layout: Arc<Layout<Db>>,
    /// The text that begins an act.
    begin: Arc<str>,
    behind_pooler: bool,
}

impl<Db: InboxDatabase> Clone for DeadLetters<Db> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            layout: Arc::clone(&self.layout),
            begin: Arc::clone(&self.begin),
            behind_pooler: self.behind_pooler,
        }
    }
}

/// Some dead letters, in the order of the query.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterPage {
    /// The entries.
    pub entries: Vec<DeadLetterEntry>,
    /// Where the next page begins, for [`DeadLetterQuery::after`]; `None` on the last page.
    pub next: Option<i64>,
}

/// What a replay came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Replay {
    /// The message is queued and due; the entry says when and by whom.
    Queued,
    /// The message waits already, for a replay or for its next attempt, or it is in work: nothing was changed.
    AlreadyQueued,
    /// The message was processed: nothing was changed.
    Duplicate,
}

/// What a replay of many came to so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReplayTotals {
    /// Messages that are queued now.
    pub queued: u64,
    /// Messages that waited already, or were in work.
    pub already_queued: u64,
    /// Messages that were processed before.
    pub duplicates: u64,
    /// Entries that were left as they are, because their replay was refused.
    pub refused: u64,
}

impl ReplayTotals {
    fn count(&mut self, replay: &Result<Replay, DeadLetterError>) {
        *match replay {
            Ok(Replay::Queued) => &mut self.queued,
            Ok(Replay::AlreadyQueued) => &mut self.already_queued,
            Ok(Replay::Duplicate) => &mut self.duplicates,
            Err(_) => &mut self.refused,
        } += 1;
    }
}

/// One page of a replay of many.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplayedPage<'a> {
    /// All pages so far, this one included.
    pub totals: ReplayTotals,
    /// The entries of this page and what their replay came to.
    pub entries: &'a [(i64, Result<Replay, DeadLetterError>)],
}

/// What was discarded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Discarded {
    /// The entry as it was.
    pub entry: DeadLetterEntry,
    /// Whether counted failures of its message were forgotten with it.
    pub forgot_failures: bool,
}

/// Why something could not be done with dead letters. Nothing was changed then, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeadLetterError {
    /// A table or schema name cannot be used.
    #[error(transparent)]
    Names(#[from] InvalidTableNames),
    /// The tables are missing or older than this version, or the database cannot hold an inbox.
    #[error("the dead letters cannot be opened: {}", problems.join("; "))]
    Unusable {
        /// One sentence for each problem.
        problems: Vec<String>,
    },
    /// The name of who acts cannot be stored.
    #[error("{by:?} cannot be noted as who did it: {problem}")]
    Operator {
        /// The name.
        by: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is no such entry.
    #[error(
        "there is no dead letter {id}: it was discarded, or the number is another one; list them"
    )]
    Unknown {
        /// The number asked for.
        id: i64,
    },
    /// Its message has no id under which its consumer could claim it.
    #[error(
        "dead letter {id} cannot be replayed: consumer `{consumer}` cannot claim it, because {problem}; have the producer \
         send the message again with an id, then discard the entry"
    )]
    NoUsableId {
        /// The entry.
        id: i64,
        /// The consumer.
        consumer: String,
        /// What is wrong with the id.
        problem: String,
    },
    /// Its claim stays, so an ordinary replay would be a duplicate.
    #[error(
        "dead letter {id} (`{reason}`) is not replayed without force, because {why}; see to it by hand and discard the \
         entry, or withdraw the claim and run the handler with `replay_anyway`"
    )]
    NeedsForce {
        /// The entry.
        id: i64,
        /// Its reason.
        reason: DeadLetterReason,
        /// What has to be decided.
        why: &'static str,
    },
    /// Another open entry has the same consumer and message id, and only one of them can be processed.
    #[error(
        "dead letter {id} cannot be replayed: dead letter {other} is open under the same consumer and message id; discard \
         the one that is not wanted"
    )]
    Beside {
        /// The entry.
        id: i64,
        /// The other one.
        other: i64,
    },
    /// It was opened again, or replayed, while it was being discarded.
    #[error(
        "dead letter {id} was opened again or replayed while it was being discarded; look at it, then decide again"
    )]
    Changed {
        /// The entry.
        id: i64,
    },
    /// A transaction on the same message did not end in time.
    #[error(
        "dead letter {id} is in use: a copy of its message is in work, or somebody else acts on it; try again"
    )]
    Busy {
        /// The entry.
        id: i64,
        /// What the database answered, if it did.
        #[source]
        source: Option<sqlx::Error>,
    },
    /// The connection was lost while COMMIT was under way, so that it may have taken effect.
    #[error(
        "whether it was done to dead letter {id} is not known; do it again: it is never done twice"
    )]
    Unconfirmed {
        /// The entry.
        id: i64,
        /// What the database or the connection answered, if anything.
        #[source]
        source: Option<sqlx::Error>,
    },
    /// A statement took too long.
    #[error("{what} took longer than its limit")]
    Hung {
        /// What took so long.
        what: &'static str,
    },
    /// The database answered with an error.
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
}

impl DeadLetterError {
    /// Whether it is about one entry, so that the next one can be tried.
    const fn is_of_entry(&self) -> bool {
        matches!(
            self,
            Self::Unknown { .. }
                | Self::NoUsableId { .. }
                | Self::NeedsForce { .. }
                | Self::Beside { .. }
                | Self::Changed { .. }
                | Self::Busy { .. }
        )
    }
}

impl From<Fault> for DeadLetterError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Database(error) => Self::Database(error),
            Fault::Hung(what) => Self::Hung { what },
        }
    }
}

impl<Db: InboxDatabase> DeadLetters<Db> {
    /// Finds the tables as the start of an inbox does. The pool needs one connection, to the database itself or through
    /// a pooler in session mode.
    ///
    /// # Errors
    ///
    /// [`DeadLetterError::Unusable`] names the tables that are missing or older than this version, and what else keeps
    /// an inbox from starting on this database, as a pooler that gives each transaction another session.
    pub async fn open(pool: Pool<Db>, tables: &Tables) -> Result<Self, DeadLetterError> {
        Self::open_with(pool, tables, false).await
    }

    /// Like [`open`](Self::open), through a pooler that gives each transaction another session of the server. Pooler and
    /// pool need what [`behind_transaction_pooler`](crate::InboxBuilder::behind_transaction_pooler) says.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and when there is no such pooler, or it is not set up like that.
    pub async fn open_behind_transaction_pooler(
        pool: Pool<Db>,
        tables: &Tables,
    ) -> Result<Self, DeadLetterError> {
        Self::open_with(pool, tables, true).await
    }

    async fn open_with(
        pool: Pool<Db>,
        tables: &Tables,
        behind_pooler: bool,
    ) -> Result<Self, DeadLetterError> {
        tables.check()?;
        let requisites = Requisites {
            claim_wait: CLAIM_WAIT,
            longest_handler: Duration::ZERO,
            behind_pooler,
        };
        let inspected = {
            let mut conn = pool.acquire().await?;
            Db::inspect(&mut conn, tables, &requisites).await
        };
        let Inspection {
            findings,
            statements,
            ..
        } = match inspected {
            // The connections are not what the configuration says.
            Err(sqlx::Error::Configuration(problem)) => {
                return Err(DeadLetterError::Unusable {
                    problems: vec![problem.to_string()],
                });
            }
            inspected => inspected?,
        };
        let problems: Vec<String> = findings
            .into_iter()
            .filter(|finding| finding.severity == Severity::Problem)
            .map(|finding| finding.text)
            .collect();
        if !problems.is_empty() {
            return Err(DeadLetterError::Unusable { problems });
        }
        let layout = Layout::<Db>::new(statements);
        let begin = layout.begin_text(&TransactionOptions {
            isolation: Isolation::ReadCommitted,
            claim_wait: CLAIM_WAIT,
            idle_limit: IDLE_LIMIT,
        });
        Ok(Self {
            pool,
            layout: Arc::new(layout),
            begin,
            behind_pooler,
        })
    }

    /// One page of entries, without their messages.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn list(&self, query: &DeadLetterQuery) -> Result<DeadLetterPage, DeadLetterError> {
        let size = usize::try_from(query.entries_on_page()).unwrap_or(usize::MAX);
        let mut reading = self.read().await?;
        let mut entries = Db::list_dead_letters(&mut reading, self.statements(), query).await?;
        reading.rollback().await?;
        let has_more = entries.len() > size;
        entries.truncate(size);
        let next = entries.last().filter(|_| has_more).map(|entry| entry.id);
        Ok(DeadLetterPage { entries, next })
    }

    /// How many entries there are on all pages of a query.
    ///
    /// # Errors
    ///
    /// What the database answers.
    pub async fn count(&self, query: &DeadLetterQuery) -> Result<u64, DeadLetterError> {
        let mut reading = self.read().await?;
        let count = Db::count_dead_letters(&mut reading, self.statements(), query).await?;
        reading.rollback().await?;
        Ok(count)
    }

    /// One entry with the whole message: payload, headers and properties, byte for byte.
    ///
    /// # Errors
    ///
    /// [`DeadLetterError::Unknown`], or what the database answers.
    pub async fn show(&self, id: i64) -> Result<StoredDeadLetter, DeadLetterError> {
        let mut reading = self.read().await?;
        let letter = Db::read_dead_letter(&mut reading, self.statements(), id).await?;
        reading.rollback().await?;
        letter.ok_or(DeadLetterError::Unknown { id })
    }

    /// Queues a message in the database, from where a running inbox takes it at once: for the consumer that gave it up,
    /// or, if none did, for whoever takes its type. It has all its attempts again. The entry is closed and notes who
    /// did it (1 to 255 bytes); it is open again when the message fails for good once more.
    ///
    /// Replaying twice is safe: the second answers [`Replay::AlreadyQueued`], and [`Replay::Duplicate`] once the
    /// message was processed. For an entry without a consumer each consumer finds that out by itself.
    ///
    /// # Errors
    ///
    /// Refused are entries whose message has no usable id ([`DeadLetterError::NoUsableId`]), those whose claim stays,
    /// so that they need [`replay_anyway`](Self::replay_anyway) ([`DeadLetterError::NeedsForce`]), and those beside
    /// which another entry is open for the same message id ([`DeadLetterError::Beside`]).
    pub async fn replay(&self, id: i64, by: &str) -> Result<Replay, DeadLetterError> {
        self.replay_one(id, by, Force::No).await
    }

    /// Like [`replay`](Self::replay), and first withdraws the claim of (consumer, message id): the handler runs even if
    /// a message with this id was processed.
    ///
    /// It gives up the promise for this message, so look first at what is in the database:
    ///
    /// - `escaped`: the handler committed by itself. What it did until then is there, and is done again.
    /// - `collision`: the other message under the id was processed, and this one is processed too. From then on the id
    ///   stands for this one: another copy of the first is a duplicate, with another payload.
    /// - any other: whatever was processed under the id is done again.
    ///
    /// # Errors
    ///
    /// As for [`replay`](Self::replay), without [`DeadLetterError::NeedsForce`].
    pub async fn replay_anyway(&self, id: i64, by: &str) -> Result<Replay, DeadLetterError> {
        self.replay_one(id, by, Force::Yes).await
    }

    /// Replays every entry that meets a query, page by page, each in a transaction of its own, the earliest first
    /// whatever the query's order is. Entries that come to be meanwhile are left out. `progress` hears of each page.
    ///
    /// # Errors
    ///
    /// What the database answers; what was queued until then stays queued, and a second run goes on from there. A
    /// refusal is no error here: `progress` gets it, and the totals count it.
    pub async fn replay_all(
        &self,
        query: &DeadLetterQuery,
        by: &str,
        mut progress: impl FnMut(&ReplayedPage<'_>) + Send,
    ) -> Result<ReplayTotals, DeadLetterError> {
        check_name(by)?;
        let mut totals = ReplayTotals::default();
        let newest = query
            .clone()
            .order(DeadLetterOrder::NewestFirst)
            .page_size(1);
        let Some(last) = self
            .list(&newest)
            .await?
            .entries
            .first()
            .map(|entry| entry.id)
        else {
            return Ok(totals);
        };
        let mut next = Some(query.clone().order(DeadLetterOrder::OldestFirst));
        while let Some(query) = next {
            let page = self.list(&query).await?;
            next = page.next.filter(|id| *id < last).map(|id| query.after(id));
            let mut session = None;
            let mut entries = Vec::with_capacity(page.entries.len());
            let mut ended = Ok(());
            for entry in page.entries.iter().filter(|entry| entry.id <= last) {
                let replay = self.replay_in(&mut session, entry.id, by, Force::No).await;
                if let Err(error) = &replay {
                    if !error.is_of_entry() {
                        ended = replay.map(drop);
                        break;
                    }
                    tracing::warn!(
                        dead_letter = entry.id,
                        by,
                        error = error as &dyn std::error::Error,
                        "a dead letter was not replayed"
                    );
                }
                totals.count(&replay);
                entries.push((entry.id, replay));
            }
            release(session).await;
            progress(&ReplayedPage {
                totals,
                entries: &entries,
            });
            ended?;
        }
        Ok(totals)
    }

    /// Deletes an entry, its message and the message's counted failures. `by` says who did it, for the log (1 to 255
    /// bytes). A message that was discarded and comes again is a new message, unless its claim stays (`escaped`,
    /// `collision`): then it is a duplicate. A replay that was queued before goes on.
    ///
    /// # Errors
    ///
    /// [`DeadLetterError::Unknown`], or what the database answers.
    pub async fn discard(&self, id: i64, by: &str) -> Result<Discarded, DeadLetterError> {
        check_name(by)?;
        let mut session = None;
        let mut tries = 0;
        let discarded = loop {
            let mut open = self.take_session(&mut session).await?;
            let done = self.try_discard(&mut open, id).await;
            session = rolled_back(open).await;
            tries += 1;
            if let Some(discarded) = settled::<Db, _>(id, done, tries) {
                break discarded;
            }
        };
        release(session).await;
        let discarded = discarded?;
        tracing::info!(
            dead_letter = id,
            consumer = discarded.entry.consumer,
            message_id = discarded.entry.message_id,
            reason = discarded.entry.reason,
            by,
            "a dead letter was discarded"
        );
        Ok(discarded)
    }

    /// A transaction to read in: a query with parameters takes two messages to the server, and behind a pooler nothing
    /// else brings both to the same session.
    async fn read(&self) -> Result<Transaction<'static, Db>, DeadLetterError> {
        Ok(self.pool.begin().await?)
    }

    /// An entry as it is now, before a transaction is begun to change it.
    async fn find(
        &self,
        session: &mut Session<Db>,
        id: i64,
    ) -> Result<DeadLetterEntry, DeadLetterError> {
        if self.behind_pooler {
            self.begin(session).await?;
        }
        let entry = Db::find_dead_letter(session.tx(), self.statements(), id).await?;
        if self.behind_pooler {
            limited(STATEMENT_LIMIT, "ROLLBACK", session.roll_back()).await?;
        }
        entry.ok_or(DeadLetterError::Unknown { id })
    }

    fn statements(&self) -> &Db::Statements {
        self.layout.statements()
    }

    async fn replay_one(&self, id: i64, by: &str, force: Force) -> Result<Replay, DeadLetterError> {
        check_name(by)?;
        let mut session = None;
        let replay = self.replay_in(&mut session, id, by, force).await;
        release(session).await;
        replay
    }

    async fn replay_in(
        &self,
        session: &mut Option<Session<Db>>,
        id: i64,
        by: &str,
        force: Force,
    ) -> Result<Replay, DeadLetterError> {
        let mut tries = 0;
        loop {
            let mut open = self.take_session(session).await?;
            let done = self.try_replay(&mut open, id, by, force).await;
            *session = rolled_back(open).await;
            tries += 1;
            if let Some(replay) = settled::<Db, _>(id, done, tries) {
                return replay;
            }
        }
    }

    async fn take_session(
        &self,
        session: &mut Option<Session<Db>>,
    ) -> Result<Session<Db>, DeadLetterError> {
        if let Some(session) = session.take() {
            return Ok(session);
        }
        let opening = Session::open(&self.pool, Arc::clone(&self.layout));
        Ok(limited(
            STATEMENT_LIMIT,
            "taking a connection from the pool",
            opening,
        )
        .await?)
    }

    /// One try of a replay. The claim comes first and is withdrawn at the end, as for everything that puts a message
    /// aside: so the message is not in work meanwhile, and "processed" is decided by the claim alone.
    async fn try_replay(
        &self,
        session: &mut Session<Db>,
        id: i64,
        by: &str,
        force: Force,
    ) -> Result<Replay, DeadLetterError> {
        let statements = self.statements();
        let entry = self.find(session, id).await?;
        refuse(&entry, force)?;
        let key = key_of(&entry);
        match key {
            Some(key) if force == Force::No => {
                if !self.claim(session, id, key).await? {
                    tell(
                        &entry,
                        by,
                        "a dead letter was not replayed: its message was processed before",
                    );
                    return Ok(Replay::Duplicate);
                }
            }
            Some(key) => {
                self.begin(session).await?;
                session.withdraw_claim(key).await?;
            }
            None => self.begin(session).await?,
        }
        if let Some(key) = key {
            if let Some(other) = Db::dead_letter_beside(session.tx(), statements, key, id).await? {
                return Err(DeadLetterError::Beside { id, other });
            }
            Db::forget_counted(session.tx(), statements, key).await?;
        }
        let locked = Db::lock_dead_letter(session.tx(), statements, id)
            .await?
            .ok_or(DeadLetterError::Unknown { id })?;
        refuse(&locked, force)?;
        if !Db::queue_dead_letter(session.tx(), statements, id).await? {
            tell(
                &entry,
                by,
                "a dead letter was not replayed: its message waits already, or is in work",
            );
            return Ok(Replay::AlreadyQueued);
        }
        Db::mark_dead_letter_replayed(session.tx(), statements, id, by).await?;
        if let Some(key) = key {
            session.withdraw_claim(key).await?;
        }
        commit(session, id).await?;
        tell(&entry, by, "a dead letter was queued for replay");
        Ok(Replay::Queued)
    }

    async fn try_discard(
        &self,
        session: &mut Session<Db>,
        id: i64,
    ) -> Result<Discarded, DeadLetterError> {
        let statements = self.statements();
        let entry = self.find(session, id).await?;
        // After a replay, counted failures belong to what became of that.
        let key = key_of(&entry).filter(|_| entry.is_open());
        // With the claim, nobody keeps another message under the id meanwhile.
        let is_claimed = match key {
            Some(key) => self.claim(session, id, key).await?,
            None => false,
        };
        if !is_claimed {
            self.begin(session).await?;
        }
        let mut forgot_failures = false;
        // The message of another open entry is held back by them.
        if let Some(key) = key
            && Db::dead_letter_beside(session.tx(), statements, key, id)
                .await?
                .is_none()
        {
            forgot_failures = Db::forget_counted(session.tx(), statements, key).await?;
        }
        // A replay that failed may have opened it again since it was looked at: then it is the message's only place.
        let now = Db::lock_dead_letter(session.tx(), statements, id)
            .await?
            .ok_or(DeadLetterError::Unknown { id })?;
        if now.is_open() != entry.is_open() {
            return Err(DeadLetterError::Changed { id });
        }
        if !Db::remove_dead_letter(session.tx(), statements, id).await? {
            return Err(DeadLetterError::Unknown { id });
        }
        if let Some(key) = key.filter(|_| is_claimed) {
            session.withdraw_claim(key).await?;
        }
        commit(session, id).await?;
        Ok(Discarded {
            entry,
            forgot_failures,
        })
    }

    async fn begin(&self, session: &mut Session<Db>) -> Result<(), DeadLetterError> {
        Ok(limited(STATEMENT_LIMIT, "BEGIN", session.begin(&self.begin)).await?)
    }

    /// Begins a transaction with the claim of an entry's message. `false`: it was processed, and nothing is open.
    async fn claim(
        &self,
        session: &mut Session<Db>,
        id: i64,
        key: ClaimKey<'_>,
    ) -> Result<bool, DeadLetterError> {
        // It is withdrawn again: what it says of the message is seen by nobody.
        let nothing = Envelope::default();
        let claim = Claim::new(key, &nothing);
        let claims = Claims {
            begin: &self.begin,
            claims: std::slice::from_ref(&claim),
        };
        let limit = CLAIM_WAIT + STATEMENT_LIMIT;
        let answers = limited(limit, "the claim", session.claim(&claims)).await?;
        if matches!(answers.as_slice(), [Claimed::Won { .. }]) {
            return Ok(true);
        }
        let keys = [key];
        let dismissing = session.dismiss(&keys, None);
        let (existing, _) = limited(STATEMENT_LIMIT, "reading the claim", dismissing).await?;
        match existing.as_slice() {
            [Existing::Claim { .. }] => Ok(false),
            // A purge came in between, or something swallows claims.
            _ => Err(DeadLetterError::Busy { id, source: None }),
        }
    }
}

impl<Db: InboxDatabase> fmt::Debug for DeadLetters<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters").finish_non_exhaustive()
    }
}

/// Whether a claim that is there is withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Force {
    No,
    Yes,
}

/// The key under which the consumer of an entry claims its message.
fn key_of(entry: &DeadLetterEntry) -> Option<ClaimKey<'_>> {
    Some(ClaimKey {
        consumer: entry.consumer.as_deref()?,
        message_id: entry.message_id.as_deref()?,
    })
}

/// Why an entry cannot be replayed by what it says of itself.
fn refuse(entry: &DeadLetterEntry, force: Force) -> Result<(), DeadLetterError> {
    let id = entry.id;
    let reason = entry.reason.parse::<DeadLetterReason>().ok();
    if let Some(consumer) = &entry.consumer {
        let problem = match (&entry.message_id, reason) {
            (_, Some(DeadLetterReason::InvalidId)) => Some(entry.failure.clone()),
            (None, _) => Some("it has no message id".to_owned()),
            (Some(id), _) => MessageId::new(id).err().map(|error| error.to_string()),
        };
        if let Some(problem) = problem {
            return Err(DeadLetterError::NoUsableId {
                id,
                consumer: consumer.clone(),
                problem,
            });
        }
    }
    match reason {
        // After a replay by force, the claim is there only if that was processed.
        Some(reason) if reason.leaves_claim() && entry.is_open() && force == Force::No => {
            Err(DeadLetterError::NeedsForce {
                id,
                reason,
                why: if reason == DeadLetterReason::Escaped {
                    "its handler committed by itself, so that its effect may be there already, whole or in part"
                } else {
                    "another message under its id, with another payload, was processed"
                },
            })
        }
        _ => Ok(()),
    }
}

fn check_name(by: &str) -> Result<(), DeadLetterError> {
    let problem = if by.trim().is_empty() {
        "it is blank; say who acts"
    } else if by.len() > LONGEST_NAME {
        "it has more than 255 bytes"
    } else if by.contains('\0') {
        "it contains the character U+0000"
    } else {
        return Ok(());
    };
    Err(DeadLetterError::Operator {
        by: by.to_owned(),
        problem,
    })
}

/// The end of an act, unless it met another transaction and is to be tried again.
fn settled<Db: InboxDatabase, T>(
    id: i64,
    done: Result<T, DeadLetterError>,
    tries: usize,
) -> Option<Result<T, DeadLetterError>> {
    let source = match done {
        Err(DeadLetterError::Database(error)) if Db::classify(&error) == ErrorClass::Transient => {
            Some(error)
        }
        Err(DeadLetterError::Busy { source, .. }) => source,
        done => return Some(done),
    };
    (tries == TRIES).then_some(Err(DeadLetterError::Busy { id, source }))
}

/// Leaves no transaction open. A session that cannot roll back is closed, which comes to the same.
async fn rolled_back<Db: InboxDatabase>(mut session: Session<Db>) -> Option<Session<Db>> {
    let rolled_back = limited(STATEMENT_LIMIT, "ROLLBACK", session.roll_back()).await;
    rolled_back.is_ok().then_some(session)
}

async fn commit<Db: InboxDatabase>(
    session: &mut Session<Db>,
    id: i64,
) -> Result<(), DeadLetterError> {
    match limited(COMMIT_WAIT, "COMMIT", session.commit()).await {
        Ok(()) => Ok(()),
        Err(Fault::Database(error)) if Db::is_known_rollback(&error) => Err(error.into()),
        Err(Fault::Database(error)) => Err(DeadLetterError::Unconfirmed {
            id,
            source: Some(error),
        }),
        Err(Fault::Hung(_)) => Err(DeadLetterError::Unconfirmed { id, source: None }),
    }
}

async fn release<Db: InboxDatabase>(session: Option<Session<Db>>) {
    if let Some(session) = session {
        let _ = tokio::time::timeout(STATEMENT_LIMIT, session.release()).await;
    }
}

fn tell(entry: &DeadLetterEntry, by: &str, what: &'static str) {
    tracing::info!(
        dead_letter = entry.id,
        consumer = entry.consumer,
        message_id = entry.message_id,
        reason = entry.reason,
        by,
        "{what}"
    );
}
