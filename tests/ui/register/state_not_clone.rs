#![allow(unused_variables)]

use inbox_runtime::Inbox;
use sqlx::PgPool;

struct Rates;

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool).state(Rates);
}

fn main() {}
