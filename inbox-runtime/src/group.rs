//! Several messages of one handler in one transaction, and the claims of what comes next.
//!
//! A commit costs more than all the rest, so messages that wait for the same handler share one. They also share
//! its fate: when anything but success happens, the transaction is rolled back and the messages are tried in smaller
//! parts: each alone, or, where one call takes many, in halves. A message that is alone takes the path of a single
//! one, which finds out whose fault it was and counts it there. Nothing is counted here.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use smallvec::{SmallVec, smallvec};
use tracing::Instrument as _;

use inbox_core::{
    Claim, ClaimKey, Claimed, Claims, Counted, Done, ErrorClass, FailureText, InboxDatabase,
    Sealed, Session, TraceOfClaim,
};

use crate::job::{Job, Outcome, Work};
use crate::path::{
    Admitted, Attempt, Called, Comparison, Ending, Failure, Fault, Opened, Passed, Refusal,
    STATEMENT_LIMIT, Why, compare_payloads, in_doubt, limited, uncounted,
};
use crate::route::Registered;
use crate::testing::Step;
use crate::worker::{Shared, Worker};

/// A transaction that takes longer has too much in it: it holds its locks for all that time.
const LONG: Duration = Duration::from_millis(100);

/// Messages of one handler that go through one transaction, or through one for each part.
pub(crate) struct Group<Db: InboxDatabase> {
    handler: Arc<Registered<Db>>,
    /// In the order in which they came.
    members: SmallVec<[Member<Db>; 1]>,
    /// How many there may be.
    limit: usize,
    /// Whether its messages have an order key, so that no other worker has messages with the same.
    is_ordered: bool,
    /// How many members each transaction that is still to be made has: the first members are in the last part.
    parts: SmallVec<[usize; 4]>,
    /// Whether these are what is left of a transaction that did not succeed.
    is_split: bool,
}

/// What a job came to that was taken from the queue.
pub(crate) enum Gathered<Db: InboxDatabase> {
    Group(Group<Db>),
    /// It needs a path of its own.
    Alone(Job<Db>),
    /// It waits at the gate.
    Nothing,
}

/// A message of a group.
struct Member<Db: InboxDatabase> {
    job: Job<Db>,
    admitted: Admitted<Db>,
    /// What recognises the transaction that made its claim.
    mark: Option<String>,
}

impl<Db: InboxDatabase> Group<Db> {
    /// The first `size` members by the bytes of their ids: the order of their claims.
    fn order(&self, size: usize) -> SmallVec<[usize; 4]> {
        let mut order: SmallVec<[usize; 4]> = (0..size).collect();
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

    /// A member in the hands of the handler: nothing is known against a message that shares a transaction.
    fn attempt(&self, member: usize) -> Attempt<'_, Db> {
        let Member { job, admitted, .. } = &self.members[member];
        Attempt {
            job,
            registered: &self.handler,
            id: &admitted.id,
            transient_runs: 0,
            uncounted_tries: 0,
            due: None,
            is_start_counted: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
        }
    }

    fn claims(&self, order: &[usize]) -> SmallVec<[Claim<'_>; 1]> {
        let claim =
            |member: &usize| Claim::new(self.key(*member), &self.members[*member].job.envelope);
        order.iter().map(claim).collect()
    }

    /// Its messages go on alone, when they are due again.
    pub(crate) fn reopen(&mut self) {
        for member in &mut self.members {
            member.job.reopen();
        }
    }

    fn has_room(&self) -> bool {
        self.members.len() < self.limit
    }

    /// All members go through one transaction.
    fn close(&mut self) {
        self.parts = smallvec![self.members.len()];
    }

    /// Until when it may wait for more messages.
    fn lingers_until(&self) -> Option<Instant> {
        let linger = self.handler.spec.batch?.linger;
        let first = self.members.first()?;
        (!linger.is_zero() && self.has_room()).then(|| first.job.received() + linger)
    }

