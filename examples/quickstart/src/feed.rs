//! Sends the lines of the input, and makes the broker do with them what brokers do at bad moments.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use inbox_runtime::brokers::{Effect, LostAck, MemoryBroker};
use inbox_runtime::{Envelope, Verdict};

use crate::QUEUE;
use crate::orders::{Ledger, Orders};
use crate::screen::Screen;

/// How many messages may wait in the queue: few at first, so that what is shown comes in a readable order.
const fn most_waiting(number: u64) -> usize {
    if number < 50 { 3 } else { 200 }
}

/// After how many lines the broker's log is counted and emptied.
const LOG_EVERY: u64 = 10_000;

/// How often the connection breaks in one run; each time costs the consumers some moments.
const MOST_CUTS: u64 = 10;

/// What goes wrong, and when.
pub(crate) struct Troubles {
    broker: MemoryBroker,
    screen: &'static Screen,
    crash_after: Option<NonZeroU64>,
    booked: AtomicU64,
    /// Ids for which the connection breaks between COMMIT and ack.
    cuts: Mutex<HashSet<String>>,
    cuts_planned: AtomicU64,
    delivered: AtomicU64,
}

impl Troubles {
    pub(crate) fn new(
        broker: MemoryBroker,
        crash_after: Option<NonZeroU64>,
        screen: &'static Screen,
    ) -> Self {
        Self {
            broker,
            screen,
            crash_after,
            booked: AtomicU64::new(0),
            cuts: Mutex::default(),
            cuts_planned: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
        }
    }

    /// Sends the `number`th message, with the trouble that is its turn.
    fn send(&self, number: u64, envelope: Envelope, before_last: Option<&Envelope>) {
        let name = envelope.id.clone();
        let name = name.as_deref();
        match (number % 5, name) {
            (1, _) => {
                self.screen.sent(name, "sent in three copies at once");
                self.broker.publish_copies(QUEUE, envelope, 3);
            }
            (2, Some(id)) => {
                self.screen
                    .sent(name, "sent, and the ack of its first delivery gets lost");
                self.broker.lose_ack(QUEUE, id, 1, LostAck::Gone);
                self.broker.publish(QUEUE, envelope);
            }
            (3, Some(id)) if self.cuts_planned.fetch_add(1, Ordering::Relaxed) < MOST_CUTS => {
                self.screen.sent(
                    name,
                    "sent, and the connection will break between its COMMIT and its ack",
                );
                self.lock_cuts().insert(id.to_owned());
                self.broker.publish(QUEUE, envelope);
            }
            (4, _) => {
                self.screen.sent(name, "sent");
                self.broker.publish(QUEUE, envelope);
                if let Some(again) = before_last {
                    self.screen
                        .sent(again.id.as_deref(), "sent again by its producer");
                    self.broker.publish(QUEUE, again.clone());
                }
            }
            _ => {
                self.screen.sent(name, "sent");
                self.broker.publish(QUEUE, envelope);
            }
        }
    }

    /// Called by the runtime when an order is booked and its delivery is not acked yet.
    pub(crate) fn between_commit_and_ack(&self, id: &str) {
        let booked = self.booked.fetch_add(1, Ordering::Relaxed) + 1;
        if self.crash_after.is_some_and(|after| after.get() == booked) {
            self.screen.happened(
                id,
                "committed, and the process dies before the ack: start again without --crash-after",
            );
            std::process::abort();
        }
        if self.lock_cuts().remove(id) {
            self.screen
                .happened(id, "committed, and the connection breaks before the ack");
            self.broker.disconnect(QUEUE);
        }
    }

    /// How often the broker handed a message out.
    pub(crate) fn delivered(&self) -> u64 {
        self.count_log();
        self.delivered.load(Ordering::Relaxed)
    }

    /// Adds up and empties the broker's log; only while the broker is idle.
    fn count_log(&self) {
        let deliveries = self
            .broker
            .settled()
            .iter()
            .filter(|settled| settled.verdict == Verdict::Ack && settled.effect == Effect::Done)
            // The last delivery of a copy, the one that is acked for good, carries their number.
            .map(|settled| u64::from(settled.delivery))
            .sum();
        self.delivered.fetch_add(deliveries, Ordering::Relaxed);
        self.broker.clear_log();
    }

    fn lock_cuts(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends everything, no faster than it is processed.
pub(crate) async fn feed(
    orders: &mut Orders,
    before: &Ledger,
    broker: &MemoryBroker,
    troubles: &Troubles,
    screen: &'static Screen,
) -> Result<(), String> {
    let mut number = 0;
    let mut last_two: [Option<Envelope>; 2] = [None, None];
    while let Some(line) = orders.next(before)? {
        if let Some(conflict) = &line.conflict {
            // Whoever claims an id first decides what is booked under it, so the first line is let through first.
            broker.until_idle().await;
            screen.noted(conflict);
        }
        let mut envelope = Envelope::new(line.payload)
            .message_type("OrderPlaced")
            .header("line", orders.lines().to_string());
        if let Some(id) = line.id {
            envelope = envelope.id(id);
        }
        let [before_last, last] = last_two;
        troubles.send(number, envelope.clone(), before_last.as_ref());
        last_two = [last, Some(envelope)];
        number += 1;
        if number % LOG_EVERY == 0 {
            broker.until_idle().await;
            troubles.count_log();
        }
        while broker.queue_state(QUEUE).ready > most_waiting(number) {
            screen.progress(orders.lines());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(())
}
