//! Exactly-once processing of at-least-once messages: a message that a broker delivers any number of times
//! changes the database once, and is acknowledged only when that change is durable.
//!
//! Annotate an async function, register it, run:
//!
//! ```no_run
//! # #[cfg(all(feature = "postgres", feature = "rabbitmq"))]
//! # mod example {
//! use inbox_runtime::brokers::RabbitMq;
//! use inbox_runtime::{HandlerError, Inbox, Tx, inbox_handler};
//! use sqlx::{PgPool, Postgres};
//!
//! #[derive(serde::Deserialize)]
//! struct OrderPlaced { account: String, amount_cents: i64 }
//!
//! /// Charges the customer once per order.
//! #[inbox_handler(consumer = "billing")]
//! async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
//!     sqlx::query("UPDATE accounts SET balance = balance - $1 WHERE id = $2")
//!         .bind(order.amount_cents).bind(&order.account)
//!         .execute(&mut *tx).await?;
//!     Ok(())
//! }
//!
//! # async fn shutdown_signal() {}
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = PgPool::connect("postgres://localhost/app").await?;
//! Inbox::builder(pool)
//!     .source("orders", RabbitMq::new("amqp://localhost").queue("orders"))
//!     .register(charge::handler())
//!     .migrate_on_start()
//!     .build().await?
//!     .run_until(shutdown_signal()).await;
//! # Ok(()) }
//! # }
//! ```
//!
//! # What is promised, and what is not
//!
//! The claim of (consumer, message id) and everything that the handler does through its transaction are
//! committed together or not at all; the delivery is acked after that commit. Whatever crashes, times out,
//! reconnects or races, the answer is "delivered again" or "already done". What a handler does outside its
//! transaction (a call to another service) can happen more than once: give such calls an
//! [`IdempotencyKey`]. "Durable" means as durable as the database: an asynchronous failover can lose a commit
//! after its message was acked, and no inbox can repair that.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `postgres` | yes | PostgreSQL |
//! | `mysql` | no | MariaDB and MySQL |
//! | `sqlite` | no | SQLite, with one worker per file |
//! | `kafka` | no | [`brokers::Kafka`]; builds librdkafka from its source, with a C and a C++ compiler and `make` |
//! | `kafka-ssl` | no | encryption and SASL for it; needs OpenSSL's headers and `pkg-config` |
//! | `rabbitmq` | no | [`brokers::RabbitMq`] |
//! | `nats` | no | [`brokers::Nats`], without encryption |
//! | `nats-tls` | no | encrypted connections to NATS, with the `ring` provider of rustls |
//! | `testing` | no | [`testing`]: stop or observe the path at each numbered step |
//! | `conformance` | no | [`testing::conformance`]: the suite that every broker adapter must pass |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backoff;
pub mod brokers;
mod builder;
mod checks;
mod connection;
pub mod dead_letters;
mod flush;
mod gate;
mod group;
mod hold;
mod inbox;
mod intake;
mod job;
mod monitor;
mod path;
mod purge;
mod queue;
mod route;
mod solitude;
mod stored;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(not(feature = "testing"))]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "offered to applications by the feature alone"
)]
mod testing;
mod worker;

pub use backoff::RetryPolicy;
pub use builder::{BuildError, InboxBuilder, migrate, migrate_tables};
pub use inbox::{Inbox, Stopped};
pub use monitor::{Condition, Counts, Health, Monitor};
pub use purge::PurgePolicy;

#[doc(hidden)]
pub use inbox_core::__private;
#[doc(no_inline)]
pub use inbox_core::{
    Assignment, Attempt, Batch, BatchLimits, Batched, BoxError, CallError, Capabilities,
    ConsumerName, DecodeError, DedupKey, Deliveries, Delivery, Envelope, ExtractError, FromBatch,
    FromDelivery, Handler, HandlerError, HandlerFuture, HandlerOn, HandlerOutcome, HandlerSpec,
    HandlerTx, Headers, IdSource, IdempotencyKey, InboxDatabase, Incoming, Isolation, Learned,
    Message, MessageId, Messages, MigrationError, Needs, OrderBy, PublishError, Publisher,
    Requirements, RetryDelays, SameDatabase, Savepoint, Settle, SettleError, SettleToken,
    SharedState, SingleMessage, Source, SourceError, State, StateMap, Tables, Tx, Verdict,
};

#[doc(inline)]
#[doc = include_str!("../docs/inbox_handler.md")]
pub use inbox_macros::inbox_handler_runtime as inbox_handler;

/// The example of the README compiles.
#[cfg(all(doctest, feature = "postgres", feature = "rabbitmq"))]
#[doc = include_str!("../../README.md")]
mod readme {}
