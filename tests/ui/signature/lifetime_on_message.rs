#![allow(unused_variables)]

use fixtures::Outcome;
use inbox_core::{Tx, inbox_handler};
use std::borrow::Cow;
use sqlx::Postgres;

#[inbox_handler(consumer = "billing")]
async fn charge<'m>(order: Cow<'m, str>, tx: &mut Tx<Postgres>) -> Outcome {
    Ok(())
}

fn main() {}