    /// After a transaction of the first `size` members that did not succeed: they are tried in smaller parts.
    fn split(&mut self, size: usize) {
        self.is_split = true;
        if self.handler.spec.batch.is_some() {
            self.parts.extend([size - size / 2, size / 2]);
        } else {
            self.parts.extend(std::iter::repeat_n(1, size));
        }
    }

    /// Of the first `size` members these take a path of their own, behind the others.
    fn set_apart(&mut self, size: usize, apart: &[usize]) {
        self.is_split = true;
        let part = self.members.drain(..size).enumerate();
        let (apart, together): (Vec<_>, Vec<_>) =
            part.partition(|(member, _)| apart.contains(member));
        self.parts.extend(std::iter::repeat_n(1, apart.len()));
        self.parts.push(together.len());
        let ordered = together.into_iter().chain(apart);
        let behind = std::mem::take(&mut self.members);
        self.members = ordered.map(|(_, member)| member).chain(behind).collect();
    }

    /// Like [`set_apart`](Self::set_apart), for others that are done: answers how many come first then.
    fn set_first(&mut self, size: usize, apart: &[usize]) -> usize {
        if apart.is_empty() {
            return size;
        }
        self.set_apart(size, apart);
        self.parts.pop().unwrap_or_default()
    }

    /// The next transaction's size.
    fn next_part(&mut self) -> Option<usize> {
        loop {
            let size = self.parts.pop()?;
            if size > 0 {
                return Some(size);
            }
        }
    }
}

impl<Db: InboxDatabase> Worker<Db> {
    /// Puts what waits for the same handler into one group, as much as is good for all. What does not fit stays in the
    /// queue, for whoever is idle.
    pub(crate) fn gather(&mut self, job: Job<Db>) -> Gathered<Db> {
        let Some(handler) = job.fresh_handler() else {
            return Gathered::Alone(job);
        };
        let limit = match handler.spec.batch {
            Some(limits) => limits.max,
            None => {
                let fair = (self.queue.waiting() + 1).div_ceil(self.shared.concurrency);
                handler.sharing().limit(job.is_ordered()).min(fair)
            }
        };
        let mut group = Group {
            handler,
            members: SmallVec::new(),
            limit,
            is_ordered: job.is_ordered(),
            parts: SmallVec::new(),
            is_split: false,
        };
        if let Some(job) = self.add(&mut group, job) {
            return Gathered::Alone(job);
        }
        while group.has_room()
            && let Some(job) = self.queue.try_take(self.number)
        {
            if let Some(job) = self.add(&mut group, job) {
                self.queue.give_back(job);
                break;
            }
        }
        group.close();
        if group.members.is_empty() {
            return Gathered::Nothing;
        }
        Gathered::Group(group)
    }

    /// Adds a job to a group, or lets it wait at the gate; answers one that belongs to another group, or to none.
    fn add(&self, group: &mut Group<Db>, job: Job<Db>) -> Option<Job<Db>> {
        let fits = job.fresh_handler().is_some_and(|handler| {
            Arc::ptr_eq(&handler, &group.handler)
                && (job.is_ordered() == group.is_ordered || handler.spec.batch.is_some())
        });
        if !fits {
            return Some(job);
        }
        match self.admit(&job, &group.handler) {
            Ok(admitted) => group.members.push(Member {
                job,
                admitted,
                mark: None,
            }),
            Err(Refusal::GateTaken(id)) => self.wait_at_gate(&group.handler.consumer, &id, job),
            Err(Refusal::NoId(_)) => return Some(job),
        }
        None
    }

    /// Waits until a batch is full, for as long as its handler said. Nothing is claimed meanwhile.
    pub(crate) async fn linger(&mut self, group: &mut Group<Db>) {
        while let Some(until) = group.lingers_until() {
            let job = tokio::select! {
                biased;
                () = self.shared.stop.cancelled() => break,
                job = self.queue.take(self.number) => job,
                () = tokio::time::sleep_until(until.into()) => break,
            };
            if let Some(job) = self.add(group, job) {
                // Nobody was idle and took it before.
                self.queue.give_back(job);
                break;
            }
        }
        group.close();
    }

