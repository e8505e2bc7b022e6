//! The arguments of the attribute.

use crate::diag::{Diagnostics, Finding};
use crate::options::{self, AttrOption, OPTIONS};
use crate::path::Root;
use crate::reader::{self, Reader};
use crate::values::{self, DedupKey, Isolation, Names, OrderBy, duration, flag, number};
use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use std::time::Duration;
use syn::parse::ParseStream;
use syn::{Expr, LitStr};

/// What was given and can be used.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) consumer: Option<LitStr>,
    pub(crate) on: Option<Names>,
    pub(crate) from: Option<Names>,
    pub(crate) key: Option<DedupKey>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) order_by: Option<OrderBy>,
    /// Also if its limits are wrong: what it makes of the handler is known.
    pub(crate) batch: Option<Batch>,
    /// Something was given that is probably meant to be `batch`.
    pub(crate) batch_is_meant: bool,
    pub(crate) own_transaction: Option<bool>,
    pub(crate) root: Option<Root>,
}

/// The limits of a batch.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) max: Option<u32>,
    pub(crate) linger: Option<Duration>,
}

impl Args {
    /// Always something usable; the mistakes are in `diag`.
    pub(crate) fn parse(tokens: TokenStream, diag: &mut Diagnostics) -> Self {
        let mut args = Self::default();
        let mut own_transaction = None;
        let set = |option: &'static AttrOption,
                   key: &Ident,
                   input: ParseStream<'_>,
                   diag: &mut Diagnostics| {
            if option.name == "own_transaction" {
                own_transaction = Some(key.clone());
            }
            if option.parts.is_empty() {
                let value = reader::value(option, key, input)?;
                // What follows the value is judged by itself, also when the value is wrong.
                diag.extend(args.set(option, &value).err());
            } else {
                let batch = args.batch.insert(Batch::default());
                batch.read(option, key, input, diag)?;
            }
            Ok(())
        };
        let read = Reader::new(None, set, diag).read(tokens);
        args.batch_is_meant = read
            .unknown
            .iter()
            .filter_map(|unknown| options::meant(OPTIONS, unknown))
            .any(|meant| meant.name == "batch");
        if read.lacks("consumer") {
            diag.push(missing_consumer(!read.seen.is_empty()));
        }
        if args.batch.is_some() && args.own_transaction == Some(true) {
            diag.push(
                Finding::new(
                    own_transaction,
                    "`own_transaction` contradicts `batch(..)`: the messages of a batch share one transaction",
                )
                .help("remove `own_transaction`, or `batch(..)`"),
            );
        }
        args
    }

    fn set(&mut self, option: &AttrOption, value: &Expr) -> Result<(), Finding> {
        match option.name {
            "consumer" => self.consumer = Some(values::consumer::read(option, value)?),
            "on" => self.on = Some(Names::read(option, value)?),
            "from" => self.from = Some(Names::read(option, value)?),
            "key" => self.key = Some(DedupKey::read(option, value)?),
            "timeout" => self.timeout = Some(duration::read(option, value, &duration::TIMEOUT)?),
            "max_attempts" => {
                self.max_attempts = Some(number::read(option, value, &number::ATTEMPTS)?)
            }
            "isolation" => self.isolation = Some(Isolation::read(option, value)?),
            "order_by" => self.order_by = Some(OrderBy::read(option, value)?),
            "own_transaction" => self.own_transaction = Some(flag::read(option, value)?),
            _ => self.root = Some(Root::read(option, value)?),
        }
        Ok(())
    }
}

impl Batch {
    /// Reads the parentheses behind `batch`.
    fn read(
        &mut self,
        whole: &'static AttrOption,
        key: &Ident,
        input: ParseStream<'_>,
        diag: &mut Diagnostics,
    ) -> Result<(), Finding> {
        let parts = reader::parentheses(whole, key, limits, input)?;
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

fn missing_consumer(has_options: bool) -> Finding {
    let remedy = if has_options {
        "add `consumer = \"...\"`"
    } else {
        "write `#[inbox_handler(consumer = \"billing\")]`; the name is stored with every claimed message"
    };
    Finding::at_attribute("`#[inbox_handler]` needs a consumer name").help(remedy)
}

/// What belongs in the parentheses of `batch`: `max = 5` of `5`, `"max = 5"` and `{ max = 5 }`.
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
