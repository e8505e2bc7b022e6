//! The path of one delivery for one consumer, step by step.
//!
//! A step either goes on or ends the attempt, and every end leaves the database in one of three states:
//! nothing happened, the effect and its claim are committed, or a dead letter is. A session that is not put
//! back explicitly is dropped, which closes its connection and lets the server roll back.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use inbox_core::{
    CallError, Claim, ClaimKey, Claimed, Claims, Counted, DeadLetter, DeadLetterReason, ErrorClass,
    Existing, ExistingEntry, FailureText, HandlerError, IdProblem, InboxDatabase, Incoming, Kept,
    MessageId, Sealed, Session, StateMap, TraceOfClaim, WaitingMessage,
};
use tracing::Instrument as _;

use crate::backoff;
use crate::gate::Pass;
use crate::job::{Job, Outcome, Share, Status, Wait};
use crate::route::Registered;
use crate::testing::Step;
use crate::worker::{Shared, Worker};

/// How long a statement of our own may take before its connection is given up. The claim may wait for a lock
/// on top of that, and COMMIT has a limit of its own.
pub(crate) const STATEMENT_LIMIT: Duration = Duration::from_secs(10);

/// What a pass for one consumer came to.
#[derive(Debug)]
pub(crate) enum Passed {
    Status(Status),
    /// Another copy is in work in this process.
    GateTaken(MessageId),
    /// The runtime stops and the handler was dropped.
    CutOff,
}

/// The end of one attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ending {
    Done(Outcome),
    /// Counted against the message; tried again after the delay.
    Failed {
        delay: Duration,
    },
    /// A conflict in the database; tried again soon, uncounted.
    Transient,
    /// Nothing is known against the message; tried again later.
    Uncounted {
        delay: Option<Duration>,
        why: Why,
    },
    /// It shall wait for so long, and could not be parked yet.
    Unparked {
        delay: Duration,
    },
    /// As little is known against it, but its handler may have made its claim durable itself, and that is not told.
    InDoubt,
    /// No handler starts any more.
    Stopping,
    CutOff,
}

/// What kept a message from a verdict, without its doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The database, its schema or the configuration.
    Infrastructure,
    /// A copy of it is in work elsewhere.
    Elsewhere,
    /// Nobody knows what became of COMMIT.
    UnknownCommit,
}

impl Ending {
    pub(crate) const fn uncounted(why: Why) -> Self {
        Self::Uncounted { delay: None, why }
    }
}

/// One message in the hands of one consumer.
pub(crate) struct Attempt<'a, Db: InboxDatabase> {
    pub(crate) job: &'a Job<Db>,
    pub(crate) registered: &'a Registered<Db>,
    pub(crate) id: &'a MessageId,
    pub(crate) transient_runs: u32,
    pub(crate) uncounted_tries: u32,
    /// When it is due, where it could not be parked until then.
    pub(crate) due: Option<Instant>,
    /// Whether a start of it is counted that has not come to its end. Set and read by one task.
    pub(crate) is_start_counted: AtomicBool,
    /// Whether something is counted against it, as far as this process knows: it counted a failure or found a count.
    pub(crate) is_counted: AtomicBool,
}

impl<'a, Db: InboxDatabase> Attempt<'a, Db> {
    pub(crate) fn span(&self) -> tracing::Span {
        tracing::info_span!(
            "inbox.process",
            "messaging.system" = self.job.route.system,
            "messaging.message.id" = self.id.as_str(),
            "messaging.consumer.group.name" = self.registered.consumer.as_str(),
            source = self.job.route.source.as_str(),
        )
    }

    /// What its handler sees.
    pub(crate) fn incoming(&self, number: u32, state: &'a StateMap) -> Incoming<'a> {
        Incoming::new(
            &self.job.envelope,
            self.id,
            &self.registered.consumer,
            self.job.route.source.as_str(),
            number,
            state,
        )
    }

    fn still_to_wait(&self) -> Option<Duration> {
        let left = self.due?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    fn has_counted_start(&self) -> bool {
        self.is_start_counted.load(Ordering::Relaxed)
    }

    fn note_start(&self, is_counted: bool) {
        self.is_start_counted.store(is_counted, Ordering::Relaxed);
    }

    fn is_known_as_counted(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }

    fn key(&self) -> ClaimKey<'a> {
        ClaimKey {
            consumer: self.registered.consumer.as_str(),
            message_id: self.id.as_str(),
        }
    }
}

/// A session with the answer to the claims that its transaction began with.
pub(crate) struct Opened<Db: InboxDatabase, Answer> {
    pub(crate) session: Session<Db>,
    pub(crate) answer: Result<Answer, Fault>,
}

impl<Db: InboxDatabase> Opened<Db, Vec<Claimed>> {
    /// The answer to a single claim.
    pub(crate) fn sole(self) -> Opened<Db, Claimed> {
        let answer = self.answer.and_then(|answers| {
            answers.into_iter().next().ok_or_else(|| {
                Fault::Database(sqlx::Error::Protocol(
                    "a claim without an answer".to_owned(),
                ))
            })
        });
        Opened {
            session: self.session,
            answer,
        }
    }
}

/// A message that may be worked on for one consumer.
pub(crate) struct Admitted<Db: InboxDatabase> {
    pub(crate) id: MessageId,
    /// Lets copies wait for as long as this lives.
    _pass: Pass<Db>,
}

/// Why a message may not be worked on now.
pub(crate) enum Refusal {
    NoId(IdProblem),
    /// Another copy is in work in this process.
    GateTaken(MessageId),
}

/// What the claim that was won told.
#[derive(Debug)]
struct Won {
    /// What is counted against it, a start of this attempt included.
    counted: Counted,
    /// What recognises the transaction that made the claim.
    mark: Option<String>,
}

impl Won {
    /// What was counted against the message before this attempt. Its own start may be gone from the count already, when
    /// forgetting it was not answered.
    fn before<Db: InboxDatabase>(&self, attempt: &Attempt<'_, Db>) -> u32 {
        self.counted
            .all()
            .saturating_sub(u32::from(attempt.has_counted_start()))
    }
}

/// What is held against a message after its handler did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    text: FailureText,
    reason: DeadLetterReason,
    /// The delay that the handler asked for.
    delay: Option<Duration>,
    /// The kind of database error behind it.
    pub(crate) cause: Option<ErrorClass>,
}

impl Failure {
    pub(crate) fn of_handler(text: FailureText) -> Self {
        Self {
            text,
            reason: DeadLetterReason::AttemptsExhausted,
            delay: None,
            cause: None,
        }
    }
}

/// What a call of the handler came to.
pub(crate) enum Called {
    Succeeded,
    Undecodable(FailureText),
    /// Those of a batch at these positions.
    SomeUndecodable(Vec<usize>),
    Misconfigured(FailureText),
    Failed(Failure),
    Panicked(String),
    TimedOut,
    CutOff,
}

