//! Wrong uses of the attribute: one mistake per file, and the compiler's answer beside it.
//!
//! `TRYBUILD=overwrite` writes the answers anew; read every one of them.

/// The answers are those of the toolchain in `rust-toolchain.toml`.
fn check(cases: &str) {
    trybuild::TestCases::new().compile_fail(cases);
}

#[test]
fn attr() {
    check("attr/*.rs");
}

#[test]
fn signature() {
    check("signature/*.rs");
}

#[test]
fn types() {
    check("types/*.rs");
}

#[test]
fn body() {
    check("body/*.rs");
}

#[test]
fn register() {
    check("register/*.rs");
}
