use super::Diagnostic;

pub(crate) const DIAGNOSTICS: &[Diagnostic] = &[
    Diagnostic {
        name: "nothing in a complete application",
        text: r#"
#[inbox_handler(consumer = "billing", on = "OrderPlaced", timeout = "5s", max_attempts = 3, retry(first = "1s", longest = "5m"))]
pub async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Postgres>,
    State(rates): State<Rates>,
    id: MessageId,
) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO commissions (message_id, cents) VALUES ($1, $2)")
        .bind(id.as_str())
        .bind(order.amount_cents * rates.percent / 100)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

pub async fn run(pool: sqlx::PgPool) {
    let builder = inbox_runtime::Inbox::builder(pool).register(charge::handler());
    drop(builder);
}
"#,
    },
    Diagnostic {
        name: "nothing in a handler of batches",
        text: r#"
#[inbox_handler(consumer = "billing", order_by = "payload:/account", batch(max = 500, linger = "5ms"))]
pub async fn post(orders: Batch<OrderPlaced>, tx: &mut Tx<Postgres>, State(rates): State<Rates>) -> Result<(), HandlerError> {
    let ids: Vec<&str> = orders.iter().map(|order| order.id().as_str()).collect();
    let cents: Vec<i64> = orders.iter().map(|order| order.amount_cents * rates.percent / 100).collect();
    sqlx::query("INSERT INTO commissions (message_id, cents) SELECT * FROM unnest($1::text[], $2::bigint[])")
        .bind(&ids)
        .bind(&cents)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

pub async fn run(pool: sqlx::PgPool) {
    let builder = inbox_runtime::Inbox::builder(pool).register(post::handler());
    drop(builder);
}
"#,
    },
    Diagnostic {
        // That a syntax error is also one of the expansion is said for every attribute, and only among the experimental
        // diagnostics.
        name: "only its syntax error in a half-typed body",
        text: r#"
#[inbox_handler(consumer = "billing")]
  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ Syntax Error in Expansion: expected field name or number
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    tx.
       ^ Syntax Error: expected field name or number
}

fn register() {
    let _ = charge::handler();
}
"#,
    },
    Diagnostic {
        name: "only its syntax error in an unfinished parameter list",
        text: r#"
#[inbox_handler(consumer = "billing")]
  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ Syntax Error in Expansion: expected type
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, id: ) -> Result<(), HandlerError> {
                                                              ^ Syntax Error: expected type
    Ok(())
}
"#,
    },
    Diagnostic {
        name: "an unknown option",
        text: r#"
#[inbox_handler(consumr = "billing")]
                ^^^^^^^ unknown option `consumr`
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}
"#,
    },
    Diagnostic {
        name: "no consumer",
        text: r#"
#[inbox_handler]
  ^^^^^^^^^^^^^ `#[inbox_handler]` needs a consumer name
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}
"#,
    },
    Diagnostic {
        name: "a duration without its unit",
        text: r#"
#[inbox_handler(consumer = "billing", timeout = "30")]
                                                ^^^^ durations need a unit, found `30`
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}
"#,
    },
    Diagnostic {
        name: "two mistakes in the options",
        text: r#"
#[inbox_handler(consumer = "", kye = "message_id")]
                           ^^ the consumer name is empty
                               ^^^ unknown option `kye`
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}
"#,
    },
    Diagnostic {
        name: "a function that is not async",
        text: r#"
#[inbox_handler(consumer = "billing")]
fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
^^ an inbox handler must be `async`
    Ok(())
}

fn register() {
    let _ = charge::handler();
}
"#,
    },
    Diagnostic {
        name: "no transaction",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced) -> Result<(), HandlerError> {
               ^^^^^^^^^^^^^^^^^^^^ `charge` has no transaction parameter
    Ok(())
}
"#,
    },
    Diagnostic {
        // rust-analyzer shows one token of an expansion: the first of several.
        name: "a transaction by value",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: Tx<Postgres>) -> Result<(), HandlerError> {
                                        ^^ the transaction must be borrowed: it is committed by the runtime after the handler returns
    Ok(())
}
"#,
    },
    Diagnostic {
        name: "a struct",
        text: r#"
#[inbox_handler(consumer = "billing")]
struct Charge;
^^^^^^ `#[inbox_handler]` goes on a function, found a struct
"#,
    },
];
