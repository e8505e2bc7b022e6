//! Servers that crash, restart and freeze.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use inbox_guarantees::servers::OwnServer;
use tokio::sync::watch;

use crate::counts::Counts;

/// A server, and how long it has peace between two blows.
#[derive(Debug, Clone)]
pub(crate) struct Victim {
    pub(crate) server: Arc<OwnServer>,
    pub(crate) peace: Range<Duration>,
}

/// What happens to a server.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Crash,
    Restart,
    Freeze,
}

/// Strikes a server again and again until `end`, first by a crash. It runs when this is done.
pub(crate) async fn strike(
    victim: Victim,
    mut rng: Rng,
    counts: Arc<Counts>,
    mut end: watch::Receiver<bool>,
) {
    let mut blow = Blow::Crash;
    loop {
        let Range {
            start,
            end: longest,
        } = victim.peace;
        let peace = start + (longest - start).mul_f64(rng.f64());
        tokio::select! {
            () = tokio::time::sleep(peace) => {}
            _ = end.wait_for(|end| *end) => return,
        }
        apart(&victim.server, move |server| match blow {
            Blow::Crash => server.crash(),
            Blow::Restart => server.stop(),
            Blow::Freeze => server.pause(),
        })
        .await;
        tokio::time::sleep(Duration::from_millis(rng.u64(0..2_500))).await;
        apart(&victim.server, move |server| match blow {
            Blow::Crash | Blow::Restart => server.again(),
            Blow::Freeze => server.resume(),
        })
        .await;
        match blow {
            Blow::Crash | Blow::Restart => counts.now().restarts += 1,
            Blow::Freeze => counts.now().server_freezes += 1,
        }
        blow = match rng.u32(..4) {
            0 => Blow::Crash,
            1 => Blow::Restart,
            _ => Blow::Freeze,
        };
    }
}

/// On a thread that may wait.
async fn apart(server: &Arc<OwnServer>, command: impl FnOnce(&OwnServer) + Send + 'static) {
    let server = Arc::clone(server);
    let done = tokio::task::spawn_blocking(move || command(&server)).await;
    done.expect("a command for a server failed");
}