impl Called {
    /// Whether the message, and neither its neighbours nor the database, is to blame, so that the transaction can go
    /// on without it.
    pub(crate) const fn is_of_its_message_alone(&self) -> bool {
        match self {
            Self::Failed(failure) => matches!(failure.cause, None | Some(ErrorClass::Statement)),
            Self::Undecodable(_) | Self::Misconfigured(_) | Self::Panicked(_) => true,
            Self::Succeeded | Self::SomeUndecodable(_) | Self::TimedOut | Self::CutOff => false,
        }
    }
}

/// The answer to our COMMIT.
enum Committed {
    Yes,
    /// The database said that it rolled back.
    No(sqlx::Error),
    /// The connection was lost or hung in between.
    Unknown(String),
}

/// A statement of our own that did not succeed.
#[derive(Debug)]
pub(crate) enum Fault {
    Database(sqlx::Error),
    Hung(&'static str),
}

impl Fault {
    pub(crate) fn text(&self) -> FailureText {
        match self {
            Self::Database(error) => FailureText::of_error(error),
            Self::Hung(what) => FailureText::new(format!("{what} took longer than its limit")),
        }
    }
}

/// Runs a step of our own with a limit; past it the session must be dropped.
pub(crate) async fn limited<T>(
    limit: Duration,
    what: &'static str,
    step: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(limit, step).await {
        Ok(answer) => answer.map_err(Fault::Database),
        Err(_) => Err(Fault::Hung(what)),
    }
}

impl<Db: InboxDatabase> Worker<Db> {
    /// Identifies a message for one consumer and takes its gate. Writes nothing and never waits.
    pub(crate) fn admit(
        &self,
        job: &Job<Db>,
        registered: &Registered<Db>,
    ) -> Result<Admitted<Db>, Refusal> {
        let stored = job.stored.as_ref().and_then(|stored| stored.id.clone());
        // Without an id there is no claim, so the message cannot have been processed.
        let id = match stored {
            Some(id) => id,
            None => job
                .envelope
                .identify(
                    registered.spec.key,
                    &job.route.id_sources,
                    job.route.id_scope.as_deref(),
                )
                .map_err(Refusal::NoId)?,
        };
        // A copy in work in this process goes first; nothing is held while this one waits.
        match self.shared.gate.try_enter(&registered.consumer, &id) {
            Some(pass) => Ok(Admitted { id, _pass: pass }),
            None => Err(Refusal::GateTaken(id)),
        }
    }

    /// Takes one consumer's share of a delivery as far as it goes now.
    pub(crate) async fn process(
        &mut self,
        job: &Job<Db>,
        share: &mut Share<Db>,
        admitted: Option<Admitted<Db>>,
        opened: Option<Opened<Db, Claimed>>,
    ) -> Passed {
        let registered = Arc::clone(&share.handler);
        let admitted = match admitted.map_or_else(|| self.admit(job, &registered), Ok) {
            Ok(admitted) => admitted,
            Err(Refusal::GateTaken(id)) => return Passed::GateTaken(id),
            Err(Refusal::NoId(problem)) => {
                let text = FailureText::new(&problem);
                let mut letter = DeadLetter::new(
                    &job.route.source,
                    &job.envelope,
                    DeadLetterReason::InvalidId,
                    &text,
                );
                letter.consumer = Some(registered.consumer.as_str());
                letter.handler = Some(registered.spec.name);
                letter.id = problem.found();
                let ending = self.keep_without_claim(&letter).await;
                return self.conclude(ending, share, job, None);
            }
        };
        let Admitted { id, _pass } = admitted;
        let attempt = Attempt {
            job,
            registered: &registered,
            id: &id,
            transient_runs: share.transient_runs,
            uncounted_tries: share.uncounted_tries,
            due: share.due,
            is_start_counted: AtomicBool::new(share.is_start_counted),
            is_counted: AtomicBool::new(share.is_counted),
        };
        let ending = async {
            let ending = self.attempt(&attempt, opened, &mut share.in_doubt).await;
            self.end_start(&attempt, ending).await;
            ending
        }
        .instrument(attempt.span())
        .await;
        share.is_start_counted = attempt.has_counted_start();
        share.is_counted = attempt.is_known_as_counted();
        self.conclude(ending, share, job, Some(&id))
    }

    /// Begins, claims, runs the handler, fences and commits.
    async fn attempt(
        &mut self,
        attempt: &Attempt<'_, Db>,
        opened: Option<Opened<Db, Claimed>>,
        in_doubt: &mut Option<String>,
    ) -> Ending {
        let claim = Claim::new(attempt.key(), &attempt.job.envelope);
        if let Some(delay) = attempt.still_to_wait() {
            let Some(session) = self.session_when_available().await else {
                return Ending::Stopping;
            };
            return self.park(session, attempt, delay).await;
        }

        // Claim: crash before COMMIT leaves nothing; the redelivery claims anew.
        let opened = match opened {
            Some(opened) => opened,
            None => match self.open(attempt, &claim).await {
                Ok(opened) => opened,
                Err(ending) => return ending,
            },
        };
        let Opened { session, answer } = opened;
        let won = match answer {
            Ok(Claimed::Won {
                kept: Some(Kept::Dead),
                counted,
                ..
            }) => return self.keep_beside(session, attempt, counted.all()).await,
            Ok(Claimed::Won { kept: Some(_), .. }) if !attempt.job.is_stored() => {
                return self.parked_already(session, attempt).await;
            }
            Ok(Claimed::Won { counted, mark, .. }) => Won { counted, mark },
            Ok(_) => {
                return match in_doubt {
                    None => self.duplicate(session, attempt, &claim).await,
                    Some(mark) => self.duplicate_in_doubt(session, attempt, mark).await,
                };
            }
            Err(fault) => return self.not_claimed(session, fault).await,
        };
        let ending = self.work(session, attempt, &won).await;
        *in_doubt = won.mark.filter(|_| matches!(ending, Ending::InDoubt));
        ending
    }

