//! Many acks go to RabbitMQ in one frame, and none of them acks what is still in work.

#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use inbox_core::{Assignment, Delivery, Settle, SettleError, SettleToken, Source as _, Verdict};
use inbox_guarantees::rabbitmq::TestQueue;
use inbox_guarantees::recorded::Recorded;
use inbox_guarantees::settle_frames::{SettleFrame, SettleFrames};
use inbox_guarantees::tap::Tap;
use inbox_guarantees::{OrderPlaced, Running, TestDatabase as _, bill, eventually, order};
use inbox_runtime::brokers::QueueKind;
use inbox_runtime::{Attempt, HandlerError, Inbox, MessageId, Tx, inbox_handler};
use sqlx::Postgres;

const HAND_BACK: Verdict = Verdict::HandBack { delay: None };

/// A queue with messages m-1, m-2, .. all delivered, and one more that stays in work; the connection between broker and
/// adapter in view.
struct Scene {
    queue: TestQueue,
    tap: Tap,
    frames: SettleFrames,
    assignment: Assignment,
    /// Of m-1, m-2, ..
    tokens: Vec<Option<SettleToken>>,
}

impl Scene {
    async fn with(messages: usize) -> Self {
        let messages = messages + 1;
        let queue = TestQueue::new(QueueKind::Classic).await;
        for n in 1..=messages {
            queue.publish(order(&format!("m-{n}"))).await;
        }
        let frames = SettleFrames::default();
        let tap = frames.tap(queue.server()).await;
        let source = queue.source_through(tap.address());
        let prefetch = NonZeroUsize::new(messages).unwrap();
        let mut assignment = source.open(prefetch).await.unwrap();
        let mut tokens = Vec::new();
        for n in 1..=messages {
            let delivery = next(&mut assignment).await;
            assert_eq!(delivery.envelope.id, Some(format!("m-{n}")));
            tokens.push(Some(delivery.token));
        }
        Self {
            queue,
            tap,
            frames,
            assignment,
            tokens,
        }
    }

    fn verdicts(&mut self, verdicts: &[(usize, Verdict)]) -> Vec<(SettleToken, Verdict)> {
        let verdicts = verdicts.iter();
        verdicts
            .map(|(n, verdict)| (self.tokens[n - 1].take().expect("settled once"), *verdict))
            .collect()
    }

    async fn settle(&mut self, verdicts: &[(usize, Verdict)], expected: &[SettleFrame]) {
        let asked = self.verdicts(verdicts);
        let answers = self.assignment.settle.settle(asked).await;
        assert_eq!(answers.len(), verdicts.len());
        for answer in answers {
            answer.unwrap();
        }
        self.sends(expected).await;
    }

    async fn ack(&mut self, messages: &[usize], expected: &[SettleFrame]) {
        let acks: Vec<_> = messages.iter().map(|n| (*n, Verdict::Ack)).collect();
        self.settle(&acks, expected).await;
    }

    /// These frames and no others; the client may hold them back for a moment.
    async fn sends(&self, expected: &[SettleFrame]) {
        eventually("the frames", || async {
            self.frames.seen().len() >= expected.len()
        })
        .await;
        assert_eq!(self.frames.take(), expected);
    }

    /// Cuts the connection when the broker has worked off all that was sent: exactly these come again, and the last one.
    async fn comes_again(mut self, expected: impl IntoIterator<Item = usize>) {
        let mut expected: BTreeSet<usize> = expected.into_iter().collect();
        expected.insert(self.tokens.len());
        // The channel answers in order, and what was not taken goes back.
        self.assignment.deliveries.stop().await;
        assert!(
            !self.assignment.settle.is_gone(),
            "the broker closed the channel"
        );
        // What came after these lay in the client's buffer and went back.
        let taken = u64::try_from(self.tokens.len()).unwrap();
        let mut frames = self.frames.take();
        frames.retain(|frame| !matches!(frame, SettleFrame::HandBack(tag) if *tag > taken));
        assert_eq!(frames, [], "more frames than were expected");
        self.tap.cut();
        // All that a lost channel had comes back in one step, the last message with it.
        let back = u32::try_from(expected.len()).unwrap();
        eventually("what was in work is back", || async {
            self.queue.seen().await.ready >= back
        })
        .await;
        let mut again = BTreeSet::new();
        while let Some(id) = self.queue.take().await {
            assert!(again.insert(id[2..].parse().unwrap()), "{id} came twice");
        }
        assert_eq!(again, expected);
    }
}

