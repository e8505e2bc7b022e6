#![allow(unused_variables)]

use inbox_runtime::Inbox;
use sqlx::PgPool;

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool).source("orders", "amqp://localhost");
}

fn main() {}
