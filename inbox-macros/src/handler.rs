//! The four stages in order: tokens, function and arguments, model, tokens.

use crate::args::Args;
use crate::diag::Diagnostics;
use crate::item::HandlerFn;
use crate::path::Root;
use crate::{check, expand, rejected};
use proc_macro2::TokenStream;

pub(crate) fn expand(args: TokenStream, item: TokenStream, root: Root) -> TokenStream {
    let mut diag = Diagnostics::default();
    let generated = generate(args, item.clone(), root, &mut diag);
    // The user's tokens go first and untouched: rust-analyzer maps a span to its first occurrence.
    let mut expansion = item;
    expansion.extend(diag.into_tokens());
    expansion.extend(generated);
    expansion
}

pub(crate) fn generate(
    args: TokenStream,
    item: TokenStream,
    root: Root,
    diag: &mut Diagnostics,
) -> TokenStream {
    let Some(function) = HandlerFn::parse(item, diag) else {
        return TokenStream::new();
    };
    let mut args = Args::parse(args, diag);
    let root = args.root.take().unwrap_or(root);
    match check::handler(&function, args, diag) {
        Some(handler) => expand::handler(&handler, &root),
        None => rejected::handler(&function, &root),
    }
}
