//! Where messages come from: one adapter per broker, each behind a feature of its own name.
//!
//! | adapter | feature | for |
//! |---|---|---|
//! | [`MemoryBroker`] | always there | tests, examples, queues that may die with the process |
//! | `RabbitMq` | `rabbitmq` | RabbitMQ, classic and quorum queues (AMQP 0-9-1) |
//!
//! A new broker is one file or folder here that implements [`Source`](inbox_core::Source),
//! [`Deliveries`](inbox_core::Deliveries) and [`Settle`](inbox_core::Settle); nothing outside it changes.

mod memory;
#[cfg(feature = "rabbitmq")]
#[cfg_attr(docsrs, doc(cfg(feature = "rabbitmq")))]
mod rabbitmq;

pub use memory::{Effect, LostAck, MemoryBroker, MemorySource, QueueState, Settled};
#[cfg(feature = "rabbitmq")]
#[cfg_attr(docsrs, doc(cfg(feature = "rabbitmq")))]
pub use rabbitmq::{Argument, Declaration, QueueKind, RabbitMq, RabbitMqPublisher, RabbitMqSource};

use inbox_core::{IdSource, broker_side_identifier};

/// What is wrong with the places in which a source looks for a message's id.
fn id_source_problems(source: &str, places: &[IdSource]) -> Vec<String> {
    if places.is_empty() {
        return vec![format!(
            "{source} looks for the message id nowhere: name at least one place in `id_from`"
        )];
    }
    places
        .iter()
        .filter_map(|place| match place {
            IdSource::Header(name) if name.is_empty() => Some(format!(
                "{source} looks for the message id in a header without a name: name it in `id_header`"
            )),
            IdSource::Header(name) => broker_side_identifier(name).map(|why| {
                format!(
                    "{source} looks for the message id in the header `{name}`, but {why}: take a header that the \
                     producer sets once per message and repeats on every retry"
                )
            }),
            _ => None,
        })
        .collect()
}