    /// Runs the handler in the transaction that has won the claim, fences and commits.
    async fn work(
        &mut self,
        mut session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        won: &Won,
    ) -> Ending {
        let shared = Arc::clone(&self.shared);
        let spec = &attempt.registered.spec;
        tracing::trace!(
            attempts = won.counted.attempts,
            starts = won.counted.starts,
            "claimed"
        );
        shared.hook.reach(Step::AfterClaim, attempt.id.as_str());

        // A crash may have come between the last failure and its dead letter, or have been the message's doing.
        let before = won.before(attempt);
        if before >= spec.max_attempts
            && !attempt.registered.tally.seems_broken(shared.broken_after)
        {
            let failure = Failure::of_handler(used_up(won.counted, before));
            return self.keep_claimed(session, attempt, &failure, before).await;
        }

        // Decode, extract, handle: a crash rolls back claim and effect together.
        let incoming = [attempt.incoming(before.saturating_add(1), &shared.state)];
        let called = shared
            .call(&mut session, attempt.registered, &incoming)
            .await;
        shared.hook.reach(Step::AfterHandler, attempt.id.as_str());
        match called {
            Called::Succeeded => {}
            Called::Undecodable(text) => {
                // Decoding runs before the handler: the transaction holds nothing but the claim.
                let failure = Failure {
                    reason: DeadLetterReason::Undecodable,
                    ..Failure::of_handler(text)
                };
                return self.keep_claimed(session, attempt, &failure, before).await;
            }
            // A batch of one says what is wrong with it.
            Called::SomeUndecodable(_) => {
                self.put_back(session).await;
                return Ending::uncounted(Why::Infrastructure);
            }
            Called::Misconfigured(text) => {
                tracing::error!(
                    handler = spec.name,
                    error = text.as_str(),
                    "a handler argument cannot be provided; the message is kept and tried again"
                );
                self.put_back(session).await;
                return Ending::Uncounted {
                    delay: Some(Duration::from_secs(30)),
                    why: Why::Infrastructure,
                };
            }
            Called::Failed(failure) => {
                let session = self.shared.rolled_back(session).await;
                return self.failed(session, attempt, won, failure).await;
            }
            Called::Panicked(text) => {
                let failure =
                    Failure::of_handler(FailureText::new(format!("the handler panicked: {text}")));
                let session = self.shared.rolled_back(session).await;
                return self.failed(session, attempt, won, failure).await;
            }
            Called::TimedOut => {
                // It may be in the middle of a statement.
                session.close().await;
                let text = format!("the handler did not finish within {:?}", spec.timeout);
                let failure = Failure::of_handler(FailureText::new(text));
                return self.failed(None, attempt, won, failure).await;
            }
            Called::CutOff => {
                session.close().await;
                tracing::warn!(
                    handler = spec.name,
                    "the handler was cut off by the shutdown and is rolled back"
                );
                return Ending::CutOff;
            }
        }
        self.finish(session, attempt, won).await
    }

    /// Fence and COMMIT: the only way to `Processed`.
    async fn finish(
        &mut self,
        mut session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        won: &Won,
    ) -> Ending {
        let shared = Arc::clone(&self.shared);
        let swallowed = session.last_statement_error().map(str::to_owned);
        shared.hook.reach(Step::BeforeCommit, attempt.id.as_str());
        let keys = [attempt.key()];
        let have_failures = won.counted != Counted::default();
        let (sealed, claimed) = self.seal(&mut session, &keys, have_failures).await;
        let failure = match sealed {
            Sealed::Committed => {
                shared.hook.reach(Step::AfterCommit, attempt.id.as_str());
                self.go_on_with(session, claimed);
                attempt.registered.tally.note_success();
                attempt.note_start(false);
                return Ending::Done(Outcome::Processed);
            }
            Sealed::Refused(error) => {
                let failure = Failure {
                    cause: Some(Db::classify(&error)),
                    ..Failure::of_handler(FailureText::new(format!(
                        "COMMIT was refused: {}",
                        FailureText::of_error(&error).as_str()
                    )))
                };
                let session = shared.rolled_back(session).await;
                return self.failed(session, attempt, won, failure).await;
            }
            Sealed::Aborted => Failure::of_handler(FailureText::new(format!(
                "the handler returned Ok although a statement of its had failed, which aborted the transaction ({}); \
                 return the error, or run what may fail in `tx.savepoint()`",
                swallowed.as_deref().unwrap_or("the error is not known")
            ))),
            Sealed::Gone => Failure::of_handler(FailureText::new(
                "the handler ended the inbox transaction itself (COMMIT, ROLLBACK, PREPARE TRANSACTION, or a \
                 statement that implies one), or removed or changed its claim; leave both to the runtime",
            )),
            Sealed::Kept => {
                self.session = shared.rolled_back(session).await;
                return Ending::uncounted(Why::Elsewhere);
            }
            Sealed::Uneven(depth) => Failure::of_handler(FailureText::new(format!(
                "the handler left the driver at transaction depth {depth} instead of 1: a savepoint was neither \
                 released nor rolled back (forgotten with `mem::forget`), or the transaction was ended"
            ))),
            Sealed::Garbled => Failure::of_handler(FailureText::new(
                "the handler left a statement half-read (a COPY), so the database's answers no longer belong to \
                 their statements; read it to its end",
            )),
            Sealed::Unproven(error) => Failure {
                cause: Some(Db::classify(&error)),
                ..Failure::of_handler(FailureText::of_error(&error))
            },
            Sealed::Failed(error) => {
                return uncounted("forgetting the failures", &Fault::Database(error));
            }
            Sealed::Unknown(error) => {
                drop(session);
                let mark = won.mark.as_deref();
                let ending = self.look_after_commit(attempt.key(), mark, &error).await;
                return match (ending, self.session.take()) {
                    (Ending::Done(Outcome::Duplicate), Some(session)) => {
                        self.processed_elsewhere(session, attempt).await
                    }
                    (ending, session) => {
                        self.session = session;
                        ending
                    }
                };
            }
            _ => return unknown("the database did not say what became of COMMIT"),
        };
        // Whatever is open on this session now is not ours: close it.
        drop(session);
        self.failed(None, attempt, won, failure).await
    }

    /// The connection was lost while COMMIT was under way. A claim on the primary is the answer; no claim proves nothing,
    /// for the COMMIT may still come.
    pub(crate) async fn look_after_commit(
        &mut self,
        key: ClaimKey<'_>,
        mark: Option<&str>,
        error: &sqlx::Error,
    ) -> Ending {
        let ending = unknown(FailureText::of_error(error).as_str());
        let Ok(mut session) = self.new_session().await else {
            return ending;
        };
        let tracing = session.trace(key, mark);
        // Whoever is cut off from the server may hold its transaction for long; so long waits a claim for it too.
        let limit = STATEMENT_LIMIT.min(self.shared.claim_wait);
        let outcome = match limited(limit, "reading the claim", tracing).await {
            Ok(TraceOfClaim::Ours) => Outcome::Processed,
            Ok(TraceOfClaim::Foreign) => Outcome::Duplicate,
            Ok(_) => {
                self.session = Some(session);
                return ending;
            }
            Err(_) => return ending,
        };
        self.session = Some(session);
        self.unflushed.note_duplicate();
        tracing::info!(outcome = outcome.as_str(), "the claim is there");
        Ending::Done(outcome)
    }

