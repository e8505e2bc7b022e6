//! The in-memory broker, as itself and in the manner of others.

use std::marker::PhantomData;
use std::time::Duration;

use async_trait::async_trait;
use inbox_runtime::brokers::{MemoryBroker, MemorySource};
use inbox_runtime::testing::conformance::{Ability, Rig, Setup, suite};
use inbox_runtime::{BoxError, Capabilities, Envelope};

const QUEUE: &str = "orders";

/// What the broker behaves like.
pub(crate) trait Manner: Send + Sync + 'static {
    /// Whether it takes deliveries away.
    const TAKES_AWAY: bool = true;

    fn capabilities(setup: Setup) -> Capabilities;
}

/// Like itself.
pub(crate) struct Itself;

impl Manner for Itself {
    const TAKES_AWAY: bool = false;

    fn capabilities(_setup: Setup) -> Capabilities {
        Capabilities::new()
            .longest_delay(Duration::from_secs(60))
            .counts_hand_backs(false)
            .orders_by_key(true)
    }
}

/// No delays, hand-backs are counted, a delivery has its time.
pub(crate) struct AsRabbitMq;

impl Manner for AsRabbitMq {
    fn capabilities(setup: Setup) -> Capabilities {
        Capabilities::new().settle_window(match setup {
            Setup::ShortWindow => Duration::from_secs(1),
            _ => Duration::from_secs(30 * 60),
        })
    }
}

/// Delays, and a lease that is extended.
pub(crate) struct AsJetStream;

impl Manner for AsJetStream {
    fn capabilities(_setup: Setup) -> Capabilities {
        Capabilities::new()
            .longest_delay(Duration::from_secs(60))
            .lease(Duration::from_millis(500))
    }
}

pub(crate) struct Memory<M> {
    broker: MemoryBroker,
    setup: Setup,
    manner: PhantomData<M>,
}

#[async_trait]
impl<M: Manner> Rig for Memory<M> {
    type Source = MemorySource;

    fn lacks(ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Processes => Some("the broker lives in one process"),
            Ability::ShortWindow if !M::TAKES_AWAY => {
                Some("the broker takes nothing away from an assignment that lives")
            }
            _ => None,
        }
    }

    async fn fresh(setup: Setup) -> Result<Self, BoxError> {
        Ok(Self {
            broker: MemoryBroker::new(),
            setup,
            manner: PhantomData,
        })
    }

    fn source(&self) -> MemorySource {
        let capabilities = M::capabilities(self.setup);
        self.broker.source(QUEUE).behave_as(capabilities)
    }

    async fn publish(&self, messages: &[Envelope]) -> Result<(), BoxError> {
        for message in messages {
            self.broker.publish(QUEUE, message.clone());
        }
        Ok(())
    }

    async fn left(&self) -> Result<u64, BoxError> {
        let queue = self.broker.queue_state(QUEUE);
        let left = queue.ready + queue.delayed + queue.outstanding;
        Ok(u64::try_from(left)?)
    }

    async fn cut(&self) -> Result<(), BoxError> {
        self.broker.disconnect(QUEUE);
        Ok(())
    }

    async fn stop(&self) -> Result<(), BoxError> {
        self.broker.fail_open(QUEUE, u32::MAX);
        self.broker.crash();
        Ok(())
    }

    async fn crash(&self) -> Result<(), BoxError> {
        self.stop().await
    }

    async fn start(&self) -> Result<(), BoxError> {
        self.broker.fail_open(QUEUE, 0);
        Ok(())
    }
}

mod itself {
    use super::*;
    suite!(Memory<Itself>);
}

mod as_rabbitmq {
    use super::*;
    suite!(Memory<AsRabbitMq>);
}

mod as_jetstream {
    use super::*;
    suite!(Memory<AsJetStream>);
}
