use super::Completion;

const FIELDS: &[&str] = &["account", "amount_cents"];
const TRANSACTION: &[&str] = &["savepoint"];

pub(crate) const COMPLETIONS: &[Completion] = &[
    Completion {
        name: "the message at the end of the body",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the message above more code",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    let cents = order.$0
    tx.savepoint().await?;
    Ok(())
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the message in an unclosed call",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    sqlx::query("UPDATE accounts SET balance = balance - $1").bind(order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the message in a body without its end",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    if order.amount_cents > 0 {
        order.$0
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the transaction at the end of the body",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    let cents = order.amount_cents;
    tx.$0
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "the transaction above more code",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    tx.$0
    Ok(())
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "what came out of an await",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    let savepoint = tx.savepoint().await?;
    savepoint.$0
}
"#,
        offered: &["release", "rollback"],
    },
    Completion {
        name: "the value in an extractor's pattern",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, State(rates): State<Rates>) -> Result<(), HandlerError> {
    rates.$0
}
"#,
        offered: &["percent"],
    },
    Completion {
        name: "the message after an unknown option",
        text: r#"
#[inbox_handler(consumr = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the transaction after an unknown option",
        text: r#"
#[inbox_handler(consumr = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    tx.$0
    Ok(())
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "the message after an option without a value",
        text: r#"
#[inbox_handler(consumer = )]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the message after half an option in the parentheses of the retries",
        text: r#"
#[inbox_handler(consumer = "billing", retry(first = "200ms", longest = ))]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the transaction after delays that contradict each other",
        text: r#"
#[inbox_handler(consumer = "billing", retry(first = "5m", longest = "5s"))]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    tx.$0
    Ok(())
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "the transaction under an attribute without options",
        text: r#"
#[inbox_handler]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    tx.$0
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "the message under a parameter without a type",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, id: ) -> Result<(), HandlerError> {
    order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the transaction under a parameter without a type",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, id: ) -> Result<(), HandlerError> {
    tx.$0
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "the transaction under half a parameter's name",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, i) -> Result<(), HandlerError> {
    tx.$0
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "the message under half a type",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, rates: State<) -> Result<(), HandlerError> {
    order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the message of a handler without a transaction",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced) -> Result<(), HandlerError> {
    order.$0
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "the handler for its registration",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

fn register() {
    charge::$0
}
"#,
        offered: &["handler"],
    },
    Completion {
        name: "the handler of a half-typed function",
        text: r#"
mod billing {
    use super::*;

    #[inbox_handler(consumer = "billing")]
    pub async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
        order.
    }
}
use billing::charge;

fn register() {
    charge::$0
}
"#,
        offered: &["handler"],
    },
    Completion {
        name: "the handler of a rejected function",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn register() {
    charge::$0
}
"#,
        offered: &["handler"],
    },
    Completion {
        name: "what a direct call returns",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

async fn test(order: OrderPlaced, tx: &mut Tx<Postgres>) {
    charge(order, tx).await.$0
}
"#,
        offered: &["is_ok", "map_err"],
    },
    Completion {
        name: "a batch in a half-typed body",
        text: r#"
#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    orders.$0
}
"#,
        offered: &["iter", "len"],
    },
    Completion {
        name: "a message of a batch",
        text: r#"
#[inbox_handler(consumer = "billing", batch(max = 100, linger = "5ms"))]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    for order in &orders {
        order.$0
"#,
        offered: &["id", "account", "amount_cents"],
    },
    Completion {
        name: "a message of a batch in a closure",
        text: r#"
#[inbox_handler(consumer = "billing", batch(max = 100))]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    let accounts: Vec<&str> = orders.iter().map(|order| order.$0).collect();
    tx.savepoint().await?;
    Ok(())
}
"#,
        offered: FIELDS,
    },
    Completion {
        name: "a batch under a half-typed option",
        text: r#"
#[inbox_handler(consumer = "billing", batch(max = ))]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    orders.$0
}
"#,
        offered: &["iter", "len"],
    },
    Completion {
        name: "the transaction of a handler without the option for its batch",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    tx.$0
}
"#,
        offered: TRANSACTION,
    },
    Completion {
        name: "the handler of a half-typed batch",
        text: r#"
mod billing {
    use super::*;

    #[inbox_handler(consumer = "billing", batch(max = 100))]
    pub async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
        orders.
    }
}
use billing::post;

fn register() {
    post::$0
}
"#,
        offered: &["handler"],
    },
];
