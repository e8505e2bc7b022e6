use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Tx, inbox_handler};
use sqlx::Sqlite;

#[cfg(any())]
#[inbox_handler(consumer = "billing")]
async fn above(order: Missing, tx: &mut Tx<AlsoMissing>) -> Outcome {
    order.nothing(tx)
}

#[inbox_handler(consumer = "billing")]
#[cfg(any())]
async fn below(order: Missing, tx: &mut Tx<AlsoMissing>) -> Outcome {
    order.nothing(tx)
}

#[inbox_handler(consumer = "billing")]
#[cfg_attr(all(), allow(dead_code), cfg(any()))]
async fn attached(order: Missing, tx: &mut Tx<AlsoMissing>) -> Outcome {
    order.nothing(tx)
}

#[inbox_handler(consumer = "billing")]
#[cfg(not(any()))]
async fn below_and_on(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

// The names are free.
struct Above;
struct Below;
use Above as above;
use Below as below;
use Below as attached;

#[test]
fn only_what_is_on_exists() {
    let _free: (above, below, attached) = (Above, Below, Below);
    let _handler = below_and_on::handler();
}
