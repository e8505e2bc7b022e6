//! The bytes between the server and the AMQP client, made harmless before the client parses them.
//!
//! The client parses the properties of a message recursively and all at once. A header nested a thousand and more
//! levels deep (ten kilobytes) exhausts its stack and aborts the process; a property or header name that is not
//! UTF-8 ends the connection. Both happen again with each redelivery, so one message would stop everything.
//! Here such a message becomes one that can be read, and refused, like any other. Everything else passes as it is.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_io::{AsyncRead, AsyncWrite};
use futures_util::stream::Stream;
use lapin::tcp::AsyncTcpStream;

/// Arrays and tables below this depth reach the client as the bytes they are made of.
const DEEPEST: usize = 64;

const FRAME_HEAD: usize = 7;
const HEADER_FRAME: u8 = 2;

/// A tokio runtime whose connections are guarded.
pub(super) type GuardedRuntime = Runtime<RuntimeParts<Tokio, GuardedReactor>>;

/// The runtime for a connection of the AMQP client; must be called within tokio.
pub(super) fn runtime() -> GuardedRuntime {
    Runtime::new(RuntimeParts::new(
        Tokio::current(),
        GuardedReactor(Tokio::current()),
    ))
}

type Plain = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

#[derive(Clone, Debug)]
pub(super) struct GuardedReactor(Tokio);

impl Reactor for GuardedReactor {
    type TcpStream = Guarded<Plain>;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Guarded<Plain>, _>(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async move { Ok(Guarded::new(AsyncTcpStream::Plain(connecting.await?))) }
    }
}

/// A stream whose incoming header frames are made harmless.
pub(super) struct Guarded<S> {
    stream: S,
    frames: Frames,
    chunk: Box<[u8]>,
}

impl<S> Guarded<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            frames: Frames::default(),
            chunk: vec![0; 16 * 1024].into(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            let given = this.frames.give(buffer);
            if given > 0 || buffer.is_empty() {
                return Poll::Ready(Ok(given));
            }
            let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut this.chunk))?;
            if read == 0 {
                return Poll::Ready(Ok(0));
            }
            this.frames.take(&this.chunk[..read]);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buffer)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(cx)
    }
}

/// Follows the frames. Only header frames are held until they are whole; each keeps its length.
#[derive(Default)]
struct Frames {
    /// Bytes to give, from `given` on, up to `ready`; what follows is an unfinished head or header frame.
    bytes: Vec<u8>,
    given: usize,
    ready: usize,
    /// How much of the present frame may pass as it comes.
    passing: usize,
}

impl Frames {
    fn give(&mut self, buffer: &mut [u8]) -> usize {
        let length = buffer.len().min(self.ready - self.given);
        buffer[..length].copy_from_slice(&self.bytes[self.given..self.given + length]);
        self.given += length;
        if self.given == self.ready {
            self.bytes.drain(..self.ready);
            (self.given, self.ready) = (0, 0);
        }
        length
    }

    fn take(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        loop {
            let waiting = self.bytes.len() - self.ready;
            if self.passing > 0 {
                let passing = self.passing.min(waiting);
                self.ready += passing;
                self.passing -= passing;
                if self.passing > 0 {
                    return;
                }
                continue;
            }
            let Some(&[kind, _, _, a, b, c, d]) =
                self.bytes[self.ready..].first_chunk::<FRAME_HEAD>()
            else {
                return;
            };
            let payload = u32::from_be_bytes([a, b, c, d]) as usize;
            let frame = FRAME_HEAD + payload + 1;
            if kind == HEADER_FRAME {
                if waiting < frame {
                    return;
                }
                let start = self.ready + FRAME_HEAD;
                tame(&mut self.bytes[start..start + payload]);
                self.ready += frame;
            } else {
                self.passing = frame;
            }
        }
    }
}

/// The kinds of a message's properties, from the highest flag down.
#[derive(Clone, Copy)]
enum Property {
    Text,
    Id,
    Table,
    Bytes(usize),
}

const PROPERTIES: [Property; 14] = [
    Property::Text,
    Property::Text,
    Property::Table,
    Property::Bytes(1),
    Property::Bytes(1),
    Property::Text,
    Property::Text,
    Property::Text,
    Property::Id,
    Property::Bytes(8),
    Property::Text,
    Property::Text,
    Property::Text,
    Property::Text,
];

/// Makes the payload of a header frame harmless. What does not have the form of one is left to the client.
fn tame(payload: &mut [u8]) {
    let mut rest = Rest(payload);
    let _ = tame_properties(&mut rest);
}

fn tame_properties(rest: &mut Rest<'_>) -> Option<()> {
    let _class_weight_and_size = rest.bytes(12)?;
    let flags = u16::from_be_bytes(<[u8; 2]>::try_from(&*rest.bytes(2)?).ok()?);
    for (index, property) in PROPERTIES.into_iter().enumerate() {
        if flags & (1 << (15 - index)) == 0 {
            continue;
        }
        match property {
            Property::Bytes(length) => {
                rest.bytes(length)?;
            }
            Property::Text => tame_text(rest.short()?),
            Property::Id => {
                let id = rest.short()?;
                // Never repaired: two ids could become one. This one is refused as an id.
                if std::str::from_utf8(id).is_err() {
                    id.fill(0);
                }
            }
            Property::Table => {
                let table = rest.long()?;
                tame_values(&mut Rest(table), true)?;
            }
        }
    }
    Some(())
}

