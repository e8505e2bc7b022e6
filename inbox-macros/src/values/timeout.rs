//! Durations: a whole number and a unit.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use std::time::Duration;
use syn::{Expr, Lit};

const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// What people write for a unit.
const SPELLINGS: [(&str, &[&str]); 4] = [
    (
        "ms",
        &[
            "msec",
            "msecs",
            "milli",
            "millis",
            "millisecond",
            "milliseconds",
        ],
    ),
    ("s", &["sec", "secs", "second", "seconds"]),
    ("m", &["min", "mins", "minute", "minutes"]),
    ("h", &["hr", "hrs", "hour", "hours"]),
];

pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<Duration, Finding> {
    let name = option.name;
    let write = |text: &str| format!("`{name} = \"{text}\"`");
    if let Some(Lit::Int(number)) = literal::literal(value) {
        let (digits, unit) = (number.base10_digits(), number.suffix());
        return Err(if unit.is_empty() {
            Finding::new(number, format!("durations need a unit, found `{digits}`"))
                .help(write(&format!("{digits}s")))
        } else {
            Finding::new(number, format!("`{name}` takes a string literal"))
                .help(write(&format!("{digits}{unit}")))
        });
    }
    let text = literal::string(option, value, &format!("write {}", write("30s")))?;
    duration(&text.value()).map_err(|Wrong { what, instead }| {
        let remedy = instead.map_or_else(|| write("30s"), |instead| write(&instead));
        Finding::new(&text, what).help(remedy)
    })
}

struct Wrong {
    what: String,
    instead: Option<String>,
}

fn duration(given: &str) -> Result<Duration, Wrong> {
    let wrong = |what: String, instead: Option<String>| Err(Wrong { what, instead });
    let shown = given.escape_debug();
    let compact: String = given
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .collect();
    let (digits, unit) = match compact.find(|letter: char| !letter.is_ascii_digit()) {
        Some(end) => compact.split_at(end),
        None => (compact.as_str(), ""),
    };
    if digits.is_empty() {
        return wrong(
            format!("a duration is a whole number and a unit, found `{shown}`"),
            None,
        );
    }
    if unit.is_empty() {
        return wrong(
            format!("durations need a unit, found `{shown}`"),
            Some(format!("{digits}s")),
        );
    }
    let Some((unit, millis)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
        let lower = unit.to_lowercase();
        let meant = SPELLINGS
            .iter()
            .find(|(name, words)| *name == lower || words.contains(&lower.as_str()));
        return match meant {
            Some((meant, _)) => wrong(
                format!("unknown unit `{}` in `{shown}`", unit.escape_debug()),
                Some(format!("{digits}{meant}")),
            ),
            None if unit.starts_with(['.', ',']) => wrong(
                format!("a duration is a whole number and a unit, found `{shown}`"),
                Some("1500ms".to_owned()),
            ),
            None => wrong(
                format!("`{shown}` has no unit of `ms`, `s`, `m`, `h`"),
                None,
            ),
        };
    };
    if compact != given {
        return wrong(
            format!("a duration has no white space, found `{shown}`"),
            Some(compact.clone()),
        );
    }
    let timeout = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(millis))
        .map(Duration::from_millis);
    match timeout {
        Some(Duration::ZERO) => wrong(
            format!("a timeout of `{shown}` would end every run at once"),
            None,
        ),
        Some(timeout) if timeout <= LONGEST => Ok(timeout),
        _ => wrong(
            format!("`{digits}{unit}` is longer than a handler may run: at most `12h`"),
            Some("12h".to_owned()),
        ),
    }
}