    /// Counts the start of a message of which an attempt may have begun before, ahead of everything that it could do
    /// to the process, then begins and claims.
    ///
    /// A message of which a start is counted that nobody saw end, or whose last chance this is, runs alone: then it is
    /// to blame when the process dies, and no neighbour.
    async fn open(
        &mut self,
        attempt: &Attempt<'_, Db>,
        claim: &Claim<'_>,
    ) -> Result<Opened<Db, Claimed>, Ending> {
        let begin = &attempt.registered.begin;
        if !attempt.job.counts_starts || attempt.has_counted_start() {
            return self.begin_and_claim(attempt, begin, claim).await;
        }
        let below = Some(attempt.registered.spec.max_attempts);
        if self.record_start(attempt, below).await? {
            return self.begin_and_claim(attempt, begin, claim).await;
        }
        attempt.is_counted.store(true, Ordering::Relaxed);
        // Nobody steps aside for a copy of what is done, or in work elsewhere: that start may be the one that is counted.
        let begin = &attempt.registered.begin_alone;
        let looked = self.begin_and_claim(attempt, begin, claim).await?;
        let runs = match &looked.answer {
            Ok(Claimed::Won { kept, .. }) => kept.is_none() || attempt.job.is_stored(),
            _ => false,
        };
        if !runs {
            return Ok(looked);
        }
        self.put_back(looked.session).await;
        self.company = None;
        // It can take as long as the others' handlers.
        self.rest().await;
        let stop = self.shared.stop.clone();
        let company = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(Ending::Stopping),
            company = self.shared.solitude.alone() => company,
        };
        self.company = company;
        self.is_alone = true;
        self.record_start(attempt, None).await?;
        self.begin_and_claim(attempt, begin, claim).await
    }

    /// Whoever has the process for itself does not wait for a copy elsewhere.
    async fn begin_and_claim(
        &mut self,
        attempt: &Attempt<'_, Db>,
        begin: &Arc<str>,
        claim: &Claim<'_>,
    ) -> Result<Opened<Db, Claimed>, Ending> {
        let begin = if self.is_alone {
            &attempt.registered.begin_alone
        } else {
            begin
        };
        let Some(session) = self.session_when_available().await else {
            return Err(Ending::Stopping);
        };
        let shared = Arc::clone(&self.shared);
        shared.hook.reach(Step::BeforeClaim, attempt.id.as_str());
        let claims = std::slice::from_ref(claim);
        Ok(shared.claim(session, begin, claims).await.sole())
    }

    /// Whether the start was counted.
    async fn record_start(
        &mut self,
        attempt: &Attempt<'_, Db>,
        below: Option<u32>,
    ) -> Result<bool, Ending> {
        let Some(mut session) = self.session_when_available().await else {
            return Err(Ending::Stopping);
        };
        let recording = session.record_start(&self.shared.begin, attempt.key(), below);
        match limited(STATEMENT_LIMIT, "counting the start", recording).await {
            Ok(counted) => {
                self.session = Some(session);
                attempt.note_start(counted.is_some());
                Ok(counted.is_some())
            }
            Err(fault) => Err(uncounted("counting the start", &fault)),
        }
    }

    /// A counted start came to an end that says nothing against the message, or a copy of it was processed while a
    /// failure was counted here, which whoever did that did not know of. One try: what cannot be forgotten, because the
    /// database is away, stays with the share.
    async fn end_start(&mut self, attempt: &Attempt<'_, Db>, ending: Ending) {
        let is_over = matches!(
            ending,
            Ending::Failed { .. } | Ending::Done(Outcome::Processed | Outcome::Dead)
        );
        if is_over {
            attempt.note_start(false);
        }
        // Also what a process left that died with a copy of it in its hands.
        let is_processed = matches!(ending, Ending::Done(Outcome::Duplicate));
        let is_counted =
            attempt.has_counted_start() || (is_processed && attempt.is_known_as_counted());
        if !is_counted || self.ahead_opened.is_some() {
            return;
        }
        let mut session = match self.session.take() {
            Some(session) => session,
            None => match self.new_session().await {
                Ok(session) => session,
                Err(_) => return,
            },
        };
        let forgetting = session.forget_start(&self.shared.begin, attempt.key(), is_processed);
        match limited(STATEMENT_LIMIT, "forgetting the start", forgetting).await {
            Ok(()) => {
                self.session = Some(session);
                attempt.note_start(false);
            }
            Err(fault) => tracing::warn!(
                error = fault.text().as_str(),
                "what is over, or was processed elsewhere, is still counted"
            ),
        }
    }

    /// A duplicate: acked after a look at whether it is really the same message.
    async fn duplicate(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        claim: &Claim<'_>,
    ) -> Ending {
        match self.dismiss(session, std::slice::from_ref(claim)).await {
            Ok(compared) => match compared.first() {
                Some(Comparison::Collides) => self.keep_collision(attempt).await,
                Some(one) => one.ending(),
                None => Ending::uncounted(Why::Infrastructure),
            },
            Err(fault) => uncounted("comparing the payloads", &fault),
        }
    }

    /// The claim is there, and not of this message's own attempt: the claim anew tells as for every duplicate whether
    /// it is the same message.
    async fn processed_elsewhere(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
    ) -> Ending {
        let claim = Claim::new(attempt.key(), &attempt.job.envelope);
        match self.claim_aside(session, &claim).await {
            // It was purged since.
            Ok((session, Claimed::Won { .. })) => {
                self.put_back(session).await;
                Ending::uncounted(Why::Elsewhere)
            }
            Ok((session, _)) => self.duplicate(session, attempt, &claim).await,
            Err(ending) => ending,
        }
    }

    /// Another message under the id was processed, or will be: this one is kept for a person.
    async fn keep_collision(&mut self, attempt: &Attempt<'_, Db>) -> Ending {
        let failure = Failure {
            reason: DeadLetterReason::Collision,
            ..Failure::of_handler(FailureText::new(
                "another message under this id, with another payload, was processed or waits for its next attempt: the \
                 id is not unique, or the producer changed the message between two sends",
            ))
        };
        self.keep_without_claim(&letter(attempt, &failure, 0)).await
    }

    /// A duplicate of a message whose handler may have committed the claim itself, in an earlier run.
    async fn duplicate_in_doubt(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        mark: &str,
    ) -> Ending {
        self.put_back(session).await;
        let Some(mut session) = self.session_when_available().await else {
            return Ending::Stopping;
        };
        let tracing = session.trace(attempt.key(), Some(mark));
        match limited(STATEMENT_LIMIT, "reading the claim", tracing).await {
            Ok(TraceOfClaim::Ours) => {
                self.session = Some(session);
                let text = FailureText::new("It was an earlier run, which did not succeed.");
                self.escaped(attempt, Failure::of_handler(text)).await
            }
            Ok(TraceOfClaim::Foreign) => self.processed_elsewhere(session, attempt).await,
            Ok(_) => {
                self.session = Some(session);
                Ending::InDoubt
            }
            Err(fault) => in_doubt("reading the claim", &fault),
        }
    }

    /// The claim got no answer: a copy is in work elsewhere, or the database is at fault. Never the message.
    async fn not_claimed(&mut self, session: Session<Db>, fault: Fault) -> Ending {
        match class_of::<Db>(&fault) {
            ErrorClass::Transient => {
                tracing::debug!(
                    error = fault.text().as_str(),
                    "a copy of the message is in work elsewhere"
                );
                self.put_back(session).await;
                Ending::uncounted(Why::Elsewhere)
            }
            ErrorClass::Statement => {
                drop(session);
                tracing::error!(
                    error = fault.text().as_str(),
                    "the claim failed: the schema, the privileges or the session are at fault; the message is kept"
                );
                Ending::Uncounted {
                    delay: Some(backoff::misconfigured(1)),
                    why: Why::Infrastructure,
                }
            }
            _ => {
                drop(session);
                tracing::warn!(
                    error = fault.text().as_str(),
                    "the database was lost before the claim"
                );
                Ending::uncounted(Why::Infrastructure)
            }
        }
    }

