//! An id is data and nothing else, whatever stands in it: it is stored as it is, and it is that message's alone.
#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

use std::collections::BTreeSet;

use inbox_guarantees::{
    OrderPlaced, Running, TestDatabase, all_acked, bill, on_each_database, order,
};
use inbox_runtime::brokers::MemoryBroker;
use inbox_runtime::{HandlerError, Inbox, MessageId, Tx, inbox_handler};

/// The longest id that is documented.
const LONGEST: usize = 255;

/// What means something to a server, a driver or a parser on the way.
const POINTED: &[&str] = &[
    "'",
    "''",
    "\\",
    "\\'",
    "\"",
    "\"\"",
    "$$",
    "$1",
    "$x$",
    ";",
    "--",
    "/*",
    "*/",
    "E'",
    "U&'\\0027'",
    "\r\n",
    "\t",
    "{",
    "}",
    ",",
    "\",\"",
    "NULL",
    "(",
    "');",
    "'; ROLLBACK; --",
    "\\x27",
    "\\047",
    "%s",
    "%27",
    "?",
    ":x",
    "\u{1}",
    "\u{7f}",
    "\u{85}",
    "\u{a0}",
    "\u{2019}",
    "\u{ff07}",
    "\u{fe00}",
    "\u{200b}",
    "\u{202e}",
    "\u{feff}",
    "\u{fffd}",
    "e\u{301}",
    "\u{e9}",
    "\u{1f4a3}",
    "\u{10ffff}",
    " ",
    "A",
    "a",
];

/// Ids of all lengths, many of them next to one another: in another case, with a blank more, cut, or in reverse.
fn ids(seed: u64) -> BTreeSet<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ids = BTreeSet::new();
    for n in 0..150 {
        // Every third is as long as an id may be, whatever its characters take.
        let length = if n % 3 == 0 {
            LONGEST
        } else {
            random.usize(1..60)
        };
        let mut id = String::new();
        loop {
            let piece = if random.bool() {
                random.choice(POINTED).copied().unwrap().to_owned()
            } else {
                random.char('\u{1}'..).to_string()
            };
            if id.len() + piece.len() > length {
                break;
            }
            id.push_str(&piece);
        }
        if n % 3 == 0 {
            id.extend(std::iter::repeat_n('z', LONGEST - id.len()));
        }
        let mut shorter = id.clone();
        shorter.pop();
        let next = [
            format!("{id} "),
            format!(" {id}"),
            id.to_ascii_uppercase(),
            id.chars().rev().collect(),
            shorter,
            id,
        ];
        ids.extend(
            next.into_iter()
                .filter(|id| id.len() <= LONGEST && !id.trim().is_empty()),
        );
    }
    assert!(ids.iter().filter(|id| id.len() == LONGEST).count() >= 50);
    ids
}

on_each_database! {
    #[inbox_handler(consumer = "billing")]
    async fn charge(order: OrderPlaced, tx: &mut Tx<Db>, id: MessageId) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_id_is_stored_byte_for_byte_and_known_again_alone_and_in_shared_transactions() {
        for together in [1, 16] {
            let seed = fastrand::u64(..);
            let ids = ids(seed);
            let sandbox = Db::fresh(3).await;
            let broker = MemoryBroker::new();
            for _ in 0..2 {
                for id in &ids {
                    broker.publish("orders", order(id));
                }
                broker.shuffle("orders", seed);
            }
            let inbox = Inbox::builder(sandbox.pool.clone())
                .source("orders", broker.source("orders"))
                .register(charge::handler())
                .concurrency(1)
                .prefetch(64)
                .messages_per_transaction(together);
            let running = Running::start(inbox.build().await.unwrap());
            all_acked(&broker).await;
            running.stop().await;

            for (rows, sql) in [
                ("claims", "SELECT message_id FROM inbox_processed_messages"),
                ("ledger rows", "SELECT msg_id FROM ledger"),
            ] {
                let stored = Db::texts(&sandbox.pool, sql).await;
                assert_eq!(stored.len(), ids.len(), "{rows}, seed {seed}, {together} together");
                let stored: BTreeSet<String> = stored.into_iter().collect();
                let missing: Vec<_> = ids.difference(&stored).collect();
                let foreign: Vec<_> = stored.difference(&ids).collect();
                assert!(
                    missing.is_empty() && foreign.is_empty(),
                    "{rows}, seed {seed}, {together} together: {missing:?} became {foreign:?}"
                );
            }
            assert_eq!(sandbox.dead_letters().await, [""; 0]);
            assert_eq!(broker.settled().len(), 2 * ids.len(), "each delivery is settled once");
        }
    }
}
