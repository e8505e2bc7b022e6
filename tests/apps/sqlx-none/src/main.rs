//! Shows that the library compiles in an application that uses sqlx without its default features.

use inbox_runtime::{HandlerError, Inbox, Tx, inbox_handler};
use serde::Deserialize;
use sqlx::Postgres;

#[derive(Deserialize)]
struct OrderPlaced {
    account: String,
    amount_cents: i64,
}

#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    sqlx::query("UPDATE accounts SET balance = balance - $1 WHERE id = $2")
        .bind(order.amount_cents)
        .bind(&order.account)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = sqlx::PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let _inbox = Inbox::builder(pool).register(charge::handler());
    Ok(())
}
