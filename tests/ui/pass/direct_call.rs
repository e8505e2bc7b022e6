use fixtures::{OrderPlaced, Rates};
use inbox_core::{State, Tx, inbox_handler};
use sqlx::{Sqlite, SqlitePool};

#[inbox_handler(consumer = "billing")]
async fn charge(
    order: OrderPlaced,
    tx: &mut Tx<Sqlite>,
    State(rates): State<Rates>,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO charges VALUES (?)")
        .bind(order.amount_cents * rates.percent)
        .execute(&mut *tx)
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_function_is_called_as_it_is_written() -> Result<(), sqlx::Error> {
    let pool = SqlitePool::connect("sqlite::memory:").await?;
    let mut tx = Tx::begin(&pool).await?;
    sqlx::query("CREATE TABLE charges (cents INTEGER)")
        .execute(&mut tx)
        .await?;
    let order = OrderPlaced {
        account: "a-1".to_owned(),
        amount_cents: 250,
    };

    charge(order, &mut tx, State(Rates { percent: 2 })).await?;

    let cents: i64 = sqlx::query_scalar("SELECT cents FROM charges")
        .fetch_one(&mut tx)
        .await?;
    assert_eq!(cents, 500);
    Ok(())
}
