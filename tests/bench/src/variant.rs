//! The ways to process a message on PostgreSQL that are compared.

use std::sync::Arc;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use crate::database::Path;
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
    /// Messages that wait share a transaction.
    Framework,
    FrameworkOnMemoryBroker,
    SetBased,
    PgbenchSetBased,
}

impl Variant {
    pub(crate) const NEW_MESSAGES: [Self; 9] = [
        Self::Pooled,
        Self::Held,
        Self::HeldFenced,
        Self::Pgbench,
        Self::Session,
        Self::FrameworkAlone,
        Self::Framework,
        Self::SetBased,
        Self::PgbenchSetBased,
    ];
    pub(crate) const DUPLICATES: [Self; 4] = [
        Self::Pooled,
        Self::Held,
        Self::FrameworkAlone,
        Self::Framework,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pooled => "by hand, pool",
            Self::Held => "by hand, held connection",
            Self::HeldFenced => "by hand, held connection, fence",
            Self::Session => "the framework's statements, no runtime",
            Self::Pgbench => "pgbench, the same statements",
            Self::FrameworkAlone => "framework, one message per transaction",
            Self::Framework => "framework, shared transactions",
            Self::FrameworkOnMemoryBroker => "framework, in-memory broker",
            Self::SetBased => "by hand, set-based, 100",
            Self::PgbenchSetBased => "pgbench, 100 in one statement",
        }
    }

    /// How many times as many messages as the base it gets, so that its runs are not too short to be measured.
    pub(crate) const fn scale(self, path: Path) -> usize {
        match (self, path) {
            (Self::SetBased | Self::PgbenchSetBased, Path::Direct) => 8,
            (Self::SetBased | Self::PgbenchSetBased, Path::Delayed) => 20,
            (Self::Framework, _) => 2,
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
            Self::FrameworkAlone => framework::preloaded(setting, 1).await,
            Self::Framework => framework::preloaded(setting, framework::SHARED).await,
            Self::FrameworkOnMemoryBroker => framework::memory_broker(setting).await,
            Self::SetBased => by_hand::set_based(setting).await,
            Self::PgbenchSetBased => pgbench::set_based(setting).await,
        }
    }
}