    /// Looks for what comes next, so that it can be claimed in the round trip that commits.
    fn look_ahead(&mut self) {
        if !self.may_look_ahead || self.ahead.is_some() || self.shared.stop.is_cancelled() {
            return;
        }
        // Where one may write at a time, a claim ahead would keep everybody else waiting for as long as the ack takes, and
        // the ack of a stored message is a write of its own.
        if Db::MAX_CONCURRENCY == Some(1) {
            return;
        }
        if self.shared.solitude.is_wanted() {
            return;
        }
        let Some(job) = self.queue.try_take(self.number) else {
            return;
        };
        match self.gather(job) {
            Gathered::Group(group) => self.ahead = Some(group),
            Gathered::Alone(job) => self.queue.give_back(job),
            Gathered::Nothing => {}
        }
    }

    /// This worker has something else to do than what it found ahead: others may have that.
    fn give_back_ahead(&mut self) {
        if let Some(mut group) = self.ahead.take() {
            self.give_back(&mut group);
        }
    }

    /// Puts the members of a group back into the queue, in their order.
    fn give_back(&self, group: &mut Group<Db>) {
        group.parts.clear();
        for Member { job, admitted, .. } in group.members.drain(..).rev() {
            // Whoever takes it finds the gate free.
            drop(admitted);
            self.queue.give_back(job);
        }
    }

