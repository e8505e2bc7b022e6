//! The operations of a session, dropped at each of their polls in a runtime in which the pool could take the connection
//! back.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use inbox_core::{
    Claim, ClaimKey, Claimed, Claims, DeadLetter, DeadLetterReason, Done, ExistingEntry,
    FailureText, Layout, Requisites, Sealed, Session, TransactionOptions,
};
use inbox_guarantees::{OrderPlaced, Sandbox, TestDatabase, bill, on_each_database, order};
use inbox_runtime::{Envelope, InboxDatabase, Isolation, MessageId, Tables};

use crate::{assert_consistent, assert_each_once};

/// Polls `future` at most so often, then drops it: at once, or when it would be polled again, which is when what it
/// waited for has come.
async fn polled<F: Future>(polls: usize, at_once: bool, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 && at_once => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// What a worker does with its session for one or several messages.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// Claim, handler, commit.
    One,
    /// The same for two, the second of which is claimed with the first one's commit.
    Ahead,
    /// Three in one transaction, the last of which is taken back.
    Shared,
    /// A duplicate, and one that is claimed with its end.
    Duplicate,
    /// A failure that is rolled back and counted; then it succeeds.
    Failure,
    /// A dead letter.
    Dead,
    /// Two commits that do not wait for the disk, and a flush.
    Flushed,
}

impl Work {
    const ALL: [Self; 7] = [
        Self::One,
        Self::Ahead,
        Self::Shared,
        Self::Duplicate,
        Self::Failure,
        Self::Dead,
        Self::Flushed,
    ];
}

const CONSUMER: &str = "billing";

const fn key(id: &str) -> ClaimKey<'_> {
    ClaimKey {
        consumer: CONSUMER,
        message_id: id,
    }
}

const fn done<'a>(keys: &'a [ClaimKey<'a>]) -> Done<'a> {
    Done {
        keys,
        have_failures: false,
        is_durable: true,
    }
}

/// Sessions on one database.
struct Bench<Db: TestDatabase> {
    sandbox: Sandbox<Db>,
    layout: Arc<Layout<Db>>,
    begin: Arc<str>,
}

impl<Db: TestDatabase> Bench<Db> {
    async fn new() -> Self {
        let sandbox = Db::fresh(3).await;
        let claim_wait = Duration::from_secs(5);
        let requisites = Requisites {
            claim_wait,
            longest_handler: Duration::from_secs(30),
            behind_pooler: false,
        };
        let mut conn = sandbox.pool.acquire().await.unwrap();
        let found = Db::inspect(&mut conn, &Tables::default(), &requisites).await;
        let layout = Layout::new(found.unwrap().statements);
        let begin = layout.begin_text(&TransactionOptions {
            isolation: Isolation::ReadCommitted,
            claim_wait,
            idle_limit: Duration::from_secs(60),
        });
        drop(conn);
        Self {
            sandbox,
            layout: Arc::new(layout),
            begin,
        }
    }

    async fn session(&self) -> Result<Session<Db>, sqlx::Error> {
        Session::open(&self.sandbox.pool, Arc::clone(&self.layout)).await
    }

    /// The message with its claim.
    fn claims<'a>(&'a self, claims: &'a [Claim<'a>]) -> Claims<'a> {
        Claims {
            begin: &self.begin,
            claims,
        }
    }
}

fn committed(sealed: &Sealed) {
    assert!(matches!(sealed, Sealed::Committed), "{sealed:?}");
}

