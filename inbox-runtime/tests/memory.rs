//! The in-memory broker keeps what it promises, and misbehaves exactly as it is told to.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::num::NonZeroUsize;
use std::time::Duration;

use inbox_runtime::brokers::{Effect, LostAck, MemoryBroker, MemorySource};
use inbox_runtime::{
    Assignment, Capabilities, Delivery, Envelope, Publisher, SettleError, SettleToken, Source,
    Verdict,
};
use tokio::time::{Instant, timeout};

const QUEUE: &str = "orders";
const HAND_BACK: Verdict = Verdict::HandBack { delay: None };

fn message(id: &str) -> Envelope {
    Envelope::new(format!("payload of {id}")).id(id)
}

fn broker_with(ids: &[&str]) -> MemoryBroker {
    let broker = MemoryBroker::new();
    for id in ids {
        broker.publish(QUEUE, message(id));
    }
    broker
}

async fn open(source: &MemorySource, prefetch: usize) -> Assignment {
    source
        .open(NonZeroUsize::new(prefetch).unwrap())
        .await
        .unwrap()
}

async fn next(assignment: &mut Assignment) -> Delivery {
    timeout(Duration::from_secs(60), assignment.deliveries.next())
        .await
        .expect("a delivery in time")
        .unwrap()
        .expect("a delivery")
}

async fn nothing_comes(assignment: &mut Assignment) -> bool {
    timeout(Duration::from_millis(20), assignment.deliveries.next())
        .await
        .is_err()
}

async fn settle(
    assignment: &Assignment,
    token: SettleToken,
    verdict: Verdict,
) -> Result<(), SettleError> {
    assignment
        .settle
        .settle(vec![(token, verdict)])
        .await
        .remove(0)
}

