//! A TCP proxy on loopback that holds back everything for a fixed time, each way: the network to a database on another
//! machine.
//!
//! `delay_proxy HOST:PORT MICROSECONDS` prints the port that it listens on, and ends when its input ends.
//!
//! A program of its own, so that its processor time is not taken for that of what is measured. One thread waits for
//! bytes and for the time of the oldest ones: as the delay is the same for all, what came first goes first, and any
//! number of bytes can be on their way.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

fn main() -> ExitCode {
    match serve(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: delay_proxy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(
    mut arguments: impl Iterator<Item = String>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut argument = || arguments.next().ok_or("give HOST:PORT and MICROSECONDS");
    let target = argument()?.parse()?;
    let delay = Duration::from_micros(argument()?.parse()?);
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    // Else the kernel adds up to 50 microseconds to every wait.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    Proxy::new(target, delay).run(&listener, &io::stdin())?;
    Ok(())
}

/// One direction of a connection.
struct Pipe {
    from: TcpStream,
    to: TcpStream,
    /// Nothing more comes; what came may still be on its way.
    ended: bool,
}

/// Bytes on their way; none: the end of the direction.
struct Chunk {
    due: Instant,
    pipe: u64,
    bytes: Vec<u8>,
}

struct Proxy {
    target: SocketAddr,
    delay: Duration,
    pipes: BTreeMap<u64, Pipe>,
    next_pipe: u64,
    on_their_way: VecDeque<Chunk>,
    buffer: Vec<u8>,
}

impl Proxy {
    fn new(target: SocketAddr, delay: Duration) -> Self {
        Self {
            target,
            delay,
            pipes: BTreeMap::new(),
            next_pipe: 0,
            on_their_way: VecDeque::new(),
            buffer: vec![0; 1 << 16],
        }
    }

    /// Until `lifeline` ends.
    fn run(mut self, listener: &TcpListener, lifeline: &impl std::os::fd::AsFd) -> io::Result<()> {
        loop {
            self.send_what_is_due();
            let open: Vec<u64> = self
                .pipes
                .iter()
                .filter(|(_, pipe)| !pipe.ended)
                .map(|(number, _)| *number)
                .collect();
            let mut events = vec![
                PollFd::new(lifeline, PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            events.extend(
                open.iter()
                    .map(|number| PollFd::new(&self.pipes[number].from, PollFlags::IN)),
            );
            let wait = self.on_their_way.front().map(|chunk| {
                let wait = chunk.due.saturating_duration_since(Instant::now());
                Timespec {
                    tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
                    tv_nsec: wait.subsec_nanos().into(),
                }
            });
            match poll(&mut events, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = events
                .iter()
                .map(|event| !event.revents().is_empty())
                .collect();
            if ready[0] {
                return Ok(());
            }
            for (number, _) in open.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
                self.receive(*number);
            }
            if ready[1] {
                self.accept(listener)?;
            }
        }
    }

    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        let (client, _) = listener.accept()?;
        // A server that refuses is what the client then sees: its connection ends.
        let Ok(server) = TcpStream::connect(self.target) else {
            return Ok(());
        };
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
            let ended = false;
            self.pipes.insert(self.next_pipe, Pipe { from, to, ended });
            self.next_pipe += 1;
        }
        Ok(())
    }

    fn receive(&mut self, number: u64) {
        let Some(pipe) = self.pipes.get_mut(&number) else {
            return;
        };
        let count = pipe.from.read(&mut self.buffer).unwrap_or(0);
        pipe.ended = count == 0;
        self.on_their_way.push_back(Chunk {
            due: Instant::now() + self.delay,
            pipe: number,
            bytes: self.buffer[..count].to_vec(),
        });
    }

    fn send_what_is_due(&mut self) {
        while let Some(chunk) = self.on_their_way.front()
            && chunk.due <= Instant::now()
            && let Some(chunk) = self.on_their_way.pop_front()
        {
            let Some(pipe) = self.pipes.get_mut(&chunk.pipe) else {
                continue;
            };
            // Waits when the receiver's buffer is full, which no client here lets happen.
            if chunk.bytes.is_empty() || pipe.to.write_all(&chunk.bytes).is_err() {
                let _ = pipe.to.shutdown(Shutdown::Write);
                self.pipes.remove(&chunk.pipe);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_arrive_in_order_and_not_before_the_delay_of_both_ways() {
        let delay = Duration::from_millis(30);
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let proxy = Proxy::new(server.local_addr().unwrap(), delay);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (lifeline, held) = UnixStream::pair().unwrap();
        let running = std::thread::spawn(move || proxy.run(&listener, &held));
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut back = stream.try_clone().unwrap();
            io::copy(&mut stream, &mut back).unwrap()
        });

        let mut client = TcpStream::connect(address).unwrap();
        client.set_nodelay(true).unwrap();
        let started = Instant::now();
        for byte in 0..20 {
            client.write_all(&[byte]).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        client.shutdown(Shutdown::Write).unwrap();
        let mut first = [0];
        client.read_exact(&mut first).unwrap();
        assert!(started.elapsed() >= 2 * delay, "the delay is missing");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        let all: Vec<u8> = first.into_iter().chain(rest).collect();
        assert_eq!(all, (0..20).collect::<Vec<u8>>());
        assert_eq!(echo.join().unwrap(), 20);
        drop(lifeline);
        running.join().unwrap().unwrap();
    }
}
