//! The model as code. Nothing can fail here.

use crate::model::{Handler, Parameters, Placed, Transaction};
use crate::path::Root;
use crate::{companion, spec, types};
use proc_macro2::{Ident, Punct, Spacing, Span, TokenStream};
use quote::{ToTokens, TokenStreamExt as _, format_ident, quote, quote_spanned};
use syn::Token;

/// Input: `async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>, rates: State<Rates>) -> Result<(), E>`
///
/// Output:
///
/// ```text
/// struct charge { _private: () }
/// const _: () = {
///     impl charge {
///         pub const fn handler() -> Self { .. }
///     }
///     impl Handler for charge {
///         type Db = <Tx<Postgres> as HandlerTx>::Db;
///         const SPEC: HandlerSpec = HandlerSpec::new("billing", "crate::charge", file!(), line!());
///         fn requirements(__needs: &mut Requirements) { .. }
///         fn call<'a>(&'a self, __incoming: &'a [Incoming<'_>], __tx: &'a mut Tx<Self::Db>) -> HandlerFuture<'a> { .. }
///     }
/// };
/// ```
pub(crate) fn handler(handler: &Handler<'_>, root: &Root) -> TokenStream {
    let Handler {
        vis,
        name,
        cfgs,
        allowed,
        ..
    } = handler;
    let companion = companion::declare(vis, name, cfgs);
    let import = root.import();
    let constructor = constructor(handler);
    let implementation = implementation(handler, root);
    quote! {
        #companion
        #(#cfgs)*
        #(#allowed)*
        const _: () = {
            #import
            #constructor
            #implementation
        };
    }
}

fn constructor(handler: &Handler<'_>) -> TokenStream {
    let name = handler.name;
    // clippy calls `handler::handler()` a constructor named like its type.
    let named_alike = (name == "handler")
        .then(|| quote_spanned!(name.span()=> #[allow(clippy::self_named_constructors)]));
    let handler = companion::constructor(name);
    quote_spanned! {companion::generated(name)=>
        #named_alike
        impl #name {
            /// The handler, to be registered with the builder of the inbox.
            #[must_use]
            pub const fn #handler() -> Self {
                Self { _private: () }
            }
        }
    }
}

fn implementation(handler: &Handler<'_>, root: &Root) -> TokenStream {
    let Handler {
        name,
        parameters,
        args,
        ..
    } = handler;
    // A wrong transaction type is found in each of the places below. rustc reports it once if all of them lie where
    // the type does, from its first token to its last: stable Rust cannot join the two spans.
    let Transaction { first, last, .. } = parameters.transaction;
    let at = root.at(first);
    let database = in_role(&parameters.transaction, "HandlerTx", "Db", root);
    let (db, close, end) = (Ident::new("Db", last), punct('>', last), punct(';', last));
    // The wrapper mentions the function.
    let deprecated = handler
        .is_deprecated
        .then(|| quote_spanned!(first=> #[allow(deprecated)]));
    // The user may have imported by itself what the generated code finds through the imported root.
    let qualified = matches!(root, Root::Given(_))
        .then(|| quote_spanned!(first=> #[allow(unused_qualifications)]));
    let spec = spec::constant(name, args, root);
    let roles = Roles::of(handler);
    let requirements = requirements(parameters, &roles, root);
    // An identifier typed in two places is two variables in a `macro_rules!`, so each is made once.
    let (incoming, tx) = (
        Ident::new("__incoming", Span::mixed_site()),
        Ident::new("__tx", last),
    );
    let call = call(handler, root, &incoming, &tx);
    // A type that is not in scope is one error if the compiler's advice is the same in both places where it stands:
    // to add a type parameter behind the name of the function, and here behind `impl`.
    let keyword = quote_spanned!(name.span()=> impl);
    quote_spanned! {first=>
        #[automatically_derived]
        #deprecated
        #qualified
        #keyword #at::__private::Handler for #name {
            type #db = #database #end
            const SPEC: #at::__private::HandlerSpec = #spec;
            #requirements
            fn call<'a>(
                &'a self,
                #incoming: &'a [#at::__private::Incoming<'_>],
                #tx: &'a mut #at::__private::Tx<Self::#db #close,
            ) -> #at::__private::HandlerFuture<'a #close {
                #call
            }
        }
    }
}

/// The traits by which the parameters are made, and their functions.
struct Roles {
    message: &'static str,
    decode: &'static str,
    extractor: &'static str,
    extract: &'static str,
    begin: &'static str,
}

impl Roles {
    fn of(handler: &Handler<'_>) -> Self {
        if handler.takes_batch {
            return Self {
                message: "Messages",
                decode: "decode_all",
                extractor: "FromBatch",
                extract: "from_batch",
                begin: "begin_batch",
            };
        }
        Self {
            // The same by another name, which says what is missing.
            message: match types::looks_like_batch(handler.parameters.message) {
                true => "SingleMessage",
                false => "Message",
            },
            decode: "decode",
            extractor: "FromDelivery",
            extract: "from_delivery",
            begin: "begin",
        }
    }
}

/// Output: `<OrderPlaced as Message>::decode`, all of it where the type stands. So a wrong type is one error, under the
/// user's own tokens.
fn in_role<'a, T: Placed>(
    ty: &'a T,
    role: &'static str,
    item: &'static str,
    root: &'a Root,
) -> InRole<'a, T> {
    InRole {
        ty,
        role,
        item,
        root,
    }
}

