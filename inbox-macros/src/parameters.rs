//! Parameters by position: the message, the transaction, then extractors.

use crate::companion;
use crate::diag::{Diagnostics, Finding};
use crate::model::{Parameters, Transaction};
use crate::types;
use quote::{ToTokens, quote};
use syn::{FnArg, Pat, PatType, Signature, Type};

/// Message, transaction and fourteen extractors.
const MOST: usize = 16;

/// The parameters in their roles, or `None` if there are too few to tell.
pub(crate) fn by_role<'f>(
    signature: &'f Signature,
    takes_batch: bool,
    diag: &mut Diagnostics,
) -> Option<Parameters<'f>> {
    if let Some(FnArg::Receiver(receiver)) = signature.inputs.first() {
        diag.push(
            Finding::new(receiver, "an inbox handler cannot take `self`")
                .help("move it out of the `impl` block and take the object as `State<T>`"),
        );
        return None;
    }
    if let Some(variadic) = &signature.variadic {
        diag.push(
            Finding::new(
                variadic.dots,
                "an inbox handler has a fixed number of parameters",
            )
            .help("take what it needs as extractors, e.g. `State<T>`"),
        );
    }
    let parameters = types::typed(signature);
    for (position, parameter) in parameters.iter().enumerate() {
        stands_alone(parameter, diag);
        if let Some(finding) = misplaced(position, &parameters, takes_batch) {
            diag.push(finding);
        }
    }
    match parameters.as_slice() {
        [] if signature.variadic.is_some() => None,
        [] => {
            diag.push(no_parameters(signature));
            None
        }
        [only] => {
            diag.push(one_parameter(signature, only));
            None
        }
        [message, transaction, extractors @ ..] => Some(Parameters {
            message: &message.ty,
            transaction: Transaction::new(types::without_elided(
                types::reference(&transaction.ty)?.elem.to_token_stream(),
            )),
            extractors: extractors.iter().map(|extractor| &*extractor.ty).collect(),
        }),
    }
}

/// Rules that hold for a parameter in any role.
fn stands_alone(parameter: &PatType, diag: &mut Diagnostics) {
    for attr in parameter
        .attrs
        .iter()
        .filter(|attr| companion::mentions(attr, "cfg"))
    {
        diag.push(
            Finding::new(
                attr,
                "`cfg` on a parameter of an inbox handler is not supported",
            )
            .help("put `cfg` on two versions of the handler"),
        );
    }
    if let Some(opaque) = types::impl_trait(&parameter.ty) {
        diag.push(
            Finding::new(
                opaque,
                "`impl Trait` makes the handler generic: the runtime needs one concrete type",
            )
            .help("name the type"),
        );
    }
    no_self_type(&parameter.ty, diag);
}

pub(crate) fn no_self_type(ty: &Type, diag: &mut Diagnostics) {
    if let Some(found) = types::self_in(ty) {
        diag.push(
            Finding::new(found, "`Self` has no meaning in a free function")
                .help("name the type, and move the handler out of the `impl` block"),
        );
    }
}

fn no_parameters(signature: &Signature) -> Finding {
    let name = &signature.ident;
    Finding::new(
        parenthesized(signature),
        "an inbox handler takes a message and a transaction",
    )
    .help(format!(
        "`async fn {name}(message: M, tx: &mut Tx<Postgres>) -> Result<(), E>`"
    ))
}

fn one_parameter(signature: &Signature, only: &PatType) -> Finding {
    let name = &signature.ident;
    if types::is_mut_reference(&only.ty) {
        return Finding::new(
            parenthesized(signature),
            format!("`{name}` has no message parameter"),
        )
        .help("add `message: M` before the transaction");
    }
    Finding::new(parenthesized(signature), format!("`{name}` has no transaction parameter"))
        .help("add `tx: &mut Tx<Postgres>` after the message; work done outside it is not rolled back with the claim")
}

