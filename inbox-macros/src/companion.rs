//! The type of the function's name, which carries `handler()`. It lives in the type namespace, so one `use` imports
//! both and the function stays callable.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{Attribute, Ident, Meta, Visibility};

/// Output:
///
/// ```text
/// #[doc(hidden)]
/// #[allow(non_camel_case_types)]
/// pub struct charge { _private: () }
/// ```
pub(crate) fn declare(vis: &Visibility, name: &Ident, cfgs: &[Attribute]) -> TokenStream {
    let vis = known_as_generated(vis);
    quote_spanned! {generated(name)=>
        #(#cfgs)*
        #[doc(hidden)]
        #[allow(non_camel_case_types)]
        #vis struct #name { _private: () }
    }
}

/// The name `handler`, where the function's name is: an editor asked for the definition goes there. For a name that
/// is the macro's, rust-analyzer offers the attribute as well.
pub(crate) fn constructor(name: &Ident) -> Ident {
    Ident::new("handler", name.span())
}

/// The place of the name, but known to be the macro's. So a handler that is never used is reported once, for the
/// function, and not for its companion: what counts is the item, not its name.
pub(crate) fn generated(name: &Ident) -> Span {
    Span::call_site().located_at(name.span())
}

/// The visibility with its first token known to be the macro's: a `pub` that stands in a `macro_rules!` would make the
/// companion an item of that macro, of which lints speak.
fn known_as_generated(vis: &Visibility) -> TokenStream {
    let mut tokens = vis.to_token_stream().into_iter();
    let first = tokens.next().map(|mut first| {
        first.set_span(Span::call_site().located_at(first.span()));
        first
    });
    first.into_iter().chain(tokens).collect()
}

/// The conditions among the attributes, for items that exist only if the function does.
pub(crate) fn cfgs(attrs: &[Attribute]) -> Vec<Attribute> {
    attrs.iter().filter_map(condition).collect()
}

/// Input: `#[cfg(a)]` or `#[cfg_attr(a, inline, cfg(b))]`. Output: `#[cfg(a)]` or `#[cfg_attr(a, cfg(b))]`.
fn condition(attr: &Attribute) -> Option<Attribute> {
    if attr.path().is_ident("cfg") {
        return Some(attr.clone());
    }
    let (predicate, mut attached) = conditional(attr)?;
    attached.retain(|attached| starts_with(attached, "cfg"));
    if attached.is_empty() {
        return None;
    }
    let mut attr = attr.clone();
    if let Meta::List(list) = &mut attr.meta {
        list.tokens = quote!(#predicate, #(#attached),*);
    }
    Some(attr)
}

/// The lints that the function allows or expects, to be allowed in what repeats its types.
pub(crate) fn allowed(attrs: &[Attribute]) -> Vec<Attribute> {
    attrs.iter().filter_map(allowance).collect()
}

/// Input: `#[expect(a)]` or `#[cfg_attr(b, inline, expect(a))]`. Output: `#[allow(a)]` or `#[cfg_attr(b, allow(a))]`.
fn allowance(attr: &Attribute) -> Option<Attribute> {
    let is_allowance = |word: &str| word == "allow" || word == "expect";
    let mut attr = attr.clone();
    // Known to be the macro's: some lints are about `allow` itself.
    let place = Span::call_site().located_at(attr.pound_token.span);
    attr.pound_token.span = place;
    let Meta::List(list) = &mut attr.meta else {
        return None;
    };
    if list
        .path
        .get_ident()
        .is_some_and(|word| is_allowance(&word.to_string()))
    {
        list.path = Ident::new("allow", place).into();
        return Some(attr);
    }
    let (predicate, attached) = conditional(&attr)?;
    let allowed: Vec<TokenStream> = attached
        .into_iter()
        .filter_map(|attached| {
            let mut tokens = attached.into_iter();
            let Some(TokenTree::Ident(word)) = tokens.next() else {
                return None;
            };
            let allow = Ident::new("allow", place);
            let lints: TokenStream = tokens.collect();
            is_allowance(&word.to_string()).then(|| quote!(#allow #lints))
        })
        .collect();
    if allowed.is_empty() {
        return None;
    }
    if let Meta::List(list) = &mut attr.meta {
        list.tokens = quote!(#predicate, #(#allowed),*);
    }
    Some(attr)
}

/// Whether the attribute is `#[word]`, perhaps under a `cfg_attr`.
pub(crate) fn mentions(attr: &Attribute, word: &str) -> bool {
    attr.path().is_ident(word)
        || conditional(attr).is_some_and(|(_, attached)| {
            attached.iter().any(|attached| starts_with(attached, word))
        })
}

/// The predicate of a `cfg_attr` and the attributes that it attaches.
fn conditional(attr: &Attribute) -> Option<(TokenStream, Vec<TokenStream>)> {
    let Meta::List(list) = &attr.meta else {
        return None;
    };
    if !list.path.is_ident("cfg_attr") {
        return None;
    }
    let mut parts = vec![TokenStream::new()];
    for token in list.tokens.clone() {
        match (&token, parts.last_mut()) {
            (TokenTree::Punct(punct), _) if punct.as_char() == ',' => {
                parts.push(TokenStream::new())
            }
            (_, Some(part)) => token.to_tokens(part),
            (_, None) => {}
        }
    }
    let mut parts = parts.into_iter();
    Some((parts.next()?, parts.collect()))
}

fn starts_with(tokens: &TokenStream, word: &str) -> bool {
    matches!(tokens.clone().into_iter().next(), Some(TokenTree::Ident(first)) if first == word)
}
