//! Time, and processor time of the processes that were started and have ended.

use std::fs;
use std::time::{Duration, Instant};

use crate::Result;

/// The tick of the times in `/proc`, the same on every architecture that matters.
const TICK: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) wall: Duration,
    pub(crate) processor: Duration,
}

/// Runs `work`, which starts processes and waits for them.
pub(crate) fn time<T>(work: impl FnOnce() -> T) -> Result<(T, Taken)> {
    let before = time_of_children()?;
    let started = Instant::now();
    let done = work();
    let wall = started.elapsed();
    let processor = time_of_children()?.saturating_sub(before);
    Ok((done, Taken { wall, processor }))
}

/// In user mode. `cutime` is field 16 in proc(5); the fields are counted from 3 behind the name, which may hold spaces.
fn time_of_children() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let ticks = stat
        .rsplit_once(") ")
        .and_then(|(_, fields)| fields.split(' ').nth(16 - 3)?.parse::<u32>().ok());
    Ok(TICK * ticks.ok_or("/proc/self/stat cannot be read")?)
}