fn parenthesized(signature: &Signature) -> impl ToTokens {
    let inputs = &signature.inputs;
    let mut group = proc_macro2::Group::new(proc_macro2::Delimiter::Parenthesis, quote!(#inputs));
    group.set_span(signature.paren_token.span.join());
    group
}

/// What is wrong with a parameter for its position. The transaction is told by its `&mut`.
fn misplaced(position: usize, parameters: &[&PatType], takes_batch: bool) -> Option<Finding> {
    let [message, transaction, further @ ..] = parameters else {
        return None;
    };
    let parameter = parameters.get(position)?;
    let is_borrowed = types::is_mut_reference(&parameter.ty);
    let in_place = types::is_mut_reference(&transaction.ty);
    let late = further
        .iter()
        .position(|other| types::is_mut_reference(&other.ty));
    let swapped = types::is_mut_reference(&message.ty) && !in_place && late.is_none();
    match position {
        0 if swapped => Some(
            Finding::new(&message.ty, "the message comes first, then the transaction")
                .help("swap the two parameters"),
        ),
        0 if takes_batch => not_a_batch(message).or_else(|| by_reference(message, "batch")),
        0 => by_reference(message, "message"),
        1 if in_place => wrongly_borrowed(transaction),
        1 if swapped || late.is_some() => None,
        1 => Some(not_borrowed(transaction)),
        _ if is_borrowed && in_place => Some(surplus_reference(parameter)),
        _ if is_borrowed => {
            (late == Some(position - 2)).then(|| late_transaction(parameter, transaction, message))
        }
        MOST => Some(
            Finding::new(
                parameter,
                format!("an inbox handler takes at most {} extractors", MOST - 2),
            )
            .help("bundle them in one state type"),
        ),
        _ => None,
    }
}

/// Many messages, but not as a handler of batches gets them.
fn not_a_batch(messages: &PatType) -> Option<Finding> {
    let message = types::listed(&messages.ty)?;
    let found = types::spelled(&messages.ty);
    Some(
        Finding::new(
            &messages.ty,
            format!("a handler with `batch(..)` takes `Batch<M>`, found `{found}`"),
        )
        .help(format!("write `Batch<{}>`", types::spelled(message))),
    )
}

fn by_reference(message: &PatType, what: &str) -> Option<Finding> {
    let reference = types::reference(&message.ty)?;
    let sign = if reference.mutability.is_some() {
        "&mut"
    } else {
        "&"
    };
    Some(
        Finding::new(reference, format!("the {what} is passed by value"))
            .help(format!("remove the `{sign}`")),
    )
}

/// The second parameter is no `&mut`.
fn not_borrowed(second: &PatType) -> Finding {
    let name = name_of(second).unwrap_or_else(|| "tx".to_owned());
    let borrowed = types::reference(&second.ty);
    let ty = borrowed.map_or(&*second.ty, |reference| &*reference.elem);
    if types::looks_like_transaction(ty) {
        let what = match borrowed {
            Some(_) => "the transaction must be borrowed mutably",
            None => {
                "the transaction must be borrowed: it is committed by the runtime after the handler returns"
            }
        };
        let ours = match types::looks_like_ours(ty) {
            true => types::spelled(ty),
            false => "Tx<Postgres>".to_owned(),
        };
        return Finding::new(&second.ty, what).help(format!("`{name}: &mut {ours}`"));
    }
    let finding = Finding::new(&second.ty, "the second parameter must be the transaction");
    if types::mentions_transaction(ty) {
        return finding.help(
            "`tx: &mut Tx<Postgres>` in its place; work done outside it is not rolled back with the claim",
        );
    }
    finding.help("add `tx: &mut Tx<Postgres>` after the message")
}

/// The transaction is borrowed, but twice or for longer than a call.
fn wrongly_borrowed(transaction: &PatType) -> Option<Finding> {
    let reference = types::reference(&transaction.ty)?;
    if let Some(inner) = types::reference(&reference.elem) {
        return Some(
            Finding::new(&transaction.ty, "the transaction is borrowed once")
                .help(format!("write `&mut {}`", types::spelled(&inner.elem))),
        );
    }
    let is_static = |lifetime: &&syn::Lifetime| lifetime.ident == "static";
    let lifetime = reference.lifetime.as_ref().filter(is_static)?;
    Some(
        Finding::new(
            lifetime,
            "the transaction is lent for one call, it cannot be borrowed for `'static`",
        )
        .help(format!("write `&mut {}`", types::spelled(&reference.elem))),
    )
}

/// A `&mut` behind the transaction.
fn surplus_reference(parameter: &PatType) -> Finding {
    let borrowed = types::reference(&parameter.ty).map(|reference| &*reference.elem);
    if let Some(extractor) = borrowed.filter(|ty| types::looks_like_extractor(ty)) {
        return Finding::new(&parameter.ty, "extractors are passed by value")
            .help(format!("write `{}`", types::spelled(extractor)));
    }
    Finding::new(&parameter.ty, "a handler gets one transaction")
        .help("remove this parameter; `tx.savepoint()` nests inside the one there is")
}

fn late_transaction(late: &PatType, second: &PatType, first: &PatType) -> Finding {
    let what = name_of(late).map_or_else(|| "it".to_owned(), |name| format!("`{name}`"));
    if types::looks_like_extractor(&first.ty) {
        let first = name_of(first).map_or_else(
            || "the first parameter".to_owned(),
            |name| format!("`{name}`"),
        );
        return Finding::new(&late.ty, "the transaction must be the second parameter")
            .help(format!("move {first} behind {what}; extractors come last"));
    }
    let before = name_of(second).map_or_else(
        || "the second parameter".to_owned(),
        |name| format!("`{name}`"),
    );
    Finding::new(&late.ty, "the transaction must be the second parameter")
        .help(format!("move {what} before {before}"))
}

fn name_of(parameter: &PatType) -> Option<String> {
    match &*parameter.pat {
        Pat::Ident(pattern) => Some(pattern.ident.to_string()),
        _ => None,
    }
}
