use crate::envelope::Envelope;
use crate::source::SettleToken;

/// One delivery of a message: its envelope, the token that settles it, and what the broker counts.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The message.
    pub envelope: Envelope,
    /// Consumed by the one settle of this delivery.
    pub token: SettleToken,
    /// Whether the broker says that it delivered this message before. A hint: `false` proves nothing.
    pub redelivered: bool,
    /// The broker's own number of earlier deliveries, where it counts them. Never compared with
    /// `max_attempts`: it also grows when a connection drops.
    pub earlier_deliveries: Option<u32>,
}

impl Delivery {
    /// A first delivery.
    #[must_use]
    pub const fn new(envelope: Envelope, token: SettleToken) -> Self {
        Self {
            envelope,
            token,
            redelivered: false,
            earlier_deliveries: None,
        }
    }

    /// Notes that the broker delivered this message before.
    #[must_use]
    pub const fn redelivered(mut self, redelivered: bool) -> Self {
        self.redelivered = redelivered;
        self
    }

    /// Notes how often the broker says that it delivered this message before.
    #[must_use]
    pub const fn earlier_deliveries(mut self, count: Option<u32>) -> Self {
        self.earlier_deliveries = count;
        self
    }
}