    /// After the rollback: finds out whether the handler made its claim durable itself, then counts the
    /// failure, and at `max_attempts` keeps the message as a dead letter.
    async fn failed(
        &mut self,
        session: Option<Session<Db>>,
        attempt: &Attempt<'_, Db>,
        won: &Won,
        failure: Failure,
    ) -> Ending {
        let registered = attempt.registered;
        let mut session = match session {
            Some(session) => session,
            // One try: when the database is there at once, the connection was lost to this message.
            None => match self.new_session().await {
                Ok(session) => session,
                Err(fault) => {
                    tracing::warn!(
                        error = fault.text().as_str(),
                        failure = failure.text.as_str(),
                        "no connection after a failure; it is not counted"
                    );
                    return Ending::InDoubt;
                }
            },
        };
        match limited(
            STATEMENT_LIMIT,
            "reading the claim",
            session.trace(attempt.key(), won.mark.as_deref()),
        )
        .await
        {
            Ok(TraceOfClaim::Absent) => {}
            Ok(TraceOfClaim::Ours) => {
                self.session = Some(session);
                return self.escaped(attempt, failure).await;
            }
            Ok(_) => return self.processed_elsewhere(session, attempt).await,
            Err(fault) => return in_doubt("reading the claim", &fault),
        }
        match failure.cause {
            Some(ErrorClass::Transient)
                if attempt.transient_runs + 1 < self.shared.retry.transient_runs =>
            {
                tracing::debug!(
                    failure = failure.text.as_str(),
                    "a conflict in the database; trying again"
                );
                self.session = Some(session);
                return Ending::Transient;
            }
            Some(ErrorClass::Outage) => {
                tracing::warn!(
                    failure = failure.text.as_str(),
                    "the database was not available to the handler"
                );
                // Ours is: perhaps it was another one, and that can take long.
                let delay = backoff::elsewhere(attempt.uncounted_tries.saturating_add(1));
                if !attempt
                    .job
                    .must_park(delay, self.shared.longest_hold, false)
                {
                    self.session = Some(session);
                    return Ending::Uncounted {
                        delay: Some(delay),
                        why: Why::Infrastructure,
                    };
                }
                return self.park(session, attempt, delay).await;
            }
            _ => {}
        }
        if failure.reason == DeadLetterReason::Rejected {
            return self
                .keep(session, attempt, &failure, won.counted.attempts)
                .await;
        }
        let is_last = won.before(attempt).saturating_add(1) >= registered.spec.max_attempts;
        if is_last && registered.tally.seems_broken(self.shared.broken_after) {
            // Not counted, so that the message has a try left when the handler works again.
            tracing::error!(
                consumer = %registered.consumer,
                message_id = %attempt.id,
                in_a_row = self.shared.broken_after,
                failure = failure.text.as_str(),
                "so many messages failed in a row that the handler or what it needs is to blame: no more dead \
                 letters until one succeeds; the messages are kept and tried again"
            );
            return self.wait(session, attempt, registered.retry.longest).await;
        }
        let ends_start = attempt.has_counted_start();
        let recorded = async {
            session.begin(&self.shared.begin).await?;
            let failures = session
                .record_failure(attempt.key(), &failure.text, ends_start)
                .await?;
            session.commit().await?;
            Ok(failures)
        };
        let failures = match limited(STATEMENT_LIMIT, "counting the failure", recorded).await {
            Ok(failures) => failures,
            Err(fault) => return uncounted("counting the failure", &fault),
        };
        attempt.note_start(false);
        attempt.is_counted.store(true, Ordering::Relaxed);
        registered.tally.note_failure();
        tracing::warn!(
            consumer = %registered.consumer,
            message_id = %attempt.id,
            handler = registered.spec.name,
            attempt = failures,
            max_attempts = registered.spec.max_attempts,
            failure = failure.text.as_str(),
            "the handler failed"
        );
        if failures < registered.spec.max_attempts {
            let delay = registered.retry.after_failure(failures);
            let delay = failure.delay.map_or(delay, |asked| {
                asked.max(delay).min(HandlerError::LONGEST_DELAY)
            });
            return self.wait(session, attempt, delay).await;
        }
        self.keep(session, attempt, &failure, failures).await
    }

    /// Lets a message that failed wait: at the broker, in memory, or, where neither can, in the database.
    async fn wait(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        delay: Duration,
    ) -> Ending {
        if !attempt.job.must_park(delay, self.shared.longest_hold, true) {
            self.session = Some(session);
            return Ending::Failed { delay };
        }
        self.park(session, attempt, delay).await
    }

    /// Lets a message wait in the database. When that does not work it is tried again, and the handler does not run
    /// earlier because of it.
    async fn park(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        delay: Duration,
    ) -> Ending {
        match self.try_to_park(session, attempt, delay).await {
            Ending::Uncounted { .. } => Ending::Unparked { delay },
            ending => ending,
        }
    }

    async fn try_to_park(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        delay: Duration,
    ) -> Ending {
        let claim = Claim::new(attempt.key(), &attempt.job.envelope);
        let (session, claimed) = match self.claim_aside(session, &claim).await {
            Ok(answered) => answered,
            Err(ending) => return ending,
        };
        match claimed {
            Claimed::Won {
                kept: Some(Kept::Dead),
                counted,
                ..
            } => return self.keep_beside(session, attempt, counted.all()).await,
            Claimed::Won { kept: Some(_), .. } => {
                return self.parked_already(session, attempt).await;
            }
            Claimed::Won { .. } => {}
            _ => return self.duplicate(session, attempt, &claim).await,
        }
        let message = WaitingMessage {
            key: attempt.key(),
            source: &attempt.job.route.source,
            envelope: &attempt.job.envelope,
        };
        let aside = Aside::Parked { message, delay };
        match self.put_aside(session, attempt.key(), aside).await {
            Ok(_) => {
                self.shared.parked.notify_one();
                Ending::Done(Outcome::Parked)
            }
            Err(ending) => ending,
        }
    }

    /// A copy of a message that waits for its next attempt in the database: that one will be tried, this one is not
    /// needed.
    async fn parked_already(
        &mut self,
        mut session: Session<Db>,
        attempt: &Attempt<'_, Db>,
    ) -> Ending {
        let reading = session.waiting_payload(attempt.key());
        let parked = match limited(STATEMENT_LIMIT, "reading the parked message", reading).await {
            Ok(parked) => parked,
            Err(fault) => return uncounted("reading the parked message", &fault),
        };
        self.put_back(session).await;
        if parked.is_some_and(|parked| parked != attempt.job.envelope.payload) {
            if self.shared.keep_collisions {
                return self.keep_collision(attempt).await;
            }
            tell_collision(&attempt.key(), "waits for its next attempt");
        }
        Ending::Done(Outcome::Parked)
    }

