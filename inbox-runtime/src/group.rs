//! Several messages of one handler in one transaction, and the claims of what comes next.
//!
//! A commit costs more than all the rest, so messages that wait for the same handler share one. They also share
//! its fate: when anything but success happens, the transaction is rolled back and each message takes the path of
//! a single one, which finds out whose fault it was and counts it there. Nothing is counted here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Instrument as _;

use inbox_core::{
    Claim, ClaimKey, Claimed, Claims, Done, ErrorClass, FailureText, InboxDatabase, Sealed,
    Session, TraceOfClaim,
};

use crate::job::{Job, Outcome, Work};
use crate::path::{
    Admitted, Attempt, Called, Comparison, Ending, Failure, Fault, Opened, Passed, Refusal,
    STATEMENT_LIMIT, compare_payloads, limited, uncounted, unknown,
};
use crate::route::Registered;
use crate::testing::Step;
use crate::worker::Worker;

/// A transaction that takes longer has too much in it: it holds its locks for all that time.
const LONG: Duration = Duration::from_millis(100);

/// Messages of one handler that go through one transaction.
pub(crate) struct Group<Db: InboxDatabase> {
    handler: Arc<Registered<Db>>,
    /// In the order in which they came.
    members: Vec<Member<Db>>,
}

/// What the session is for after a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoesOn {
    /// This message, or others beside it, need it again.
    WithThisMessage,
    WithWhatComesNext,
}

/// A message of a group.
struct Member<Db: InboxDatabase> {
    job: Job<Db>,
    admitted: Admitted<Db>,
}

impl<Db: InboxDatabase> Group<Db> {
    /// The members by the bytes of their ids: the order of their claims.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.members.len()).collect();
        order.sort_by(|a, b| self.id(*a).cmp(self.id(*b)));
        order
    }

    fn id(&self, member: usize) -> &str {
        self.members[member].admitted.id.as_str()
    }

    fn key(&self, member: usize) -> ClaimKey<'_> {
        ClaimKey {
            consumer: self.handler.consumer.as_str(),
            message_id: self.id(member),
        }
    }

    fn claims(&self, order: &[usize]) -> Vec<Claim<'_>> {
        let claim =
            |member: &usize| Claim::new(self.key(*member), &self.members[*member].job.envelope);
        order.iter().map(claim).collect()
    }
}