async fn next(assignment: &mut Assignment) -> Delivery {
    let next = assignment.deliveries.next();
    let next = tokio::time::timeout(Duration::from_secs(60), next).await;
    next.expect("no delivery within a minute").unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_acks_in_one_call_are_one_frame() {
    let mut scene = Scene::with(100).await;
    // In whatever order their work ended.
    let messages: Vec<usize> = (1..=100).rev().collect();
    scene.ack(&messages, &[SettleFrame::AckUpTo(100)]).await;
    scene.comes_again([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_work_is_not_acked_with_what_came_after_it() {
    let mut scene = Scene::with(20).await;
    let others: Vec<usize> = (1..=20).filter(|n| *n != 9).collect();
    let singly = (10..=20).map(SettleFrame::Ack);
    let frames: Vec<_> = [SettleFrame::AckUpTo(8)]
        .into_iter()
        .chain(singly)
        .collect();
    scene.ack(&others, &frames).await;
    scene.comes_again([9]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_ends_out_of_order_is_acked_once_each() {
    use SettleFrame::{Ack, AckUpTo, HandBack};
    let mut scene = Scene::with(12).await;
    scene.ack(&[3], &[Ack(3)]).await;
    scene.ack(&[5, 2], &[Ack(2), Ack(5)]).await;
    // 2 and 3 are settled: a frame that ended there would close the channel.
    scene.ack(&[1], &[Ack(1)]).await;
    scene.ack(&[6, 4], &[AckUpTo(6)]).await;
    let asked = [(7, Verdict::Ack), (8, HAND_BACK), (9, Verdict::Ack)];
    scene.settle(&asked, &[HandBack(8), AckUpTo(9)]).await;
    scene.ack(&[11], &[Ack(11)]).await;
    scene.comes_again([8, 10, 12]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_lost_connection_settles_nothing_on_the_next_one() {
    let mut scene = Scene::with(4).await;
    let old = scene.verdicts(&[(1, Verdict::Ack), (2, Verdict::Ack), (3, HAND_BACK)]);
    scene.tap.cut();
    let lost = Arc::clone(&scene.assignment.settle);
    eventually("the loss is known", || async { lost.is_gone() }).await;

    let source = scene.queue.source_through(scene.tap.address());
    let mut assignment = source.open(NonZeroUsize::new(5).unwrap()).await.unwrap();
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(next(&mut assignment).await.token);
    }
    for settle in [&lost, &assignment.settle] {
        let numbers = old
            .iter()
            .map(|(token, verdict)| (SettleToken::new(token.number()), *verdict));
        for answer in settle.settle(numbers.collect()).await {
            assert!(matches!(answer, Err(SettleError::Gone)), "{answer:?}");
        }
    }
    assert_eq!(scene.frames.take(), []);
    let acks = tokens
        .into_iter()
        .take(4)
        .map(|token| (token, Verdict::Ack))
        .collect();
    for answer in assignment.settle.settle(acks).await {
        answer.unwrap();
    }
    scene.sends(&[SettleFrame::AckUpTo(4)]).await;
    scene.assignment = assignment;
    scene.comes_again([]).await;
}

/// Every frame is checked by the broker: one that comes out of order names a tag that it does not know, and the
/// channel closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn calls_at_the_same_time_ack_what_they_were_asked_to_and_nothing_else() {
    const MESSAGES: usize = 2_000;
    const WORKERS: usize = 8;
    let mut scene = Scene::with(MESSAGES).await;
    let stays_in_work = |n: usize| n.is_multiple_of(97);
    let mut calls: Vec<Vec<Vec<(SettleToken, Verdict)>>> =
        (0..WORKERS).map(|_| Vec::new()).collect();
    let mut n = 1;
    while n <= MESSAGES {
        // As workers get them that share what is there: one transaction here, the next there.
        let together = 1 + (n * 7) % 5;
        let asked: Vec<_> = (n..n + together)
            .filter(|n| *n <= MESSAGES && !stays_in_work(*n))
            .map(|n| (n, Verdict::Ack))
            .collect();
        n += together;
        let worker = n % WORKERS;
        calls[worker].push(scene.verdicts(&asked));
    }
    let settle: Arc<dyn Settle> = Arc::clone(&scene.assignment.settle);
    let mut workers = tokio::task::JoinSet::new();
    for calls in calls {
        let settle = Arc::clone(&settle);
        workers.spawn(async move {
            for call in calls {
                for answer in settle.settle(call).await {
                    answer.unwrap();
                }
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.unwrap();
    }
    // The broker has worked them off once it answers this.
    scene.assignment.deliveries.stop().await;
    let frames = scene.frames.take();
    let many = frames
        .iter()
        .filter(|frame| matches!(frame, SettleFrame::AckUpTo(_)));
    assert!(many.count() > 1, "nothing was acked together");
    let in_work = (1..=MESSAGES).filter(|n| stays_in_work(*n));
    scene.comes_again(in_work).await;
}

#[inbox_handler(consumer = "billing", on = "OrderPlaced")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    id: MessageId,
    Attempt(attempt): Attempt,
) -> Result<(), HandlerError> {
    bill!(Postgres, order, id, tx);
    if id.as_str() == "m-61" && attempt == 1 {
        return Err(HandlerError::retry_after(
            Duration::from_secs(120),
            "not today",
        ));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_transactions_are_acked_together_up_to_the_message_that_waits_for_its_retry() {
    let sandbox = Postgres::fresh(4).await;
    let queue = TestQueue::new(QueueKind::Quorum).await;
    for n in 1..=120 {
        queue.publish(order(&format!("m-{n}"))).await;
    }
    let frames = SettleFrames::default();
    let tap = frames.tap(queue.server()).await;
    let (source, record) = Recorded::new(queue.source_through(tap.address()));
    let inbox = Inbox::builder(sandbox.pool.clone())
        .source("orders", source)
        .register(charge::handler())
        .concurrency(1)
        .messages_per_transaction(16)
        .prefetch(120)
        // It waits here, not in the database.
        .longest_hold(Duration::from_secs(60 * 60));
    let running = Running::start(inbox.build().await.unwrap());
    eventually("all are acked but the one that waits", || async {
        record.acks().len() == 119
    })
    .await;
    assert_eq!(sandbox.attempts("m-61").await, 1);
    assert_eq!(sandbox.ledger_rows("m-61").await, 0);
    let mut settled = BTreeSet::new();
    eventually("the frames", || {
        let frames = frames.seen();
        settled = (1..=120)
            .filter(|tag| {
                frames.iter().any(|frame| match frame {
                    SettleFrame::Ack(acked) => acked == tag,
                    SettleFrame::AckUpTo(last) => tag <= last,
                    _ => false,
                })
            })
            .collect();
        std::future::ready(settled.len() >= 119)
    })
    .await;
    assert!(!settled.contains(&61), "what waits for its retry was acked");
    let before = frames.take();
    let mut together = 0;
    for frame in &before {
        match frame {
            SettleFrame::AckUpTo(tag) => {
                assert!(*tag < 61, "{frame:?} acks what waits for its retry");
                together += 1;
            }
            SettleFrame::Ack(tag) => assert_ne!(*tag, 61),
            other => panic!("{other:?}"),
        }
    }
    assert!(together > 1, "nothing was acked together: {before:?}");

    tap.cut();
    eventually("it came again and is acked", || async {
        record.deliveries("m-61") == 2 && record.acks().iter().any(|(id, _)| id == "m-61")
    })
    .await;
    running.stop().await;
    assert_eq!(queue.left().await, 0);
    for n in 1..=120 {
        sandbox.assert_stored_once(&format!("m-{n}")).await;
    }
    assert_eq!(sandbox.ledger_total().await, 120);
    assert_eq!(sandbox.balance("acc-1").await, 120 * 100);
    assert_eq!(
        sandbox.attempts("m-61").await,
        0,
        "forgotten with the success"
    );
}