fn id(delivery: &Delivery) -> &str {
    delivery.envelope.id.as_deref().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_message_is_gone_once_it_is_acked() {
    let broker = broker_with(&["a"]);
    let mut assignment = open(&broker.source(QUEUE), 4).await;
    let delivery = next(&mut assignment).await;
    assert_eq!(delivery.envelope, message("a"));
    assert!(!delivery.redelivered);
    assert_eq!(delivery.earlier_deliveries, Some(0));
    settle(&assignment, delivery.token, Verdict::Ack)
        .await
        .unwrap();
    broker.until_idle().await;
    assert!(nothing_comes(&mut assignment).await);
    let log = broker.settled();
    assert_eq!(log.len(), 1);
    assert_eq!(
        (
            log[0].sequence,
            log[0].queue.as_str(),
            log[0].message_id.as_deref(),
            log[0].delivery,
            log[0].verdict,
            log[0].effect,
        ),
        (1, QUEUE, Some("a"), 1, Verdict::Ack, Effect::Done)
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiting_source_wakes_up_for_a_message() {
    let broker = MemoryBroker::new();
    let mut assignment = open(&broker.source(QUEUE), 1).await;
    let waiting = tokio::spawn(async move { next(&mut assignment).await });
    tokio::task::yield_now().await;
    Publisher::publish(&broker, QUEUE, &message("a"))
        .await
        .unwrap();
    assert_eq!(id(&waiting.await.unwrap()), "a");
}

#[tokio::test(start_paused = true)]
async fn never_more_than_the_prefetch_is_unsettled() {
    let broker = broker_with(&["a", "b", "c", "d"]);
    let mut assignment = open(&broker.source(QUEUE), 2).await;
    let first = next(&mut assignment).await;
    let _second = next(&mut assignment).await;
    assert!(nothing_comes(&mut assignment).await);
    settle(&assignment, first.token, Verdict::Ack)
        .await
        .unwrap();
    assert_eq!(id(&next(&mut assignment).await), "c");
    let state = broker.queue_state(QUEUE);
    assert_eq!((state.ready, state.outstanding), (1, 2));
    assert_eq!(state.most_outstanding, 2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_assignment_gives_back_what_it_had_not_settled() {
    let broker = broker_with(&["a", "b", "c"]);
    let mut assignment = open(&broker.source(QUEUE), 3).await;
    let first = next(&mut assignment).await;
    let second = next(&mut assignment).await;
    settle(&assignment, first.token, Verdict::Ack)
        .await
        .unwrap();
    drop(assignment);
    let mut assignment = open(&broker.source(QUEUE), 3).await;
    let again = next(&mut assignment).await;
    assert_eq!(id(&again), "b");
    assert!(again.redelivered);
    assert_eq!(again.earlier_deliveries, Some(1));
    assert!(!next(&mut assignment).await.redelivered);
    // A token of the earlier assignment settles nothing here, although this one knows its delivery number.
    assert!(matches!(
        settle(&assignment, second.token, Verdict::Ack).await,
        Err(SettleError::Failed(_))
    ));
    assert_eq!(broker.settled()[1].effect, Effect::Foreign);
    assert_eq!(broker.queue_state(QUEUE).outstanding, 2);
}

#[tokio::test(start_paused = true)]
async fn several_sources_share_a_queue() {
    let broker = broker_with(&["a", "b"]);
    let mut one = open(&broker.source(QUEUE), 1).await;
    let mut other = open(&broker.source(QUEUE), 1).await;
    assert_eq!(id(&next(&mut one).await), "a");
    assert_eq!(id(&next(&mut other).await), "b");
}

#[tokio::test(start_paused = true)]
async fn a_hand_back_waits_for_its_delay() {
    let broker = broker_with(&["a", "b"]);
    let mut assignment = open(&broker.source(QUEUE), 1).await;
    let started = Instant::now();
    let delivery = next(&mut assignment).await;
    let delay = Some(Duration::from_secs(30));
    settle(&assignment, delivery.token, Verdict::HandBack { delay })
        .await
        .unwrap();
    let other = next(&mut assignment).await;
    assert_eq!(id(&other), "b");
    settle(&assignment, other.token, Verdict::Ack)
        .await
        .unwrap();
    assert_eq!(broker.queue_state(QUEUE).delayed, 1);
    assert_eq!(id(&next(&mut assignment).await), "a");
    assert_eq!(started.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn a_delay_ends_at_the_longest_that_the_broker_grants() {
    let broker = broker_with(&["a"]);
    let source = broker
        .source(QUEUE)
        .behave_as(Capabilities::new().longest_delay(Duration::from_secs(5)));
    let mut assignment = open(&source, 1).await;
    let started = Instant::now();
    let delivery = next(&mut assignment).await;
    let delay = Some(Duration::from_secs(30));
    settle(&assignment, delivery.token, Verdict::HandBack { delay })
        .await
        .unwrap();
    next(&mut assignment).await;
    assert_eq!(started.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_broker_without_delays_redelivers_at_once() {
    let broker = broker_with(&["a", "b"]);
    let source = broker
        .source(QUEUE)
        .behave_as(Capabilities::new())
        .uncounted();
    assert!(source.capabilities().counts_hand_backs);
    let mut assignment = open(&source, 1).await;
    let delivery = next(&mut assignment).await;
    let delay = Some(Duration::from_secs(30));
    settle(&assignment, delivery.token, Verdict::HandBack { delay })
        .await
        .unwrap();
    let again = next(&mut assignment).await;
    assert_eq!(id(&again), "a");
    assert!(again.redelivered);
    assert_eq!(again.earlier_deliveries, None);
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_not_settled_in_time_is_taken_away() {
    let broker = broker_with(&["a"]);
    let source = broker
        .source(QUEUE)
        .behave_as(Capabilities::new().settle_window(Duration::from_secs(10)));
    let mut assignment = open(&source, 1).await;
    let started = Instant::now();
    let late = next(&mut assignment).await;
    let again = next(&mut assignment).await;
    assert_eq!(started.elapsed().as_secs(), 10);
    assert!(again.redelivered);
    assert!(matches!(
        settle(&assignment, late.token, Verdict::Ack).await,
        Err(SettleError::Gone)
    ));
    settle(&assignment, again.token, Verdict::Ack)
        .await
        .unwrap();
    broker.until_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_ack_brings_the_message_again() {
    for how in [LostAck::Silently, LostAck::Gone] {
        let broker = broker_with(&["a"]);
        broker.lose_ack(QUEUE, "a", 2, how);
        let mut assignment = open(&broker.source(QUEUE), 1).await;
        let first = next(&mut assignment).await;
        settle(&assignment, first.token, HAND_BACK).await.unwrap();
        let second = next(&mut assignment).await;
        let answer = settle(&assignment, second.token, Verdict::Ack).await;
        assert_eq!(answer.is_ok(), how == LostAck::Silently);
        let third = next(&mut assignment).await;
        assert_eq!(third.earlier_deliveries, Some(2));
        settle(&assignment, third.token, Verdict::Ack)
            .await
            .unwrap();
        broker.until_idle().await;
        let effects: Vec<Effect> = broker.settled().iter().map(|s| s.effect).collect();
        let lost = if how == LostAck::Silently {
            Effect::AckLost
        } else {
            Effect::Gone
        };
        assert_eq!(effects, [Effect::Done, lost, Effect::Done]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_during_an_ack_gives_back_everything() {
    let broker = broker_with(&["a", "b"]);
    broker.lose_next_acks(QUEUE, 1, LostAck::Disconnect);
    let mut assignment = open(&broker.source(QUEUE), 2).await;
    let first = next(&mut assignment).await;
    let second = next(&mut assignment).await;
    for token in [first.token, second.token] {
        assert!(matches!(
            settle(&assignment, token, Verdict::Ack).await,
            Err(SettleError::Gone)
        ));
    }
    assert!(assignment.deliveries.next().await.is_err());
    let mut assignment = open(&broker.source(QUEUE), 2).await;
    let ids = [next(&mut assignment).await, next(&mut assignment).await];
    assert_eq!(ids.iter().map(id).collect::<Vec<_>>(), ["a", "b"]);
    assert!(ids.iter().all(|delivery| delivery.redelivered));
}

#[tokio::test(start_paused = true)]
async fn copies_are_in_work_together_and_repetitions_one_after_the_other() {
    let broker = MemoryBroker::new();
    broker.publish_copies(QUEUE, message("a"), 3);
    broker.publish_repeated(QUEUE, message("b"), 3);
    let mut assignment = open(&broker.source(QUEUE), 4).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let delivery = next(&mut assignment).await;
        assert_eq!(id(&delivery), "a");
        assert!(!delivery.redelivered);
        tokens.push((delivery.token, Verdict::Ack));
    }
    let answers = assignment.settle.settle(tokens).await;
    assert!(answers.iter().all(Result::is_ok));
    for earlier in 0..3 {
        let delivery = next(&mut assignment).await;
        assert_eq!(id(&delivery), "b");
        assert_eq!(delivery.earlier_deliveries, Some(earlier));
        settle(&assignment, delivery.token, Verdict::Ack)
            .await
            .unwrap();
    }
    broker.until_idle().await;
    broker.until_settled(6).await;
    let copies: Vec<u64> = broker.settled().iter().map(|s| s.copy).collect();
    assert_eq!(copies, [1, 2, 3, 4, 4, 4]);
}

#[tokio::test(start_paused = true)]
async fn the_order_can_be_changed() {
    let broker = broker_with(&["a", "b", "c", "d"]);
    broker.reorder(QUEUE, &["c", "a"]);
    let mut assignment = open(&broker.source(QUEUE), 4).await;
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(id(&next(&mut assignment).await).to_owned());
    }
    assert_eq!(order, ["c", "a", "b", "d"]);

    let shuffled = |seed: u64| async move {
        let broker = broker_with(&["a", "b", "c", "d", "e", "f", "g", "h"]);
        broker.shuffle(QUEUE, seed);
        let mut assignment = open(&broker.source(QUEUE), 8).await;
        let mut order = String::new();
        for _ in 0..8 {
            order.push_str(id(&next(&mut assignment).await));
        }
        order
    };
    assert_eq!(shuffled(7).await, shuffled(7).await);
    assert_ne!(shuffled(7).await, "abcdefgh");
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_ends_the_assignment_and_voids_its_tokens() {
    let broker = broker_with(&["a"]);
    broker.publish("other", message("z"));
    let mut assignment = open(&broker.source(QUEUE), 1).await;
    let mut other = open(&broker.source("other"), 1).await;
    let delivery = next(&mut assignment).await;
    assert!(!assignment.settle.is_gone());
    broker.disconnect(QUEUE);
    assert!(assignment.settle.is_gone());
    assert!(!other.settle.is_gone());
    let error = assignment.deliveries.next().await.unwrap_err().to_string();
    assert!(error.contains("`orders`"), "{error}");
    assert!(matches!(
        settle(&assignment, delivery.token, Verdict::Ack).await,
        Err(SettleError::Gone)
    ));
    assert_eq!(id(&next(&mut other).await), "z");
    broker.crash();
    assert!(other.deliveries.next().await.is_err());

    broker.fail_open(QUEUE, 2);
    let source = broker.source(QUEUE);
    for _ in 0..2 {
        assert!(source.open(NonZeroUsize::MIN).await.is_err());
    }
    assert!(next(&mut open(&source, 1).await).await.redelivered);
    assert!(
        next(&mut open(&broker.source("other"), 1).await)
            .await
            .redelivered
    );
}

#[tokio::test(start_paused = true)]
async fn a_stopped_assignment_still_settles_what_it_took() {
    let broker = broker_with(&["a", "b"]);
    let mut assignment = open(&broker.source(QUEUE), 2).await;
    let delivery = next(&mut assignment).await;
    assignment.deliveries.stop().await;
    assert!(assignment.deliveries.next().await.unwrap().is_none());
    settle(&assignment, delivery.token, Verdict::Ack)
        .await
        .unwrap();
    assert_eq!(broker.queue_state(QUEUE).ready, 1);
    assert_eq!(broker.settled()[0].effect, Effect::Done);
}

#[tokio::test(start_paused = true)]
async fn settling_a_delivery_twice_is_seen() {
    let broker = broker_with(&["a", "b"]);
    let mut assignment = open(&broker.source(QUEUE), 1).await;
    let delivery = next(&mut assignment).await;
    let forged = SettleToken::new(delivery.token.number());
    settle(&assignment, delivery.token, Verdict::Ack)
        .await
        .unwrap();
    assert!(matches!(
        settle(&assignment, forged, Verdict::Ack).await,
        Err(SettleError::Failed(_))
    ));
    assert_eq!(broker.settled()[1].effect, Effect::Twice);
    assert_eq!(broker.queue_state(QUEUE).ready, 1);
}

#[tokio::test(start_paused = true)]
async fn a_limit_drops_what_comes_back_too_often() {
    let broker = broker_with(&["a"]);
    broker.limit_deliveries(QUEUE, 2);
    let mut assignment = open(&broker.source(QUEUE), 1).await;
    for _ in 0..3 {
        let delivery = next(&mut assignment).await;
        settle(&assignment, delivery.token, HAND_BACK)
            .await
            .unwrap();
    }
    broker.until_idle().await;
    assert_eq!(broker.dropped(QUEUE), [message("a")]);
    assert_eq!(broker.settled()[2].effect, Effect::Dropped);
}

#[tokio::test(start_paused = true)]
async fn no_delivery_is_lost_with_a_dropped_future() {
    let broker = MemoryBroker::new();
    let mut assignment = open(&broker.source(QUEUE), 100).await;
    let publisher = broker.clone();
    let publishing = tokio::spawn(async move {
        for n in 0..50 {
            publisher.publish(QUEUE, message(&format!("{n}")));
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    });
    let mut ids = Vec::new();
    while ids.len() < 50 {
        if let Ok(delivery) = timeout(Duration::from_millis(2), assignment.deliveries.next()).await
        {
            ids.push(id(&delivery.unwrap().unwrap()).to_owned());
        }
    }
    publishing.await.unwrap();
    assert_eq!(ids, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn wrong_settings_are_named() {
    let broker = MemoryBroker::new();
    assert!(broker.source(QUEUE).problems().is_empty());
    assert!(broker.source("").problems()[0].contains("MemoryBroker::source"));
}
