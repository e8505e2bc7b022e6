use super::deliver;
use inbox_core::{Handler as _, StateMap};

#[tokio::test]
async fn handlers_of_crates_that_see_the_framework_under_other_names_run() {
    let state = StateMap::new();
    deliver(renamed::renamed::handler(), r#""order""#, &state)
        .await
        .expect("success");
    deliver(renamed::through_facade::handler(), r#""order""#, &state)
        .await
        .expect("success");
    deliver(renamed::through_own::handler(), r#""order""#, &state)
        .await
        .expect("success");
    let mut state = StateMap::new();
    state.insert(5_i64);
    deliver(renamed::renamed_batch::handler(), r#""order""#, &state)
        .await
        .expect("success");
    assert_eq!(
        renamed::through_facade::SPEC.name,
        "renamed::through_facade"
    );
}

#[test]
fn a_macro_of_the_facade_declares_handlers() {
    assert_eq!(renamed::ignored_consumer(), "ignored");
}

mod here {
    use sqlx::Sqlite;

    facade::ignore_messages!(dropped, String, Sqlite, "dropped");

    #[tokio::test]
    async fn also_where_the_framework_is_known_by_its_own_name() {
        crate::deliver(
            dropped::handler(),
            r#""order""#,
            &inbox_core::StateMap::new(),
        )
        .await
        .expect("success");
    }
}
