//! The cases. Each text stands below the imports and types in `shop.rs`.

mod completion;
mod diagnostics;
mod navigation;

pub(crate) use completion::COMPLETIONS;
pub(crate) use diagnostics::DIAGNOSTICS;
pub(crate) use navigation::{DEFINITIONS, HOVERS};

/// What is offered at `$0`.
pub(crate) struct Completion {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// These names among others.
    pub(crate) offered: &'static [&'static str],
}

/// What is shown for the name at `$0`.
pub(crate) struct Hover {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// These words among others.
    pub(crate) shown: &'static [&'static str],
}

/// Where one gets from `$0`: to what is marked, and nowhere else.
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// What is reported: what is marked, and nothing else.
pub(crate) struct Diagnostic {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}
