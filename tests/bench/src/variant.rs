//! The ways to process a message on PostgreSQL that are compared.

use std::sync::Arc;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use crate::database::Path;
use crate::framework::{Mode, SHARED};
use crate::stopwatch::{Pid, Taken};
use crate::workload::Work;
use crate::{Result, by_hand, framework, pgbench};

/// What one run has to do, and where.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) pool: PgPool,
    /// For a client that has no pool of ours.
    pub(crate) place: PgConnectOptions,
    pub(crate) work: Arc<Work>,
    pub(crate) concurrency: usize,
    pub(crate) server: Pid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Pooled,
    Held,
    HeldFenced,
    Session,
    Pgbench,
    /// One message per transaction.
    FrameworkAlone,
    /// The same, acked after a flush for many.
    FrameworkFlushing,
    /// Messages that wait share a transaction.
    FrameworkShared,
    /// The same, and those of one account go to one worker.
    FrameworkInOrder,
    FrameworkBatches,
    FrameworkOnMemoryBroker,
    SetBased,
    PgbenchSetBased,
}

impl Variant {
    pub(crate) const NEW_MESSAGES: [Self; 12] = [
        Self::Pooled,
        Self::Held,
        Self::HeldFenced,
        Self::Pgbench,
        Self::Session,
        Self::FrameworkAlone,
        Self::FrameworkFlushing,
        Self::FrameworkShared,
        Self::FrameworkInOrder,
        Self::SetBased,
        Self::PgbenchSetBased,
        Self::FrameworkBatches,
    ];
    pub(crate) const DUPLICATES: [Self; 5] = [
        Self::Pooled,
        Self::Held,
        Self::FrameworkAlone,
        Self::FrameworkShared,
        Self::FrameworkBatches,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pooled => "by hand, pool",
            Self::Held => "by hand, held connection",
            Self::HeldFenced => "by hand, held connection, fence",
            Self::Session => "the framework's statements, no runtime",
            Self::Pgbench => "pgbench, the same statements",
            Self::FrameworkAlone => "framework, one message per transaction",
            Self::FrameworkFlushing => "framework, the same, acks after a flush",
            Self::FrameworkShared => "framework, shared transactions",
            Self::FrameworkInOrder => "framework, shared, ordered by account",
            Self::FrameworkBatches => "framework, batch handler, 100",
            Self::FrameworkOnMemoryBroker => "framework, in-memory broker",
            Self::SetBased => "by hand, set-based, 100",
            Self::PgbenchSetBased => "pgbench, 100 in one statement",
        }
    }

    /// How many times as many messages as the base it gets, so that its runs are not too short to be measured.
    pub(crate) const fn scale(self, path: Path) -> usize {
        match (self, path) {
            (Self::SetBased | Self::PgbenchSetBased | Self::FrameworkBatches, Path::Direct) => 8,
            (Self::SetBased | Self::PgbenchSetBased | Self::FrameworkBatches, Path::Delayed) => 20,
            (Self::FrameworkShared | Self::FrameworkInOrder, _) => 2,
            _ => 1,
        }
    }

    pub(crate) async fn run(self, setting: &Setting) -> Result<Taken> {
        match self {
            Self::Pooled => by_hand::pooled(setting).await,
            Self::Held => by_hand::held(setting, false).await,
            Self::HeldFenced => by_hand::held(setting, true).await,
            Self::Session => by_hand::session(setting).await,
            Self::Pgbench => pgbench::one_by_one(setting).await,
            Self::FrameworkAlone => framework::preloaded(setting, Mode::Together(1)).await,
            Self::FrameworkFlushing => framework::preloaded(setting, Mode::Flushing).await,
            Self::FrameworkShared => framework::preloaded(setting, Mode::Together(SHARED)).await,
            Self::FrameworkInOrder => framework::preloaded(setting, Mode::InOrder).await,
            Self::FrameworkBatches => framework::preloaded(setting, Mode::Batches).await,
            Self::FrameworkOnMemoryBroker => framework::memory_broker(setting).await,
            Self::SetBased => by_hand::set_based(setting).await,
            Self::PgbenchSetBased => pgbench::set_based(setting).await,
        }
    }
}
