//! What syntax can tell about a type. Which type it is, only traits can tell.

use proc_macro2::{Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, PatType, ReturnType, Signature, Type, TypeReference};

/// The type without parentheses and without the invisible groups that a `$t:ty` of a `macro_rules!` has around it.
pub(crate) fn peel(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => peel(&group.elem),
        Type::Paren(paren) => peel(&paren.elem),
        other => other,
    }
}

pub(crate) fn reference(ty: &Type) -> Option<&TypeReference> {
    match peel(ty) {
        Type::Reference(reference) => Some(reference),
        _ => None,
    }
}

pub(crate) fn is_mut_reference(ty: &Type) -> bool {
    reference(ty).is_some_and(|reference| reference.mutability.is_some())
}

/// Whether the type is spelled like a transaction. Good enough to choose a text, not to accept or reject.
pub(crate) fn looks_like_transaction(ty: &Type) -> bool {
    let Type::Path(path) = peel(ty) else {
        return false;
    };
    path.path.segments.last().is_some_and(|last| {
        let name = last.ident.to_string();
        name.ends_with("Tx") || name.ends_with("Transaction")
    })
}

/// The parameters other than `self`.
pub(crate) fn typed(signature: &Signature) -> Vec<&PatType> {
    let inputs = signature.inputs.iter();
    inputs
        .filter_map(|input| match input {
            FnArg::Typed(parameter) => Some(parameter),
            FnArg::Receiver(_) => None,
        })
        .collect()
}

/// The first `Self` in a type.
pub(crate) fn self_in(ty: &Type) -> Option<TokenTree> {
    find(ty.to_token_stream(), "Self")?.into_iter().next()
}

/// Whether `Self` stands in a parameter or in the return type.
pub(crate) fn mentions_self(signature: &Signature) -> bool {
    let output = match &signature.output {
        ReturnType::Type(_, ty) => Some(ty),
        ReturnType::Default => None,
    };
    typed(signature)
        .into_iter()
        .map(|parameter| &parameter.ty)
        .chain(output)
        .any(|ty| self_in(ty).is_some())
}

/// The first `impl Trait` in a type, with its bounds.
pub(crate) fn impl_trait(ty: &Type) -> Option<TokenStream> {
    let mut open = 0_usize;
    let mut after_dash = false;
    let bounds = find(ty.to_token_stream(), "impl")?
        .into_iter()
        .take_while(|token| {
            let TokenTree::Punct(punct) = token else {
                after_dash = false;
                return true;
            };
            let ends = match punct.as_char() {
                ',' => open == 0,
                '>' if after_dash => false,
                '>' => {
                    let ends = open == 0;
                    open = open.saturating_sub(1);
                    ends
                }
                '<' => {
                    open += 1;
                    false
                }
                _ => false,
            };
            after_dash = punct.as_char() == '-' && punct.spacing() == Spacing::Joint;
            !ends
        });
    Some(bounds.collect())
}

/// The tokens from the first `word` on, to the end of the group that it stands in.
fn find(tokens: TokenStream, word: &str) -> Option<TokenStream> {
    let mut tokens = tokens.into_iter();
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Ident(ident) if ident == word => {
                return Some(std::iter::once(token).chain(tokens).collect());
            }
            TokenTree::Group(group) => {
                if let Some(found) = find(group.stream(), word) {
                    return Some(found);
                }
            }
            _ => {}
        }
    }
    None
}

/// The type with each `'_` written as `'static`, for places that have no lifetime to infer. Whether the type fits is
/// decided by its other uses.
pub(crate) fn without_elided(tokens: TokenStream) -> TokenStream {
    let mut in_lifetime = false;
    let rewrite = |token: TokenTree| match token {
        TokenTree::Ident(ident) if in_lifetime && ident == "_" => {
            in_lifetime = false;
            proc_macro2::Ident::new("static", ident.span()).into()
        }
        TokenTree::Group(group) => {
            in_lifetime = false;
            let mut rewritten =
                proc_macro2::Group::new(group.delimiter(), without_elided(group.stream()));
            rewritten.set_span(group.span());
            rewritten.into()
        }
        other => {
            in_lifetime = matches!(&other, TokenTree::Punct(punct) if punct.as_char() == '\'');
            other
        }
    };
    tokens.into_iter().map(rewrite).collect()
}
