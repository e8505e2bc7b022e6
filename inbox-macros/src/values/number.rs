//! Whole numbers from one up.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use syn::{Expr, Lit};

/// Which numbers there are, and what is said about the others.
pub(crate) struct Limits {
    most: u32,
    /// What zero would do.
    zero: &'static str,
    /// What one is for.
    one: &'static str,
}

/// How many runs may fail.
pub(crate) const ATTEMPTS: Limits = Limits {
    most: 1000,
    zero: "would never run the handler",
    one: "to give up after the first failure",
};

/// How many messages one call takes.
pub(crate) const MESSAGES: Limits = Limits {
    most: 10_000,
    zero: "would never run the handler",
    one: "for one message at a time",
};

pub(crate) fn read(option: &AttrOption, value: &Expr, limits: &Limits) -> Result<u32, Finding> {
    let name = option.name;
    let Limits { most, zero, one } = limits;
    let number = match literal::literal(value) {
        Some(Lit::Int(number)) if number.suffix().is_empty() => number,
        Some(Lit::Int(number)) => {
            return Err(
                Finding::new(number, format!("`{name}` takes a plain whole number"))
                    .help(format!("write `{name} = {}`", number.base10_digits())),
            );
        }
        Some(Lit::Str(text)) if text.value().parse::<u32>().is_ok_and(|number| number > 0) => {
            return Err(Finding::new(
                text,
                format!("`{name}` takes a whole number, found a string"),
            )
            .help(format!("write `{name} = {}`", text.value())));
        }
        _ => {
            return Err(
                Finding::new(value, format!("`{name}` takes a whole number, 1 or more"))
                    .help(format!("write `{}`", option.example)),
            );
        }
    };
    match number.base10_parse::<u32>() {
        Ok(0) => Err(Finding::new(number, format!("`{name} = 0` {zero}"))
            .help(format!("write `{name} = 1` {one}"))),
        Ok(count) if count <= *most => Ok(count),
        _ => Err(Finding::new(
            number,
            format!(
                "`{name}` is at most {most}, found {}",
                number.base10_digits()
            ),
        )
        .help(format!("write `{name} = {most}`"))),
    }
}
