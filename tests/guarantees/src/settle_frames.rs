//! The AMQP frames by which a client settles deliveries, as they pass a [`Tap`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::tap::{From, Listener, Tap};

/// One of these frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleFrame {
    /// One delivery is done.
    Ack(u64),
    /// Everything unsettled up to this tag is done.
    AckUpTo(u64),
    /// One delivery goes back to the queue.
    HandBack(u64),
    /// Anything else that settles, which no adapter of ours may send.
    Other(u16),
}

/// The frames of all connections, in order.
#[derive(Debug, Clone, Default)]
pub struct SettleFrames(Arc<Mutex<Vec<SettleFrame>>>);

impl SettleFrames {
    /// A proxy to the broker at `target` that notes these frames.
    pub async fn tap(&self, target: SocketAddr) -> Tap {
        let frames = self.clone();
        Tap::to(target, move || Frames {
            frames: frames.clone(),
            bytes: Vec::new(),
            greeted: false,
        })
        .await
    }

    /// What passed until now.
    #[must_use]
    pub fn seen(&self) -> Vec<SettleFrame> {
        self.lock().clone()
    }

    /// What passed since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<SettleFrame> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SettleFrame>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client's side of one connection.
struct Frames {
    frames: SettleFrames,
    bytes: Vec<u8>,
    greeted: bool,
}

/// "AMQP" and the version, before the first frame.
const GREETING: usize = 8;
/// Kind, channel, length.
const HEAD: usize = 7;
const METHOD: u8 = 1;
const BASIC: u16 = 60;

impl Listener for Frames {
    fn hear(&mut self, from: From, bytes: &[u8]) {
        if from == From::Server {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        if !self.greeted && self.bytes.len() >= GREETING {
            self.bytes.drain(..GREETING);
            self.greeted = true;
        }
        while self.greeted && self.bytes.len() >= HEAD {
            let length = u32::from_be_bytes(self.bytes[3..HEAD].try_into().unwrap()) as usize;
            if self.bytes.len() <= HEAD + length {
                return;
            }
            let frame: Vec<u8> = self.bytes.drain(..=HEAD + length).collect();
            if frame[0] == METHOD {
                self.frames.lock().extend(settles(&frame[HEAD..]));
            }
        }
    }
}

fn settles(method: &[u8]) -> Option<SettleFrame> {
    let number = |at: usize| u16::from_be_bytes([method[at], method[at + 1]]);
    if number(0) != BASIC {
        return None;
    }
    let tag = || u64::from_be_bytes(method[4..12].try_into().unwrap());
    match number(2) {
        80 if method[12] & 1 == 0 => Some(SettleFrame::Ack(tag())),
        80 => Some(SettleFrame::AckUpTo(tag())),
        // multiple off, requeue on
        120 if method[12] == 2 => Some(SettleFrame::HandBack(tag())),
        // nack in another form, reject, recover
        other @ (120 | 90 | 100 | 110) => Some(SettleFrame::Other(other)),
        _ => None,
    }
}
