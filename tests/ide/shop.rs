//! The crate that is edited: an application that depends on the facade, as a user's does.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// What stands above each case.
pub(crate) const PRELUDE: &str = "\
use inbox_runtime::{Batch, HandlerError, MessageId, State, Tx, inbox_handler};
use sqlx::Postgres;

/// What was ordered.
#[derive(serde::Deserialize)]
pub struct OrderPlaced {
    pub account: String,
    pub amount_cents: i64,
}

#[derive(Clone)]
pub struct Rates {
    pub percent: i64,
}
";

/// Writes the crate below `folder`, as a workspace of its own: an editor opened on this one would load, and build,
/// all of it.
pub(crate) fn write(folder: &Path) -> io::Result<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let root = folder.join("shop");
    fs::create_dir_all(root.join("src"))?;
    let manifest = format!(
        r#"[package]
name = "shop"
version = "0.0.0"
edition = "2024"

[dependencies]
inbox-runtime = {{ path = '{}' }}
serde = {{ version = "1", features = ["derive"] }}
sqlx = {{ version = "0.9", default-features = false, features = ["postgres", "runtime-tokio"] }}

[workspace]
"#,
        repository.join("inbox-runtime").display()
    );
    fs::write(root.join("Cargo.toml"), manifest)?;
    // The versions that everything else is tested with.
    fs::copy(repository.join("Cargo.lock"), root.join("Cargo.lock"))?;
    fs::write(root.join("src/lib.rs"), PRELUDE)?;
    Ok(root)
}