/// Written token by token into what is around it: a stream of its own is several calls into the compiler.
struct InRole<'a, T> {
    ty: &'a T,
    role: &'static str,
    item: &'static str,
    root: &'a Root,
}

impl<T: Placed> ToTokens for InRole<'_, T> {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        let (first, last) = self.ty.ends();
        tokens.append(punct('<', first));
        self.ty.to_tokens(tokens);
        tokens.append(Ident::new("as", first));
        self.root.at(first).to_tokens(tokens);
        for name in ["__private", self.role] {
            separator(first, tokens);
            tokens.append(Ident::new(name, first));
        }
        tokens.append(punct('>', first));
        separator(first, tokens);
        tokens.append(Ident::new(self.item, last));
    }
}

fn punct(sign: char, place: Span) -> Punct {
    let mut punct = Punct::new(sign, Spacing::Alone);
    punct.set_span(place);
    punct
}

fn separator(place: Span, tokens: &mut TokenStream) {
    Token![::](place).to_tokens(tokens);
}

/// What `build()` must be able to provide, asked once.
fn requirements(parameters: &Parameters<'_>, roles: &Roles, root: &Root) -> TokenStream {
    let place = parameters.transaction.first;
    let at = root.at(place);
    let needs = Ident::new("__needs", Span::mixed_site());
    let asked = parameters.extractors.iter().map(|extractor| {
        let asked = in_role(*extractor, roles.extractor, "requirements", root);
        let (place, _) = extractor.ends();
        quote_spanned!(place=> #asked(#needs);)
    });
    quote_spanned! {place=>
        fn requirements(#needs: &mut #at::__private::Requirements) {
            #(#asked)*
        }
    }
}

/// Input: as of [`handler`]
///
/// Output:
///
/// ```text
/// run(begin_1(__incoming, __tx, OrderPlaced::decode, Tx::lend, State::from_delivery, charge), Result::into_outcome)
/// ```
///
/// Decode, extract, call the function: one expression, for what stands here is compiled once per handler. Claim and
/// commit are the runtime's.
fn call(handler: &Handler<'_>, root: &Root, incoming: &Ident, tx: &Ident) -> TokenStream {
    let Handler {
        name,
        parameters:
            Parameters {
                message,
                transaction,
                extractors,
            },
        output,
        ..
    } = handler;
    let roles = Roles::of(handler);
    let decode = in_role(*message, roles.message, roles.decode, root);
    // From the runtime's transaction to the type that the user wrote. A wrong type fails here and not once more as
    // mismatched types in the call.
    let lend = in_role(transaction, "HandlerTx", "lend", root);
    let extracts = extractors
        .iter()
        .map(|extractor| in_role(*extractor, roles.extractor, roles.extract, root));
    let outcome = in_role(*output, "HandlerOutcome", "into_outcome", root);

    // A future that is not `Send` is reported at this call, and so under the name of the function.
    let place = name.span();
    let at = root.at(place);
    let begin = format_ident!("{}_{}", roles.begin, extractors.len(), span = place);
    let begun = quote_spanned! {place=>
        #at::__private::#begin(#incoming, #tx, #decode, #lend, #(#extracts,)* #name)
    };
    // A message that borrows from the payload is reported at this one.
    let (place, _) = message.ends();
    let at = root.at(place);
    quote_spanned!(place=> #at::__private::run(#begun, #outcome))
}
