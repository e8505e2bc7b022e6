use std::time::Duration;

use async_trait::async_trait;
use inbox_core::{BoxError, Envelope, Source};

/// A new, empty queue (topic, stream) on a broker, and what a test can do to both.
///
/// The suite makes one for each case. What the broker, or the rig, cannot do is declared in [`lacks`](Self::lacks); the
/// cases that need it are then reported as not applying, with that reason.
#[async_trait]
pub trait Rig: Sized + Send + Sync + 'static {
    /// The adapter's source.
    type Source: Source;

    /// How long a case waits for something that has to happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Why there is nothing like `ability` here; `None`: there is. The reason is a sentence for the report.
    fn lacks(ability: Ability) -> Option<&'static str>;

    /// Makes an empty queue, one that nobody else uses.
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    async fn fresh(setup: Setup) -> Result<Self, BoxError>;

    /// The queue as a source. Several may consume it at a time, as several instances of one application do.
    fn source(&self) -> Self::Source;

    /// Publishes messages in their order, and returns when the broker has them.
    ///
    /// An [`Envelope::id`] goes where the source looks for ids first. One that the broker cannot carry is an error.
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    async fn publish(&self, messages: &[Envelope]) -> Result<(), BoxError>;

    /// How many messages the queue holds that were not settled, delivered or not. The suite asks when it has dropped its
    /// assignments, and asks again for a while when the answer is not what it waits for. [`Ability::Count`]
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    async fn left(&self) -> Result<u64, BoxError> {
        undeclared(Ability::Count)
    }

    /// Breaks the connections of the sources, from outside: the server closes them, or a proxy does. Sources can connect
    /// again. [`Ability::Cut`]
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    async fn cut(&self) -> Result<(), BoxError> {
        undeclared(Ability::Cut)
    }

    /// Stops a broker of [`Setup::OwnBroker`] in an orderly way. [`Ability::Restart`]
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    async fn stop(&self) -> Result<(), BoxError> {
        undeclared(Ability::Restart)
    }

    /// Kills a broker of [`Setup::OwnBroker`]; what it confirmed is on its disk. [`Ability::Crash`]
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    async fn crash(&self) -> Result<(), BoxError> {
        undeclared(Ability::Crash)
    }

    /// Starts the broker again, at the same address and with the same data, and returns when it answers. What the rig
    /// itself needs of the broker works again. [`Ability::Restart`], [`Ability::Crash`]
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    async fn start(&self) -> Result<(), BoxError> {
        undeclared(Ability::Restart)
    }

    /// What another process needs to [`attach`](Self::attach) to the same queue. [`Ability::Processes`]
    fn address(&self) -> String {
        String::new()
    }

    /// The queue at `address`, in another process. [`Ability::Processes`]
    ///
    /// # Errors
    ///
    /// Any, which fails the case.
    #[allow(clippy::must_use_candidate)] // A future has to be used anyway.
    async fn attach(address: &str) -> Result<Self, BoxError> {
        let _ = address;
        undeclared(Ability::Processes)
    }
}

fn undeclared<T>(ability: Ability) -> Result<T, BoxError> {
    Err(format!(
        "the rig has no {ability:?}: implement its methods, or return the reason from `Rig::lacks`"
    )
    .into())
}

/// What a case wants to do to a queue or a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ability {
    /// Counting what is left: [`Rig::left`].
    Count,
    /// Breaking connections: [`Rig::cut`].
    Cut,
    /// Stopping the broker and starting it again: [`Rig::stop`], [`Rig::start`].
    Restart,
    /// Killing the broker and starting it again: [`Rig::crash`], [`Rig::start`].
    Crash,
    /// Consuming in another process, to be killed: [`Rig::address`], [`Rig::attach`].
    Processes,
    /// Taking a delivery away from a consumer that is slow: [`Setup::ShortWindow`].
    ShortWindow,
}

/// The broker that a case wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Setup {
    /// Any; others may use it at the same time.
    Shared,
    /// The same, with a queue whose load four consumers can share: a topic has at least as many partitions.
    SharedLoad,
    /// One that only this case uses, because it stops or kills it.
    OwnBroker,
    /// One that takes deliveries away as early as it can be told to, from whoever neither settles nor extends them. What
    /// [`Capabilities::lease`](inbox_core::Capabilities::lease) or
    /// [`settle_window`](inbox_core::Capabilities::settle_window) of the source says is what it does.
    ShortWindow,
}
