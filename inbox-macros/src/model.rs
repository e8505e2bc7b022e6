//! The validated definition.

use crate::args::Args;
use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned as _;
use syn::{Attribute, Type, Visibility};

/// A handler that can be generated.
pub(crate) struct Handler<'f> {
    pub(crate) vis: &'f Visibility,
    pub(crate) name: &'f Ident,
    /// The conditions under which the function exists.
    pub(crate) cfgs: Vec<Attribute>,
    /// The lints that are allowed in it.
    pub(crate) allowed: Vec<Attribute>,
    pub(crate) is_deprecated: bool,
    /// Whether the message is a batch of them.
    pub(crate) takes_batch: bool,
    pub(crate) parameters: Parameters<'f>,
    pub(crate) output: &'f Type,
    pub(crate) args: Args,
}

/// The types of the parameters by role.
pub(crate) struct Parameters<'f> {
    pub(crate) message: &'f Type,
    pub(crate) transaction: Transaction,
    pub(crate) extractors: Vec<&'f Type>,
}

/// What the `&mut` points to, and where it begins and ends.
pub(crate) struct Transaction {
    tokens: Vec<TokenTree>,
    pub(crate) first: Span,
    pub(crate) last: Span,
}

impl Transaction {
    pub(crate) fn new(tokens: Vec<TokenTree>) -> Self {
        let place = |token: Option<&TokenTree>| token.map_or_else(Span::call_site, TokenTree::span);
        Self {
            first: place(tokens.first()),
            last: place(tokens.last()),
            tokens,
        }
    }
}

impl ToTokens for Transaction {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.extend(self.tokens.iter().cloned());
    }
}

/// A type, and where what is asked of it is reported.
pub(crate) trait Placed: ToTokens {
    /// Where an error begins and where it ends.
    fn ends(&self) -> (Span, Span);
}

impl Placed for Transaction {
    fn ends(&self) -> (Span, Span) {
        (self.first, self.last)
    }
}

impl Placed for Type {
    fn ends(&self) -> (Span, Span) {
        // What syn answers for any type, after writing it out as tokens.
        let place = match self {
            Self::Path(path) if path.qself.is_none() && path.path.leading_colon.is_none() => {
                let segments = path.path.segments.iter();
                segments.map(|segment| segment.ident.span()).next()
            }
            _ => None,
        };
        let place = place.unwrap_or_else(|| self.span());
        (place, place)
    }
}
