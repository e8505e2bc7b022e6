use inbox_runtime::Inbox;
use sqlx::PgPool;

fn register(pool: PgPool) {
    let _inbox = Inbox::builder(pool).register(|_order: String| async {});
}

fn main() {}
