//! Where messages come from: one adapter per broker, each behind a feature of its own name.
//!
//! | adapter | feature | for |
//! |---|---|---|
//! | [`MemoryBroker`] | always there | tests, examples, queues that may die with the process |
//! | `Kafka` | `kafka` | Apache Kafka, as a member of a consumer group |
//! | `Nats` | `nats` | JetStream consumers of a NATS server, 2.9 or newer |
//! | `RabbitMq` | `rabbitmq` | RabbitMQ, classic and quorum queues (AMQP 0-9-1) |
//!
//! A new broker is one file or folder here that implements [`Source`](inbox_core::Source),
//! [`Deliveries`](inbox_core::Deliveries) and [`Settle`](inbox_core::Settle); nothing outside it changes.

#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod address;
#[cfg(feature = "kafka")]
#[cfg_attr(docsrs, doc(cfg(feature = "kafka")))]
mod kafka;
mod memory;
#[cfg(feature = "nats")]
#[cfg_attr(docsrs, doc(cfg(feature = "nats")))]
mod nats;
#[cfg(feature = "rabbitmq")]
#[cfg_attr(docsrs, doc(cfg(feature = "rabbitmq")))]
mod rabbitmq;

#[cfg(feature = "kafka")]
#[cfg_attr(docsrs, doc(cfg(feature = "kafka")))]
pub use kafka::{Kafka, KafkaPublisher, KafkaSource};
pub use memory::{Effect, LostAck, MemoryBroker, MemorySource, QueueState, Settled};
#[cfg(feature = "nats")]
#[cfg_attr(docsrs, doc(cfg(feature = "nats")))]
pub use nats::{ConsumerDeclaration, DeliverFrom, JetStreamPublisher, JetStreamSource, Nats};
#[cfg(feature = "rabbitmq")]
#[cfg_attr(docsrs, doc(cfg(feature = "rabbitmq")))]
pub use rabbitmq::{Argument, Declaration, QueueKind, RabbitMq, RabbitMqPublisher, RabbitMqSource};
