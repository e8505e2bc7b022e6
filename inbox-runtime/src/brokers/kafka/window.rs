//! Which records of a partition are done, and up to where they may be committed.

use std::collections::VecDeque;
use std::sync::Arc;

use inbox_core::Verdict;

/// One partition for the time of one assignment. The next assignment of it is another window, so that nothing of an
/// earlier one can be committed there.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
    /// What was delivered, from the first record that is not done on, in the order of offsets.
    run: VecDeque<(i64, Place)>,
    /// The offset of the first record of this assignment.
    first: Option<i64>,
    /// The offset behind the last one delivered.
    next: Option<i64>,
    /// Everything below this offset is done.
    done: Option<i64>,
    committed: Option<i64>,
    in_work: usize,
    is_handed_back: bool,
    /// It is being revoked: nothing of it is delivered any more.
    pub(super) is_leaving: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    InWork,
    HandedBack,
    Done,
}

/// What a record is that came from the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// To be delivered; `in_doubt`: it may have been in work when an earlier assignment ended.
    New { in_doubt: bool },
    /// To be delivered once more, because it was handed back.
    Again,
    /// In work or done.
    Known,
}

impl Window {
    pub(super) const fn new(topic: Arc<str>, partition: i32) -> Self {
        Self {
            topic,
            partition,
            run: VecDeque::new(),
            first: None,
            next: None,
            done: None,
            committed: None,
            in_work: 0,
            is_handed_back: false,
            is_leaving: false,
        }
    }

    /// A record has come. Whoever read the partition before may have had `doubtful` of its records in work.
    pub(super) fn take(&mut self, offset: i64, doubtful: usize) -> Taken {
        if self.next.is_none_or(|next| offset >= next) {
            let first = *self.first.get_or_insert(offset);
            self.next = Some(offset + 1);
            self.run.push_back((offset, Place::InWork));
            self.in_work += 1;
            let in_doubt = usize::try_from(offset - first).is_ok_and(|nth| nth < doubtful);
            return Taken::New { in_doubt };
        }
        match self.place(offset) {
            Some(place @ Place::HandedBack) => {
                *place = Place::InWork;
                self.in_work += 1;
                Taken::Again
            }
            _ => Taken::Known,
        }
    }

    /// A record that was taken is settled.
    pub(super) fn settle(&mut self, offset: i64, verdict: Verdict) {
        let Some(place @ Place::InWork) = self.place(offset) else {
            return;
        };
        match verdict {
            Verdict::Ack => *place = Place::Done,
            _ => {
                *place = Place::HandedBack;
                self.is_handed_back = true;
            }
        }
        self.in_work -= 1;
        while let Some((offset, Place::Done)) = self.run.front() {
            self.done = Some(offset + 1);
            self.run.pop_front();
        }
    }

    fn place(&mut self, offset: i64) -> Option<&mut Place> {
        let index = self
            .run
            .binary_search_by_key(&offset, |(offset, _)| *offset);
        Some(&mut self.run[index.ok()?].1)
    }

    /// Whether a record that was taken is not settled.
    pub(super) const fn is_in_work(&self) -> bool {
        self.in_work > 0
    }

    /// The offset to commit, if more is done than is committed.
    pub(super) fn to_commit(&self) -> Option<i64> {
        self.done.filter(|done| Some(*done) > self.committed)
    }

    /// The group has this offset.
    pub(super) fn note_committed(&mut self, offset: i64) {
        self.committed = self.committed.max(Some(offset));
    }

    /// Whether everything up to this record is committed, or cannot be because something before is not done.
    pub(super) fn is_settled(&self, offset: i64) -> bool {
        self.committed > Some(offset) || self.done <= Some(offset)
    }