    /// Keeps a message as a dead letter in a transaction of its own, which must win the claim first: a message
    /// that was processed meanwhile is no dead letter.
    async fn keep(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        failure: &Failure,
        attempts: u32,
    ) -> Ending {
        let claim = Claim::new(attempt.key(), &attempt.job.envelope);
        match self.claim_aside(session, &claim).await {
            Ok((session, Claimed::Won { .. })) => {
                self.keep_claimed(session, attempt, failure, attempts).await
            }
            Ok((session, _)) => self.duplicate(session, attempt, &claim).await,
            Err(ending) => ending,
        }
    }

    /// Keeps a message as a dead letter in the transaction that holds its claim.
    async fn keep_claimed(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        failure: &Failure,
        attempts: u32,
    ) -> Ending {
        let is_exhausted = failure.reason == DeadLetterReason::AttemptsExhausted;
        let aside = Aside::Dead {
            letter: letter(attempt, failure, attempts),
            existing: ExistingEntry::Reopen,
            // Otherwise the verdict came without a count, and a dead letter has at least one.
            counts: (!is_exhausted).then(|| attempt.has_counted_start()),
        };
        match self.put_aside(session, attempt.key(), aside).await {
            Ok(attempts) => {
                if is_exhausted {
                    attempt.registered.tally.note_exhausted();
                }
                report_dead(&letter(attempt, failure, attempts));
                Ending::Done(Outcome::Dead)
            }
            Err(ending) => ending,
        }
    }

    /// An open dead letter holds the id: the handler does not run before a person has decided. A copy of the
    /// same message is known; another message under the id is kept beside it.
    async fn keep_beside(
        &mut self,
        session: Session<Db>,
        attempt: &Attempt<'_, Db>,
        attempts: u32,
    ) -> Ending {
        let failure = Failure {
            reason: DeadLetterReason::Held,
            ..Failure::of_handler(FailureText::new(
                "another message under this id, with another payload, is an open dead letter; decide about both",
            ))
        };
        let aside = Aside::Dead {
            letter: letter(attempt, &failure, attempts),
            existing: ExistingEntry::Leave,
            counts: None,
        };
        match self.put_aside(session, attempt.key(), aside).await {
            Ok(_) => {
                tracing::warn!("an open dead letter holds the message id");
                Ending::Done(Outcome::Dead)
            }
            Err(ending) => ending,
        }
    }

    /// Begins with the claim of a message that is to be put aside, and may have been processed meanwhile.
    async fn claim_aside(
        &mut self,
        session: Session<Db>,
        claim: &Claim<'_>,
    ) -> Result<(Session<Db>, Claimed), Ending> {
        let shared = Arc::clone(&self.shared);
        let claims = std::slice::from_ref(claim);
        let Opened { session, answer } = shared.claim(session, &shared.begin, claims).await.sole();
        match answer {
            Ok(claimed) => Ok((session, claimed)),
            Err(fault) => Err(self.not_claimed(session, fault).await),
        }
    }

    /// Keeps a message in the transaction that has won its claim, and gives the claim up with it: "processed" and "put
    /// aside" exclude each other at every instant. Answers how many attempts are noted in it. Whatever became of an
    /// error, the next claim finds what is there.
    async fn put_aside(
        &mut self,
        mut session: Session<Db>,
        key: ClaimKey<'_>,
        mut aside: Aside<'_>,
    ) -> Result<u32, Ending> {
        let what = aside.what();
        let storing = async {
            let attempts = match &mut aside {
                Aside::Parked { message, delay } => {
                    session.store_message(message, *delay).await?;
                    0
                }
                Aside::Dead {
                    letter,
                    existing,
                    counts,
                } => {
                    if let Some(ends_start) = *counts {
                        letter.attempts =
                            session.record_failure(key, letter.text, ends_start).await?;
                    }
                    session.store_dead_letter(letter, *existing).await?;
                    letter.attempts
                }
            };
            session.withdraw_claim(key).await?;
            Ok(attempts)
        };
        let attempts = match limited(STATEMENT_LIMIT, what, storing).await {
            Ok(attempts) => attempts,
            Err(fault) => return Err(uncounted(what, &fault)),
        };
        match self.shared.commit(&mut session).await {
            Committed::Yes => {
                self.session = Some(session);
                Ok(attempts)
            }
            Committed::No(error) => Err(uncounted(what, &Fault::Database(error))),
            Committed::Unknown(text) => {
                tracing::warn!(error = %text, "the outcome of {what} is unknown; trying again");
                Err(Ending::uncounted(Why::UnknownCommit))
            }
        }
    }

    /// The handler committed the claim itself. What it did cannot be undone and may be half of its work: the
    /// claim stays, so that it is not repeated, and a dead letter tells a person.
    pub(crate) async fn escaped(&mut self, attempt: &Attempt<'_, Db>, failure: Failure) -> Ending {
        let text = FailureText::new(format!(
            "the handler made the inbox transaction durable itself (a COMMIT of its own); whether its work is \
             complete is not known, and it will not be repeated. {}",
            failure.text.as_str()
        ));
        let failure = Failure {
            reason: DeadLetterReason::Escaped,
            text,
            ..failure
        };
        match self.keep_without_claim(&letter(attempt, &failure, 0)).await {
            Ending::Uncounted { .. } => Ending::InDoubt,
            ending => ending,
        }
    }

    /// Stores a dead letter that has no claim to win: no id, no handler, an escaped transaction, or a collision.
    async fn keep_without_claim(&mut self, letter: &DeadLetter<'_>) -> Ending {
        let Some(mut session) = self.session_when_available().await else {
            return Ending::Stopping;
        };
        let begin = Arc::clone(&self.shared.begin);
        let stored = async {
            session.begin(&begin).await?;
            session
                .store_dead_letter(letter, ExistingEntry::Reopen)
                .await?;
            session.commit().await
        };
        match limited(STATEMENT_LIMIT, "storing the dead letter", stored).await {
            Ok(()) => {
                self.session = Some(session);
                report_dead(letter);
                Ending::Done(Outcome::Dead)
            }
            // Whatever became of it, storing it again finds the same entry.
            Err(fault) => uncounted("storing the dead letter", &fault),
        }
    }

    /// Keeps a message that no handler takes. `Err`: not stored, try again after that time.
    pub(crate) async fn keep_unroutable(
        &mut self,
        job: &Job<Db>,
        reason: &str,
        tries: u32,
    ) -> Result<(), Duration> {
        let text = FailureText::new(reason);
        let mut letter = DeadLetter::new(
            &job.route.source,
            &job.envelope,
            DeadLetterReason::UnknownType,
            &text,
        );
        let id = job
            .envelope
            .identify(
                inbox_core::DedupKey::MessageId,
                &job.route.id_sources,
                job.route.id_scope.as_deref(),
            )
            .ok();
        letter.id = id
            .as_ref()
            .map(MessageId::as_str)
            .or(job.envelope.id.as_deref());
        if let Some(stored) = &job.stored {
            letter.consumer = stored.consumer.as_deref();
            letter.id = stored.id.as_ref().map_or(letter.id, |id| Some(id.as_str()));
        }
        let ending = match (letter.consumer, letter.id) {
            (Some(consumer), Some(message_id)) => {
                let key = ClaimKey {
                    consumer,
                    message_id,
                };
                self.keep_unless_processed(key, letter).await
            }
            _ => self.keep_without_claim(&letter).await,
        };
        match ending {
            Ending::Done(Outcome::Dead) => {
                self.shared.monitor.note_unrouted();
                Ok(())
            }
            Ending::Done(_) => Ok(()),
            _ => Err(backoff::elsewhere(tries.saturating_add(1))),
        }
    }

