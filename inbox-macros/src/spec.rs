//! What the attribute said, as a constant of the handler.

use crate::args::Args;
use crate::path::Root;
use crate::values::{DedupKey, Isolation, Names, OrderBy, Place};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use std::time::Duration;
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
            DedupKey::At(at) => variant(at, place),
        };
        quote_spanned!(place=> .key(#root::__private::DedupKey::#variant))
    });
    let timeout = args.timeout.map(|timeout| {
        let timeout = duration(timeout, place);
        quote_spanned!(place=> .timeout(#timeout))
    });
    let max_attempts = args
        .max_attempts
        .map(|attempts| quote_spanned!(place=> .max_attempts(#attempts)));
    let retry = args.retry.as_ref().map(|retry| {
        let set = |name: &str, delay: Option<Duration>| {
            let delay = duration(delay?, place);
            let name = Ident::new(name, place);
            Some(quote_spanned!(place=> .#name(#delay)))
        };
        let (first, longest) = (set("first", retry.first()), set("longest", retry.longest()));
        quote_spanned!(place=> .retry(#root::__private::RetryDelays::new() #first #longest))
    });
    let isolation = args.isolation.map(|isolation| {
        let variant = match isolation {
            Isolation::ReadCommitted => quote_spanned!(place=> ReadCommitted),
            Isolation::RepeatableRead => quote_spanned!(place=> RepeatableRead),
            Isolation::Serializable => quote_spanned!(place=> Serializable),
        };
        quote_spanned!(place=> .isolation(#root::__private::Isolation::#variant))
    });
    let order_by = args.order_by.as_ref().map(|order_by| {
        let variant = match order_by {
            OrderBy::Key => quote_spanned!(place=> Key),
            OrderBy::At(at) => variant(at, place),
        };
        quote_spanned!(place=> .order_by(#root::__private::OrderBy::#variant))
    });
    let own_transaction = args
        .own_transaction
        .map(|own| quote_spanned!(place=> .own_transaction(#own)));
    let batch = args.batch.as_ref().map(|batch| {
        // Only a rejected attribute has no number.
        let max = batch
            .max
            .and_then(|max| usize::try_from(max).ok())
            .unwrap_or(1);
        let linger = batch.linger.map(|linger| {
            let linger = duration(linger, place);
            quote_spanned!(place=> .linger(#linger))
        });
        quote_spanned!(place=> .batch(#root::__private::BatchLimits::new(#max) #linger))
    });
    quote_spanned! {place=>
        #root::__private::HandlerSpec::new(
            #consumer,
            ::core::concat!(::core::module_path!(), #suffix),
            ::core::file!(),
            ::core::line!(),
        )
        #on #from #key #timeout #max_attempts #retry #isolation #order_by #batch #own_transaction
    }
}

/// The variant of a key that names a place in the message.
fn variant(place: &Place, span: Span) -> TokenStream {
    match place {
        Place::Header(name) => quote_spanned!(span=> Header(#name)),
        Place::Payload(pointer) => quote_spanned!(span=> Payload(#pointer)),
    }
}

fn duration(duration: Duration, span: Span) -> TokenStream {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    quote_spanned!(span=> ::core::time::Duration::from_millis(#millis))
}
