//! The example, as its documentation says to try it: on each broker, with the consumer killed in the middle.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Stdio;

use inbox_guarantees::{Sandbox, TestDatabase as _, eventually};
use sqlx::Postgres;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// How many orders are produced.
const COUNT: &str = "300";

fn billing(sandbox: &Sandbox<Postgres>, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_billing"));
    command
        .args(args)
        .env("DATABASE_URL", &sandbox.url)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// A slow consumer that is ready.
async fn consume(sandbox: &Sandbox<Postgres>, broker: &str) -> Child {
    let mut consumer = billing(sandbox, &["consume", "--slow", "--broker", broker])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(consumer.stdout.take().unwrap()).lines();
    // What start-up warns of comes before.
    loop {
        let line = lines.next_line().await.unwrap().expect("it ended");
        if line.starts_with("consuming ") {
            break;
        }
    }
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    consumer
}

async fn receipts(sandbox: &Sandbox<Postgres>) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM example_receipts")
        .fetch_one(&sandbox.pool)
        .await
        .unwrap()
}

async fn every_order_is_charged_once(broker: &str) {
    let sandbox = Postgres::fresh(2).await;
    let mut consumer = consume(&sandbox, broker).await;
    let produced = billing(&sandbox, &["produce", COUNT, "--broker", broker])
        .status()
        .await
        .unwrap();
    assert!(produced.success(), "{produced}");
    for kills in 1..=2 {
        eventually("some work", || async {
            receipts(&sandbox).await >= 50 * kills
        })
        .await;
        consumer.kill().await.unwrap();
        consumer = consume(&sandbox, broker).await;
    }
    eventually("every order has its receipt", || async {
        receipts(&sandbox).await >= COUNT.parse().unwrap()
    })
    .await;
    let checked = async || billing(&sandbox, &["check", COUNT]).output().await.unwrap();
    eventually("the check agrees", || async {
        checked().await.status.success()
    })
    .await;
    let told = String::from_utf8(checked().await.stdout).unwrap();
    assert!(
        told.ends_with("\nEvery order was charged once and has one receipt.\n"),
        "{told}"
    );
    consumer.kill().await.unwrap();
}

#[tokio::test]
async fn every_order_is_charged_once_on_rabbitmq() {
    every_order_is_charged_once("rabbitmq").await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn every_order_is_charged_once_on_kafka() {
    every_order_is_charged_once("kafka").await;
}

#[tokio::test]
async fn every_order_is_charged_once_on_nats() {
    every_order_is_charged_once("nats").await;
}

#[tokio::test]
async fn what_is_wrong_is_told_with_its_remedy() {
    let sandbox = Postgres::fresh(2).await;
    let cases: [(&[&str], &str, &str); 4] = [
        (
            &["produce", "5", "--broker", "pulsar"],
            "",
            "--broker rabbitmq, --broker kafka or --broker nats",
        ),
        (&["produce", "5", "--broker"], "", "--broker needs a name"),
        (
            &["produce", "5", "--broker", "nats"],
            "",
            "export NATS_URL=nats://localhost:4222",
        ),
        (
            &["consume", "--broker", "nats"],
            "mqtt://localhost",
            "NATS_URL: ",
        ),
    ];
    for (args, url, part) in cases {
        let output = billing(&sandbox, args)
            .env("NATS_URL", url)
            .output()
            .await
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(part), "{args:?}: {told}");
    }
}
