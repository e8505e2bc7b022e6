//! What became of every message.

use std::collections::{BTreeMap, HashMap, HashSet};

use inbox_guarantees::{Sandbox, TestDatabase};

use crate::message::{ACCOUNTS, Expected, Message, PLACES, account, account_name};

/// One consumer's message, by its name; the consumer "" stands for nobody.
type Key = (String, String);

/// What is wrong, and what was counted on the way.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Bookings.
    pub(crate) processed: usize,
    /// Dead letters by their reasons.
    pub(crate) dead: BTreeMap<String, usize>,
    /// Failures of a copy that were counted when another one had succeeded already. Nobody needs the count any more.
    pub(crate) counted_late: usize,
    /// Neither booked nor a dead letter.
    pub(crate) lost: Vec<String>,
    /// Booked more than once, booked and a dead letter, or several dead letters.
    pub(crate) doubled: Vec<String>,
    /// Everything else that must not be.
    pub(crate) wrong: Vec<String>,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.wrong.is_empty()
    }
}

/// What is in the tables under one key.
#[derive(Debug, Default)]
struct Found {
    amounts: Vec<i64>,
    reasons: Vec<String>,
}

/// Compares the tables with what was produced. Nothing may be under way any more.
pub(crate) async fn judge<Db: TestDatabase>(
    sandbox: &Sandbox<Db>,
    messages: &[Message],
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut found: HashMap<Key, Found> = HashMap::new();
    for (key, amount) in bookings(sandbox).await {
        verdict.processed += 1;
        found.entry(key).or_default().amounts.push(amount);
    }
    for (key, reason) in dead_letters(sandbox).await {
        *verdict.dead.entry(reason.clone()).or_default() += 1;
        found.entry(key).or_default().reasons.push(reason);
    }
    let claims = claims(sandbox).await;

    for message in messages {
        for (consumer, expected) in message.expected() {
            let key = (consumer.to_owned(), message.task.name.clone());
            let of_it = found.remove(&key).unwrap_or_default();
            verdict.judge_one(message, &key, expected, &of_it, claims.contains(&key));
        }
    }
    for (key, found) in found {
        verdict.note(&key, format_args!("nobody produced it, but {found:?}"));
    }
    verdict.judge_sums(sandbox, &claims).await;
    verdict
}

impl Verdict {
    fn judge_one(
        &mut self,
        message: &Message,
        key: &Key,
        expected: Expected,
        found: &Found,
        is_claimed: bool,
    ) {
        let what = format!("{} ({:?}): {found:?}", named(key), message.task.act);
        match found.amounts.len() + found.reasons.len() {
            0 => return self.lost.push(what),
            1 => {}
            _ => return self.doubled.push(what),
        }
        let is_as_expected = match (expected, found.reasons.first().map(String::as_str)) {
            (Expected::Processed, None) | (Expected::ProcessedOrExhausted, None) => true,
            (Expected::ProcessedOrExhausted, Some(reason)) => reason == "attempts_exhausted",
            (Expected::Dead(expected), Some(reason)) => reason == expected,
            (Expected::Processed, Some(_)) | (Expected::Dead(_), None) => false,
        };
        if !is_as_expected {
            self.wrong.push(format!("{what} instead of {expected:?}"));
        }
        if let Some(amount) = found.amounts.first()
            && *amount != message.task.order.amount
        {
            self.wrong.push(format!("{what} is another amount"));
        }
        if is_claimed != found.reasons.is_empty() {
            self.wrong.push(format!("{what}, claimed: {is_claimed}"));
        }
    }

