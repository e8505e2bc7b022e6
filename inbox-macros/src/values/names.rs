//! Names of message types and of sources: one, or a list.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use syn::{Expr, LitStr};

pub(crate) struct Names(pub(crate) Vec<LitStr>);

impl Names {
    pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<Self, Finding> {
        let instead = format!("write `{}`, or a list of names in `[]`", option.example);
        let Expr::Array(list) = literal::peel(value) else {
            return Ok(Self(vec![name(option, value, &instead)?]));
        };
        if list.elems.is_empty() {
            return Err(
                Finding::new(list, format!("`{}` lists nothing", option.name)).help(format!(
                    "write `{}`, or remove it for {}",
                    option.example, option.default
                )),
            );
        }
        let mut names: Vec<LitStr> = Vec::with_capacity(list.elems.len());
        for element in &list.elems {
            let name = name(option, element, &instead)?;
            if names.iter().any(|earlier| earlier.value() == name.value()) {
                let text = name.value();
                return Err(Finding::new(
                    &name,
                    format!("`{}` lists `{}` twice", option.name, text.escape_debug()),
                )
                .help("keep one"));
            }
            names.push(name);
        }
        Ok(Self(names))
    }
}

fn name(option: &AttrOption, value: &Expr, instead: &str) -> Result<LitStr, Finding> {
    let text = literal::string(option, value, instead)?;
    let name = text.value();
    let trimmed = name.trim();
    if trimmed.is_empty() {
        let kind = if name.is_empty() {
            "an empty"
        } else {
            "a blank"
        };
        return Err(
            Finding::new(&text, format!("`{}` has {kind} name", option.name)).help(format!(
                "write `{}`, or remove the option for {}",
                option.example, option.default
            )),
        );
    }
    if trimmed != name {
        return Err(Finding::new(
            &text,
            format!(
                "the name in `{}` starts or ends with white space",
                option.name
            ),
        )
        .help(format!("write `\"{}\"`", trimmed.escape_debug())));
    }
    Ok(text)
}
