use super::{Definition, Hover};

pub(crate) const HOVERS: &[Hover] = &[
    Hover {
        name: "the handler where it is called",
        text: r#"
/// Charges the customer once per order.
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

async fn test(order: OrderPlaced, tx: &mut Tx<Postgres>) {
    let _ = char$0ge(order, tx).await;
}
"#,
        shown: &["async fn charge(", "Charges the customer once per order."],
    },
    Hover {
        name: "the handler where it is defined",
        text: r#"
/// Charges the customer once per order.
#[inbox_handler(consumer = "billing")]
async fn char$0ge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}
"#,
        shown: &["async fn charge(", "Charges the customer once per order."],
    },
    Hover {
        name: "the handler where it is registered",
        text: r#"
/// Charges the customer once per order.
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}

fn register() {
    let _ = char$0ge::handler();
}
"#,
        shown: &["charge"],
    },
    Hover {
        name: "the message in a half-typed body",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    let cents = ord$0er.amount_cents;
    tx.
}
"#,
        shown: &["order: OrderPlaced"],
    },
    Hover {
        name: "the attribute",
        text: r#"
#[inbox_hand$0ler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
    Ok(())
}
"#,
        shown: &["Makes an inbox handler of an `async fn`"],
    },
];

pub(crate) const DEFINITIONS: &[Definition] = &[
    Definition {
        name: "from a call to the function",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
         ^^^^^^
    Ok(())
}

async fn test(order: OrderPlaced, tx: &mut Tx<Postgres>) {
    let _ = char$0ge(order, tx).await;
}
"#,
    },
    Definition {
        name: "from a registration to the function",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
         ^^^^^^
    Ok(())
}

fn register() {
    let _ = char$0ge::handler();
}
"#,
    },
    Definition {
        name: "from `handler` to the function",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
         ^^^^^^
    Ok(())
}

fn register() {
    let _ = charge::hand$0ler();
}
"#,
    },
    Definition {
        name: "from a registration to a half-typed function with a wrong option",
        text: r#"
#[inbox_handler(consumr = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, id: ) -> Result<(), HandlerError> {
         ^^^^^^
    order.
}

fn register() {
    let _ = char$0ge::handler();
}
"#,
    },
    Definition {
        name: "from a registration to an imported function",
        text: r#"
mod billing {
    use super::*;

    #[inbox_handler(consumer = "billing")]
    pub(crate) async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
                        ^^^^^^
        Ok(())
    }
}
use billing::charge;

fn register() {
    let _ = char$0ge::handler();
}
"#,
    },
    Definition {
        name: "from the body to a parameter",
        text: r#"
#[inbox_handler(consumer = "billing")]
async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), HandlerError> {
                ^^^^^
    let cents = ord$0er.amount_cents;
    tx.
}
"#,
    },
];
