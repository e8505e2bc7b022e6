//! Tests of the macro on tokens, which no compiler version changes.
#![allow(clippy::indexing_slicing)]

mod diagnostics;
mod documentation;
mod expansion;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The attribute's arguments and the item without the attribute, with the spans of `source`.
fn split(source: &str) -> (TokenStream, TokenStream) {
    let tokens: Vec<TokenTree> = source
        .parse::<TokenStream>()
        .expect("tokens")
        .into_iter()
        .collect();
    let position = tokens
        .iter()
        .position(is_handler_attribute)
        .expect("an attribute `#[inbox_handler]`");
    let TokenTree::Group(attribute) = &tokens[position] else {
        unreachable!()
    };
    let args = match attribute.stream().into_iter().last() {
        Some(TokenTree::Group(args)) => args.stream(),
        _ => TokenStream::new(),
    };
    let item = tokens[..position - 1]
        .iter()
        .chain(&tokens[position + 1..])
        .cloned()
        .collect();
    (args, item)
}

fn is_handler_attribute(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else {
        return false;
    };
    group.delimiter() == Delimiter::Bracket
        && matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "inbox_handler")
}
