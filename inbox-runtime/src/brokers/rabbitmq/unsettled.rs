//! What was delivered on a channel and not settled yet, and the frames that settle it.

use std::collections::BTreeMap;

use inbox_core::{SettleToken, Verdict};

/// The unsettled deliveries of one channel.
///
/// Both numbers grow with each delivery, so the order of the tokens is that of the delivery tags.
#[derive(Default)]
pub(super) struct Unsettled {
    /// Delivery tags by the numbers of their tokens.
    tags: BTreeMap<u64, u64>,
}

/// What is sent to the server, and which verdicts of the call it carries out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) frame: Frame,
    /// Their places in the call.
    pub(super) verdicts: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    Ack {
        tag: u64,
        /// And everything unsettled before it.
        multiple: bool,
    },
    HandBack {
        tag: u64,
    },
}

impl Unsettled {
    pub(super) fn insert(&mut self, number: u64, tag: u64) {
        self.tags.insert(number, tag);
    }

    /// Takes out what the call settles, and answers with the frames that do it, to be sent in this order and before
    /// those of any later call. A verdict in none of them is void: its delivery is of another channel, or was
    /// settled before.
    ///
    /// An ack of many settles everything before it, and closes the channel when its own tag is settled already. So it
    /// ends at a tag of this call, and what lies before that tag is all acked by this call or settled by an earlier
    /// frame.
    pub(super) fn settle(&mut self, verdicts: &[(SettleToken, Verdict)]) -> Vec<Planned> {
        let mut planned = Vec::new();
        let mut acked = BTreeMap::new();
        for (place, (token, verdict)) in verdicts.iter().enumerate() {
            let number = token.number();
            if *verdict == Verdict::Ack {
                acked.entry(number).or_insert(place);
            } else if let Some(tag) = self.tags.remove(&number) {
                planned.push(Planned {
                    frame: Frame::HandBack { tag },
                    verdicts: vec![place],
                });
            }
        }
        acked.retain(|number, _| self.tags.contains_key(number));

        let both = self.tags.keys().zip(acked.keys());
        let from_the_first = both.take_while(|(first, acked)| first == acked).count();
        let mut together = Vec::with_capacity(from_the_first);
        for (nth, (number, place)) in acked.into_iter().enumerate() {
            let Some(tag) = self.tags.remove(&number) else {
                continue;
            };
            together.push(place);
            if nth + 1 >= from_the_first {
                let multiple = together.len() > 1;
                planned.push(Planned {
                    frame: Frame::Ack { tag, multiple },
                    verdicts: std::mem::take(&mut together),
                });
            }
        }
        planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAND_BACK: Verdict = Verdict::HandBack { delay: None };

    fn call(verdicts: &[(u64, Verdict)]) -> Vec<(SettleToken, Verdict)> {
        let verdicts = verdicts.iter();
        verdicts
            .map(|(number, verdict)| (SettleToken::new(*number), *verdict))
            .collect()
    }

    fn acks(numbers: impl IntoIterator<Item = u64>) -> Vec<(SettleToken, Verdict)> {
        let numbers = numbers.into_iter();
        numbers
            .map(|number| (SettleToken::new(number), Verdict::Ack))
            .collect()
    }

    /// Tags from 1, their tokens from 101.
    fn delivered(count: u64) -> Unsettled {
        let mut unsettled = Unsettled::default();
        for tag in 1..=count {
            unsettled.insert(100 + tag, tag);
        }
        unsettled
    }

    fn frames(planned: &[Planned]) -> Vec<Frame> {
        planned.iter().map(|planned| planned.frame).collect()
    }

    const fn ack(tag: u64) -> Frame {
        Frame::Ack {
            tag,
            multiple: false,
        }
    }

    const fn ack_up_to(tag: u64) -> Frame {
        Frame::Ack {
            tag,
            multiple: true,
        }
    }

    #[test]
    fn all_that_was_delivered_is_acked_in_one_frame() {
        let mut unsettled = delivered(100);
        let planned = unsettled.settle(&acks((101..=200).rev()));
        assert_eq!(frames(&planned), [ack_up_to(100)]);
        assert_eq!(planned[0].verdicts, (0..100).rev().collect::<Vec<_>>());
    }

    #[test]
    fn what_is_in_work_ends_the_frame_of_many() {
        let mut unsettled = delivered(6);
        let planned = unsettled.settle(&acks([101, 102, 104, 105]));
        assert_eq!(frames(&planned), [ack_up_to(2), ack(4), ack(5)]);
        assert_eq!(frames(&unsettled.settle(&acks([106]))), [ack(6)]);
        assert_eq!(frames(&unsettled.settle(&acks([103]))), [ack(3)]);
    }

    #[test]
    fn a_frame_of_many_goes_over_what_was_settled_before_and_never_ends_there() {
        let mut unsettled = delivered(6);
        assert_eq!(
            frames(&unsettled.settle(&acks([102, 104]))),
            [ack(2), ack(4)]
        );
        assert_eq!(frames(&unsettled.settle(&acks([101, 103]))), [ack_up_to(3)]);
        assert_eq!(frames(&unsettled.settle(&acks([105, 106]))), [ack_up_to(6)]);
    }

    #[test]
    fn what_goes_back_goes_first() {
        let mut unsettled = delivered(3);
        let planned = unsettled.settle(&call(&[
            (101, Verdict::Ack),
            (102, HAND_BACK),
            (103, Verdict::Ack),
        ]));
        assert_eq!(frames(&planned), [Frame::HandBack { tag: 2 }, ack_up_to(3)]);
        assert_eq!(planned[1].verdicts, [0, 2]);
    }

    #[test]
    fn a_void_token_sends_nothing() {
        let mut unsettled = delivered(2);
        assert_eq!(unsettled.settle(&acks([7, 103])), []);
        let planned = unsettled.settle(&call(&[
            (101, Verdict::Ack),
            (101, Verdict::Ack),
            (7, HAND_BACK),
            (101, HAND_BACK),
        ]));
        assert_eq!(frames(&planned), [Frame::HandBack { tag: 1 }]);
        assert_eq!(planned[0].verdicts, [3], "only one of them is carried out");
        assert_eq!(unsettled.settle(&acks([101])), []);
    }

    /// The server's side, by its own rules: an unknown tag closes the channel.
    #[derive(Default)]
    struct Server {
        unacked: Vec<u64>,
    }

    impl Server {
        /// Which deliveries a frame settled.
        fn take(&mut self, frame: Frame) -> Vec<u64> {
            let (tag, multiple) = match frame {
                Frame::Ack { tag, multiple } => (tag, multiple),
                Frame::HandBack { tag } => (tag, false),
            };
            let place = self.unacked.iter().position(|unacked| *unacked == tag);
            let place = place.unwrap_or_else(|| panic!("406: unknown delivery tag {tag}"));
            let first = if multiple { 0 } else { place };
            self.unacked.drain(first..=place).collect()
        }
    }

    #[test]
    fn in_whatever_order_work_ends_only_that_is_settled_and_in_the_end_all_of_it() {
        for seed in 0..2_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut unsettled = Unsettled::default();
            let mut server = Server::default();
            let (mut tag, mut number) = (0, random.u64(..1_000));
            let mut in_work: Vec<(u64, u64)> = Vec::new();
            for step in 0.. {
                let delivering = step < 60;
                if !delivering && in_work.is_empty() {
                    break;
                }
                for _ in 0..random.usize(0..12) {
                    if delivering {
                        tag += 1;
                        // Other channels take numbers too.
                        number += random.u64(1..4);
                        unsettled.insert(number, tag);
                        server.unacked.push(tag);
                        in_work.push((number, tag));
                    }
                }
                // The oldest in most cases, as it is in life, and anything else.
                if random.bool() {
                    random.shuffle(&mut in_work);
                } else {
                    in_work.sort_unstable();
                }
                let ended = random.usize(0..=in_work.len().min(20));
                let ended: Vec<(u64, u64)> = in_work.drain(..ended).collect();
                let verdicts: Vec<(u64, Verdict)> = ended
                    .iter()
                    .map(|(number, _)| {
                        let hand_back = random.u8(..8) == 0;
                        (*number, if hand_back { HAND_BACK } else { Verdict::Ack })
                    })
                    .collect();

                let first = server.unacked.first().copied();
                let planned = unsettled.settle(&call(&verdicts));
                let mut carried_out = Vec::new();
                for Planned {
                    frame,
                    verdicts: places,
                } in &planned
                {
                    let mut settled = server.take(*frame);
                    let mut asked: Vec<u64> = places.iter().map(|place| ended[*place].1).collect();
                    settled.sort_unstable();
                    asked.sort_unstable();
                    assert_eq!(settled, asked, "seed {seed}: {frame:?} of {verdicts:?}");
                    let acked = matches!(frame, Frame::Ack { .. });
                    for place in places {
                        assert_eq!(verdicts[*place].1 == Verdict::Ack, acked, "seed {seed}");
                    }
                    carried_out.extend(places.iter().copied());
                }
                carried_out.sort_unstable();
                assert!(
                    carried_out.into_iter().eq(0..ended.len()),
                    "seed {seed}: each verdict is carried out once"
                );
                let many = planned.iter().filter(|planned| planned.verdicts.len() > 1);
                assert!(many.count() <= 1, "seed {seed}");
                let acks = verdicts
                    .iter()
                    .filter(|(_, verdict)| *verdict == Verdict::Ack);
                let from_the_first = ended.iter().any(|(_, tag)| Some(*tag) == first);
                if from_the_first && acks.count() == ended.len() && is_run(&ended, &server) {
                    assert_eq!(planned.len(), 1, "seed {seed}: {verdicts:?}");
                }
            }
            assert!(
                unsettled.tags.is_empty() && server.unacked.is_empty(),
                "seed {seed}"
            );
        }
    }

    /// Whether nothing unacked lies between these.
    fn is_run(ended: &[(u64, u64)], server: &Server) -> bool {
        let last = ended.iter().map(|(_, tag)| *tag).max();
        server.unacked.first().copied() > last || server.unacked.is_empty()
    }
}