fn tame_text(text: &mut [u8]) {
    if std::str::from_utf8(text).is_err() {
        for byte in text.iter_mut().filter(|byte| !byte.is_ascii()) {
            *byte = b'?';
        }
    }
}

/// Goes through a table (or an array) and what is nested in it, without recursion.
fn tame_values<'a>(outer: &mut Rest<'a>, named: bool) -> Option<()> {
    let mut open: Vec<(Rest<'a>, bool)> = vec![(Rest(std::mem::take(&mut outer.0)), named)];
    while let Some((rest, named)) = open.last_mut() {
        if rest.0.is_empty() {
            open.pop();
            continue;
        }
        if *named {
            tame_text(rest.short()?);
        }
        let kind = rest.bytes(1)?;
        match kind[0] {
            b't' | b'b' | b'B' => drop(rest.bytes(1)?),
            b's' | b'U' | b'u' => drop(rest.bytes(2)?),
            b'I' | b'i' | b'f' => drop(rest.bytes(4)?),
            b'L' | b'l' | b'd' | b'T' => drop(rest.bytes(8)?),
            b'D' => drop(rest.bytes(5)?),
            b'S' | b'x' => drop(rest.long()?),
            b'V' => {}
            b'A' | b'F' => {
                let table = kind[0] == b'F';
                let inner = rest.long()?;
                if open.len() < DEEPEST {
                    open.push((Rest(inner), table));
                } else {
                    // A byte array has the same form.
                    kind[0] = b'x';
                }
            }
            _ => return None,
        }
    }
    Some(())
}

/// What is left of some bytes.
struct Rest<'a>(&'a mut [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a mut [u8]> {
        let (taken, rest) = std::mem::take(&mut self.0).split_at_mut_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<&'a mut [u8]> {
        let length = self.bytes(1)?[0];
        self.bytes(length.into())
    }

    fn long(&mut self) -> Option<&'a mut [u8]> {
        let length = u32::from_be_bytes(<[u8; 4]>::try_from(&*self.bytes(4)?).ok()?);
        self.bytes(usize::try_from(length).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(bytes: &[u8]) -> Vec<u8> {
        [&[bytes.len() as u8], bytes].concat()
    }

    fn long(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, 0, 1][..], &long(payload), &[0xCE]].concat()
    }

    fn header(flags: u16, properties: &[u8]) -> Vec<u8> {
        [&[0; 12][..], &flags.to_be_bytes(), properties].concat()
    }

    fn through(bytes: &[u8], piece: usize) -> Vec<u8> {
        let mut frames = Frames::default();
        let mut out = Vec::new();
        for piece in bytes.chunks(piece) {
            frames.take(piece);
            let mut buffer = [0; 5];
            loop {
                match frames.give(&mut buffer) {
                    0 => break,
                    given => out.extend_from_slice(&buffer[..given]),
                }
            }
        }
        out
    }

    fn nested(levels: usize) -> Vec<u8> {
        (0..levels).fold(vec![b'V'], |inner, _| [&b"A"[..], &long(&inner)].concat())
    }

    fn table(name: &[u8], value: &[u8]) -> Vec<u8> {
        long(&[&short(name), value].concat())
    }

    #[test]
    fn whatever_is_harmless_passes_as_it_is() {
        let headers = table("grüße".as_bytes(), &nested(40));
        let ordinary = [
            frame(1, b"a method"),
            frame(
                2,
                &header(
                    1 << 13 | 1 << 7,
                    &[headers, short("Ü-1".as_bytes())].concat(),
                ),
            ),
            frame(3, &[0xCE, 2, 0, 255]),
            frame(3, b""),
            frame(8, b""),
            // Not the form of a header: for the client to judge.
            frame(2, &header(1 << 13, b"\0\0\0\x09")),
            frame(2, b""),
            frame(2, &header(1 << 13, &table(b"n", b"?"))),
        ]
        .concat();
        for piece in [1, 2, 3, 7, 8, 100, 10_000] {
            assert_eq!(through(&ordinary, piece), ordinary, "{piece}");
        }
    }

    #[test]
    fn an_id_that_is_not_text_becomes_one_that_is_refused() {
        let properties = [short(b"te\xffxt"), short(b"\xff\xfe1"), short(b"ty\xffpe")].concat();
        let tamed = [short(b"te?xt"), short(b"\0\0\0"), short(b"ty?pe")].concat();
        let flags = 1 << 15 | 1 << 7 | 1 << 5;
        assert_eq!(
            through(&frame(2, &header(flags, &properties)), 4),
            frame(2, &header(flags, &tamed))
        );
    }

    #[test]
    fn names_become_text_and_depths_become_bytes() {
        let given = frame(2, &header(1 << 13, &table(b"\xff", &nested(5_000))));
        let tamed = through(&given, 1000);
        assert_eq!(tamed.len(), given.len());
        let different: Vec<(u8, u8)> = given
            .iter()
            .zip(&tamed)
            .filter(|(given, tamed)| given != tamed)
            .map(|(given, tamed)| (*given, *tamed))
            .collect();
        assert_eq!(different, [(0xFF, b'?'), (b'A', b'x')]);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let length = random.usize(0..80);
            let mut bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            if bytes.len() > 30 {
                // Often with the form of a header's beginning.
                bytes[12] = 0xFF;
                bytes[16..20].copy_from_slice(&[0, 0, 0, random.u8(..12)]);
            }
            tame(&mut bytes);
            let length = bytes.len();
            assert_eq!(through(&frame(2, &bytes), 9).len(), length + 8);
        }
    }
}
