#![allow(unused_variables)]

use inbox_runtime::Inbox;
use sqlx::PgPool;

fn register(pool: PgPool) {
    let rates = 7;
    let _inbox = Inbox::builder(pool).state(&rates);
}

fn main() {}
