use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Any error of a handler, boxed.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// The error that a handler returns when it has something to say about the retry.
///
/// Every other error type works too: a handler may return `Result<(), E>` for any `E` that converts into
/// [`BoxError`], and is then retried by the usual policy. A `HandlerError` that went through a wrapper such as
/// `anyhow::Error` is found only if the wrapper keeps it in its `source()` chain.
///
/// ```
/// use std::time::Duration;
/// use inbox_core::HandlerError;
///
/// fn check(stock: i64) -> Result<(), HandlerError> {
///     match stock {
///         0 => Err(HandlerError::retry_after(Duration::from_secs(60), "out of stock")),
///         n if n < 0 => Err(HandlerError::reject("negative stock")),
///         _ => Ok(()),
///     }
/// }
/// # assert!(check(1).is_ok() && check(0).is_err() && check(-1).is_err());
/// ```
#[derive(Debug)]
pub struct HandlerError {
    source: BoxError,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Failed,
    RetryAfter(Duration),
    Rejected,
}

impl HandlerError {
    /// The handler failed; the message is tried again by the usual policy.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            kind: Kind::Failed,
        }
    }

    /// The longest delay that is waited for: ten years.
    pub const LONGEST_DELAY: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    /// The handler failed and asks for the next try no earlier than after `delay`, or after
    /// [`LONGEST_DELAY`](Self::LONGEST_DELAY) where it asks for more.
    pub fn retry_after(delay: Duration, source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            kind: Kind::RetryAfter(delay),
        }
    }

    /// The message can never be handled: it becomes a dead letter at once, whatever `max_attempts` says.
    pub fn reject(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
            kind: Kind::Rejected,
        }
    }

    /// The delay that the handler asked for.
    #[must_use]
    pub const fn delay(&self) -> Option<Duration> {
        match self.kind {
            Kind::RetryAfter(delay) => Some(delay),
            Kind::Failed | Kind::Rejected => None,
        }
    }

    /// Whether the handler rejected the message.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.kind == Kind::Rejected
    }

    /// The error inside.
    #[must_use]
    pub fn inner(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }

    /// Makes one of whatever a handler returned, keeping the wishes of a `HandlerError` found in its chain.
    fn from_returned(error: BoxError) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(own) => return *own,
            Err(other) => other,
        };
        let kind = chain(&*error)
            .find_map(|e| e.downcast_ref::<Self>())
            .map_or(Kind::Failed, |own| own.kind);
        Self {
            source: error,
            kind,
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)
    }
}

impl Error for HandlerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

impl From<sqlx::Error> for HandlerError {
    fn from(error: sqlx::Error) -> Self {
        Self::new(error)
    }
}

impl From<BoxError> for HandlerError {
    fn from(error: BoxError) -> Self {
        Self::from_returned(error)
    }
}

impl From<String> for HandlerError {
    fn from(error: String) -> Self {
        Self::new(error)
    }
}

impl From<&str> for HandlerError {
    fn from(error: &str) -> Self {
        Self::new(error)
    }
}

/// The error and everything in its `source()` chain, outermost first.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let current = next?;
        next = current.source();
        Some(current)
    })
}

/// A payload that could not be decoded.
#[derive(Debug)]
pub struct DecodeError(BoxError);

impl DecodeError {
    /// Wraps the decoder's error.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self(source.into())
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the payload cannot be decoded: {}", self.0)
    }
}

impl Error for DecodeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// A handler argument that could not be provided: a fault of the configuration, never of the message.
#[derive(Debug)]
pub struct ExtractError(BoxError);

impl ExtractError {
    /// Wraps what went wrong.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self(source.into())
    }
}

impl fmt::Display for ExtractError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a handler argument cannot be provided: {}", self.0)
    }
}

impl Error for ExtractError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// Why a call of a handler did not succeed, by whose fault it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The message's: it becomes a dead letter at once.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Those of a batch at these positions: each takes the path of a single message, the others are tried without
    /// them.
    #[error("some messages of the batch cannot be decoded")]
    DecodeSome(Vec<usize>),
    /// The configuration's: the message is kept and tried again, never dead-lettered for it.
    #[error(transparent)]
    Extract(#[from] ExtractError),
    /// The handler's: counted, retried, and at `max_attempts` a dead letter.
    #[error(transparent)]
    Handler(HandlerError),
}

/// What a handler may fail with: everything that converts into [`BoxError`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler error",
    label = "not a handler error",
    note = "write `-> Result<(), HandlerError>`, or implement `std::error::Error` for `{Self}`, which must be `Send + Sync + 'static`",
    note = "a boxed error is `Box<dyn Error + Send + Sync>`"
)]
pub trait IntoHandlerError: Into<BoxError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> IntoHandlerError for E {}

/// What an inbox handler may return: `Result<(), E>` for any error that converts into [`BoxError`].
#[diagnostic::on_unimplemented(
    message = "an inbox handler must return `Result<(), E>`, found `{Self}`",
    label = "not a handler result",
    note = "write `-> Result<(), HandlerError>`; `E` can be any type that implements `std::error::Error + Send + Sync + 'static`",
    note = "nobody receives a value from a handler: store it through `tx` and return `Ok(())`"
)]
pub trait HandlerOutcome {
    /// Turns the returned value into the runtime's form.
    ///
    /// # Errors
    ///
    /// [`CallError::Handler`] for an `Err`.
    fn into_outcome(self) -> Result<(), CallError>;
}

impl<E: IntoHandlerError> HandlerOutcome for Result<(), E> {
    fn into_outcome(self) -> Result<(), CallError> {
        self.map_err(|error| CallError::Handler(HandlerError::from_returned(error.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("wrapped")]
    struct Wrapper(#[source] HandlerError);

    #[test]
    fn a_rejection_is_found_through_wrappers() {
        let returned: Result<(), Wrapper> = Err(Wrapper(HandlerError::reject("no")));
        let Err(CallError::Handler(error)) = returned.into_outcome() else {
            panic!("not a handler error")
        };
        assert!(error.is_rejected());
        assert_eq!(error.to_string(), "wrapped");
    }

    #[test]
    fn a_plain_error_has_no_wishes() {
        let returned: Result<(), std::fmt::Error> = Err(std::fmt::Error);
        let Err(CallError::Handler(error)) = returned.into_outcome() else {
            panic!("not a handler error")
        };
        assert!(!error.is_rejected());
        assert_eq!(error.delay(), None);
    }
}
