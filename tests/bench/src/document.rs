//! `docs/benchmark.md` and its chart.

use std::fmt::Write as _;
use std::path::Path as FilePath;

use crate::Result;
use crate::chart::{self, Bars};
use crate::database::Path;
use crate::results::Table;

/// All that one run of the benchmark found.
#[derive(Debug, Default)]
pub(crate) struct Document {
    conditions: Vec<String>,
    sections: Vec<Section>,
    /// What the chart is made of: new messages over each path.
    charted: Vec<(Path, Table)>,
    charted_concurrency: usize,
}

#[derive(Debug)]
struct Section {
    title: &'static str,
    about: &'static str,
    tables: Vec<String>,
}

impl Document {
    /// What holds for all tables; told at once.
    pub(crate) fn condition(&mut self, condition: String) {
        println!("{condition}");
        self.conditions.push(condition);
    }

    /// Begins a section, told at once.
    pub(crate) fn section(&mut self, title: &'static str, about: &'static str) {
        println!("\n## {title}\n\n{about}");
        self.sections.push(Section {
            title,
            about,
            tables: Vec::new(),
        });
    }

    /// Adds a table to the last section, told at once.
    pub(crate) fn table(&mut self, table: &impl std::fmt::Display) {
        println!("\n{table}");
        if let Some(section) = self.sections.last_mut() {
            section.tables.push(table.to_string());
        }
    }

    /// Makes it part of the chart.
    pub(crate) fn chart(&mut self, path: Path, concurrency: usize, table: Table) {
        self.charted_concurrency = concurrency;
        self.charted.push((path, table));
    }

    /// Writes the files into the folder `docs`.
    pub(crate) fn write(&self) -> Result<()> {
        let folder = FilePath::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
        std::fs::create_dir_all(folder)?;
        let mut text = include_str!("introduction.md").to_owned();
        for condition in &self.conditions {
            writeln!(text, "- {condition}")?;
        }
        if let Some(svg) = self.svg() {
            std::fs::write(folder.join("benchmark.svg"), svg)?;
            text.push_str(
                "\n![Messages per second relative to the loop written by hand](benchmark.svg)\n",
            );
        }
        for section in &self.sections {
            write!(text, "\n## {}\n\n{}\n", section.title, section.about)?;
            for table in &section.tables {
                write!(text, "\n{table}")?;
            }
        }
        std::fs::write(folder.join("benchmark.md"), text)?;
        Ok(())
    }

    fn svg(&self) -> Option<String> {
        let (_, first) = self.charted.first()?;
        let legend: Vec<&str> = self.charted.iter().map(|(path, _)| path.name()).collect();
        let variants: Vec<Bars> = first
            .rows
            .iter()
            .map(|row| Bars {
                name: row.name,
                ours: row.name.starts_with("framework"),
                ratios: self
                    .charted
                    .iter()
                    .map(|(_, table)| {
                        let same = table.rows.iter().find(|other| other.name == row.name)?;
                        Some(table.ratio(same))
                    })
                    .collect(),
            })
            .collect();
        let title = format!("New messages, concurrency {}", self.charted_concurrency);
        Some(chart::svg(&title, &legend, &variants))
    }
}
