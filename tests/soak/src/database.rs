//! The databases on which this runs.

use inbox_guarantees::TestDatabase;
use serde::{Deserialize, Serialize};
use sqlx::{MySql, Postgres, Sqlite};

/// A database by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Engine {
    Postgres,
    MySql,
    Sqlite,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Postgres, Self::MySql, Self::Sqlite];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::Sqlite => "sqlite",
        }
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|engine| engine.name() == name);
        found.ok_or_else(|| {
            format!(
                "--database {name}: there are {} and all",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// What a run must know of its database.
pub(crate) trait SoakDatabase: TestDatabase {
    const ENGINE: Engine;
    /// Its server, as `tests/services` knows it.
    const SERVER: Option<&'static str>;
    /// Consumer processes at a time.
    const PROCESSES: usize;
}

impl SoakDatabase for Postgres {
    const ENGINE: Engine = Engine::Postgres;
    const SERVER: Option<&'static str> = Some("postgres");
    const PROCESSES: usize = 3;
}

impl SoakDatabase for MySql {
    const ENGINE: Engine = Engine::MySql;
    const SERVER: Option<&'static str> = Some("mysql");
    const PROCESSES: usize = 3;
}

impl SoakDatabase for Sqlite {
    const ENGINE: Engine = Engine::Sqlite;
    const SERVER: Option<&'static str> = None;
    const PROCESSES: usize = 2;
}
