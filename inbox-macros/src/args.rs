//! The arguments of the attribute.

use crate::batch::Batch;
use crate::diag::{Diagnostics, Finding};
use crate::options::{self, AttrOption, OPTIONS};
use crate::path::Root;
use crate::reader::{self, Reader};
use crate::retry::Retry;
use crate::values::{self, DedupKey, Isolation, Names, OrderBy, duration, flag, number};
use proc_macro2::{Ident, TokenStream};
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
    pub(crate) retry: Option<Retry>,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) order_by: Option<OrderBy>,
    /// Also if its limits are wrong: what it makes of the handler is known.
    pub(crate) batch: Option<Batch>,
    /// Something was given that is probably meant to be `batch`.
    pub(crate) batch_is_meant: bool,
    pub(crate) own_transaction: Option<bool>,
    pub(crate) root: Option<Root>,
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
            match option.name {
                "batch" => {
                    let batch = args.batch.insert(Batch::default());
                    batch.read(option, key, input, diag)
                }
                "retry" => {
                    let retry = args.retry.insert(Retry::default());
                    retry.read(option, key, input, diag)
                }
                _ => {
                    let value = reader::value(option, key, input)?;
                    // What follows the value is judged by itself, also when the value is wrong.
                    diag.extend(args.set(option, &value).err());
                    Ok(())
                }
            }
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

fn missing_consumer(has_options: bool) -> Finding {
    let remedy = if has_options {
        "add `consumer = \"...\"`"
    } else {
        "write `#[inbox_handler(consumer = \"billing\")]`; the name is stored with every claimed message"
    };
    Finding::at_attribute("`#[inbox_handler]` needs a consumer name").help(remedy)
}
