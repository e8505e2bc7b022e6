//! `batch(max = 100, linger = "5ms")`.

use crate::diag::{Diagnostics, Finding};
use crate::options::AttrOption;
use crate::reader::{self, Reader};
use crate::values::{duration, number};
use proc_macro2::{Ident, TokenTree};
use quote::{ToTokens, quote};
use std::time::Duration;
use syn::parse::ParseStream;
use syn::{Expr, LitStr};

/// The limits of a batch.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) max: Option<u32>,
    pub(crate) linger: Option<Duration>,
}

impl Batch {
    /// Reads the parentheses behind `batch`.
    pub(crate) fn read(
        &mut self,
        whole: &'static AttrOption,
        key: &Ident,
        input: ParseStream<'_>,
        diag: &mut Diagnostics,
    ) -> Result<(), Finding> {
        let parts = reader::parentheses(whole, key, meant, input)?;
        let set = |part: &'static AttrOption,
                   key: &Ident,
                   input: ParseStream<'_>,
                   diag: &mut Diagnostics| {
            let value = reader::value(part, key, input)?;
            diag.extend(self.set(part, &value).err());
            Ok(())
        };
        let read = Reader::new(Some(whole), set, diag).read(parts.stream());
        if read.lacks("max") {
            let remedy = if read.seen.is_empty() {
                format!("`{}`", whole.example)
            } else {
                "add `max = 100`".to_owned()
            };
            diag.push(
                Finding::new(
                    quote!(#key #parts),
                    "`batch` needs `max`, the most messages of one call",
                )
                .help(remedy),
            );
        }
        Ok(())
    }

    fn set(&mut self, part: &AttrOption, value: &Expr) -> Result<(), Finding> {
        match part.name {
            "max" => self.max = Some(number::read(part, value, &number::MESSAGES)?),
            _ => self.linger = Some(duration::read(part, value, &duration::LINGER)?),
        }
        Ok(())
    }
}

/// `batch(max = 5)` of `5`, `"max = 5"` and `{ max = 5 }`.
fn meant(given: TokenTree) -> Option<String> {
    Some(format!("`batch({})`", limits(given)?))
}

fn limits(given: TokenTree) -> Option<String> {
    let text = match given {
        TokenTree::Literal(number)
            if number
                .to_string()
                .bytes()
                .all(|digit| digit.is_ascii_digit()) =>
        {
            return Some(format!("max = {number}"));
        }
        TokenTree::Literal(text) => syn::parse2::<LitStr>(text.into_token_stream())
            .ok()?
            .value(),
        TokenTree::Group(group) => group.stream().to_string(),
        _ => return None,
    };
    let text = text.trim();
    match text.parse::<u32>() {
        Ok(number) => Some(format!("max = {number}")),
        Err(_) => text.starts_with("max =").then(|| text.to_owned()),
    }
}
