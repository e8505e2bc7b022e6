//! What one assignment has taken and asked for, so that it never has more than its prefetch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::Subject;

/// The deliveries of one assignment, and the room that is left.
#[derive(Debug)]
pub(super) struct Leases {
    prefetch: usize,
    /// Deliveries that nobody settles yet, by the numbers of their tokens.
    unsettled: BTreeMap<u64, Lease>,
    /// Deliveries whose settle is on its way.
    settling: usize,
    /// Messages that were asked for and have not come.
    requested: usize,
}

#[derive(Debug)]
struct Lease {
    /// Where its ack goes.
    reply: Subject,
    /// When the server last began to wait for it.
    renewed: Instant,
}

impl Leases {
    pub(super) const fn new(prefetch: usize) -> Self {
        Self {
            prefetch,
            unsettled: BTreeMap::new(),
            settling: 0,
            requested: 0,
        }
    }

    /// How many messages to ask for now. One by one they would cost a request each, so while some are still to come, it is
    /// nothing or at least half of what may be taken.
    pub(super) fn wanted(&self) -> Option<usize> {
        let taken = self.unsettled.len() + self.settling + self.requested;
        let room = self.prefetch.saturating_sub(taken);
        let is_enough = self.requested == 0 || room >= self.prefetch.div_ceil(2);
        (room > 0 && is_enough).then_some(room)
    }

    pub(super) const fn note_requested(&mut self, messages: usize) {
        self.requested += messages;
    }

    /// So many of the messages asked for will not come.
    pub(super) const fn note_expired(&mut self, messages: usize) {
        self.requested = self.requested.saturating_sub(messages);
    }

    /// Whether an answer of the server is due.
    pub(super) const fn is_waiting(&self) -> bool {
        self.requested > 0
    }

    pub(super) fn take(&mut self, number: u64, reply: Subject, now: Instant) {
        self.requested = self.requested.saturating_sub(1);
        let renewed = now;
        self.unsettled.insert(number, Lease { reply, renewed });
    }

    /// Gives the delivery to whoever settles it; `None`: it is of another assignment, or was settled before.
    pub(super) fn settle(&mut self, number: u64) -> Option<Subject> {
        let lease = self.unsettled.remove(&number)?;
        self.settling += 1;
        Some(lease.reply)
    }

    /// The settle of a delivery has come to its end.
    pub(super) const fn note_settled(&mut self) {
        self.settling = self.settling.saturating_sub(1);
    }

    /// Calls `renew` for the deliveries that were not renewed for `age`; it answers whether it did.
    pub(super) fn renew(
        &mut self,
        age: Duration,
        now: Instant,
        mut renew: impl FnMut(&Subject) -> bool,
    ) {
        for lease in self.unsettled.values_mut() {
            if now.saturating_duration_since(lease.renewed) >= age && renew(&lease.reply) {
                lease.renewed = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(number: u64) -> Subject {
        format!("$JS.ACK.{number}").into()
    }

    fn take(leases: &mut Leases, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            leases.take(number, subject(number), Instant::now());
        }
    }

    #[test]
    fn no_more_is_asked_for_than_there_is_room() {
        let mut leases = Leases::new(4);
        assert_eq!(leases.wanted(), Some(4));
        leases.note_requested(4);
        assert_eq!(leases.wanted(), None);
        take(&mut leases, 1..=4);
        assert_eq!(leases.wanted(), None, "all are in work");
        assert_eq!(leases.settle(2), Some(subject(2)));
        assert_eq!(leases.wanted(), None, "the server does not know it yet");
        leases.note_settled();
        assert_eq!(leases.wanted(), Some(1));
        leases.note_requested(1);
        leases.settle(1);
        leases.note_settled();
        assert_eq!(leases.wanted(), None, "a request of one would be wasteful");
        leases.settle(3);
        leases.note_settled();
        assert_eq!(leases.wanted(), Some(2));
    }

    #[test]
    fn what_did_not_come_is_asked_for_again() {
        let mut leases = Leases::new(4);
        leases.note_requested(4);
        take(&mut leases, [1]);
        leases.note_expired(3);
        assert!(!leases.is_waiting());
        assert_eq!(leases.wanted(), Some(3));
    }

    #[test]
    fn a_delivery_is_settled_once() {
        let mut leases = Leases::new(2);
        leases.note_requested(2);
        take(&mut leases, [7]);
        assert_eq!(leases.settle(7), Some(subject(7)));
        assert_eq!(leases.settle(7), None);
        assert_eq!(leases.settle(8), None);
    }

    #[test]
    fn a_prefetch_of_one_works() {
        let mut leases = Leases::new(1);
        assert_eq!(leases.wanted(), Some(1));
        leases.note_requested(1);
        take(&mut leases, [1]);
        assert_eq!(leases.wanted(), None);
        leases.settle(1);
        leases.note_settled();
        assert_eq!(leases.wanted(), Some(1));
    }

    #[test]
    fn only_what_is_unsettled_and_old_is_renewed() {
        let age = Duration::from_secs(1);
        let now = Instant::now();
        let mut leases = Leases::new(4);
        leases.note_requested(3);
        for number in 1..=2 {
            leases.take(number, subject(number), now);
        }
        leases.take(3, subject(3), now + age);
        leases.settle(1);
        let mut renewed = Vec::new();
        let mut renew = |leases: &mut Leases, at, works| {
            renewed.clear();
            leases.renew(age, at, |reply| {
                renewed.push(reply.clone());
                works
            });
            renewed.clone()
        };
        assert_eq!(renew(&mut leases, now, true), []);
        assert_eq!(renew(&mut leases, now + age, false), [subject(2)]);
        assert_eq!(
            renew(&mut leases, now + age, true),
            [subject(2)],
            "it did not work before"
        );
        assert_eq!(renew(&mut leases, now + age, true), []);
        assert_eq!(
            renew(&mut leases, now + age * 2, true),
            [subject(2), subject(3)]
        );
    }
}
