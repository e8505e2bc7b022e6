use super::DeadLetterReason;

/// Which dead letters are asked for: all conditions hold together.
///
/// ```
/// use inbox_core::{DeadLetterQuery, DeadLetterReason};
///
/// let query = DeadLetterQuery::new()
///     .consumer("billing")
///     .reason(DeadLetterReason::AttemptsExhausted)
///     .page_size(200);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterQuery {
    pub(crate) consumer: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) reason: Option<DeadLetterReason>,
    pub(crate) message_type: Option<String>,
    pub(crate) message_id: Option<String>,
    pub(crate) state: DeadLetterState,
    pub(crate) order: DeadLetterOrder,
    pub(crate) page_size: u32,
    pub(crate) after: Option<i64>,
}

/// Whether a dead letter waits for somebody's decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DeadLetterState {
    /// Nobody has replayed it, or it failed again after that.
    #[default]
    Open,
    /// It was replayed and has not failed since.
    Replayed,
    /// Either.
    All,
}

/// The order of a list of dead letters, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DeadLetterOrder {
    /// The latest entry first.
    #[default]
    NewestFirst,
    /// The earliest entry first.
    OldestFirst,
}

impl Default for DeadLetterQuery {
    fn default() -> Self {
        Self::new()
    }
}

impl DeadLetterQuery {
    /// The largest page.
    pub const MAX_PAGE_SIZE: u32 = 1000;

    /// Every open dead letter, the latest first, 50 on a page.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            consumer: None,
            source: None,
            reason: None,
            message_type: None,
            message_id: None,
            state: DeadLetterState::Open,
            order: DeadLetterOrder::NewestFirst,
            page_size: 50,
            after: None,
        }
    }

    /// Only those that this consumer gave up.
    #[must_use]
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = Some(name.into());
        self
    }

    /// Only those of this source.
    #[must_use]
    pub fn source(mut self, name: impl Into<String>) -> Self {
        self.source = Some(name.into());
        self
    }

    /// Only those with this reason.
    #[must_use]
    pub const fn reason(mut self, reason: DeadLetterReason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Only those with this message type.
    #[must_use]
    pub fn message_type(mut self, name: impl Into<String>) -> Self {
        self.message_type = Some(name.into());
        self
    }

    /// Only those with this message id.
    #[must_use]
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// Open ones (the default), replayed ones, or all.
    #[must_use]
    pub const fn state(mut self, state: DeadLetterState) -> Self {
        self.state = state;
        self
    }

    /// The latest first (the default), or the earliest.
    #[must_use]
    pub const fn order(mut self, order: DeadLetterOrder) -> Self {
        self.order = order;
        self
    }

    /// How many entries a page has: 50 by default, at most [`MAX_PAGE_SIZE`](Self::MAX_PAGE_SIZE), at least 1. What is
    /// beyond that is taken as the limit.
    #[must_use]
    pub const fn page_size(mut self, entries: u32) -> Self {
        self.page_size = match entries {
            0 => 1,
            Self::MAX_PAGE_SIZE.. => Self::MAX_PAGE_SIZE,
            _ => entries,
        };
        self
    }

    /// Goes on behind this entry, which need not exist any more. A page says which one: its `next`.
    #[must_use]
    pub const fn after(mut self, id: i64) -> Self {
        self.after = Some(id);
        self
    }

    /// How many entries are on a page.
    #[must_use]
    pub const fn entries_on_page(&self) -> u32 {
        self.page_size
    }
}