    /// Fence and COMMIT, and, where the session goes on with it, the claims of what comes next. Until COMMIT's answer
    /// is here its outcome is unknown, and unknown is never acked.
    pub(crate) async fn seal(
        &mut self,
        session: &mut Session<Db>,
        keys: &[ClaimKey<'_>],
        have_failures: bool,
    ) -> (Sealed, Option<Result<Vec<Claimed>, Fault>>) {
        self.look_ahead();
        let next_claims = self.next_claims();
        let next = next_claims.as_ref().map(NextClaims::claims);
        let done = Done {
            keys,
            have_failures,
            is_durable: self.unflushed.must_be_durable(keys.len(), next.is_some()),
        };
        let limit = self.shared.commit_wait + self.wait_for(next.as_ref());
        // A hung COMMIT (a missing synchronous standby) ends as "unknown", never with a cancel request, which could
        // turn it into a success that was not replicated.
        let sealing = tokio::time::timeout(limit, session.seal(&done, next.as_ref())).await;
        drop(next_claims);
        let Ok((sealed, answer)) = sealing else {
            self.give_back_ahead();
            let hung = sqlx::Error::Protocol("COMMIT took longer than its limit".to_owned());
            return (Sealed::Unknown(hung), None);
        };
        if matches!(sealed, Sealed::Committed) {
            self.unflushed.note_commit(done.is_durable);
        } else {
            // What follows on a failure can take as long as the handlers.
            self.give_back_ahead();
        }
        (sealed, answer.map(|answer| answer.map_err(Fault::Database)))
    }

    /// Ends a transaction in which every claim met an existing one, and goes on with what comes next. Answers for each
    /// claim; an error closes the session.
    pub(crate) async fn dismiss(
        &mut self,
        mut session: Session<Db>,
        claims: &[Claim<'_>],
    ) -> Result<Vec<Comparison>, Fault> {
        // What collides needs the session again.
        let keep_collisions = self.shared.keep_collisions;
        self.may_look_ahead &= !keep_collisions;
        self.look_ahead();
        let next_claims = self.next_claims();
        let next = next_claims.as_ref().map(NextClaims::claims);
        let limit = STATEMENT_LIMIT + self.wait_for(next.as_ref());
        let keys: Vec<ClaimKey<'_>> = claims.iter().map(Claim::key).collect();
        let dismissing = session.dismiss(&keys, next.as_ref());
        let dismissed = limited(limit, "reading the payload hash", dismissing).await;
        drop(next_claims);
        let (existing, claimed) = match dismissed {
            Ok(dismissed) => dismissed,
            Err(fault) => {
                self.give_back_ahead();
                return Err(fault);
            }
        };
        self.go_on_with(
            session,
            claimed.map(|answer| answer.map_err(Fault::Database)),
        );
        // The original may be committed by another worker and not be durable yet.
        self.unflushed.note_duplicate();
        Ok(claims
            .iter()
            .zip(&existing)
            .map(|(claim, existing)| compare_payloads(claim, existing, keep_collisions))
            .collect())
    }

    /// The claims of what comes next, if it is complete and the session goes on with it.
    fn next_claims(&self) -> Option<NextClaims<'_>> {
        if !self.may_look_ahead {
            return None;
        }
        // A batch that waits for more is claimed when it is complete.
        let ahead = self
            .ahead
            .as_ref()
            .filter(|group| group.lingers_until().is_none())?;
        let claims = ahead.claims(&ahead.order(ahead.members.len()));
        for claim in &claims {
            self.shared
                .hook
                .reach(Step::BeforeClaim, claim.key().message_id);
        }
        Some(NextClaims {
            begin: &ahead.handler.begin,
            claims,
        })
    }

    fn wait_for(&self, next: Option<&Claims<'_>>) -> Duration {
        next.map_or(Duration::ZERO, |_| self.shared.claim_wait)
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

    /// Runs a group, one transaction for each part; answers how many handlers were cut off.
    pub(crate) async fn run_group(
        &mut self,
        group: &mut Group<Db>,
        mut opened: Option<Opened<Db, Vec<Claimed>>>,
    ) -> usize {
        let mut cut_off = 0;
        while let Some(size) = group.next_part() {
            if self.shared.stop.is_cancelled() {
                if let Some(opened) = opened.take() {
                    self.put_back(opened.session).await;
                }
                self.set_aside(group, Duration::ZERO);
                break;
            }
            if group.is_split && size == 1 && group.parts.iter().all(|part| *part == 1) {
                // Each goes alone from here on, so there is no need for all of them to wait for this one.
                self.give_back_rest(group);
            }
            self.may_look_ahead = group.parts.is_empty() && !self.shared.behind_pooler;
            if size > 1 {
                cut_off += self.together(group, size, opened.take()).await;
                continue;
            }
            let begun = Instant::now();
            let Member { job, admitted, .. } = group.members.remove(0);
            let opened = opened.take().map(Opened::sole);
            cut_off += usize::from(self.pass(job, Some(admitted), opened).await);
            if !group.is_split {
                group.handler.sharing().note_end(1, begun.elapsed() < LONG);
            }
        }
        self.may_look_ahead = false;
        cut_off
    }

    /// Puts all members but the first back into the queue, each to go alone.
    fn give_back_rest(&self, group: &mut Group<Db>) {
        let first = group.members.remove(0);
        for member in &mut group.members {
            member.job.goes_alone = true;
        }
        self.give_back(group);
        group.members.push(first);
    }

    /// Gives back what was not started.
    pub(crate) fn set_aside(&mut self, group: &mut Group<Db>, delay: Duration) {
        group.parts.clear();
        for Member { job, .. } in group.members.drain(..) {
            self.shared.hold.until(Instant::now() + delay, job);
        }
    }

    /// Claims, handlers, fence and COMMIT for the first `size` members at once.
    async fn together(
        &mut self,
        group: &mut Group<Db>,
        size: usize,
        opened: Option<Opened<Db, Vec<Claimed>>>,
    ) -> usize {
        let shared = Arc::clone(&self.shared);
        let handler = Arc::clone(&group.handler);
        let begun = Instant::now();
        let order = group.order(size);
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
        let Ok(answers) = answer else {
            // Which of them waits for a copy elsewhere is for each to find out: in halves, the others would wait
            // with it again and again.
            self.put_back(session).await;
            group.set_apart(size, &order);
            return 0;
        };
        let mut is_duplicate = vec![false; size];
        let mut with_history = Vec::new();
        for (member, answer) in order.iter().zip(answers) {
            match answer {
                Claimed::Won {
                    counted,
                    kept: None,
                    mark,
                } if counted == Counted::default() => group.members[*member].mark = mark,
                Claimed::Duplicate => is_duplicate[*member] = true,
                _ => with_history.push(*member),
            }
        }
        if !with_history.is_empty() {
            self.put_back(session).await;
            group.set_apart(size, &with_history);
            return 0;
        }
        let (duplicates, winners): (Vec<usize>, Vec<usize>) =
            (0..size).partition(|member| is_duplicate[*member]);
        if winners.is_empty() {
            let compared = self.dismiss(session, &group.claims(&duplicates)).await;
            if compared.is_ok() && !group.is_split {
                handler.sharing().note_end(size, begun.elapsed() < LONG);
            }
            self.end_duplicates(group, size, compared).await;
            return 0;
        }
        let mut part = Part {
            size,
            stands_apart: is_duplicate.clone(),
        };
        if !duplicates.is_empty() {
            // Before any handler: what one does to its session has no part in the answer.
            let compared: Vec<Comparison> = {
                let claims = group.claims(&duplicates);
                let keys: Vec<ClaimKey<'_>> = claims.iter().map(Claim::key).collect();
                let reading = session.existing(&keys);
                let existing = limited(STATEMENT_LIMIT, "reading the payload hash", reading).await;
                let existing = existing.unwrap_or_default();
                let pairs = claims.iter().zip(&existing);
                let keep_collisions = shared.keep_collisions;
                pairs
                    .map(|(claim, existing)| compare_payloads(claim, existing, keep_collisions))
                    .collect()
            };
            let colliding = colliding(&duplicates, &compared);
            if !colliding.is_empty() {
                self.put_back(session).await;
                group.set_apart(size, &colliding);
                return 0;
            }
            if compared.len() < duplicates.len() || compared.contains(&Comparison::Gone) {
                drop(session);
                return self.fall_back(group, &part, false).await;
            }
        }

        for member in &winners {
            shared.hook.reach(Step::AfterClaim, group.id(*member));
        }
        let mut taken_back = Vec::new();
        let called = shared
            .call_handlers(&mut session, group, &winners, &mut taken_back)
            .await;
        for member in &taken_back {
            part.stands_apart[*member] = true;
            group.members[*member].mark = None;
        }
        match called {
            Called::Succeeded => {}
            Called::SomeUndecodable(positions) => {
                self.put_back(session).await;
                let undecodable: Vec<usize> = positions
                    .iter()
                    .filter_map(|position| winners.get(*position).copied())
                    .collect();
                group.set_apart(size, &undecodable);
                return 0;
            }
            Called::CutOff => {
                session.close().await;
                tracing::warn!(
                    handler = handler.spec.name,
                    "the handler was cut off by the shutdown and is rolled back with its neighbours"
                );
                self.set_aside(group, Duration::ZERO);
                return 1;
            }
            Called::TimedOut => {
                // It may be in the middle of a statement.
                session.close().await;
                return self.fall_back(group, &part, false).await;
            }
            other => {
                let is_conflict = matches!(
                    &other,
                    Called::Failed(failure) if failure.cause == Some(ErrorClass::Transient)
                );
                self.put_back(session).await;
                return self.fall_back(group, &part, is_conflict).await;
            }
        }

        if !taken_back.is_empty() {
            handler.sharing().note_failure(false);
        }
        let winners: Vec<usize> = winners
            .into_iter()
            .filter(|member| !taken_back.contains(member))
            .collect();
        if winners.is_empty() {
            self.put_back(session).await;
            group.split(size);
            return 0;
        }
        for member in &winners {
            shared.hook.reach(Step::BeforeCommit, group.id(*member));
        }
        // What was taken back needs the session again.
        self.may_look_ahead &= taken_back.is_empty();
        let keys: Vec<ClaimKey<'_>> = winners.iter().map(|member| group.key(*member)).collect();
        let (sealed, claimed) = self.seal(&mut session, &keys, false).await;
        match sealed {
            Sealed::Committed => {
                for member in &winners {
                    shared.hook.reach(Step::AfterCommit, group.id(*member));
                }
                self.go_on_with(session, claimed);
                handler.tally.note_success();
                if !group.is_split {
                    handler.sharing().note_end(size, begun.elapsed() < LONG);
                }
            }
            Sealed::Refused(error) => {
                let is_conflict = Db::classify(&error) == ErrorClass::Transient;
                self.put_back(session).await;
                return self.fall_back(group, &part, is_conflict).await;
            }
            Sealed::Unknown(error) => {
                drop(session);
                // One stands for all: they were committed together or not at all.
                let mark = group.members[winners[0]].mark.clone();
                let key = group.key(winners[0]);
                let ending = self.look_after_commit(key, mark.as_deref(), &error).await;
                let is_committed = matches!(ending, Ending::Done(Outcome::Processed));
                self.end_part(group, size, |member| {
                    if is_committed && winners.contains(&member) {
                        ending
                    } else {
                        Ending::uncounted(Why::UnknownCommit)
                    }
                })
                .await;
                return 0;
            }
            _ => {
                // Whatever is open on this session now is not ours: close it.
                drop(session);
                return self.fall_back(group, &part, false).await;
            }
        }
        if !duplicates.is_empty() {
            self.unflushed.note_duplicate();
        }
        let endings: Vec<Ending> = (0..size)
            .filter(|member| !taken_back.contains(member))
            .map(|member| {
                Ending::Done(if is_duplicate[member] {
                    Outcome::Duplicate
                } else {
                    Outcome::Processed
                })
            })
            .collect();
        let ended = group.set_first(size, &taken_back);
        self.end_part(group, ended, |member| endings[member]).await;
        0
    }

    /// After a transaction that did not succeed: whether a handler made it durable itself, for then the claims of its
    /// neighbours are durable too, and their work may be half done. If not, they are tried in smaller parts.
    async fn fall_back(&mut self, group: &mut Group<Db>, part: &Part, is_conflict: bool) -> usize {
        let Part { size, stands_apart } = part;
        group.handler.sharing().note_failure(is_conflict);
        // One stands for all.
        let won = (0..*size).find_map(|member| {
            let mark = group.members[member].mark.clone()?;
            (!stands_apart[member]).then_some((member, mark))
        });
        let Some((claimed, mark)) = won else {
            group.split(*size);
            return 0;
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
                self.escape(group, *size, stands_apart).await;
            }
            Ok(_) => {
                self.session = Some(session);
                group.split(*size);
            }
            Err(fault) => {
                let ending = in_doubt("reading the claim", &fault);
                self.end_part(group, *size, |_| ending).await;
            }
        }
        0
    }

    /// A handler committed the claims of the first `size` members: a dead letter for each tells a person. Those that
    /// stand apart have no claim in it, and go on alone.
    async fn escape(&mut self, group: &mut Group<Db>, size: usize, stands_apart: &[bool]) {
        let (apart, claimed): (Vec<usize>, Vec<usize>) =
            (0..size).partition(|member| stands_apart[*member]);
        let mut endings = Vec::with_capacity(claimed.len());
        for member in &claimed {
            let attempt = group.attempt(*member);
            let failure = Failure::of_handler(FailureText::new(
                "a handler in the same transaction ended it; leave the transaction to the runtime",
            ));
            endings.push(self.escaped(&attempt, failure).await);
        }
        let ended = group.set_first(size, &apart);
        self.end_part(group, ended, |member| endings[member]).await;
    }

    /// Ends the first `size` members, none of which was new. Those that collide go on alone, to be kept.
    async fn end_duplicates(
        &mut self,
        group: &mut Group<Db>,
        size: usize,
        compared: Result<Vec<Comparison>, Fault>,
    ) {
        let compared = match compared {
            Ok(compared) => compared,
            Err(fault) => {
                let ending = uncounted("comparing the payloads", &fault);
                return self.end_part(group, size, |_| ending).await;
            }
        };
        let all: Vec<usize> = (0..size).collect();
        let ended = group.set_first(size, &colliding(&all, &compared));
        let endings: Vec<Ending> = compared
            .into_iter()
            .filter(|one| *one != Comparison::Collides)
            .map(Comparison::ending)
            .collect();
        self.end_part(group, ended, |member| endings[member]).await;
    }

    /// Ends the first `size` members and settles their deliveries.
    async fn end_part(
        &mut self,
        group: &mut Group<Db>,
        size: usize,
        ending: impl Fn(usize) -> Ending,
    ) {
        let members = group.members.drain(..size).enumerate();
        let jobs = members
            .map(|(number, member)| self.end(member, ending(number)))
            .collect();
        self.settle(jobs).await;
    }

    /// Notes the end of an attempt in the job; the gate is free from here on.
    fn end(&self, member: Member<Db>, ending: Ending) -> Job<Db> {
        let Member {
            mut job,
            admitted,
            mark,
        } = member;
        let mut work = std::mem::replace(&mut job.work, Work::Ignore);
        if let Work::Shares(shares) = &mut work {
            for share in shares {
                if matches!(ending, Ending::InDoubt) {
                    share.in_doubt.clone_from(&mark);
                }
                if let Passed::Status(status) =
                    self.conclude(ending, share, &job, Some(&admitted.id))
                {
                    share.status = status;
                    job.note(status);
                }
            }
        }
        job.work = work;
        job
    }
}

/// Steps that need nothing of the worker.
impl<Db: InboxDatabase> Shared<Db> {
    /// Calls the handler with each message, or once with all of them. What is no success ends it, or, where each has a
    /// savepoint, is taken back.
    pub(crate) async fn call_handlers(
        &self,
        session: &mut Session<Db>,
        group: &Group<Db>,
        winners: &[usize],
        taken_back: &mut Vec<usize>,
    ) -> Called {
        if group.handler.spec.batch.is_some() {
            let attempts: Vec<_> = winners
                .iter()
                .map(|member| group.attempt(*member))
                .collect();
            let incoming: Vec<_> = attempts
                .iter()
                .map(|attempt| attempt.incoming(1, &self.state))
                .collect();
            let span = tracing::info_span!(
                "inbox.process_batch",
                "messaging.consumer.group.name" = group.handler.consumer.as_str(),
                "messaging.batch.message_count" = incoming.len(),
            );
            let calling = self.call(session, &group.handler, &incoming);
            let called = calling.instrument(span).await;
            for member in winners {
                self.hook.reach(Step::AfterHandler, group.id(*member));
            }
            return called;
        }
        // After failures, each message can be taken back alone, which costs the others nothing.
        let is_careful = group.handler.sharing().is_careful();
        for member in winners {
            if is_careful
                && let Err(error) = limited(STATEMENT_LIMIT, "a savepoint", session.step()).await
            {
                // Perhaps the handler before left the transaction unusable: each alone will tell.
                return Called::Misconfigured(error.text());
            }
            let attempt = group.attempt(*member);
            let incoming = [attempt.incoming(1, &self.state)];
            let calling = self.call(session, &group.handler, &incoming);
            let called = calling.instrument(attempt.span()).await;
            self.hook.reach(Step::AfterHandler, group.id(*member));
            if matches!(called, Called::Succeeded) {
                continue;
            }
            if !is_careful || !called.is_of_its_message_alone() {
                return called;
            }
            let taking_back = session.take_back(group.key(*member));
            if limited(STATEMENT_LIMIT, "a savepoint", taking_back)
                .await
                .is_err()
            {
                return called;
            }
            taken_back.push(*member);
        }
        Called::Succeeded
    }
}

/// The members among `duplicates` whose payload is another one than was processed, and shall be kept.
fn colliding(duplicates: &[usize], compared: &[Comparison]) -> Vec<usize> {
    let members = duplicates.iter().zip(compared);
    members
        .filter(|(_, one)| **one == Comparison::Collides)
        .map(|(member, _)| *member)
        .collect()
}

/// Members of a group in one transaction, which won at least one claim.
struct Part {
    size: usize,
    /// Those that have no claim in it: duplicates, and what was taken back.
    stands_apart: Vec<bool>,
}

/// The claims of what comes next.
struct NextClaims<'a> {
    begin: &'a Arc<str>,
    claims: SmallVec<[Claim<'a>; 1]>,
}

impl NextClaims<'_> {
    fn claims(&self) -> Claims<'_> {
        Claims {
            begin: self.begin,
            claims: &self.claims,
        }
    }
}