    /// Stores the dead letter of a message that waited for one consumer, which may have processed a copy of it.
    async fn keep_unless_processed(
        &mut self,
        key: ClaimKey<'_>,
        mut letter: DeadLetter<'_>,
    ) -> Ending {
        let Some(session) = self.session_when_available().await else {
            return Ending::Stopping;
        };
        let claim = Claim::new(key, letter.envelope);
        let session = match self.claim_aside(session, &claim).await {
            Ok((session, Claimed::Won { .. })) => session,
            Ok((session, _)) => {
                self.put_back(session).await;
                return Ending::Done(Outcome::Duplicate);
            }
            Err(ending) => return ending,
        };
        let aside = Aside::Dead {
            letter: letter.clone(),
            existing: ExistingEntry::Reopen,
            counts: Some(false),
        };
        match self.put_aside(session, key, aside).await {
            Ok(attempts) => {
                letter.attempts = attempts;
                report_dead(&letter);
                Ending::Done(Outcome::Dead)
            }
            Err(ending) => ending,
        }
    }

    /// Rolls back and keeps the session for the next message.
    pub(crate) async fn put_back(&mut self, session: Session<Db>) {
        self.session = self.shared.rolled_back(session).await;
    }

    /// The worker's session, or a new one as soon as the database gives one; `None` when the runtime stops.
    ///
    /// While the database is away the worker waits here with the message in hand: nothing is acked, nothing is
    /// handed back, and no other message is touched.
    pub(crate) async fn session_when_available(&mut self) -> Option<Session<Db>> {
        if let Some(session) = self.session.take() {
            return Some(session);
        }
        let stop = self.shared.stop.clone();
        let mut failures: u32 = 0;
        loop {
            let opened = tokio::select! {
                biased;
                opened = self.new_session() => opened,
                () = stop.cancelled() => return None,
            };
            match opened {
                Ok(session) => return Some(session),
                Err(fault) => {
                    failures = failures.saturating_add(1);
                    tracing::warn!(
                        failures,
                        error = fault.text().as_str(),
                        "no database connection; trying again"
                    );
                }
            }
            tokio::select! {
                () = tokio::time::sleep(backoff::reconnect(failures)) => {}
                () = self.shared.stop.cancelled() => return None,
            }
        }
    }

    /// A session in place of one that is gone, or given back.
    async fn new_session(&mut self) -> Result<Session<Db>, Fault> {
        self.lose_unflushed().await;
        self.shared.open_session().await
    }

    /// Turns the end of an attempt into the share's status, and says so.
    pub(crate) fn conclude(
        &self,
        ending: Ending,
        share: &mut Share<Db>,
        job: &Job<Db>,
        id: Option<&MessageId>,
    ) -> Passed {
        share.handler.tally.note(ending);
        share.due = None;
        let now = Instant::now();
        let message_id = id.map_or("", MessageId::as_str);
        let consumer = share.handler.consumer.as_str();
        let source = job.route.source.as_str();
        let status = match ending {
            Ending::Done(outcome) => {
                tracing::debug!(
                    consumer,
                    message_id,
                    source,
                    outcome = outcome.as_str(),
                    "done"
                );
                Status::Done(outcome)
            }
            Ending::Failed { delay } => {
                share.transient_runs = 0;
                tracing::debug!(
                    consumer,
                    message_id,
                    source,
                    outcome = "retry",
                    ?delay,
                    "to be tried again"
                );
                Status::Waiting {
                    until: now + delay,
                    why: Wait::Failure,
                }
            }
            Ending::Transient => {
                share.transient_runs += 1;
                let delay = self.shared.retry.after_transient(share.transient_runs);
                Status::Waiting {
                    until: now + delay,
                    why: Wait::Transient,
                }
            }
            Ending::Unparked { delay } => {
                share.due = now.checked_add(delay);
                share.uncounted_tries = share.uncounted_tries.saturating_add(1);
                Status::Waiting {
                    until: now + delay.min(backoff::elsewhere(share.uncounted_tries)),
                    why: Wait::Uncounted,
                }
            }
            Ending::Uncounted { .. } | Ending::InDoubt => {
                let delay = match ending {
                    Ending::Uncounted { delay, .. } => delay,
                    _ => None,
                };
                share.uncounted_tries = share.uncounted_tries.saturating_add(1);
                let delay = delay.unwrap_or_else(|| backoff::elsewhere(share.uncounted_tries));
                tracing::debug!(
                    consumer,
                    message_id,
                    source,
                    outcome = "undecided",
                    ?delay,
                    "to be tried again"
                );
                Status::Waiting {
                    until: now + delay,
                    why: Wait::Uncounted,
                }
            }
            Ending::Stopping => Status::Waiting {
                until: now,
                why: Wait::Stopping,
            },
            Ending::CutOff => return Passed::CutOff,
        };
        Passed::Status(status)
    }
}

