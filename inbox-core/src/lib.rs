//! Traits, transaction, message types and SQL of the inbox framework: what a crate of handlers, a broker
//! adapter or a database needs to know, without an executor and without any broker.
//!
//! An application depends on `inbox-runtime`, which re-exports everything here; a library of handlers
//! depends on this crate alone.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `postgres` | yes | [`InboxDatabase`] for PostgreSQL |
//! | `mysql` | no | [`InboxDatabase`] for MariaDB and MySQL |
//! | `sqlite` | no | [`InboxDatabase`] for SQLite |
//! | `macros` | yes | the attribute [`macro@inbox_handler`] |
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod __private;
mod batch;
mod consumer;
mod db;
mod dead_letter;
mod delivery;
mod document;
mod envelope;
mod error;
mod extract;
mod handler;
mod identity;
mod incoming;
mod message;
mod pointer;
mod registration;
mod session;
mod source;
mod tables;
mod tx;

pub use batch::{Batch, Batched, FromBatch, Messages, SingleMessage};
pub use consumer::{ConsumerName, InvalidConsumerName};
pub use db::{
    Claim, ClaimKey, Claimed, Claims, Counted, DeadLetterStore, Dialect, Done, ErrorClass,
    Existing, Expiring, Finding, InboxDatabase, Inspection, Interruption, Kept, MigrationError,
    PayloadHash, PurgeBatch, PurgePosition, Purged, Requisites, Retention, Sealed, Severity,
    TraceOfClaim,
    stored::{Lease, LeaseTerms, LeasedMessage, MessageStore, WaitingMessage},
};
pub use dead_letter::{
    DeadLetter, DeadLetterEntry, DeadLetterOrder, DeadLetterQuery, DeadLetterReason,
    DeadLetterState, ExistingEntry, FailureText, StoredDeadLetter, UnknownReason,
};
pub use delivery::Delivery;
pub use document::InvalidDocument;
pub use envelope::{Envelope, Headers};
pub use error::{
    BoxError, CallError, DecodeError, ExtractError, HandlerError, HandlerOutcome, IntoHandlerError,
};
pub use extract::{
    Attempt, FromDelivery, IdempotencyKey, Requirements, SharedState, State, StateMap,
    StateRequirement,
};
pub use handler::{
    BatchLimits, DedupKey, Handler, HandlerFuture, HandlerSpec, Isolation, OrderBy, RetryDelays,
};
pub use identity::{
    CLOUD_EVENTS_JSON, IdProblem, IdSource, InvalidMessageId, MAX_ID_BYTES, MessageId,
    broker_side_identifier,
};
pub use incoming::Incoming;
pub use message::Message;
pub use registration::{HandlerOn, SameDatabase};
pub use session::{Layout, Session, TransactionOptions};
pub use source::{
    Assignment, Capabilities, Deliveries, Learned, Needs, PublishError, Publisher, Settle,
    SettleError, SettleToken, Source, SourceError, Verdict,
};
pub use tables::{InvalidTableNames, Tables};
pub use tx::{HandlerTx, Savepoint, Tx};

#[cfg(feature = "macros")]
#[doc = include_str!("../docs/inbox_handler.md")]
pub use inbox_macros::inbox_handler;
