//! The crates that are measured, in a workspace of their own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;

/// Source and expansion of the handler, as the macro's tests keep them.
const SNAPSHOT: &str = include_str!("../../../inbox-macros/src/tests/snapshots/measured.rs");

const TYPES: &str = "\
use inbox_core::{State, Tx};
use sqlx::Postgres;

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

/// What a function is in a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Plain,
    Handlers,
}

/// A crate with so many functions of a kind.
pub(crate) struct Crate {
    variant: Variant,
    size: usize,
    file: PathBuf,
}

impl Crate {
    fn new(workspace: &Path, variant: Variant, size: usize) -> Self {
        let mut member = Self {
            variant,
            size,
            file: PathBuf::new(),
        };
        member.file = workspace.join(member.name()).join("src/lib.rs");
        member
    }

    pub(crate) fn name(&self) -> String {
        let kind = match self.variant {
            Variant::Plain => "plain",
            Variant::Handlers => "handlers",
        };
        format!("{kind}-{}", self.size)
    }

    pub(crate) fn touch(&self) -> Result<()> {
        fs::File::options()
            .append(true)
            .open(&self.file)?
            .set_modified(std::time::SystemTime::now())?;
        Ok(())
    }

    fn write(&self) -> Result<()> {
        let folder = self.file.parent().ok_or("the crate has no folder")?;
        fs::create_dir_all(folder)?;
        let manifest = format!(
            "[package]\nname = \"{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
             [dependencies]\ninbox-core.workspace = true\nserde.workspace = true\nsqlx.workspace = true\n",
            self.name()
        );
        fs::write(folder.with_file_name("Cargo.toml"), manifest)?;
        fs::write(&self.file, self.source()?)?;
        Ok(())
    }

    fn source(&self) -> Result<String> {
        let handler = handler()?;
        let mut source = TYPES.to_owned();
        if self.variant == Variant::Handlers {
            source.push_str("use inbox_core::inbox_handler;\n");
        }
        for number in 0..self.size {
            let name = format!("charge_{number}");
            source.push('\n');
            match self.variant {
                Variant::Handlers => source.push_str(&handler.attribute),
                Variant::Plain => write!(
                    source,
                    "pub fn {name}_boxed<'a>(\n    order: OrderPlaced,\n    tx: &'a mut Tx<Postgres>,\n    \
                     rates: State<Rates>,\n) -> std::pin::Pin<Box<dyn Future<Output = Result<(), sqlx::Error>> + Send + 'a>> {{\n    \
                     Box::pin({name}(order, tx, rates))\n}}\n",
                )?,
            }
            source.push_str(&handler.function.replace("charge", &name));
        }
        Ok(source)
    }
}

struct Handler {
    attribute: String,
    function: String,
}

fn handler() -> Result<Handler> {
    let source = SNAPSHOT
        .strip_prefix("/* ")
        .and_then(|rest| rest.split_once(" */"))
        .map(|(source, _)| source)
        .ok_or("the snapshot begins with no source")?;
    let (attribute, function) = source
        .split_once('\n')
        .ok_or("the handler has no attribute line")?;
    Ok(Handler {
        attribute: format!("{attribute}\n"),
        function: format!("{function}\n"),
    })
}

/// The lines that the attribute adds to one function.
pub(crate) fn expanded_lines() -> usize {
    SNAPSHOT
        .split_once(" */\n\n")
        .map_or(0, |(_, generated)| generated.lines().count())
}

/// The crates, by size and in each size the plain one first.
pub(crate) struct Workspace {
    folder: PathBuf,
    crates: Vec<Crate>,
}

impl Workspace {
    /// In the target folder of the project, so that the next run finds its dependencies built.
    pub(crate) fn write(sizes: &[usize]) -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| crate::root().join("target"), PathBuf::from);
        let folder = target.join("expansion");
        let crates: Vec<Crate> = sizes
            .iter()
            .flat_map(|&size| {
                [Variant::Plain, Variant::Handlers]
                    .map(|variant| Crate::new(&folder, variant, size))
            })
            .collect();
        fs::create_dir_all(&folder)?;
        let members: Vec<String> = crates.iter().map(Crate::name).collect();
        fs::write(
            folder.join("Cargo.toml"),
            format!(
                "[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[workspace.dependencies]\n\
                 inbox-core = {{ path = {:?} }}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n\
                 sqlx = {{ version = \"0.9\", default-features = false, features = [\"postgres\"] }}\n",
                fs::canonicalize(crate::root().join("inbox-core"))?
            ),
        )?;
        // The versions that everything else is tested with.
        fs::copy(crate::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        for member in &crates {
            member.write()?;
        }
        Ok(Self { folder, crates })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn crates(&self) -> &[Crate] {
        &self.crates
    }
}
