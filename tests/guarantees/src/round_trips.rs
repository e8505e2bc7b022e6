//! What a client asks a PostgreSQL server, round trip by round trip, as it passes a [`Tap`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::tap::{From, Listener, Tap};

/// What a client sent before it waited: until the server says that it is ready again, nothing more goes out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundTrip {
    /// The texts of queries, of statements that were run, and of those that were only prepared.
    pub asked: Vec<String>,
    /// How many statements the server completed.
    pub statements: usize,
}

impl RoundTrip {
    /// Whether any text contains this.
    #[must_use]
    pub fn says(&self, part: &str) -> bool {
        self.asked.iter().any(|text| text.contains(part))
    }
}

/// The round trips of all connections, in order. The one that opens a connection is not among them.
#[derive(Debug, Clone, Default)]
pub struct RoundTrips(Arc<Mutex<Vec<RoundTrip>>>);

impl RoundTrips {
    /// A proxy to the server at `target` that notes them.
    pub async fn tap(&self, target: SocketAddr) -> Tap {
        let trips = self.clone();
        Tap::to(target, move || Conversation {
            trips: trips.clone(),
            client: Vec::new(),
            server: Vec::new(),
            started: false,
            prepared: HashMap::new(),
            bound: String::new(),
            asking: RoundTrip::default(),
            // The start itself.
            awaited: 1,
            counts: false,
        })
        .await
    }

    /// What passed since the last [`take`](Self::take).
    #[must_use]
    pub fn seen(&self) -> Vec<RoundTrip> {
        self.lock().clone()
    }

    /// What passed since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<RoundTrip> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RoundTrip>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection.
struct Conversation {
    trips: RoundTrips,
    client: Vec<u8>,
    server: Vec<u8>,
    started: bool,
    prepared: HashMap<String, String>,
    bound: String,
    asking: RoundTrip,
    /// How often the server has still to say that it is ready.
    awaited: usize,
    /// Whether what is asked now is more than the start.
    counts: bool,
}

impl Listener for Conversation {
    fn hear(&mut self, from: From, bytes: &[u8]) {
        match from {
            From::Client => {
                self.client.extend_from_slice(bytes);
                if !self.started {
                    self.started = take_start(&mut self.client);
                }
                while self.started
                    && let Some((kind, body)) = take_message(&mut self.client)
                {
                    self.asks(kind, &body);
                }
            }
            From::Server => {
                self.server.extend_from_slice(bytes);
                while let Some((kind, _)) = take_message(&mut self.server) {
                    self.answers(kind);
                }
            }
        }
    }
}

impl Conversation {
    fn asks(&mut self, kind: u8, body: &[u8]) {
        let mut texts = body.split(|byte| *byte == 0);
        let mut text = || String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
        match kind {
            b'Q' => self.asking.asked.push(text()),
            b'P' => {
                let (name, query) = (text(), text());
                self.asking.asked.push(format!("PREPARE {query}"));
                self.prepared.insert(name, query);
            }
            b'B' => {
                let (_portal, name) = (text(), text());
                self.bound = self.prepared.get(&name).cloned().unwrap_or_default();
            }
            b'E' => self.asking.asked.push(self.bound.clone()),
            _ => {}
        }
        if matches!(kind, b'Q' | b'S') {
            self.awaited += 1;
            self.counts = true;
        }
    }

    fn answers(&mut self, kind: u8) {
        match kind {
            // CommandComplete, EmptyQueryResponse
            b'C' | b'I' => self.asking.statements += 1,
            // ReadyForQuery
            b'Z' => {
                self.awaited = self.awaited.saturating_sub(1);
                // Sent together, waited for together.
                if self.awaited == 0 && std::mem::take(&mut self.counts) {
                    self.trips.lock().push(std::mem::take(&mut self.asking));
                }
            }
            _ => {}
        }
    }
}

/// Kind and body of a whole message.
fn take_message(bytes: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let length = u32::from_be_bytes(*bytes.get(1..)?.first_chunk::<4>()?) as usize;
    if bytes.len() <= length {
        return None;
    }
    let message: Vec<u8> = bytes.drain(..=length).collect();
    Some((message[0], message[5..].to_vec()))
}

/// The first message has no kind. An inquiry after encryption is not what these tests speak.
fn take_start(bytes: &mut Vec<u8>) -> bool {
    const VERSION_3: u32 = 196_608;
    let Some([length, version]) = bytes
        .first_chunk::<8>()
        .map(|head| [&head[..4], &head[4..]].map(|n| u32::from_be_bytes(n.try_into().unwrap())))
    else {
        return false;
    };
    assert_eq!(version, VERSION_3, "the client does not begin as it should");
    let whole = bytes.len() >= length as usize;
    if whole {
        bytes.drain(..length as usize);
    }
    whole
}
