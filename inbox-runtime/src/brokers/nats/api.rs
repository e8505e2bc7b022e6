//! JetStream's requests and answers, which are JSON.

use async_nats::{Client, RequestErrorKind};
use inbox_core::BoxError;
use serde_json::Value;

/// The JetStream of one account, or of a domain.
#[derive(Debug, Clone)]
pub(super) struct JetStream {
    client: Client,
    prefix: String,
}

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// The server says no; its own words.
    #[error("{description}")]
    Refused { code: u64, description: String },
    /// Nobody takes such requests.
    #[error("JetStream does not answer: is it switched on there, for this account and domain?")]
    NoJetStream,
    /// No answer, or none that can be read.
    #[error("{0}")]
    Failed(BoxError),
}

impl ApiError {
    /// Error codes of JetStream.
    const NO_STREAM: u64 = 10_059;
    const NO_CONSUMER: u64 = 10_014;

    pub(super) const fn is_no_stream(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == Self::NO_STREAM)
    }

    pub(super) const fn is_no_consumer(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == Self::NO_CONSUMER)
    }
}

impl JetStream {
    pub(super) fn new(client: Client, domain: Option<&str>) -> Self {
        let prefix = domain.map_or_else(
            || "$JS.API".to_owned(),
            |domain| format!("$JS.{domain}.API"),
        );
        Self { client, prefix }
    }

    /// Asks for `verb` and answers with what the server has of it.
    pub(super) async fn ask(&self, verb: &str, body: Option<&Value>) -> Result<Value, ApiError> {
        let subject = self.subject(verb);
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = self.client.request(subject, body.into()).await;
        let answer = answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => ApiError::NoJetStream,
            _ => ApiError::Failed(error.into()),
        })?;
        read(&answer.payload)
    }

    pub(super) fn subject(&self, verb: &str) -> String {
        format!("{}.{verb}", self.prefix)
    }
}

/// An answer of JetStream, or the error that it is.
pub(super) fn read(payload: &[u8]) -> Result<Value, ApiError> {
    let answer: Value =
        serde_json::from_slice(payload).map_err(|error| ApiError::Failed(error.into()))?;
    match answer.get("error") {
        None => Ok(answer),
        Some(error) => {
            let description = error.get("description").and_then(Value::as_str);
            Err(ApiError::Refused {
                code: error.get("err_code").and_then(Value::as_u64).unwrap_or(0),
                description: description.unwrap_or("no reason is given").to_owned(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_by_what_it_says() {
        assert_eq!(read(b"{\"seq\":7}").unwrap()["seq"], 7);
        let missing =
            br#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#;
        let missing = read(missing).unwrap_err();
        assert!(missing.is_no_stream() && !missing.is_no_consumer());
        assert_eq!(missing.to_string(), "stream not found");
        assert!(matches!(
            read(b"{\"error\":{}}"),
            Err(ApiError::Refused { code: 0, .. })
        ));
        assert!(matches!(read(b"+OK"), Err(ApiError::Failed(_))));
    }
}
