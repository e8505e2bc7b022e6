//! Publishes messages, many of them more than once.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use inbox_runtime::Publisher as _;
use inbox_runtime::brokers::{RabbitMq, RabbitMqPublisher};
use tokio::time::Instant;

use crate::counts::Counts;
use crate::message::Message;

/// How long the broker may take to confirm a message before its producer sends it again.
const CONFIRM_LIMIT: Duration = Duration::from_secs(5);

/// After this time without a confirm the broker does not come back.
const PATIENCE: Duration = Duration::from_secs(120);

/// The most new messages that are published at once.
const BURST: usize = 40;

pub(crate) struct Producer {
    publisher: RabbitMqPublisher,
    /// Those of [`PLACES`](crate::message::PLACES), in their order.
    queues: Vec<String>,
    counts: Arc<Counts>,
}

impl Producer {
    pub(crate) fn new(amqp: &str, queues: Vec<String>, counts: Arc<Counts>) -> Self {
        Self {
            publisher: RabbitMq::new(amqp).publisher().confirm_limit(CONFIRM_LIMIT),
            queues,
            counts,
        }
    }

    /// Publishes until `end`, so many new messages per second in bursts of any size.
    pub(crate) async fn produce(
        &self,
        mut rng: Rng,
        rate: u32,
        killers: bool,
        end: Instant,
    ) -> Vec<Message> {
        let begin = Instant::now();
        let mut messages: Vec<Message> = Vec::new();
        // Copies of messages, by their numbers, that come long after the first.
        let mut later: Vec<(Instant, usize)> = Vec::new();
        loop {
            let burst = rng.usize(1..=BURST);
            let after = f64::from(u32::try_from(messages.len() + burst).unwrap_or(u32::MAX));
            let due = begin + Duration::from_secs_f64(after / f64::from(rate));
            if due > end {
                break;
            }
            tokio::time::sleep_until(due).await;
            let mut at_once = Vec::new();
            for _ in 0..burst {
                let number = messages.len();
                messages.push(Message::random(&mut rng, number, killers));
                let copies = match rng.u32(..100) {
                    0..70 => 1,
                    70..85 => 2,
                    85..90 => rng.usize(3..=5),
                    _ => {
                        later.push((due + Duration::from_millis(rng.u64(200..8_000)), number));
                        1
                    }
                };
                at_once.extend(std::iter::repeat_n(number, copies));
            }
            let now = Instant::now();
            at_once.extend(
                later
                    .extract_if(.., |(due, _)| *due <= now)
                    .map(|(_, number)| number),
            );
            self.counts.now().produced = messages.len();
            self.publish(at_once.into_iter().map(|number| &messages[number]))
                .await;
        }
        tokio::time::sleep_until(end).await;
        self.publish(later.into_iter().map(|(_, number)| &messages[number]))
            .await;
        messages
    }

    /// Publishes messages side by side, each until the broker confirms it.
    pub(crate) async fn publish(&self, messages: impl Iterator<Item = &Message>) {
        join_all(messages.map(|message| self.publish_one(message))).await;
    }

    async fn publish_one(&self, message: &Message) {
        let queue = &self.queues[message.place];
        let envelope = message.envelope();
        let begin = Instant::now();
        // One that was not confirmed may have arrived: so come copies that nobody meant.
        while let Err(error) = self.publisher.publish(queue, &envelope).await {
            assert!(
                begin.elapsed() < PATIENCE,
                "not published within {PATIENCE:?}: {error:?}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.counts.now().published += 1;
    }
}
