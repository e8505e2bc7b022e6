#![allow(unused_variables)]

use inbox_runtime::Inbox;
use sqlx::{PgPool, Postgres};

fn register(pool: PgPool) {
    let inbox: Inbox<Postgres> = Inbox::builder(pool).build().expect("an inbox");
}

fn main() {}
