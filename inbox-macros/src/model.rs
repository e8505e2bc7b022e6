//! The validated definition.

use crate::args::Args;
use proc_macro2::{Ident, TokenStream};
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
    /// What the `&mut` points to.
    pub(crate) transaction: TokenStream,
    pub(crate) extractors: Vec<&'f Type>,
}
