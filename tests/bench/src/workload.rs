//! What every variant does: the same messages and the same two business statements.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inbox_runtime::Envelope;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use crate::Result;

/// The name under which every variant claims.
pub(crate) const CONSUMER: &str = "bench";

pub(crate) const ACCOUNTS: i64 = 1_000;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OrderPlaced {
    pub(crate) account: i64,
    pub(crate) amount: i64,
    /// Brings the payload to the size of an ordinary event.
    pub(crate) note: String,
}

/// The business of one message: a ledger row and a balance.
macro_rules! book {
    ($order:expr, $id:expr, $executor:expr) => {{
        let order: &$crate::workload::OrderPlaced = &$order;
        sqlx::query("INSERT INTO ledger (account, amount, msg_id) VALUES ($1, $2, $3)")
            .bind(order.account)
            .bind(order.amount)
            .bind($id)
            .execute(&mut *$executor)
            .await?;
        sqlx::query("UPDATE accounts SET balance = balance + $1 WHERE id = $2")
            .bind(order.amount)
            .bind(order.account)
            .execute(&mut *$executor)
            .await?;
    }};
}
pub(crate) use book;

/// The business of many messages at once: the accounts are locked in their order, so that two of these cannot wait for
/// each other.
pub(crate) async fn book_together(
    orders: &[(&str, &OrderPlaced)],
    conn: &mut PgConnection,
) -> std::result::Result<(), sqlx::Error> {
    let ids: Vec<&str> = orders.iter().map(|(id, _)| *id).collect();
    let accounts: Vec<i64> = orders.iter().map(|(_, order)| order.account).collect();
    let amounts: Vec<i64> = orders.iter().map(|(_, order)| order.amount).collect();
    let touched: Vec<i64> = BTreeSet::from_iter(&accounts)
        .into_iter()
        .copied()
        .collect();
    sqlx::query("SELECT FROM accounts WHERE id = ANY ($1) ORDER BY id FOR UPDATE")
        .bind(&touched)
        .execute(&mut *conn)
        .await?;
    sqlx::query(
        "INSERT INTO ledger (account, amount, msg_id) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[])",
    )
    .bind(&accounts)
    .bind(&amounts)
    .bind(&ids)
    .execute(&mut *conn)
    .await?;
    sqlx::query(
        "UPDATE accounts SET balance = balance + total FROM \
         (SELECT account, sum(amount)::bigint AS total FROM unnest($1::bigint[], $2::bigint[]) AS booked (account, amount) \
         GROUP BY account) AS booked WHERE id = account",
    )
    .bind(&accounts)
    .bind(&amounts)
    .execute(&mut *conn)
    .await?;
    Ok(())
}

/// Messages in memory, and how far they were taken.
#[derive(Debug)]
pub(crate) struct Work {
    messages: Vec<Envelope>,
    taken: AtomicUsize,
}

impl Work {
    /// `count` orders with ids in the form of a UUID, over all accounts.
    pub(crate) fn of(count: usize) -> Result<Arc<Self>> {
        let mut random = fastrand::Rng::new();
        let messages = (0..count)
            .map(|_| {
                let order = OrderPlaced {
                    account: random.i64(0..ACCOUNTS),
                    amount: random.i64(1..1_000),
                    note: "n".repeat(200),
                };
                let id = format!(
                    "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
                    random.u32(..),
                    random.u16(..),
                    random.u16(..0x1000),
                    random.u16(0x8000..0xc000),
                    random.u64(..1 << 48)
                );
                Ok(Envelope::new(serde_json::to_vec(&order)?)
                    .id(id)
                    .message_type("OrderPlaced"))
            })
            .collect::<Result<_>>()?;
        Ok(Arc::new(Self {
            messages,
            taken: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn count(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn messages(&self) -> &[Envelope] {
        &self.messages
    }

    /// The next message that nobody took.
    pub(crate) fn take(&self) -> Option<&Envelope> {
        self.messages
            .get(self.taken.fetch_add(1, Ordering::Relaxed))
    }

    /// The next messages that nobody took, at most so many; none: all were taken.
    pub(crate) fn take_together(&self, most: usize) -> &[Envelope] {
        let first = self.taken.fetch_add(most, Ordering::Relaxed);
        let rest = self.messages.get(first..).unwrap_or_default();
        &rest[..rest.len().min(most)]
    }

    /// Nothing counts as taken any more: the same messages come a second time.
    pub(crate) fn rewind(&self) {
        self.taken.store(0, Ordering::Relaxed);
    }
}

/// The id and the decoded payload, for the variants that do this by hand.
pub(crate) fn read(message: &Envelope) -> Result<(&str, OrderPlaced)> {
    let id = message.id.as_deref().ok_or("a message without an id")?;
    Ok((id, serde_json::from_slice(&message.payload)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_taken_once_and_again_after_a_rewind() {
        let work = Work::of(25).unwrap();
        for _ in 0..2 {
            let mut seen = BTreeSet::new();
            let mut batches = Vec::new();
            while let batch @ [_, ..] = work.take_together(10) {
                batches.push(batch.len());
                seen.extend(batch.iter().map(|message| message.id.clone()));
            }
            assert_eq!((batches, seen.len()), (vec![10, 10, 5], 25));
            work.rewind();
        }
    }
}
