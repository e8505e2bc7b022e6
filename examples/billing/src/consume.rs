//! Two handlers of the same event. Each has its own claim and its own transaction, so when one fails or is killed
//! the other one's work stands, and a redelivery runs only what is not done.

use std::time::Duration;

use inbox_runtime::{HandlerError, Inbox, State, Tx, inbox_handler};
use sqlx::Postgres;

use crate::broker::Broker;
use crate::{OrderPlaced, database};

/// How long each handler dawdles.
#[derive(Debug, Clone, Copy)]
struct Pause(Duration);

/// Charges the account once per order.
#[inbox_handler(consumer = "example-billing", on = "OrderPlaced")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    State(pause): State<Pause>,
) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO example_ledger (order_id, account, amount_cents) VALUES ($1, $2, $3)")
        .bind(&order.order)
        .bind(&order.account)
        .bind(order.amount_cents)
        .execute(&mut *tx)
        .await?;
    tokio::time::sleep(pause.0).await;
    sqlx::query(
        "INSERT INTO example_accounts AS account (id, balance_cents) VALUES ($1, $2) \
         ON CONFLICT (id) DO UPDATE SET balance_cents = account.balance_cents + excluded.balance_cents",
    )
    .bind(&order.account)
    .bind(order.amount_cents)
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// Writes one receipt per order.
#[inbox_handler(consumer = "example-receipts", on = "OrderPlaced")]
async fn write_receipt(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    State(pause): State<Pause>,
) -> Result<(), HandlerError> {
    tokio::time::sleep(pause.0).await;
    sqlx::query("INSERT INTO example_receipts (order_id) VALUES ($1)")
        .bind(&order.order)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

pub(crate) async fn consume(broker: Broker, slow: bool) -> Result<bool, String> {
    let pool = database().await?;
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn,inbox_runtime=info".to_owned());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .init();
    let inbox = broker
        .source(Inbox::builder(pool))
        .await?
        .register(charge::handler())
        .register(write_receipt::handler())
        .state(Pause(Duration::from_millis(if slow { 25 } else { 0 })))
        .migrate_on_start()
        .build()
        .await
        .map_err(|error| error.to_string())?;
    println!(
        "consuming {}; end it with Ctrl-C, or the hard way: kill -9 {}",
        broker.destination(),
        std::process::id()
    );
    inbox.run_until(shutdown_signal()).await;
    Ok(true)
}

/// Ctrl-C, or what a service manager sends.
async fn shutdown_signal() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        let terminated = async {
            match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
                Ok(mut signal) => signal.recv().await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupted => {}
            _ = terminated => {}
        }
    }
    #[cfg(not(unix))]
    {
        let _ = interrupted.await;
    }
}
