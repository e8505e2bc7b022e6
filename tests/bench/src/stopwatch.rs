//! Time, and processor time of this process and of the server, between two moments.

use std::fs;
use std::time::{Duration, Instant};

use crate::Result;

/// The tick of the times in `/proc`, the same on every architecture that matters.
const TICK: Duration = Duration::from_millis(10);

/// The number of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pid(pub(crate) u32);

/// What a run took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) elapsed: Duration,
    pub(crate) client: Duration,
    pub(crate) server: Duration,
}

#[derive(Debug)]
pub(crate) struct Stopwatch {
    server: Pid,
    started: Instant,
    client: Duration,
    server_before: Duration,
}

impl Stopwatch {
    pub(crate) fn start(server: Pid) -> Result<Self> {
        Ok(Self {
            server,
            client: own_time()?,
            server_before: family_time(server)?,
            started: Instant::now(),
        })
    }

    pub(crate) fn stop(self) -> Result<Taken> {
        Ok(Taken {
            elapsed: self.started.elapsed(),
            client: own_time()?.saturating_sub(self.client),
            server: family_time(self.server)?.saturating_sub(self.server_before),
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

fn own_time() -> Result<Duration> {
    let stat = Stat::parse(&fs::read_to_string("/proc/self/stat")?);
    Ok(TICK * stat.ok_or("/proc/self/stat cannot be read")?.own)
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
