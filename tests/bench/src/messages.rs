//! The tables for PostgreSQL: new messages, and nothing but duplicates.

use std::sync::Arc;
use std::time::Duration;

use crate::database::{Database, Path};
use crate::framework::Mode;
use crate::options::Options;
use crate::results::Table;
use crate::stopwatch::Taken;
use crate::variant::{Setting, Variant};
use crate::workload::Work;
use crate::{Result, framework};

/// No run takes this much longer than it should; a message that is never acked must not hang the benchmark.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Every run on new messages and empty tables.
pub(crate) async fn new_ones(
    database: &mut Database,
    options: &Options,
    path: Path,
    concurrency: usize,
) -> Result<Table> {
    let mut variants = Variant::NEW_MESSAGES.to_vec();
    if options.memory_broker {
        variants.push(Variant::FrameworkOnMemoryBroker);
    }
    let place = Place { path, concurrency };
    let messages = place.calibrated(database, options.seconds).await?;
    let title = format!("{}, concurrency {concurrency}", path.name());
    Table::of(title, options.rounds, &named(&variants), async |variant| {
        place
            .run(database, variant, messages * variant.scale(path))
            .await
    })
    .await
}

/// Every run on messages that were all processed before.
pub(crate) async fn duplicates(
    database: &mut Database,
    options: &Options,
    path: Path,
    concurrency: usize,
) -> Result<Table> {
    let place = Place { path, concurrency };
    // A duplicate costs about half of a new message by hand, and much less than that in a batch.
    let messages = 4 * place.calibrated(database, options.seconds).await?;
    database.empty().await?;
    let work = Work::of(messages)?;
    let first = Place {
        path: Path::Direct,
        concurrency: 1,
    };
    let setting = first.setting(database, &work).await?;
    in_time(framework::preloaded(&setting, Mode::Batches)).await?;
    setting.pool.close().await;

    let title = format!(
        "Duplicates only, {}, concurrency {concurrency}",
        path.name()
    );
    let variants = named(&Variant::DUPLICATES);
    Table::of(title, options.rounds, &variants, async |variant| {
        database.checkpoint().await?;
        work.rewind();
        let setting = place.setting(database, &work).await?;
        let taken = in_time(variant.run(&setting)).await?;
        setting.pool.close().await;
        database.check(messages).await?;
        Ok(taken)
    })
    .await
}

fn named(variants: &[Variant]) -> Vec<(Variant, &'static str)> {
    variants
        .iter()
        .map(|variant| (*variant, variant.name()))
        .collect()
}

#[derive(Debug, Clone, Copy)]
struct Place {
    path: Path,
    concurrency: usize,
}

impl Place {
    async fn setting(self, database: &Database, work: &Arc<Work>) -> Result<Setting> {
        let connections = u32::try_from(self.concurrency)? + 1;
        Ok(Setting {
            pool: database.pool(self.path, connections).await?,
            place: database.place(self.path),
            work: Arc::clone(work),
            concurrency: self.concurrency,
            server: database.server(),
        })
    }

    /// One variant over new messages and empty tables, checked.
    async fn run(
        self,
        database: &mut Database,
        variant: Variant,
        messages: usize,
    ) -> Result<Taken> {
        database.empty().await?;
        let setting = self.setting(database, &Work::of(messages)?).await?;
        let taken = in_time(variant.run(&setting)).await?;
        setting.pool.close().await;
        database.check(taken.messages).await?;
        Ok(taken)
    }

    /// How many messages the base does in that time; also warms everything up.
    async fn calibrated(self, database: &mut Database, seconds: f64) -> Result<usize> {
        let mut messages = 100 * self.concurrency;
        for _ in 0..2 {
            let taken = self.run(database, Variant::Pooled, messages).await?;
            messages = taken.messages_in(seconds);
        }
        Ok(messages)
    }
}

pub(crate) async fn in_time(run: impl Future<Output = Result<Taken>>) -> Result<Taken> {
    tokio::time::timeout(PATIENCE, run)
        .await
        .map_err(|_| format!("not done after {PATIENCE:?}"))?
}
