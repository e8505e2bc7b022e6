//! What the attribute said, as a constant of the handler.

use crate::args::Args;
use crate::path::Root;
use crate::values::{DedupKey, Isolation, Names};
use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;

/// Output: `HandlerSpec::new("billing", "crate::charge", file!(), line!()).on(&["OrderPlaced"])`
pub(crate) fn constant(name: &Ident, args: &Args, root: &Root) -> TokenStream {
    // `line!()` answers with the line of its own tokens: that of the function.
    let place = name.span();
    let root = root.at(place);
    let suffix = format!("::{}", name.unraw());
    // Only a rejected attribute has no consumer. The placeholder lets errors in the types show as well.
    let consumer = args
        .consumer
        .as_ref()
        .map_or_else(|| quote!("rejected"), ToTokens::to_token_stream);
    let on = args
        .on
        .as_ref()
        .map(|Names(names)| quote_spanned!(place=> .on(&[#(#names),*])));
    let from = args
        .from
        .as_ref()
        .map(|Names(names)| quote_spanned!(place=> .from(&[#(#names),*])));
    let key = args.key.as_ref().map(|key| {
        let variant = match key {
            DedupKey::MessageId => quote_spanned!(place=> MessageId),
            DedupKey::CloudEvents => quote_spanned!(place=> CloudEvents),
            DedupKey::Header(header) => quote_spanned!(place=> Header(#header)),
            DedupKey::Payload(pointer) => quote_spanned!(place=> Payload(#pointer)),
        };
        quote_spanned!(place=> .key(#root::__private::DedupKey::#variant))
    });
    let timeout = args.timeout.map(|timeout| {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        quote_spanned!(place=> .timeout(::core::time::Duration::from_millis(#millis)))
    });
    let max_attempts = args
        .max_attempts
        .map(|attempts| quote_spanned!(place=> .max_attempts(#attempts)));
    let isolation = args.isolation.map(|isolation| {
        let variant = match isolation {
            Isolation::ReadCommitted => quote_spanned!(place=> ReadCommitted),
            Isolation::RepeatableRead => quote_spanned!(place=> RepeatableRead),
            Isolation::Serializable => quote_spanned!(place=> Serializable),
        };
        quote_spanned!(place=> .isolation(#root::__private::Isolation::#variant))
    });
    quote_spanned! {place=>
        #root::__private::HandlerSpec::new(
            #consumer,
            ::core::concat!(::core::module_path!(), #suffix),
            ::core::file!(),
            ::core::line!(),
        )
        #on #from #key #timeout #max_attempts #isolation
    }
}
