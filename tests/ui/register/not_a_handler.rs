use inbox_runtime::Inbox;
use sqlx::PgPool;

struct Charge;

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool).register(Charge);
}

fn main() {}
