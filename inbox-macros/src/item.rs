//! The annotated item, read leniently: the body stays tokens, for the compiler reports what is wrong in it.

use crate::diag::{Diagnostics, Finding};
use crate::types;
use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};
use syn::{Abi, Attribute, Path, Signature, Token, Visibility, token};

/// A function with as much of its signature as could be read.
pub(crate) struct HandlerFn {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) name: Ident,
    /// `None`: it is half-typed, or no Rust. The compiler says so, once, and better.
    pub(crate) signature: Option<Signature>,
    /// The `;` of a function without a body.
    pub(crate) semicolon: Option<Token![;]>,
}

impl HandlerFn {
    /// Reads a function. Anything else is reported, here or by the compiler.
    pub(crate) fn parse(item: TokenStream, diag: &mut Diagnostics) -> Option<Self> {
        let parser = |input: ParseStream<'_>| {
            let parsed = read(input);
            // What follows the signature is not looked at.
            input.parse::<TokenStream>()?;
            Ok(parsed)
        };
        match parser.parse2(without_body(item)) {
            Ok(Ok(function)) => Some(function),
            Ok(Err(finding)) => {
                diag.extend(finding);
                None
            }
            Err(error) => {
                diag.push(Finding::at(error.span(), error.to_string()));
                None
            }
        }
    }

    /// The further `#[inbox_handler]`s.
    pub(crate) fn repeated(&self) -> impl Iterator<Item = &Attribute> {
        let is_handler = |path: &Path| {
            path.segments
                .last()
                .is_some_and(|last| last.ident == "inbox_handler")
        };
        self.attrs
            .iter()
            .filter(move |attr| is_handler(attr.path()))
    }

    /// Whether nothing may be declared beside it: it can only be in an `impl` or a `trait`, or a further
    /// `#[inbox_handler]` declares the same.
    pub(crate) fn stands_alone(&self) -> bool {
        self.repeated().next().is_some()
            || self.semicolon.is_some()
            || self.signature.as_ref().is_some_and(|signature| {
                signature.receiver().is_some() || types::mentions_self(signature)
            })
    }
}

/// The item without the invisible group that a `$item:item` of a `macro_rules!` has around it, and with an empty block
/// for its body, which syn would copy token by token although nobody looks at it.
fn without_body(item: TokenStream) -> TokenStream {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    if let [TokenTree::Group(group)] = tokens.as_slice()
        && group.delimiter() == Delimiter::None
    {
        return without_body(group.stream());
    }
    if let Some(TokenTree::Group(body)) = tokens.last_mut()
        && body.delimiter() == Delimiter::Brace
    {
        let mut empty = Group::new(Delimiter::Brace, TokenStream::new());
        empty.set_span(body.span());
        *body = empty;
    }
    tokens.into_iter().collect()
}

/// A function, or what else it is, or nothing if the compiler reports it anyway.
fn read(input: ParseStream<'_>) -> Result<HandlerFn, Option<Finding>> {
    let attrs = input.call(Attribute::parse_outer).map_err(|_| None)?;
    let vis: Visibility = input.parse().map_err(|_| None)?;
    let Some(name) = function_name(&input.fork()) else {
        return Err(not_a_function(input));
    };
    let ahead = input.fork();
    let at_end = |input: ParseStream<'_>| {
        input.is_empty() || input.peek(token::Brace) || input.peek(Token![;])
    };
    let signature = ahead.parse().ok().filter(|_| at_end(&ahead));
    if signature.is_some() {
        input.advance_to(&ahead);
    }
    let semicolon = input.parse::<Option<Token![;]>>().ok().flatten();
    Ok(HandlerFn {
        attrs,
        vis,
        name,
        signature,
        semicolon,
    })
}

/// The name after `const async unsafe extern "C" fn`.
fn function_name(input: ParseStream<'_>) -> Option<Ident> {
    while input.peek(Token![const]) || input.peek(Token![async]) || input.peek(Token![unsafe]) {
        input.call(Ident::parse_any).ok()?;
    }
    input.parse::<Option<Abi>>().ok()?;
    input.parse::<Token![fn]>().ok()?;
    input.parse().ok()
}

fn not_a_function(input: ParseStream<'_>) -> Option<Finding> {
    // `unsafe impl`, `unsafe trait` and `auto trait` are told by the second word.
    let ahead = input.fork();
    let _ = ahead.parse::<Option<Token![unsafe]>>();
    let _ = ahead.parse::<Option<Token![auto]>>();
    let keyword = ahead.call(Ident::parse_any).ok()?;
    let found = match keyword.to_string().as_str() {
        "struct" => "a struct",
        "enum" => "an enum",
        "union" => "a union",
        "trait" => "a trait",
        "impl" => "an `impl` block",
        "mod" => "a module",
        "const" => "a constant",
        "static" => "a static",
        "type" => "a type alias",
        "use" => "an import",
        "extern" if ahead.peek(Token![crate]) => "an `extern crate`",
        "extern" => "an `extern` block",
        "let" => "a `let` statement",
        _ if ahead.peek(Token![!]) => "a macro call",
        // Half a function: `async charge(..)`, `fn move(..)`.
        _ => return None,
    };
    let remedy = match keyword.to_string().as_str() {
        "impl" => "annotate a free function and call the method from it",
        "trait" => "annotate a free function and call the trait from it",
        "mod" => "annotate each handler inside the module",
        _ => "annotate `async fn name(message: M, tx: &mut Tx<Postgres>) -> Result<(), E>`",
    };
    let finding = Finding::new(
        keyword,
        format!("`#[inbox_handler]` goes on a function, found {found}"),
    );
    Some(finding.help(remedy))
}