    /// From where on the broker has to send once more, if something was handed back since this was asked.
    pub(super) fn take_handed_back(&mut self) -> Option<i64> {
        if !std::mem::take(&mut self.is_handed_back) {
            return None;
        }
        self.run
            .iter()
            .find(|(_, place)| *place == Place::HandedBack)
            .map(|(offset, _)| *offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAND_BACK: Verdict = Verdict::HandBack { delay: None };

    fn window(offsets: impl IntoIterator<Item = i64>) -> Window {
        let mut window = Window::new("orders".into(), 0);
        for offset in offsets {
            assert!(matches!(window.take(offset, 0), Taken::New { .. }));
        }
        window
    }

    #[test]
    fn what_is_done_goes_out_when_everything_before_is_done() {
        let mut window = window(40..44);
        for (offset, to_commit) in [(42, None), (41, None), (40, Some(43)), (43, Some(44))] {
            window.settle(offset, Verdict::Ack);
            assert_eq!(window.to_commit(), to_commit, "after {offset}");
        }
        window.note_committed(44);
        assert_eq!(window.to_commit(), None);
        assert!(!window.is_in_work());
    }

    #[test]
    fn offsets_that_the_broker_leaves_out_are_no_gap() {
        let mut window = window([3, 7, 20]);
        window.settle(7, Verdict::Ack);
        window.settle(3, Verdict::Ack);
        assert_eq!(window.to_commit(), Some(8));
        window.settle(20, Verdict::Ack);
        assert_eq!(window.to_commit(), Some(21));
    }

    #[test]
    fn a_record_handed_back_ends_the_run_until_it_came_again_and_is_done() {
        let mut window = window(0..4);
        window.settle(0, Verdict::Ack);
        window.settle(1, HAND_BACK);
        window.settle(2, Verdict::Ack);
        assert_eq!(window.to_commit(), Some(1));
        assert_eq!(window.take_handed_back(), Some(1));
        assert_eq!(window.take_handed_back(), None);
        assert_eq!(window.take(1, 0), Taken::Again);
        for known in [1, 2, 3] {
            assert_eq!(window.take(known, 0), Taken::Known, "{known}");
        }
        assert_eq!(window.take(4, 0), Taken::New { in_doubt: false });
        window.settle(1, Verdict::Ack);
        assert_eq!(window.to_commit(), Some(3));
    }

    #[test]
    fn a_record_is_settled_once() {
        let mut window = window(0..2);
        window.settle(0, HAND_BACK);
        window.settle(0, Verdict::Ack);
        assert_eq!(window.to_commit(), None);
        window.settle(7, Verdict::Ack);
        assert!(window.is_in_work());
    }

    #[test]
    fn the_first_records_of_an_assignment_are_in_doubt() {
        let mut window = Window::new("orders".into(), 0);
        let doubts: Vec<_> = (10..14).map(|offset| window.take(offset, 2)).collect();
        let expected = [true, true, false, false].map(|in_doubt| Taken::New { in_doubt });
        assert_eq!(doubts, expected);
    }

    #[test]
    fn a_settle_has_nothing_to_wait_for_where_the_run_ends_before_it() {
        let mut window = window(0..3);
        window.settle(0, Verdict::Ack);
        window.settle(2, Verdict::Ack);
        assert!(!window.is_settled(0), "not committed yet");
        assert!(window.is_settled(2), "1 is in work");
        window.note_committed(1);
        assert!(window.is_settled(0));
    }

    #[test]
    fn in_whatever_order_work_ends_never_more_is_committed_than_is_done() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut offsets: Vec<i64> = Vec::new();
            let mut offset = random.i64(0..100);
            for _ in 0..60 {
                offset += random.i64(1..3);
                offsets.push(offset);
            }
            let mut window = window(offsets.iter().copied());
            let mut in_work = offsets.clone();
            random.shuffle(&mut in_work);
            while let Some(ended) = in_work.pop() {
                window.settle(ended, Verdict::Ack);
                let lowest = in_work.iter().min().copied();
                if let Some(commit) = window.to_commit() {
                    assert!(lowest.is_none_or(|lowest| commit <= lowest), "seed {seed}");
                    if random.bool() {
                        window.note_committed(commit);
                    }
                }
                let done = offsets.iter().filter(|offset| Some(**offset) < lowest);
                if let Some(last) = done.max() {
                    assert_eq!(window.done, Some(last + 1), "seed {seed}");
                }
            }
            assert_eq!(window.done, Some(offset + 1), "seed {seed}");
            assert!(!window.is_in_work() && window.run.is_empty());
        }
    }
}
