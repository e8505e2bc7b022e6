//! Names of message types and of sources: one, or a list.

use super::literal;
use crate::diag::Finding;
use crate::options::AttrOption;
use quote::ToTokens;
use syn::{Expr, ExprArray, Lit, LitStr};

pub(crate) struct Names(pub(crate) Vec<LitStr>);

impl Names {
    pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<Self, Finding> {
        let Expr::Array(list) = literal::peel(value) else {
            let quoted = match (literal::last_name(value), literal::peel(value)) {
                (Some(name), _) => Some(format!("\"{name}\"")),
                (_, Expr::Tuple(tuple)) => literal::list(tuple.elems.to_token_stream()),
                _ => None,
            };
            let instead = match quoted {
                Some(quoted) => format!("write `{} = {quoted}`", option.name),
                None => format!("write `{}`, or a list of names in `[]`", option.example),
            };
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
        if let Some(quoted) = quoted(list) {
            return Err(Finding::new(
                list,
                format!("`{}` takes string literals, not expressions", option.name),
            )
            .help(format!("write `{} = [{quoted}]`", option.name)));
        }
        let mut names: Vec<LitStr> = Vec::with_capacity(list.elems.len());
        for element in &list.elems {
            let instead = format!("write `{}`, or a list of names in `[]`", option.example);
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

/// A list of paths and strings as strings, if there is a path among them.
fn quoted(list: &ExprArray) -> Option<String> {
    let mut has_path = false;
    let mut names = Vec::new();
    for element in &list.elems {
        match (literal::last_name(element), literal::literal(element)) {
            (Some(name), _) => {
                has_path = true;
                names.push(format!("\"{name}\""));
            }
            (None, Some(Lit::Str(text))) => names.push(text.token().to_string()),
            (None, _) => return None,
        }
    }
    has_path.then(|| names.join(", "))
}

fn name(option: &AttrOption, value: &Expr, instead: &str) -> Result<LitStr, Finding> {
    let text = literal::text(option, value, instead)?;
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
    if name.contains('*') {
        let remedy = if name == "*" {
            format!("remove the option for {}", option.default)
        } else {
            format!("list the names: `{} = [\"..\", \"..\"]`", option.name)
        };
        return Err(Finding::new(
            &text,
            format!(
                "`{}` takes whole names, found the pattern `{}`",
                option.name,
                name.escape_debug()
            ),
        )
        .help(remedy));
    }
    Ok(text)
}
