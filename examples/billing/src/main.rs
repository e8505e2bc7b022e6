//! One event, two consumers: every order is charged once and gets one receipt, whatever is killed meanwhile.
//!
//! It needs a PostgreSQL server and one of RabbitMQ, Kafka and NATS JetStream, and keeps to tables and a queue (topic,
//! stream) of its own there:
//!
//! ```text
//! export DATABASE_URL=postgres://user:password@localhost:5432/app
//! export AMQP_URL=amqp://guest:guest@localhost:5672/%2f
//! ```
//!
//! (`--broker kafka`, with `--features kafka`, takes KAFKA_BROKERS=localhost:9092 instead of AMQP_URL, and `--broker nats`
//! takes NATS_URL=nats://localhost:4222: the handlers are the same, `broker.rs` is all that differs.)
//!
//! In one terminal, slowly, so that there is time to kill it:
//!
//! ```text
//! cargo run -p billing -- consume --slow
//! ```
//!
//! (`RUST_LOG=inbox_runtime=debug` shows each message.)
//!
//! In another one, with the process id that the consumer shows:
//!
//! ```text
//! cargo run -p billing -- produce 1000
//! kill -9 PID
//! ```
//!
//! Start the consumer again (kill it as often as you like, or the servers too), and when all is done:
//!
//! ```text
//! cargo run -p billing -- check 1000
//! ```
//!
//! Nothing is doubled and nothing is missing. The orders and their ids are made from their numbers, so `produce`
//! repeats the same ids each time, as a producer does that was restarted, and `check` knows what must have come of
//! them without asking anybody.

mod broker;
mod consume;
mod produce;

use std::process::ExitCode;

use broker::Broker;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, PgPool};

const HELP: &str = "\
One event, two consumers, on PostgreSQL and a broker of your choice.

usage: billing COMMAND [--broker rabbitmq|kafka|nats]

  consume [--slow]   charge orders and write receipts until Ctrl-C; makes the queue and the tables
  produce COUNT      send orders 1 to COUNT; again: the same ones again
  check COUNT        compare the database with what orders 1 to COUNT must have come to

environment: DATABASE_URL (consume, check), and for consume and produce AMQP_URL, KAFKA_BROKERS or NATS_URL
exit status: 0 done, 1 the check found a difference, 2 it could not run";

/// The event, as the producer makes it and both consumers take it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: String,
    account: String,
    amount_cents: i64,
}

