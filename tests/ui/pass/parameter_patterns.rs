use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{MessageId, State, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;

#[inbox_handler(consumer = "billing")]
async fn charge(
    OrderPlaced {
        mut account,
        amount_cents: cents,
    }: OrderPlaced,
    mut tx: &mut Tx<Sqlite>,
    State(Rates { percent }): State<Rates>,
    #[allow(unused_variables)] id: MessageId,
    _: MessageId,
) -> Outcome {
    account.push('!');
    let tx = &mut tx;
    sqlx::query("SELECT ?, ?")
        .bind(account)
        .bind(cents * percent)
        .execute(&mut ***tx)
        .await?;
    Ok(())
}

#[tokio::test]
async fn patterns_stay_the_functions() {
    let mut state = StateMap::new();
    state.insert(Rates { percent: 7 });
    deliver(charge::handler(), ORDER, &state)
        .await
        .expect("success");
}
