use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome};
use inbox_core::{Handler as _, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;

#[inbox_handler(consumer = "billing")]
async fn r#move(r#type: OrderPlaced, r#ref: &mut Tx<Sqlite>) -> Outcome {
    sqlx::query("SELECT ?")
        .bind(r#type.amount_cents)
        .execute(&mut *r#ref)
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_name_is_shown_without_the_escape() {
    assert_eq!(r#move::SPEC.name, "pass::raw_identifiers::move");
    deliver(r#move::handler(), ORDER, &StateMap::new())
        .await
        .expect("success");
}
