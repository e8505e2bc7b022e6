//! Time, processor time of this process and of the server, and allocations, between two moments.

use std::fs;
use std::time::{Duration, Instant};

use alloc_tracker::{Allocator, ProcessSpan, Session};
use rustix::time::{ClockId, clock_gettime};

use crate::Result;

#[global_allocator]
static ALLOCATOR: Allocator<std::alloc::System> = Allocator::system();

/// The tick of the times in `/proc`, the same on every architecture that matters.
const TICK: Duration = Duration::from_millis(10);

/// The number of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pid(pub(crate) u32);

/// What a run took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Taken {
    pub(crate) messages: usize,
    pub(crate) elapsed: Duration,
    pub(crate) client: Duration,
    /// Nothing to count without a server.
    pub(crate) server: Option<Duration>,
    /// Nothing to count where the client is another program.
    pub(crate) allocations: Option<u64>,
}

impl Taken {
    pub(crate) fn per_second(&self) -> f64 {
        self.messages as f64 / self.elapsed.as_secs_f64()
    }

    /// How many messages `seconds` have room for.
    pub(crate) fn messages_in(&self, seconds: f64) -> usize {
        ((self.per_second() * seconds) as usize).max(100)
    }
}

#[derive(Debug)]
pub(crate) struct Stopwatch {
    server: Option<Pid>,
    started: Instant,
    client: Duration,
    server_before: Option<Duration>,
    allocations: Session,
    span: ProcessSpan,
}

impl Stopwatch {
    pub(crate) fn start(server: Option<Pid>) -> Result<Self> {
        let server_before = server.map(family_time).transpose()?;
        let allocations = Session::new().no_stdout().no_file();
        let span = allocations.operation("run").measure_process();
        Ok(Self {
            server,
            server_before,
            allocations,
            span: span.iterations(1),
            client: own_time(),
            started: Instant::now(),
        })
    }

    pub(crate) fn stop(self, messages: usize) -> Result<Taken> {
        let elapsed = self.started.elapsed();
        let client = own_time().saturating_sub(self.client);
        drop(self.span);
        let report = self.allocations.to_report();
        let allocations = report
            .operations()
            .map(|(_, run)| run.total_allocations_count())
            .sum();
        let server = match (self.server, self.server_before) {
            (Some(server), Some(before)) => Some(family_time(server)?.saturating_sub(before)),
            _ => None,
        };
        Ok(Taken {
            messages,
            elapsed,
            client,
            server,
            allocations: Some(allocations),
        })
    }
}

/// The part of `/proc/PID/stat` behind the process's name, which may hold spaces.
struct Stat {
    parent: Pid,
    own: u32,
    /// Of the children that have ended.
    ended: u32,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
        // Numbered from 3 in proc(5): parent 4, utime 14, stime 15, cutime 16, cstime 17.
        let number = |field: usize| fields.get(field - 3)?.parse::<u32>().ok();
        Some(Self {
            parent: Pid(number(4)?),
            own: number(14)? + number(15)?,
            ended: number(16)? + number(17)?,
        })
    }
}

/// To the nanosecond, unlike what `/proc` has.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or_default(),
        time.tv_nsec.try_into().unwrap_or_default(),
    )
}

/// The time of the programs that this process started and that have ended.
pub(crate) fn time_of_ended_programs() -> Result<Duration> {
    let stat = Stat::parse(&fs::read_to_string("/proc/self/stat")?);
    Ok(TICK * stat.ok_or("/proc/self/stat cannot be read")?.ended)
}

/// The time of a process and of all of its children: the server's processes, one per connection.
fn family_time(head: Pid) -> Result<Duration> {
    let mut ticks = 0;
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It may have ended since the listing.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        match Stat::parse(&stat) {
            Some(stat) if Pid(pid) == head => ticks += stat.own + stat.ended,
            Some(stat) if stat.parent == head => ticks += stat.own,
            _ => {}
        }
    }
    Ok(TICK * ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_and_processor_time_of_all_threads_are_counted() {
        let stopwatch = Stopwatch::start(None).unwrap();
        std::thread::spawn(|| {
            for number in 0..1_000_u64 {
                std::hint::black_box(Box::new(number));
            }
        })
        .join()
        .unwrap();
        let taken = stopwatch.stop(1).unwrap();
        assert!(taken.allocations >= Some(1_000), "{taken:?}");
        assert!(taken.client > Duration::ZERO, "{taken:?}");
    }
}
