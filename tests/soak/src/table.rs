//! The summary.

use std::collections::BTreeSet;

use crate::run::Report;

const LABEL: usize = 34;
const COLUMN: usize = 12;

/// One column for each database.
pub(crate) fn of(reports: &[Report]) -> String {
    let mut table = row(
        "",
        reports.iter().map(|report| report.engine.name().to_owned()),
    );
    let mut count = |label: &str, count: &dyn Fn(&Report) -> u64| {
        table += &row(label, reports.iter().map(|report| grouped(count(report))));
    };
    count("messages produced", &|of| number(of.happened.produced));
    count("published, with copies", &|of| {
        number(of.happened.published)
    });
    count("processes killed", &|of| number(of.happened.kills));
    count("processes ended by a message", &|of| {
        number(of.happened.aborts)
    });
    count("processes shut down", &|of| number(of.happened.shutdowns));
    count("processes frozen for a while", &|of| {
        number(of.happened.freezes)
    });
    count("servers crashed or restarted", &|of| {
        number(of.happened.restarts)
    });
    count("servers frozen for a while", &|of| {
        number(of.happened.server_freezes)
    });
    count("redeliveries seen", &|of| of.happened.tally.redelivered);
    count("duplicates seen", &|of| of.happened.tally.duplicates);
    count("retries seen", &|of| of.happened.tally.retries);
    count("processed", &|of| number(of.verdict.processed));
    let reasons: BTreeSet<&String> = reports
        .iter()
        .flat_map(|report| report.verdict.dead.keys())
        .collect();
    for reason in reasons {
        count(&format!("dead letters: {reason}"), &|of| {
            number(of.verdict.dead.get(reason).copied().unwrap_or_default())
        });
    }
    count("failures counted after success", &|of| {
        number(of.verdict.counted_late)
    });
    count("lost", &|of| number(of.verdict.lost.len()));
    count("doubled", &|of| number(of.verdict.doubled.len()));
    count("otherwise wrong", &|of| number(of.verdict.wrong.len()));
    table
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn row(label: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("{cell:>COLUMN$}")).collect();
    format!("{label:LABEL$}{cells}\n")
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_grouped() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ];
        for (number, text) in cases {
            assert_eq!(super::grouped(number), text);
        }
    }
}
