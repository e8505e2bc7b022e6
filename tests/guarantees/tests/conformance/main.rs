//! Every broker adapter of this project passes the suite of the testing kit, and the suite catches adapters that are wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)] // What goes wrong here has to fail the test.

mod kafka;
mod memory;
mod nats;
mod rabbitmq;
mod wrong;

#[test]
fn the_page_about_the_adapters_lists_every_case() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/adapters.md");
    let page = std::fs::read_to_string(page).unwrap();
    for case in inbox_runtime::testing::conformance::Case::ALL {
        let name = case.name();
        assert!(
            page.contains(&format!("\n| `{name}` |")),
            "`{name}` is missing"
        );
    }
}
