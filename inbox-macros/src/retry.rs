//! `retry(first = "200ms", longest = "5m")`.

use crate::diag::{Diagnostics, Finding};
use crate::options::AttrOption;
use crate::reader::{self, Reader};
use crate::values::{duration, literal};
use proc_macro2::{Ident, TokenTree};
use quote::{ToTokens, quote};
use std::time::Duration;
use syn::parse::ParseStream;
use syn::{Expr, Lit, LitStr};

/// The delays after failures.
#[derive(Default)]
pub(crate) struct Retry {
    first: Option<Delay>,
    longest: Option<Delay>,
}

struct Delay {
    duration: Duration,
    written: Expr,
}

impl Retry {
    pub(crate) fn first(&self) -> Option<Duration> {
        self.first.as_ref().map(|delay| delay.duration)
    }

    pub(crate) fn longest(&self) -> Option<Duration> {
        self.longest.as_ref().map(|delay| delay.duration)
    }

    /// Reads the parentheses behind `retry`.
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
            diag.extend(self.set(part, value).err());
            Ok(())
        };
        let read = Reader::new(Some(whole), set, diag).read(parts.stream());
        if read.lacks("first") && read.lacks("longest") {
            diag.push(
                Finding::new(
                    quote!(#key #parts),
                    "`retry` needs `first` or `longest`, the delays between the runs",
                )
                .help(format!("`{}`", whole.example)),
            );
        }
        diag.extend(self.contradiction());
        Ok(())
    }

    fn set(&mut self, part: &AttrOption, written: Expr) -> Result<(), Finding> {
        let (delay, limits) = match part.name {
            "first" => (&mut self.first, &duration::FIRST_DELAY),
            _ => (&mut self.longest, &duration::LONGEST_DELAY),
        };
        let duration = duration::read(part, &written, limits)?;
        *delay = Some(Delay { duration, written });
        Ok(())
    }

    fn contradiction(&self) -> Option<Finding> {
        let (first, longest) = (self.first.as_ref()?, self.longest.as_ref()?);
        if first.duration <= longest.duration {
            return None;
        }
        let (at_first, at_most) = (first.text()?, longest.text()?);
        Some(
            Finding::new(
                &first.written,
                format!("the first delay of `{at_first}` is longer than the longest, `{at_most}`"),
            )
            .help(format!(
                "write `longest = \"{at_first}\"`, or a shorter `first`"
            )),
        )
    }
}

impl Delay {
    fn text(&self) -> Option<String> {
        match literal::literal(&self.written)? {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        }
    }
}

/// `retry(first = "2s")` of `"2s"` and `2`, and its options from other brackets. A whole number alone is most likely
/// meant to be that of the runs.
fn meant(given: TokenTree) -> Option<String> {
    let text = match given {
        TokenTree::Literal(number) if number.to_string().parse::<u32>().is_ok() => {
            return Some(format!(
                "`max_attempts = {number}`; the delays are `retry(first = \"200ms\", longest = \"5m\")`"
            ));
        }
        TokenTree::Literal(text) => {
            let text = syn::parse2::<LitStr>(text.into_token_stream())
                .ok()?
                .value();
            let first = duration::guessed(&text, &duration::FIRST_DELAY)?;
            return Some(format!("`retry(first = \"{first}\")`"));
        }
        TokenTree::Group(group) => group.stream().to_string(),
        _ => return None,
    };
    let is_option = ["first =", "longest ="].map(|option| text.starts_with(option));
    is_option
        .contains(&true)
        .then(|| format!("`retry({})`", text.trim()))
}
