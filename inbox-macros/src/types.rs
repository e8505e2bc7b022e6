//! What syntax can tell about a type. Which type it is, only traits can tell.

use proc_macro2::{Ident, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{
    FnArg, GenericArgument, PatType, PathArguments, ReturnType, Signature, Type, TypePath,
    TypeReference,
};

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
    looks_like_ours(ty) || last_name(ty).is_some_and(|name| name.ends_with("Transaction"))
}

/// Whether it is spelled like this framework's.
pub(crate) fn looks_like_ours(ty: &Type) -> bool {
    last_name(ty).is_some_and(|name| name.ends_with("Tx"))
}

/// Whether the type is spelled like one of the extractors of this framework. Good enough to choose a text as well.
pub(crate) fn looks_like_extractor(ty: &Type) -> bool {
    let extractors = [
        "State",
        "MessageId",
        "Headers",
        "Attempt",
        "IdempotencyKey",
        "Envelope",
    ];
    last_name(ty).is_some_and(|name| extractors.contains(&name.as_str()))
}

/// Whether the type is spelled `Batch<..>`. Good enough to choose a text, too.
pub(crate) fn looks_like_batch(ty: &Type) -> bool {
    generic(ty).is_some_and(|(name, _)| name == "Batch")
}

/// The type of which there are many in `Vec<M>`, `[M; 8]`, and `&[M]`.
pub(crate) fn listed(ty: &Type) -> Option<&Type> {
    match peel(ty) {
        Type::Reference(reference) => listed(&reference.elem),
        Type::Slice(slice) => Some(&slice.elem),
        Type::Array(array) => Some(&array.elem),
        other => match generic(other)? {
            (name, GenericArgument::Type(listed)) if name == "Vec" => Some(listed),
            _ => None,
        },
    }
}

/// The name of a generic type and its first argument.
fn generic(ty: &Type) -> Option<(&Ident, &GenericArgument)> {
    let Type::Path(path) = peel(ty) else {
        return None;
    };
    let last = path.path.segments.last()?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) => Some((&last.ident, arguments.args.first()?)),
        _ => None,
    }
}

fn last_name(ty: &Type) -> Option<String> {
    match peel(ty) {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// The type as people write it.
pub(crate) fn spelled(ty: &Type) -> String {
    let spaced = ty.to_token_stream().to_string();
    let mut spelled = String::with_capacity(spaced.len());
    for word in spaced.split(' ') {
        let glued =
            word.starts_with(['<', '>', ':', ',', ';']) || spelled.ends_with(['<', ':', '&', '\'']);
        if !glued && !spelled.is_empty() {
            spelled.push(' ');
        }
        spelled.push_str(word);
    }
    spelled
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

/// Whether the type is made of paths, references and tuples alone, which most are: neither `_` nor `impl Trait` nor
/// `Self` is in it.
fn is_plain(ty: &Type) -> bool {
    match ty {
        Type::Path(TypePath {
            qself: None, path, ..
        }) => {
            path.segments
                .first()
                .is_some_and(|first| first.ident != "Self")
                && path
                    .segments
                    .iter()
                    .all(|segment| match &segment.arguments {
                        PathArguments::None => true,
                        PathArguments::AngleBracketed(arguments) => {
                            arguments.args.iter().all(|argument| match argument {
                                GenericArgument::Type(ty) => is_plain(ty),
                                GenericArgument::Lifetime(_) => true,
                                _ => false,
                            })
                        }
                        PathArguments::Parenthesized(_) => false,
                    })
        }
        Type::Reference(reference) => is_plain(&reference.elem),
        Type::Tuple(tuple) => tuple.elems.iter().all(is_plain),
        _ => false,
    }
}

/// What [`find`] finds in a type.
fn search(ty: &Type, word: &str) -> Option<TokenStream> {
    if is_plain(ty) {
        return None;
    }
    find(ty.to_token_stream(), word)
}

/// The first `Self` in a type.
pub(crate) fn self_in(ty: &Type) -> Option<TokenTree> {
    search(ty, "Self")?.into_iter().next()
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

/// Whether a type is left open with `_`.
pub(crate) fn has_placeholder(signature: &Signature) -> bool {
    let output = match &signature.output {
        ReturnType::Type(_, ty) => Some(ty),
        ReturnType::Default => None,
    };
    typed(signature)
        .into_iter()
        .map(|parameter| &parameter.ty)
        .chain(output)
        .any(|ty| search(ty, "_").is_some())
}

/// Whether a transaction, or what one is taken from, is named anywhere in the type.
pub(crate) fn mentions_transaction(ty: &Type) -> bool {
    fn mentions(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(name) => is_transaction(&name.to_string()),
            TokenTree::Group(group) => mentions(group.stream()),
            _ => false,
        })
    }
    mentions(ty.to_token_stream())
}

fn is_transaction(name: &str) -> bool {
    ["Tx", "Transaction", "Pool", "Connection"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// The first `impl Trait` in a type, with its bounds.
pub(crate) fn impl_trait(ty: &Type) -> Option<TokenStream> {
    let mut open = 0_usize;
    let mut after_dash = false;
    let bounds = search(ty, "impl")?.into_iter().take_while(|token| {
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

/// The tokens from the first `word` on that is no lifetime, to the end of the group that it stands in.
fn find(tokens: TokenStream, word: &str) -> Option<TokenStream> {
    let mut tokens = tokens.into_iter();
    let mut in_lifetime = false;
    while let Some(token) = tokens.next() {
        let is_lifetime = std::mem::replace(
            &mut in_lifetime,
            matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '\''),
        );
        match &token {
            TokenTree::Ident(ident) if ident == word && !is_lifetime => {
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
pub(crate) fn without_elided(tokens: TokenStream) -> Vec<TokenTree> {
    let mut in_lifetime = false;
    let rewrite = |token: TokenTree| match token {
        TokenTree::Ident(ident) if in_lifetime && ident == "_" => {
            in_lifetime = false;
            proc_macro2::Ident::new("static", ident.span()).into()
        }
        TokenTree::Group(group) => {
            in_lifetime = false;
            let stream = without_elided(group.stream()).into_iter().collect();
            let mut rewritten = proc_macro2::Group::new(group.delimiter(), stream);
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
