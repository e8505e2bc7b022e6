//! The rules that a signature must keep, one small function each, and the model that comes out if it does.

use crate::args::Args;
use crate::diag::{Diagnostics, Finding};
use crate::item::HandlerFn;
use crate::model::Handler;
use crate::{companion, parameters, types};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{GenericParam, ReturnType, Safety, Signature, Type};

/// The validated definition, or `None` if anything was found.
pub(crate) fn handler<'f>(
    function: &'f HandlerFn,
    args: Args,
    diag: &mut Diagnostics,
) -> Option<Handler<'f>> {
    let before = diag.count();
    only_once(function, diag);
    let signature = function.signature.as_ref()?;
    if types::has_placeholder(signature) {
        // Refused by the compiler in the function itself, and once more in everything that repeats the type.
        return None;
    }
    modifiers(signature, diag);
    name(signature, diag);
    generics(signature, diag);
    let takes_batch = takes_batch(signature, &args);
    let parameters = parameters::by_role(signature, takes_batch, diag);
    let output = output(signature, diag);
    where_clause(signature, diag);
    body(function, diag);
    if diag.count() > before {
        return None;
    }
    Some(Handler {
        vis: &function.vis,
        name: &function.name,
        cfgs: companion::cfgs(&function.attrs),
        allowed: companion::allowed(&function.attrs),
        is_deprecated: function
            .attrs
            .iter()
            .any(|attr| companion::mentions(attr, "deprecated")),
        takes_batch,
        parameters: parameters?,
        output: output?,
        args,
    })
}

fn only_once(function: &HandlerFn, diag: &mut Diagnostics) {
    for attr in function.repeated() {
        diag.push(
            Finding::new(
                attr,
                format!("`{}` already has `#[inbox_handler]`", function.name),
            )
            .help("one function serves one consumer; move the shared part to a plain function"),
        );
    }
}

fn modifiers(signature: &Signature, diag: &mut Diagnostics) {
    // With `async` it is no Rust, and the compiler says so.
    if let Some(constness) = &signature.constness
        && signature.asyncness.is_none()
    {
        diag.push(
            Finding::new(constness, "an inbox handler cannot be `const`").help("remove `const`"),
        );
    }
    if let Safety::Unsafe(unsafety) = &signature.safety {
        diag.push(
            Finding::new(
                unsafety,
                "an inbox handler cannot be `unsafe`: the runtime calls it",
            )
            .help("put the unsafe part in a block"),
        );
    }
    if let Some(abi) = &signature.abi {
        diag.push(
            Finding::new(abi, "an inbox handler cannot have an ABI")
                .help(format!("remove `{}`", abi_text(abi))),
        );
    }
    // A `const fn` must lose its `const` first.
    if signature.asyncness.is_none() && signature.constness.is_none() {
        diag.push(
            Finding::new(signature.fn_token, "an inbox handler must be `async`")
                .help(format!("`async fn {}(..)`", signature.ident)),
        );
    }
}

fn abi_text(abi: &syn::Abi) -> String {
    match &abi.name {
        Some(name) => format!("extern {}", name.token()),
        None => "extern".to_owned(),
    }
}

fn name(signature: &Signature, diag: &mut Diagnostics) {
    if signature.ident == "main" {
        diag.push(
            Finding::new(&signature.ident, "a handler cannot be called `main`")
                .help("name it after what it does, and register it in `main`"),
        );
    }
}

fn generics(signature: &Signature, diag: &mut Diagnostics) {
    let params = &signature.generics.params;
    if params.is_empty() {
        return;
    }
    let brackets = angle_bracketed(signature);
    let finding = if params
        .iter()
        .all(|param| matches!(param, GenericParam::Lifetime(_)))
    {
        Finding::new(brackets, "an inbox handler cannot name lifetimes")
            .help("write `&mut Tx<Postgres>`")
    } else {
        Finding::new(
            brackets,
            "an inbox handler cannot be generic: the runtime needs one concrete message type",
        )
        .help("write one handler per message type around a generic helper")
    };
    diag.push(finding);
}

fn angle_bracketed(signature: &Signature) -> TokenStream {
    let generics = &signature.generics;
    let (open, params, close) = (generics.lt_token, &generics.params, generics.gt_token);
    quote!(#open #params #close)
}

/// An attribute that is wrong about `batch` is no second error if the function is right about it.
fn takes_batch(signature: &Signature, args: &Args) -> bool {
    let spelled = || {
        let parameters = types::typed(signature);
        let first = parameters.first();
        first.is_some_and(|message| types::looks_like_batch(&message.ty))
    };
    args.batch.is_some() || args.batch_is_meant && spelled()
}

fn where_clause(signature: &Signature, diag: &mut Diagnostics) {
    if let Some(clause) = &signature.generics.where_clause
        && signature.generics.params.is_empty()
        && !clause.predicates.is_empty()
    {
        diag.push(
            Finding::new(clause, "an inbox handler cannot have a `where` clause").help(
                "remove it: nothing is generic here, so the bound is either true or an error",
            ),
        );
    }
}

/// `-> Result<(), E>`, as far as it can be told without knowing types.
fn output<'f>(signature: &'f Signature, diag: &mut Diagnostics) -> Option<&'f Type> {
    let ReturnType::Type(_, ty) = &signature.output else {
        diag.push(
            Finding::new(
                &signature.ident,
                "an inbox handler must return `Result<(), E>`",
            )
            .help("add `-> Result<(), HandlerError>`; `Err` rolls the claim back"),
        );
        return None;
    };
    parameters::no_self_type(ty, diag);
    if let Type::Never(never) = types::peel(ty) {
        diag.push(
            Finding::new(
                never,
                "an inbox handler must return `Result<(), E>`, found `!`",
            )
            .help("write `-> Result<(), HandlerError>`; only a handler that returns is committed"),
        );
    } else if let Some(opaque) = types::impl_trait(ty)
        // `fn f(..) -> impl Future` must become an `async fn` first.
        && signature.asyncness.is_some()
    {
        diag.push(
            Finding::new(
                opaque,
                "an inbox handler cannot return `impl Trait`: the runtime has to name the type",
            )
            .help("name the error type, e.g. `-> Result<(), HandlerError>`"),
        );
    }
    Some(ty)
}

fn body(function: &HandlerFn, diag: &mut Diagnostics) {
    if let Some(semicolon) = &function.semicolon {
        diag.push(
            Finding::new(semicolon.to_token_stream(), "an inbox handler needs a body")
                .help("write the body here; a method of a trait cannot be a handler"),
        );
    }
}
