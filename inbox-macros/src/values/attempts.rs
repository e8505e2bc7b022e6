//! How many runs of a handler may fail.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use syn::{Expr, Lit};

const MOST: u32 = 1000;

pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<u32, Finding> {
    let name = option.name;
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
        Ok(0) => Err(
            Finding::new(number, format!("`{name} = 0` would never run the handler")).help(
                format!("write `{name} = 1` to give up after the first failure"),
            ),
        ),
        Ok(attempts) if attempts <= MOST => Ok(attempts),
        _ => Err(Finding::new(
            number,
            format!(
                "`{name}` is at most {MOST}, found {}",
                number.base10_digits()
            ),
        )
        .help(format!("write `{name} = {MOST}`"))),
    }
}
