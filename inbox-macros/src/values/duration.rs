//! Durations: a whole number and a unit.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use std::borrow::Cow;
use std::time::Duration;
use syn::{Expr, Lit};

/// Which durations there are, and what is said about the others.
pub(crate) struct Limits {
    longest: Duration,
    /// What would take longer than it may.
    longer: &'static str,
    /// The unit that is meant where none is written.
    unit: &'static str,
    /// What people write for one.
    example: &'static str,
    /// What zero is, behind the duration.
    zero: fn(&str) -> String,
    /// What to write instead of zero.
    instead_of_zero: &'static str,
}

/// How long one run may take.
pub(crate) const TIMEOUT: Limits = Limits {
    longest: Duration::from_secs(12 * 60 * 60),
    longer: "is longer than a handler may run: at most `12h`",
    unit: "s",
    example: "30s",
    zero: |given| format!("a timeout of `{given}` would end every run at once"),
    instead_of_zero: r#"`timeout = "30s"`"#,
};

/// How long a batch that is not full may wait.
pub(crate) const LINGER: Limits = Limits {
    longest: Duration::from_secs(10),
    longer: "is longer than a batch may wait: at most `10s`",
    unit: "ms",
    example: "5ms",
    zero: |given| format!("a linger of `{given}` waits for nothing"),
    instead_of_zero: "remove `linger`",
};

/// How long a message waits after its first failure.
pub(crate) const FIRST_DELAY: Limits = Limits {
    longest: LONGEST_OF_DELAYS,
    longer: "is longer than a message may wait: at most `24h`",
    unit: "ms",
    example: "200ms",
    zero: |given| format!("a first delay of `{given}` is none, and none grows from it"),
    instead_of_zero: r#"`first = "200ms"`"#,
};

/// How long a message waits at most after a failure.
pub(crate) const LONGEST_DELAY: Limits = Limits {
    longest: LONGEST_OF_DELAYS,
    longer: "is longer than a message may wait: at most `24h`",
    unit: "s",
    example: "5m",
    zero: |given| format!("a longest delay of `{given}` leaves no delay at all"),
    instead_of_zero: r#"`longest = "5m"`"#,
};

const LONGEST_OF_DELAYS: Duration = Duration::from_secs(24 * 60 * 60);

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// What people write for a unit, and for longer ones than there are.
const SPELLINGS: [(&str, u64); 24] = [
    ("msec", 1),
    ("msecs", 1),
    ("milli", 1),
    ("millis", 1),
    ("millisecond", 1),
    ("milliseconds", 1),
    ("sec", 1_000),
    ("secs", 1_000),
    ("second", 1_000),
    ("seconds", 1_000),
    ("min", 60_000),
    ("mins", 60_000),
    ("minute", 60_000),
    ("minutes", 60_000),
    ("hr", 3_600_000),
    ("hrs", 3_600_000),
    ("hour", 3_600_000),
    ("hours", 3_600_000),
    ("d", 86_400_000),
    ("day", 86_400_000),
    ("days", 86_400_000),
    ("w", 604_800_000),
    ("week", 604_800_000),
    ("weeks", 604_800_000),
];

pub(crate) fn read(
    option: &AttrOption,
    value: &Expr,
    limits: &Limits,
) -> Result<Duration, Finding> {
    let name = option.name;
    let write = |text: Option<&str>| format!("`{name} = \"{}\"`", text.unwrap_or(limits.example));
    let zero = |given: &str| {
        Finding::new(value, (limits.zero)(&given.escape_debug().to_string()))
            .help(limits.instead_of_zero)
    };
    let number = match literal::literal(value) {
        Some(Lit::Int(number)) => Some(number.to_string()),
        Some(Lit::Float(number)) => Some(number.to_string()),
        _ => None,
    };
    if let Some(number) = number {
        let number = number.replace('_', "");
        let has_unit = number.ends_with(char::is_alphabetic);
        let (what, given) = if has_unit {
            (
                format!("`{name}` takes a string literal"),
                Cow::Borrowed(&*number),
            )
        } else {
            (
                format!("durations need a unit, found `{number}`"),
                Cow::Owned(format!("{number}{}", limits.unit)),
            )
        };
        if in_millis(&given) == Some(0) {
            return Err(zero(&number));
        }
        return Err(Finding::new(value, what).help(write(meant(&given, limits.longest).as_deref())));
    }
    let text = literal::string(option, value, &format!("write {}", write(None)))?;
    let given = text.value();
    match duration(&given, limits) {
        Ok(Duration::ZERO) => Err(zero(&given)),
        Ok(duration) => Ok(duration),
        Err(what) => {
            let with_unit = || meant(&format!("{given}{}", limits.unit), limits.longest);
            let instead = meant(&given, limits.longest).or_else(with_unit);
            Err(Finding::new(&text, what).help(write(instead.as_deref())))
        }
    }
}

