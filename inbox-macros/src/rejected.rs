//! What a definition with a mistake in its signature expands to: enough that its registration adds no second error.

use crate::companion;
use crate::item::HandlerFn;
use crate::path::Root;
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};

/// Output:
///
/// ```text
/// struct charge { _private: () }
/// const _: () = {
///     impl charge {
///         pub const fn handler() -> Rejected { Rejected::new() }
///     }
/// };
/// ```
pub(crate) fn handler(function: &HandlerFn, root: &Root) -> TokenStream {
    if function.stands_alone() {
        return TokenStream::new();
    }
    let HandlerFn { name, vis, .. } = function;
    let cfgs = companion::cfgs(&function.attrs);
    let companion = companion::declare(vis, name, &cfgs);
    let import = root.import();
    let root = root.at(name.span());
    let constructor = companion::constructor(name);
    let handler = quote_spanned! {companion::generated(name)=>
        impl #name {
            #[doc(hidden)]
            pub const fn #constructor() -> #root::__private::Rejected {
                #root::__private::Rejected::new()
            }
        }
    };
    quote! {
        #companion
        #(#cfgs)*
        const _: () = { #import #handler };
    }
}