    async fn judge_sums<Db: TestDatabase>(&mut self, sandbox: &Sandbox<Db>, claims: &HashSet<Key>) {
        if claims.len() != self.processed {
            let claims = claims.len();
            self.wrong
                .push(format!("{claims} claims and {} bookings", self.processed));
        }
        let all = PLACES.iter().flat_map(|place| place.consumers);
        for (consumer, number) in all.flat_map(|all| (0..ACCOUNTS).map(move |n| (all, n))) {
            let account = account(consumer, &account_name(number));
            let sum = format!("SELECT sum(amount) FROM ledger WHERE account = '{account}'");
            let (sum, balance) = (
                Db::number(&sandbox.pool, &sum).await,
                sandbox.balance(&account).await,
            );
            if sum != balance {
                self.wrong.push(format!(
                    "{account} has {balance}, its bookings are {sum} in all"
                ));
            }
        }
        let waiting = "SELECT count(*) FROM inbox_messages WHERE status <> 'done'";
        let waiting = Db::number(&sandbox.pool, waiting).await;
        if waiting != 0 {
            self.wrong
                .push(format!("{waiting} messages still wait in the database"));
        }
        let late = "SELECT count(*) FROM inbox_attempts WHERE EXISTS (SELECT 1 FROM inbox_processed_messages \
                    WHERE inbox_processed_messages.message_id = inbox_attempts.message_id \
                    AND inbox_processed_messages.consumer_name = inbox_attempts.consumer_name)";
        self.counted_late =
            usize::try_from(Db::number(&sandbox.pool, late).await).unwrap_or_default();
    }

    fn note(&mut self, key: &Key, what: std::fmt::Arguments<'_>) {
        self.wrong.push(format!("{}: {what}", named(key)));
    }
}

fn named((consumer, name): &Key) -> String {
    if consumer.is_empty() {
        name.clone()
    } else {
        format!("{name} for {consumer}")
    }
}

/// The outcomes so far.
pub(crate) async fn outcomes<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> usize {
    let sql = "SELECT (SELECT count(*) FROM ledger) + (SELECT count(*) FROM inbox_dead_letters)";
    usize::try_from(Db::number(&sandbox.pool, sql).await).unwrap_or_default()
}

async fn bookings<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> Vec<(Key, i64)> {
    let sql = "SELECT concat(account, '|', msg_id, '|', amount) FROM ledger";
    let rows = Db::texts(&sandbox.pool, sql).await;
    rows.iter()
        .map(|row| {
            let [account, name, amount] = parts(row);
            let consumer = account.split('/').next().unwrap_or_default();
            let amount = amount.parse().expect("an amount that is no number");
            ((consumer.to_owned(), name.to_owned()), amount)
        })
        .collect()
}

async fn claims<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> HashSet<Key> {
    let sql = "SELECT concat(consumer_name, '|', message_id, '|') FROM inbox_processed_messages";
    let rows = Db::texts(&sandbox.pool, sql).await;
    rows.iter()
        .map(|row| {
            let [consumer, name, _] = parts(row);
            (consumer.to_owned(), name.to_owned())
        })
        .collect()
}

/// Dead letters with their reasons. The name is the one in the payload: not each has an id.
async fn dead_letters<Db: TestDatabase>(sandbox: &Sandbox<Db>) -> Vec<(Key, String)> {
    #[derive(serde::Deserialize)]
    struct Named {
        name: String,
    }
    let rows = "SELECT concat(COALESCE(consumer_name, ''), '|', COALESCE(message_id, ''), '|', reason) \
                FROM inbox_dead_letters ORDER BY id";
    let rows = Db::texts(&sandbox.pool, rows).await;
    let payloads = "SELECT payload FROM inbox_dead_letters ORDER BY id";
    let payloads = Db::bytes(&sandbox.pool, payloads).await;
    rows.iter()
        .zip(payloads)
        .map(|(row, payload)| {
            let [consumer, id, reason] = parts(row);
            let payload: Named =
                serde_json::from_slice(&payload).expect("a dead letter with another payload");
            assert!(
                id.is_empty() || id == payload.name,
                "{row} has the payload of {}",
                payload.name
            );
            ((consumer.to_owned(), payload.name), reason.to_owned())
        })
        .collect()
}

fn parts(row: &str) -> [&str; 3] {
    let parts: Vec<&str> = row.split('|').collect();
    parts.try_into().expect("three parts")
}