on_each_database! {
    async fn book(session: &mut Session<Db>, id: &str) -> Result<(), sqlx::Error> {
        let (id, tx) = (MessageId::new(id).unwrap(), session.tx());
        bill!(Db, OrderPlaced { account: "acc-1".to_owned(), amount: 100 }, id, tx);
        Ok(())
    }

    /// Everything that a worker does for these, from the pool and back to it.
    async fn work(bench: &Bench<Db>, work: Work, ids: &[String; 3]) -> Result<(), sqlx::Error> {
        let envelopes = ids.each_ref().map(|id| order(id));
        let claims: Vec<Claim<'_>> =
            ids.iter().zip(&envelopes).map(|(id, envelope)| Claim::new(key(id), envelope)).collect();
        let [a, b, c] = ids.each_ref().map(|id| key(id));
        let mut session = bench.session().await?;
        match work {
            Work::One => {
                session.claim(&bench.claims(&claims[..1])).await?;
                book(&mut session, &ids[0]).await?;
                committed(&session.seal(&done(&[a]), None).await.0);
            }
            Work::Ahead | Work::Flushed => {
                let is_durable = matches!(work, Work::Ahead);
                session.claim(&bench.claims(&claims[..1])).await?;
                book(&mut session, &ids[0]).await?;
                let next = bench.claims(&claims[1..2]);
                let (sealed, claimed) = session.seal(&Done { is_durable, ..done(&[a]) }, Some(&next)).await;
                committed(&sealed);
                claimed.unwrap()?;
                book(&mut session, &ids[1]).await?;
                committed(&session.seal(&Done { is_durable, ..done(&[b]) }, None).await.0);
                if !is_durable {
                    session.flush().await?;
                }
            }
            Work::Shared => {
                session.claim(&bench.claims(&claims)).await?;
                for id in ids {
                    session.step().await?;
                    book(&mut session, id).await?;
                }
                session.take_back(c).await?;
                committed(&session.seal(&done(&[a, b]), None).await.0);
            }
            Work::Duplicate => {
                let claimed = session.claim(&bench.claims(&claims[..1])).await?;
                assert_eq!(claimed, [Claimed::Duplicate]);
                let next = bench.claims(&claims[1..2]);
                let (_, claimed) = session.dismiss(&[a], Some(&next)).await?;
                claimed.unwrap()?;
                book(&mut session, &ids[1]).await?;
                committed(&session.seal(&done(&[b]), None).await.0);
            }
            Work::Failure => {
                session.claim(&bench.claims(&claims[..1])).await?;
                book(&mut session, &ids[0]).await?;
                session.roll_back().await?;
                session.trace(a, None).await?;
                session.begin(&bench.begin).await?;
                session.record_failure(a, &FailureText::new("it fails"), false).await?;
                session.commit().await?;
                session.claim(&bench.claims(&claims[..1])).await?;
                book(&mut session, &ids[0]).await?;
                committed(&session.seal(&Done { have_failures: true, ..done(&[a]) }, None).await.0);
            }
            Work::Dead => dead(bench, &mut session, &claims[..1], &envelopes[0]).await?,
        }
        session.release().await;
        Ok(())
    }

    /// Claims, keeps the message as a dead letter, and withdraws the claim.
    async fn dead(
        bench: &Bench<Db>,
        session: &mut Session<Db>,
        claims: &[Claim<'_>],
        envelope: &Envelope,
    ) -> Result<(), sqlx::Error> {
        let key = claims[0].key();
        let text = FailureText::new("it fails");
        session.claim(&bench.claims(claims)).await?;
        let attempts = session.record_failure(key, &text, false).await?;
        let mut letter = DeadLetter::new("orders", envelope, DeadLetterReason::Rejected, &text);
        letter.consumer = Some(CONSUMER);
        letter.id = Some(key.message_id);
        letter.attempts = attempts;
        session.store_dead_letter(&letter, ExistingEntry::Reopen).await?;
        session.withdraw_claim(key).await?;
        session.commit().await
    }

    /// As the redelivery of a message does it.
    async fn again(bench: &Bench<Db>, id: &str) -> Result<(), sqlx::Error> {
        let envelope = order(id);
        let claims = [Claim::new(key(id), &envelope)];
        let mut session = bench.session().await?;
        if id.starts_with("dead") {
            dead(bench, &mut session, &claims, &envelope).await?;
        } else {
            match session.claim(&bench.claims(&claims)).await?.as_slice() {
                [Claimed::Won { .. }] => {
                    book(&mut session, id).await?;
                    let keys = [key(id)];
                    let done = Done { have_failures: true, ..done(&keys) };
                    committed(&session.seal(&done, None).await.0);
                }
                _ => drop(session.dismiss(&[key(id)], None).await?),
            }
        }
        session.release().await;
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_dropped_at_any_poll_leaves_nothing_open_and_nothing_half_done() {
        let bench = Bench::<Db>::new().await;
        let mut drops = 0;
        for which in Work::ALL {
            if matches!(which, Work::Flushed) && !<Db as InboxDatabase>::COMMITS_ASYNCHRONOUSLY {
                continue;
            }
            for polls in 1.. {
                let mut is_done = false;
                for at_once in [true, false] {
                    let prefix = if matches!(which, Work::Dead) { "dead" } else { "m" };
                    let ids = ["a", "b", "c"]
                        .map(|letter| format!("{prefix}-{which:?}-{polls}-{at_once}-{letter}"));
                    if matches!(which, Work::Duplicate) {
                        again(&bench, &ids[0]).await.unwrap();
                    }
                    // Dropped in this runtime, where the pool can take a connection back.
                    is_done = match polled(polls, at_once, work(&bench, which, &ids)).await {
                        Some(worked) => worked.map(|()| true).unwrap(),
                        None => false,
                    };
                    drops += usize::from(!is_done);
                    Db::assert_clean(&bench.sandbox.pool).await;
                    assert_consistent(&bench.sandbox).await;
                    let ids = if matches!(which, Work::Dead) { &ids[..1] } else { &ids[..] };
                    for id in ids {
                        again(&bench, id).await.unwrap();
                    }
                    assert_each_once(&bench.sandbox, ids).await;
                }
                if is_done {
                    break;
                }
            }
        }
        assert_consistent(&bench.sandbox).await;
        assert!(drops > 40, "{drops} places to be dropped at are too few");
    }
}
