//! Wrong uses of the attribute: one mistake per file, and the compiler's answer beside it.
//!
//! `TRYBUILD=overwrite` writes the answers anew; read every one of them.

use std::fs;
use std::path::Path;

/// Files with more than one error: several mistakes, or further errors of the compiler's that no macro can prevent.
const SEVERAL: [(&str, usize); 15] = [
    // More than one mistake.
    ("attr/several_errors", 3),
    ("types/several_type_errors", 3),
    ("types/wrong_attribute_and_type", 2),
    // The compiler refuses the form, and hands over the value as if it stood in parentheses.
    ("attr/attribute_equals", 2),
    // Without the attribute there is no handler to register.
    ("register/attribute_not_imported", 2),
    // The database of the handler is looked for in its definition, and again where it is registered.
    ("register/after_wrong_type", 2),
    // The attribute does not see what is around its function.
    ("signature/in_impl", 4),
    ("signature/in_trait", 4),
    ("signature/missing_body", 2),
    ("signature/name_taken", 2),
    ("signature/name_taken_by_handler", 4),
    // A bound of the type itself is reported for each place that mentions the type; two of them without the attribute.
    ("types/transaction_of_connection", 4),
    ("types/transaction_of_pool", 4),
    // The type is refused in its role, and keeps the future from being `Send` besides.
    ("types/state_not_sync", 2),
    ("types/transaction_dyn", 2),
];

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

#[test]
fn one_mistake_is_one_error() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for directory in ["attr", "signature", "types", "body", "register"] {
        for entry in fs::read_dir(root.join(directory)).expect("the cases") {
            let path = entry.expect("a case").path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{directory}/{stem}");
            let answer = fs::read_to_string(path.with_extension("stderr")).expect(&name);
            let errors = answer.lines().filter(|line| line.starts_with("error"));
            let expected = SEVERAL.iter().find(|(file, _)| *file == name);
            assert_eq!(
                errors.count(),
                expected.map_or(1, |(_, count)| *count),
                "{name}"
            );
            let warns = answer.lines().any(|line| line.starts_with("warning"));
            assert!(!warns, "{name} warns of something beside its mistake");
        }
    }
}