/// Steps that need nothing of the worker: they borrow the session of the moment alone.
impl<Db: InboxDatabase> Shared<Db> {
    /// Runs decode, extract and the handler within its time limit, isolated from panics: those of its run, of what it
    /// drops when it is interrupted, and of the texts of its errors.
    pub(crate) async fn call(
        &self,
        session: &mut Session<Db>,
        registered: &Registered<Db>,
        incoming: &[Incoming<'_>],
    ) -> Called {
        let mut interrupted = None;
        let calling = async {
            let answer = {
                let mut call =
                    pin!(async { registered.handler.call(incoming, session.tx()).await });
                let ended = tokio::select! {
                    biased;
                    answer = &mut call => Ok(answer),
                    () = tokio::time::sleep(registered.spec.timeout) => Err(Called::TimedOut),
                    () = self.cut_off.cancelled() => Err(Called::CutOff),
                };
                match ended {
                    Ok(answer) => answer,
                    // Noted before the handler is dropped.
                    Err(by) => {
                        interrupted = Some(by);
                        return None;
                    }
                }
            };
            Some(match answer {
                Ok(()) => Called::Succeeded,
                Err(CallError::Decode(error)) => Called::Undecodable(FailureText::of_error(&error)),
                Err(CallError::DecodeSome(positions)) => Called::SomeUndecodable(positions),
                Err(CallError::Handler(error)) => Called::Failed(Failure {
                    text: FailureText::of_error(&error),
                    reason: if error.is_rejected() {
                        DeadLetterReason::Rejected
                    } else {
                        DeadLetterReason::AttemptsExhausted
                    },
                    delay: error.delay(),
                    cause: session.cause_of(&error),
                }),
                Err(other) => Called::Misconfigured(FailureText::of_error(&other)),
            })
        };
        let called = AssertUnwindSafe(calling).catch_unwind().await;
        interrupted.unwrap_or_else(|| match called {
            Ok(called) => called.unwrap_or(Called::TimedOut),
            Err(panic) => Called::Panicked(panic_text(&*panic)),
        })
    }

    /// Begins a transaction and makes its claims as the first thing in it.
    pub(crate) async fn claim(
        &self,
        mut session: Session<Db>,
        begin: &Arc<str>,
        claims: &[Claim<'_>],
    ) -> Opened<Db, Vec<Claimed>> {
        let limit = self.claim_wait + STATEMENT_LIMIT;
        let claims = Claims { begin, claims };
        let answer = limited(limit, "the claim", session.claim(&claims)).await;
        Opened { session, answer }
    }

    /// COMMIT with its own limit: a hung one (a missing synchronous standby) ends as "unknown", never with a
    /// cancel request, which could turn it into a success that was not replicated.
    async fn commit(&self, session: &mut Session<Db>) -> Committed {
        match limited(self.commit_wait, "COMMIT", session.commit()).await {
            Ok(()) => Committed::Yes,
            Err(Fault::Database(error)) if Db::is_known_rollback(&error) => Committed::No(error),
            Err(fault) => Committed::Unknown(fault.text().as_str().to_owned()),
        }
    }

    /// Rolls back; a session that cannot is closed, which comes to the same.
    async fn rolled_back(&self, mut session: Session<Db>) -> Option<Session<Db>> {
        limited(STATEMENT_LIMIT, "ROLLBACK", session.roll_back())
            .await
            .is_ok()
            .then_some(session)
    }

    async fn open_session(&self) -> Result<Session<Db>, Fault> {
        let open = Session::open(&self.pool, Arc::clone(&self.layout));
        let opened = limited(STATEMENT_LIMIT, "taking a connection from the pool", open).await;
        let database = self.monitor.database();
        match &opened {
            Ok(_) => database.note_up(),
            Err(fault) => database.note_down(fault.text().as_str()),
        }
        opened
    }
}

/// What becomes of a message that is not processed now.
enum Aside<'a> {
    /// It waits in the database for its next attempt.
    Parked {
        message: WaitingMessage<'a>,
        delay: Duration,
    },
    Dead {
        letter: DeadLetter<'a>,
        existing: ExistingEntry,
        /// Counts the failure that is the reason, and whether that is the end of a counted start.
        counts: Option<bool>,
    },
}

impl Aside<'_> {
    const fn what(&self) -> &'static str {
        match self {
            Self::Parked { .. } => "parking the message",
            Self::Dead { .. } => "storing the dead letter",
        }
    }
}

/// What came of comparing a duplicate with what was processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The message was processed; another payload under its id was told.
    Known,
    /// Another payload was processed under its id, and this one shall be kept.
    Collides,
    /// Neither could the claim be made nor is one there: a purge came in between, or something swallows claims.
    Gone,
}

impl Comparison {
    pub(crate) const fn ending(self) -> Ending {
        match self {
            Self::Known => Ending::Done(Outcome::Duplicate),
            Self::Gone | Self::Collides => Ending::uncounted(Why::Infrastructure),
        }
    }
}

/// Says when a duplicate has another payload than the message that was processed, unless it shall be kept.
pub(crate) fn compare_payloads(
    claim: &Claim<'_>,
    existing: &Existing,
    keep_collisions: bool,
) -> Comparison {
    let Existing::Claim { payload_hash } = existing else {
        tracing::warn!(
            consumer = claim.key().consumer,
            message_id = claim.key().message_id,
            "the claim was neither made nor is it there (a trigger on the table?); trying again"
        );
        return Comparison::Gone;
    };
    if claim.payload_hash().contradicts(payload_hash.as_deref()) {
        if keep_collisions {
            return Comparison::Collides;
        }
        tell_collision(&claim.key(), "was processed before");
    }
    Comparison::Known
}

/// The id is not unique, and nobody asked for the second message to be kept.
fn tell_collision(key: &ClaimKey<'_>, what_the_other_one_does: &str) {
    tracing::error!(
        consumer = key.consumer,
        message_id = key.message_id,
        "another payload under an id that {what_the_other_one_does}: the id is not unique, or the producer changed the \
         message between two sends; it is skipped as a duplicate"
    );
}

/// Why a message is given up without another try.
fn used_up(counted: Counted, before: u32) -> FailureText {
    let starts = before.saturating_sub(counted.attempts);
    if starts == 0 {
        return FailureText::new("the message had used up its attempts before");
    }
    FailureText::new(format!(
        "{starts} attempts ended with their process (a crash, an abort, the memory limit, a kill), and {} failed",
        counted.attempts
    ))
}

/// The message as a dead letter of this consumer.
fn letter<'a, Db: InboxDatabase>(
    attempt: &'a Attempt<'_, Db>,
    failure: &'a Failure,
    attempts: u32,
) -> DeadLetter<'a> {
    let mut letter = DeadLetter::new(
        &attempt.job.route.source,
        &attempt.job.envelope,
        failure.reason,
        &failure.text,
    );
    letter.consumer = Some(attempt.registered.consumer.as_str());
    letter.handler = Some(attempt.registered.spec.name);
    letter.id = Some(attempt.id.as_str());
    letter.attempts = attempts;
    letter
}

fn report_dead(letter: &DeadLetter<'_>) {
    tracing::error!(
        consumer = letter.consumer,
        message_id = letter.id,
        source = letter.source,
        reason = letter.reason.as_str(),
        failure = letter.text.as_str(),
        attempts = letter.attempts,
        "kept as a dead letter"
    );
}

/// A statement of our own failed: not the message's fault.
pub(crate) fn uncounted(what: &str, fault: &Fault) -> Ending {
    tracing::warn!(
        error = fault.text().as_str(),
        "{what} failed; the message is kept and tried again"
    );
    Ending::uncounted(Why::Infrastructure)
}

/// A statement of our own failed that was to say, or to tell, whether a handler has committed its claim itself.
pub(crate) fn in_doubt(what: &str, fault: &Fault) -> Ending {
    uncounted(what, fault);
    Ending::InDoubt
}

/// Nobody knows what became of COMMIT: the redelivery's claim will tell.
pub(crate) fn unknown(why: &str) -> Ending {
    tracing::warn!(
        error = why,
        "the outcome of COMMIT is unknown; the redelivery's claim will tell"
    );
    Ending::uncounted(Why::UnknownCommit)
}

/// A hung step is as good as a lost connection.
fn class_of<Db: InboxDatabase>(fault: &Fault) -> ErrorClass {
    match fault {
        Fault::Database(error) => Db::classify(error),
        Fault::Hung(_) => ErrorClass::Lost,
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a text".to_owned())
}
