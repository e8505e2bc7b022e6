//! Every broker adapter of this project passes the suite of the testing kit, and the suite catches adapters that are wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

mod kafka;
mod memory;
mod nats;
mod rabbitmq;
mod wrong;