impl<Db: InboxDatabase> Worker<Db> {
    /// Puts what waits for the same handler into one group, as much as is good for all. `None`: the job is put off,
    /// because it needs a path of its own, or waits at the gate.
    pub(crate) fn gather(&mut self, job: Job<Db>) -> Option<Group<Db>> {
        let Some(handler) = job.fresh_handler() else {
            self.put_off = Some(job);
            return None;
        };
        let waiting = self.queue.len() + 1;
        let fair = waiting.div_ceil(self.shared.concurrency);
        let limit = handler.sharing().limit().min(fair);
        let mut group = Group {
            handler,
            members: Vec::with_capacity(limit),
        };
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match self.admit(&job, &group.handler) {
                Ok(admitted) => group.members.push(Member { job, admitted }),
                Err(Refusal::GateTaken(id)) => self.park(&group.handler.consumer, &id, job),
                Err(Refusal::NoId(_)) => {
                    self.put_off = Some(job);
                    break;
                }
            }
            if group.members.len() >= limit {
                break;
            }
            match self.queue.try_recv() {
                Ok(job)
                    if job
                        .fresh_handler()
                        .is_some_and(|handler| Arc::ptr_eq(&handler, &group.handler)) =>
                {
                    next = Some(job);
                }
                Ok(job) => self.put_off = Some(job),
                Err(_) => {}
            }
        }
        (!group.members.is_empty()).then_some(group)
    }

    /// Looks for what comes next, so that it can be claimed in the round trip that commits.
    pub(crate) fn look_ahead(&mut self) {
        if self.ahead.is_some() || self.shared.stop.is_cancelled() {
            return;
        }
        if let Some(job) = self.put_off.take().or_else(|| self.queue.try_recv().ok()) {
            self.ahead = self.gather(job);
        }
    }

    /// Fence and COMMIT, and, where the session goes on with it, the claims of what comes next. Until COMMIT's answer is here its outcome is unknown, and
    /// unknown is never acked.
    pub(crate) async fn seal(
        &mut self,
        session: &mut Session<Db>,
        done: &Done<'_>,
        goes_on: GoesOn,
    ) -> (Sealed, Option<Result<Vec<Claimed>, Fault>>) {
        let ahead = match goes_on {
            GoesOn::WithWhatComesNext => self.ahead.as_ref(),
            GoesOn::WithThisMessage => None,
        };
        let order = ahead.map(Group::order).unwrap_or_default();
        let claims = ahead.map(|group| group.claims(&order)).unwrap_or_default();
        let next = ahead.map(|group| Claims {
            begin: &group.handler.begin,
            claims: &claims,
        });
        let mut limit = self.shared.commit_wait;
        if next.is_some() {
            limit += self.shared.claim_wait;
            for claim in &claims {
                self.shared
                    .hook
                    .reach(Step::BeforeClaim, claim.key().message_id);
            }
        }
        // A hung COMMIT (a missing synchronous standby) ends as "unknown", never with a cancel request, which could
        // turn it into a success that was not replicated.
        let sealing = tokio::time::timeout(limit, session.seal(done, next.as_ref())).await;
        let Ok((sealed, answer)) = sealing else {
            let hung = sqlx::Error::Protocol("COMMIT took longer than its limit".to_owned());
            return (Sealed::Unknown(hung), None);
        };
        (sealed, answer.map(|answer| answer.map_err(Fault::Database)))
    }

    /// Keeps the session for what was claimed with the last COMMIT, or for whatever comes.
    pub(crate) fn go_on_with(
        &mut self,
        session: Session<Db>,
        claimed: Option<Result<Vec<Claimed>, Fault>>,
    ) {
        match claimed {
            Some(answer) => self.ahead_opened = Some(Opened { session, answer }),
            None => self.session = Some(session),
        }
    }

    /// Runs a group; answers how many handlers were cut off.
    pub(crate) async fn run_group(
        &mut self,
        group: &mut Group<Db>,
        opened: Option<Opened<Db, Vec<Claimed>>>,
    ) -> usize {
        if self.shared.stop.is_cancelled() {
            if let Some(opened) = opened {
                self.put_back(opened.session).await;
            }
            self.set_aside(group, Duration::ZERO);
            return 0;
        }
        if group.members.len() > 1 {
            return self.together(group, opened).await;
        }
        let Some(Member { job, admitted }) = group.members.pop() else {
            return 0;
        };
        let opened = opened.map(Opened::sole);
        let begun = Instant::now();
        self.may_look_ahead = true;
        let cut_off = self.pass(job, Some(admitted), opened).await;
        self.may_look_ahead = false;
        group.handler.sharing().note_end(1, begun.elapsed() < LONG);
        usize::from(cut_off)
    }

    /// Gives back what was not started.
    pub(crate) fn set_aside(&mut self, group: &mut Group<Db>, delay: Duration) {
        for Member { job, .. } in group.members.drain(..) {
            self.shared.hold.until(Instant::now() + delay, job);
        }
    }

    /// Claims, handlers, fence and COMMIT for all members at once.
    async fn together(
        &mut self,
        group: &mut Group<Db>,
        opened: Option<Opened<Db, Vec<Claimed>>>,
    ) -> usize {
        let shared = Arc::clone(&self.shared);
        let handler = Arc::clone(&group.handler);
        let begun = Instant::now();
        let order = group.order();
        let opened = match opened {
            Some(opened) => opened,
            None => {
                let Some(session) = self.session_when_available().await else {
                    self.set_aside(group, Duration::ZERO);
                    return 0;
                };
                let claims = group.claims(&order);
                for claim in &claims {
                    shared.hook.reach(Step::BeforeClaim, claim.key().message_id);
                }
                shared.claim(session, &handler.begin, &claims).await
            }
        };
        let Opened {
            mut session,
            answer,
        } = opened;
        let answers = match answer {
            Ok(answers) => answers,
            Err(_) => {
                // Which of them waits for a copy elsewhere is for each to find out.
                self.put_back(session).await;
                return self.one_by_one(group).await;
            }
        };
        let mut is_duplicate = vec![false; group.members.len()];
        let mut won = None;
        for (member, answer) in order.iter().zip(answers) {
            match answer {
                Claimed::Won {
                    attempts: 0,
                    dead: false,
                    mark,
                } => won = mark.map(|mark| (*member, mark)),
                Claimed::Duplicate => is_duplicate[*member] = true,
                _ => {
                    // A message with a history goes alone.
                    self.put_back(session).await;
                    return self.one_by_one(group).await;
                }
            }
        }
        let winners: Vec<usize> = (0..group.members.len())
            .filter(|member| !is_duplicate[*member])
            .collect();

        for member in &winners {
            shared.hook.reach(Step::AfterClaim, group.id(*member));
            let Member { job, admitted } = &group.members[*member];
            let attempt = Attempt {
                job,
                registered: &handler,
                id: &admitted.id,
                transient_runs: 0,
            };
            let called = shared
                .call(&mut session, &attempt, 1)
                .instrument(attempt.span())
                .await;
            shared.hook.reach(Step::AfterHandler, group.id(*member));
            match called {
                Called::Succeeded => {}
                Called::CutOff => {
                    drop(session);
                    tracing::warn!(
                        handler = handler.spec.name,
                        "the handler was cut off by the shutdown and is rolled back with its neighbours"
                    );
                    self.set_aside(group, Duration::ZERO);
                    return 1;
                }
                Called::TimedOut => {
                    // It may be in the middle of a statement: closing the connection ends that on the server too.
                    drop(session);
                    return self.fall_back(group, &is_duplicate, won, false).await;
                }
                other => {
                    let is_conflict = matches!(
                        &other,
                        Called::Failed(error)
                            if session.cause_of(error) == Some(ErrorClass::Transient)
                    );
                    self.put_back(session).await;
                    return self.fall_back(group, &is_duplicate, won, is_conflict).await;
                }
            }
        }

        // While the transaction is open: a duplicate is told when it is another message.
        let duplicates = is_duplicate.iter().enumerate().filter(|(_, is)| **is);
        for (member, _) in duplicates {
            let key = group.key(member);
            let stored = limited(
                STATEMENT_LIMIT,
                "reading the payload hash",
                session.payload_hash(key),
            )
            .await;
            let claim = Claim::new(key, &group.members[member].job.envelope);
            if !matches!(compare_payloads(&claim, stored), Comparison::Done) {
                drop(session);
                return self.fall_back(group, &is_duplicate, won, false).await;
            }
        }
        if winners.is_empty() {
            self.put_back(session).await;
        } else {
            for member in &winners {
                shared.hook.reach(Step::BeforeCommit, group.id(*member));
            }
            self.look_ahead();
            let keys: Vec<ClaimKey<'_>> = winners.iter().map(|member| group.key(*member)).collect();
            let done = Done {
                keys: &keys,
                have_failures: false,
            };
            let (sealed, claimed) = self
                .seal(&mut session, &done, GoesOn::WithWhatComesNext)
                .await;
            match sealed {
                Sealed::Committed => {
                    for member in &winners {
                        shared.hook.reach(Step::AfterCommit, group.id(*member));
                    }
                    self.go_on_with(session, claimed);
                    handler.note_success();
                    handler
                        .sharing()
                        .note_end(group.members.len(), begun.elapsed() < LONG);
                }
                Sealed::Refused(error) => {
                    let is_conflict = Db::classify(&error) == ErrorClass::Transient;
                    self.put_back(session).await;
                    return self.fall_back(group, &is_duplicate, won, is_conflict).await;
                }
                Sealed::Unknown(error) => {
                    drop(session);
                    let ending = unknown(FailureText::of_error(&error).as_str());
                    self.end_all(group, ending).await;
                    return 0;
                }
                _ => {
                    // Whatever is open on this session now is not ours: close it.
                    drop(session);
                    return self.fall_back(group, &is_duplicate, won, false).await;
                }
            }
        }
        let mut jobs = Vec::with_capacity(group.members.len());
        for (member, is_duplicate) in group.members.drain(..).zip(is_duplicate) {
            let outcome = if is_duplicate {
                Outcome::Duplicate
            } else {
                Outcome::Processed
            };
            jobs.push(self.end(member, Ending::Done(outcome)));
        }
        shared.settle(jobs).await;
        0
    }

    /// After a transaction that did not succeed: whether a handler made it durable itself, for then the claims of its
    /// neighbours are durable too, and their work may be half done. If not, each goes alone.
    ///
    /// `won` is a member whose claim was made, and what recognises that transaction: one stands for all.
    async fn fall_back(
        &mut self,
        group: &mut Group<Db>,
        is_duplicate: &[bool],
        won: Option<(usize, String)>,
        is_conflict: bool,
    ) -> usize {
        group.handler.sharing().note_failure(is_conflict);
        let shared = Arc::clone(&self.shared);
        let Some((claimed, mark)) = won else {
            return self.one_by_one(group).await;
        };
        let Some(mut session) = self.session_when_available().await else {
            self.set_aside(group, Duration::ZERO);
            return 0;
        };
        let trace = limited(
            STATEMENT_LIMIT,
            "reading the claim",
            session.trace(group.key(claimed), Some(&mark)),
        )
        .await;
        match trace {
            Ok(TraceOfClaim::Ours) => {
                self.session = Some(session);
                let failure = || {
                    Failure::of_handler(FailureText::new(
                        "a handler in the same transaction ended it; leave the transaction to the runtime",
                    ))
                };
                let members = std::mem::take(&mut group.members);
                for (member, is_duplicate) in members.into_iter().zip(is_duplicate) {
                    if *is_duplicate {
                        group.members.push(member);
                        continue;
                    }
                    let attempt = Attempt {
                        job: &member.job,
                        registered: &group.handler,
                        id: &member.admitted.id,
                        transient_runs: 0,
                    };
                    let ending = self.escaped(&attempt, failure()).await;
                    let job = self.end(member, ending);
                    shared.settle(vec![job]).await;
                }
                self.one_by_one(group).await
            }
            Ok(_) => {
                self.session = Some(session);
                self.one_by_one(group).await
            }
            Err(fault) => {
                self.end_all(group, uncounted("reading the claim", &fault))
                    .await;
                0
            }
        }
    }

    /// Each member by itself.
    async fn one_by_one(&mut self, group: &mut Group<Db>) -> usize {
        let mut cut_off = 0;
        while !group.members.is_empty() {
            let Member { job, admitted } = group.members.remove(0);
            cut_off += usize::from(self.pass(job, Some(admitted), None).await);
        }
        cut_off
    }

    /// Ends all members alike.
    async fn end_all(&mut self, group: &mut Group<Db>, ending: Ending) {
        let members = group.members.drain(..);
        let jobs = members.map(|member| self.end(member, ending)).collect();
        self.shared.settle(jobs).await;
    }

    /// Notes the end of an attempt in the job; the gate is free from here on.
    fn end(&self, member: Member<Db>, ending: Ending) -> Job<Db> {
        let Member { mut job, admitted } = member;
        let mut work = std::mem::replace(&mut job.work, Work::Ignore);
        if let Work::Shares(shares) = &mut work {
            for share in shares {
                if let Passed::Status(status) =
                    self.conclude(ending, share, &job, Some(&admitted.id))
                {
                    share.status = status;
                }
            }
        }
        job.work = work;
        job
    }
}