fn duration(given: &str, limits: &Limits) -> Result<Duration, String> {
    let shown = given.escape_debug();
    let compact: String = given
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .collect();
    let (digits, unit) = match compact.find(|letter: char| !letter.is_ascii_digit()) {
        Some(end) => compact.split_at(end),
        None => (compact.as_str(), ""),
    };
    if compact.is_empty() {
        return Err("the duration is empty".to_owned());
    }
    if digits.is_empty() || unit.starts_with(['.', ',']) {
        return Err(format!(
            "a duration is a whole number and a unit, found `{shown}`"
        ));
    }
    if unit.is_empty() {
        return Err(format!("durations need a unit, found `{shown}`"));
    }
    let too_long = || format!("`{shown}` {}", limits.longer);
    let Some((_, millis)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
        return Err(match in_millis(&compact) {
            Some(millis) if Duration::from_millis(millis) > limits.longest => too_long(),
            _ if unit.contains(|letter: char| letter.is_ascii_digit()) => {
                format!("a duration is one number and one unit, found `{shown}`")
            }
            _ => format!(
                "unknown unit `{}` in `{shown}`: the units are `ms`, `s`, `m`, `h`",
                unit.escape_debug()
            ),
        });
    };
    if compact != given {
        return Err(format!("a duration has no white space, found `{shown}`"));
    }
    let duration = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(millis))
        .map(Duration::from_millis);
    match duration {
        Some(duration) if duration <= limits.longest => Ok(duration),
        _ => Err(too_long()),
    }
}

/// A duration in any form as it is written within the limits, if it can be guessed.
pub(crate) fn guessed(given: &str, limits: &Limits) -> Option<String> {
    meant(given, limits.longest)
}

/// The duration in the form that is taken, if it can be guessed and is possible.
fn meant(given: &str, longest: Duration) -> Option<String> {
    let digits = given.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let is_huge = digits.len() > 15 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let millis = if is_huge { u64::MAX } else { in_millis(given)? };
    let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
    match millis.min(longest) {
        0 => None,
        millis => UNITS
            .into_iter()
            .rev()
            .find(|(_, unit)| millis % unit == 0)
            .map(|(name, unit)| format!("{}{name}", millis / unit)),
    }
}

/// Reads `1.5s`, `1m 30s`, `5 minutes`.
fn in_millis(given: &str) -> Option<u64> {
    let mut sum: u64 = 0;
    let mut rest = given.trim();
    while !rest.is_empty() {
        let is_number = |letter: char| letter.is_ascii_digit() || matches!(letter, '.' | ',' | '_');
        let (number, behind) = rest.split_at(rest.find(|letter| !is_number(letter))?);
        let behind = behind.trim_start();
        let end = behind
            .find(|letter: char| !letter.is_alphabetic())
            .unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let unit = unit.to_lowercase();
        let (_, millis) = UNITS
            .into_iter()
            .chain(SPELLINGS)
            .find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(product(number, millis)?)?;
        rest = behind.trim_start();
    }
    Some(sum)
}

/// `1.5` times a unit.
fn product(number: &str, unit: u64) -> Option<u64> {
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once(['.', ',']).unwrap_or((&number, "0"));
    let shift = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let fraction = fraction.parse::<u64>().ok()?.checked_mul(unit)? / shift;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(unit)?
        .checked_add(fraction)
}