impl OrderPlaced {
    /// The order with this number, always the same.
    fn numbered(number: u32) -> Self {
        Self {
            order: format!("order-{number:06}"),
            account: format!("account-{}", number % 10),
            amount_cents: 100 + i64::from(number) * 37 % 9_900,
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let broker = match chosen_broker(&mut args) {
        Ok(broker) => broker,
        Err(problem) => return failed(&problem),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    let answer = match args.as_slice() {
        ["consume"] => runtime.block_on(consume::consume(broker, false)),
        ["consume", "--slow"] => runtime.block_on(consume::consume(broker, true)),
        ["produce", count] => match number_of_orders(count) {
            Ok(count) => runtime.block_on(produce::produce(broker, count)),
            Err(problem) => Err(problem),
        },
        ["check", count] => match number_of_orders(count) {
            Ok(count) => runtime.block_on(check(count)),
            Err(problem) => Err(problem),
        },
        ["--help" | "-h"] => {
            println!("{HELP}");
            Ok(true)
        }
        [] => Err(format!("no command\n\n{HELP}")),
        other => Err(format!(
            "`{}` is no command of this example\n\n{HELP}",
            other.join(" ")
        )),
    };
    match answer {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(problem) => failed(&problem),
    }
}

/// Takes `--broker NAME` out of the arguments, wherever it is.
fn chosen_broker(args: &mut Vec<&str>) -> Result<Broker, String> {
    let Some(place) = args.iter().position(|arg| *arg == "--broker") else {
        return Ok(Broker::RabbitMq);
    };
    let name = args
        .get(place + 1)
        .ok_or_else(|| format!("--broker needs a name\n\n{HELP}"))?;
    let broker = Broker::named(name)?;
    args.drain(place..place + 2);
    Ok(broker)
}

fn failed(problem: &str) -> ExitCode {
    eprintln!("error: {problem}");
    ExitCode::from(2)
}

fn number_of_orders(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=100_000).contains(count))
        .ok_or_else(|| {
            format!("the number of orders `{text}` is not a whole number from 1 to 100000")
        })
}

fn environment(name: &str, example: &str) -> Result<String, String> {
    match std::env::var(name) {
        Ok(value) if !value.trim().is_empty() => Ok(value),
        Ok(_) | Err(std::env::VarError::NotPresent) => Err(format!(
            "{name} is not set\n  help: export {name}={example}"
        )),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8 text")),
    }
}

/// Connects, and makes the tables of this example.
async fn database() -> Result<PgPool, String> {
    let example = "postgres://user:password@localhost:5432/app";
    let url = environment("DATABASE_URL", example)?;
    let options: PgConnectOptions = url.parse().map_err(|error| {
        format!(
            "DATABASE_URL is no PostgreSQL address: {error}\n  help: export DATABASE_URL={example}"
        )
    })?;
    let place = format!(
        "PostgreSQL at {}:{}",
        options.get_host(),
        options.get_port()
    );
    // A pool goes on trying; whether there is a server at all is better known at once.
    if let Err(error) = options.connect().await {
        return Err(format!(
            "{place} cannot be connected to: {error}\n  help: check that it runs, and what DATABASE_URL says"
        ));
    }
    let tables = async {
        // Four workers and one connection for maintenance.
        let pool = PgPoolOptions::new()
            .max_connections(5)
            .connect_with(options)
            .await?;
        sqlx::raw_sql(include_str!("tables.sql"))
            .execute(&pool)
            .await?;
        Ok::<_, sqlx::Error>(pool)
    };
    tables
        .await
        .map_err(|error| format!("the tables of this example cannot be made on {place}: {error}"))
}

/// What the database must hold is computed from the numbers of the orders alone.
async fn check(count: u32) -> Result<bool, String> {
    let pool = database().await?;
    let orders: Vec<OrderPlaced> = (1..=count).map(OrderPlaced::numbered).collect();
    let expected: i64 = orders.iter().map(|order| order.amount_cents).sum();
    let ids: Vec<&str> = orders.iter().map(|order| order.order.as_str()).collect();
    let found = async {
        let ledger: (i64, i64, i64) = sqlx::query_as(
            "SELECT count(*), count(DISTINCT order_id), COALESCE(sum(amount_cents), 0)::bigint \
             FROM example_ledger WHERE order_id = ANY($1)",
        )
        .bind(&ids)
        .fetch_one(&pool)
        .await?;
        let receipts: (i64, i64) = sqlx::query_as(
            "SELECT count(*), count(DISTINCT order_id) FROM example_receipts WHERE order_id = ANY($1)",
        )
        .bind(&ids)
        .fetch_one(&pool)
        .await?;
        // Of all orders ever, since accounts are shared by them.
        let balances: (i64, i64) = sqlx::query_as(
            "SELECT (SELECT COALESCE(sum(balance_cents), 0)::bigint FROM example_accounts), \
             (SELECT COALESCE(sum(amount_cents), 0)::bigint FROM example_ledger)",
        )
        .fetch_one(&pool)
        .await?;
        Ok::<_, sqlx::Error>((ledger, receipts, balances))
    };
    let ((rows, charged, sum), (receipts, receipted), (balances, ledger)) = found
        .await
        .map_err(|error| format!("the database cannot be read: {error}"))?;
    let count = i64::from(count);
    println!("            orders   missing   doubled");
    println!(
        "charged   {charged:>8}  {:>8}  {:>8}",
        count - charged,
        rows - charged
    );
    println!(
        "receipts  {receipted:>8}  {:>8}  {:>8}",
        count - receipted,
        receipts - receipted
    );
    println!("ledger    {sum:>8} cents, expected {expected}");
    println!("balances  {balances:>8} cents, the whole ledger {ledger}");
    let doubled = rows > charged || receipts > receipted;
    let missing = charged < count || receipted < count;
    if doubled {
        println!("\nWRONG: something was done twice.");
    } else if missing {
        println!(
            "\nNot all is done yet: produce {count} orders, and let a consumer run until it is quiet."
        );
    } else if sum != expected || balances != ledger {
        println!("\nWRONG: the sums differ.");
    } else {
        println!("\nEvery order was charged once and has one receipt.");
    }
    Ok(!doubled && !missing && sum == expected && balances == ledger)
}
