//! A producer that makes the id once and repeats it with every try: that is all an inbox needs of it.

use std::time::Duration;

use inbox_runtime::{Envelope, PublishError, Publisher};

use crate::OrderPlaced;
use crate::broker::Broker;

/// How often one order is tried.
const TRIES: u32 = 5;

pub(crate) async fn produce(broker: Broker, count: u32) -> Result<bool, String> {
    let publisher = broker.publisher()?;
    let mut sent: u64 = 0;
    for number in 1..=count {
        let order = OrderPlaced::numbered(number);
        let payload = serde_json::to_vec(&order).map_err(|error| error.to_string())?;
        let envelope = Envelope::new(payload)
            .id(&order.order)
            .message_type("OrderPlaced")
            .content_type("application/json");
        // Every tenth as if its confirm had been lost: the producer cannot know, so it sends it again.
        let times = if number.is_multiple_of(10) { 2 } else { 1 };
        for _ in 0..times {
            publish(&*publisher, broker.destination(), &envelope, &order.order).await?;
            sent += 1;
        }
        if number.is_multiple_of(1000) {
            println!("{number} of {count}");
        }
    }
    println!("{count} orders in {sent} messages, all confirmed by the broker");
    Ok(true)
}

async fn publish(
    publisher: &dyn Publisher,
    destination: &str,
    envelope: &Envelope,
    order: &str,
) -> Result<(), String> {
    for tried in 1..=TRIES {
        match publisher.publish(destination, envelope).await {
            Ok(()) => return Ok(()),
            Err(error @ PublishError::Unroutable { .. }) => {
                return Err(format!(
                    "{error}\n  help: start `cargo run -p billing -- consume` first, it makes the queue"
                ));
            }
            Err(error) if tried == TRIES => {
                return Err(format!(
                    "{order} was not sent in {TRIES} tries: {}",
                    with_causes(&error)
                ));
            }
            Err(error) => {
                eprintln!(
                    "{order}, try {tried}: {}; trying again with the same id",
                    with_causes(&error)
                );
                tokio::time::sleep(Duration::from_millis(500) * tried).await;
            }
        }
    }
    Ok(())
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
