//! Forms that nobody has to write, and that are right all the same.

use super::{ORDER, deliver};
use fixtures::{OrderPlaced, Outcome, Rates};
use inbox_core::{State, StateMap, Tx, inbox_handler};
use sqlx::Sqlite;
use std::borrow::Cow;

#[rustfmt::skip]
#[inbox_handler[consumer = r#"brackets"#,]]
async fn brackets_and_raw_string(_order: OrderPlaced, _tx: &mut Tx<Sqlite>) -> Outcome {
    Ok(())
}

#[rustfmt::skip]
#[inbox_handler(consumer = "empty")]
#[expect(unused_parens)]
async fn empty_generics<>(_order: (OrderPlaced), _tx: &mut (Tx<Sqlite>),) -> Outcome where {
    Ok(())
}

#[inbox_handler(consumer = "attributes")]
async fn attributes_on_parameters(
    #[expect(unused_variables)] order: OrderPlaced,
    #[allow(unused_variables)] tx: &mut Tx<Sqlite>,
    #[cfg_attr(all(), allow(unused_variables))] rates: State<Rates>,
) -> Outcome {
    Ok(())
}

#[inbox_handler(consumer = "lifetimes")]
async fn elided_lifetimes(
    order: std::collections::BTreeMap<Cow<'_, str>, serde_json::Value>,
    _tx: &'_ mut Tx<Sqlite>,
    _name: State<&'static str>,
) -> Outcome {
    assert_eq!(order.len(), 2);
    Ok(())
}

#[tokio::test]
async fn they_run() {
    let mut state = StateMap::new();
    state.insert(Rates { percent: 7 });
    state.insert("billing");
    deliver(brackets_and_raw_string::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(empty_generics::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(attributes_on_parameters::handler(), ORDER, &state)
        .await
        .expect("success");
    deliver(elided_lifetimes::handler(), ORDER, &state)
        .await
        .expect("success");
}
