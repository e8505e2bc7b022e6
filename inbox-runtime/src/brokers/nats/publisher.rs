use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Request, RequestErrorKind};
use async_trait::async_trait;
use inbox_core::{BoxError, Envelope, PublishError, Publisher, SourceError};

use super::api::{self, ApiError};
use super::{Connection, Nats, message};

/// How long a stream may take to store a message.
const CONFIRM_LIMIT: Duration = Duration::from_secs(30);

/// Publishes to subjects of JetStream and waits until a stream has stored the message; made by [`Nats::publisher`].
///
/// The destination is a subject, such as `orders.placed`. A message of a subject that no stream takes is
/// [`Unroutable`](PublishError::Unroutable); one that was not confirmed counts as not published, although it may have been
/// stored. It connects with its first message, and again with the next one after a connection was lost. Clones share the
/// connection.
///
/// The id goes into the header `Nats-Msg-Id`, by which the server drops copies itself for a while (the stream's
/// `duplicate_window`, two minutes unless set): such a copy is confirmed like any other message. Type, content type and
/// correlation id go into the headers `type`, `content-type` and `correlation-id`.
#[derive(Clone)]
pub struct JetStreamPublisher {
    broker: Nats,
    confirm_limit: Duration,
    connection: Arc<tokio::sync::Mutex<Option<Connection>>>,
}

impl JetStreamPublisher {
    pub(super) fn new(broker: Nats) -> Self {
        Self {
            broker,
            confirm_limit: CONFIRM_LIMIT,
            connection: Arc::default(),
        }
    }

    /// Gives a message up when no stream has confirmed it in time. The default is 30 seconds.
    #[must_use]
    pub const fn confirm_limit(mut self, limit: Duration) -> Self {
        self.confirm_limit = limit;
        self
    }

    async fn connection(&self) -> Result<Connection, SourceError> {
        let mut place = self.connection.lock().await;
        if let Some(connection) = place.as_ref().filter(|connection| !connection.is_lost()) {
            return Ok(connection.clone());
        }
        *place = None;
        Ok(place.insert(self.broker.connect().await?).clone())
    }

    async fn send(&self, destination: &str, envelope: &Envelope) -> Result<(), PublishError> {
        let failed = |source: BoxError| PublishError::Failed {
            destination: destination.to_owned(),
            source,
        };
        let headers = message::headers(envelope).map_err(|problem| failed(problem.into()))?;
        if destination.contains(['*', '>']) {
            let problem = "a subject to publish to has no wildcards: name the very subject";
            return Err(failed(problem.into()));
        }
        let connection = self
            .connection()
            .await
            .map_err(|error| failed(error.into()))?;
        let request = Request::new()
            .headers(headers)
            .payload(envelope.payload.clone())
            .timeout(Some(self.confirm_limit));
        let subject = destination.to_owned();
        let answer = connection.client.send_request(subject, request).await;
        let answer = answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => PublishError::Unroutable {
                destination: destination.to_owned(),
            },
            _ => failed(format!("{error}{}", connection.complaint.in_brackets()).into()),
        })?;
        match api::read(&answer.payload) {
            Ok(confirm) if confirm["seq"].is_u64() => Ok(()),
            // Somebody answers on this subject, and it is no stream.
            Ok(_) | Err(ApiError::Failed(_)) => Err(failed(
                "what answered there is no stream of JetStream".into(),
            )),
            Err(refused) => Err(failed(refused.into())),
        }
    }
}

#[async_trait]
impl Publisher for JetStreamPublisher {
    async fn publish(&self, destination: &str, envelope: &Envelope) -> Result<(), PublishError> {
        self.send(destination, envelope).await
    }
}

impl fmt::Debug for JetStreamPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JetStreamPublisher")
            .field("broker", &self.broker)
            .field("confirm_limit", &self.confirm_limit)
            .finish_non_exhaustive()
    }
}
