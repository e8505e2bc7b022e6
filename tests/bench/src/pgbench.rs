//! PostgreSQL's own load generator with the same transaction: a client in C that has nothing to decode.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::Result;
use crate::by_hand::TOGETHER;
use crate::stopwatch::{Pid, Stopwatch, Taken, time_of_ended_programs};
use crate::variant::Setting;

/// Its variables are numbers only: the id is made from two of them, the same in both statements.
const ONE: &str = r"
\set account random(0, 999)
\set amount random(1, 999)
\set high random(0, 4611686018427387903)
\set low random(0, 4611686018427387903)
BEGIN;
INSERT INTO inbox_processed_messages (message_id, consumer_name) VALUES (to_hex(:high::bigint) || '-' || to_hex(:low::bigint), 'bench') ON CONFLICT DO NOTHING;
INSERT INTO ledger (account, amount, msg_id) VALUES (:account, :amount, to_hex(:high::bigint) || '-' || to_hex(:low::bigint));
UPDATE accounts SET balance = balance + :amount WHERE id = :account;
COMMIT;
";

const SET: &str = r"
WITH message AS MATERIALIZED (
    SELECT gen_random_uuid()::text AS id, floor(random() * 1000)::bigint AS account, 1 + floor(random() * 999)::bigint AS amount
    FROM generate_series(1, :together)),
claimed AS (
    INSERT INTO inbox_processed_messages (message_id, consumer_name) SELECT id, 'bench' FROM message ORDER BY id
    ON CONFLICT DO NOTHING RETURNING message_id),
new AS MATERIALIZED (SELECT message.* FROM message JOIN claimed ON message_id = id),
locked AS MATERIALIZED (
    SELECT id FROM accounts WHERE id = ANY (ARRAY(SELECT account FROM new)) ORDER BY id FOR UPDATE),
booked AS (
    INSERT INTO ledger (account, amount, msg_id) SELECT account, amount, id FROM new)
UPDATE accounts SET balance = balance + total
FROM locked JOIN (SELECT account, sum(amount)::bigint AS total FROM new GROUP BY account) AS sums ON account = locked.id
WHERE accounts.id = locked.id;
";

/// A transaction for each message.
pub(crate) async fn one_by_one(setting: &Setting) -> Result<Taken> {
    run(setting, ONE, 1).await
}

/// A statement for each hundred messages.
pub(crate) async fn set_based(setting: &Setting) -> Result<Taken> {
    run(setting, SET, TOGETHER).await
}

async fn run(setting: &Setting, script: &str, together: usize) -> Result<Taken> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), script)?;
    let clients = setting.concurrency;
    let transactions = setting.work.count().div_ceil(clients * together);
    let place = &setting.place;
    let mut command = Command::new(program(setting.server)?);
    command
        .args(["--no-vacuum", "--protocol=prepared"])
        .arg(format!("--file={}", file.path().display()))
        .arg(format!("--client={clients}"))
        .arg(format!("--jobs={}", clients.min(cores())))
        .arg(format!("--transactions={transactions}"))
        .arg(format!("--define=together={together}"))
        .args(["--host", place.get_host()])
        .arg(format!("--port={}", place.get_port()))
        .args(["--username", place.get_username()])
        .arg(place.get_database().unwrap_or_default())
        .env("PGPASSWORD", "inbox")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let client_before = time_of_ended_programs()?;
    let stopwatch = Stopwatch::start(Some(setting.server))?;
    let output = command.output().await?;
    let taken = stopwatch.stop(transactions * clients * together)?;
    let report = String::from_utf8_lossy(&output.stdout);
    let rate = rate(&report)
        .filter(|_| output.status.success())
        .ok_or_else(|| format!("{report}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(Taken {
        // Without the connecting, which the others have done before as well.
        elapsed: Duration::from_secs_f64((transactions * clients) as f64 / rate),
        client: time_of_ended_programs()?.saturating_sub(client_before),
        allocations: None,
        ..taken
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// It is installed with the server, and seldom on the path.
fn program(server: Pid) -> Result<std::path::PathBuf> {
    let postgres = std::fs::read_link(format!("/proc/{}/exe", server.0))?;
    let program = postgres.with_file_name("pgbench");
    if !program.exists() {
        return Err(format!("there is no {}", program.display()).into());
    }
    Ok(program)
}

/// Transactions per second, connecting left out: the last of its figures in every version.
fn rate(report: &str) -> Option<f64> {
    let line = report.lines().rfind(|line| line.starts_with("tps = "))?;
    line["tps = ".len()..].split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_the_one_without_connecting() {
        let old = "tps = 85.1 (including connections establishing)\ntps = 296.4 (excluding connections establishing)\n";
        let new = "number of failed transactions: 0 (0.000%)\ninitial connection time = 2.3 ms\n\
                   tps = 1296.425 (without initial connection time)\n";
        assert_eq!(rate(old), Some(296.4));
        assert_eq!(rate(new), Some(1296.425));
        assert_eq!(rate("pgbench: error: could not connect"), None);
    }
}
