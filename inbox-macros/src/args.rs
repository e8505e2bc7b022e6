//! The arguments of the attribute, one option at a time. After a mistake reading goes on behind the next comma.

use crate::diag::{Diagnostics, Finding};
use crate::options::{self, AttrOption, OPTIONS};
use crate::path::Root;
use crate::values::{self, DedupKey, Isolation, Names, literal};
use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use std::time::Duration;
use syn::ext::IdentExt;
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Lit, LitStr, Token, token};

/// What was given and can be used.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) consumer: Option<LitStr>,
    pub(crate) on: Option<Names>,
    pub(crate) from: Option<Names>,
    pub(crate) key: Option<DedupKey>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) root: Option<Root>,
}

impl Args {
    /// Always something usable; the mistakes are in `diag`.
    pub(crate) fn parse(tokens: TokenStream, diag: &mut Diagnostics) -> Self {
        let mut reader = Reader {
            args: Self::default(),
            seen: Vec::new(),
            may_be_consumer: false,
            diag,
        };
        let read = |input: ParseStream<'_>| {
            reader.options(input);
            Ok(())
        };
        if let Err(error) = read.parse2(tokens) {
            reader
                .diag
                .push(Finding::at(error.span(), error.to_string()));
        }
        reader.missing_consumer();
        reader.args
    }
}

struct Reader<'d> {
    args: Args,
    seen: Vec<&'static str>,
    /// Something unknown was given, perhaps in place of the consumer.
    may_be_consumer: bool,
    diag: &'d mut Diagnostics,
}

impl Reader<'_> {
    fn options(&mut self, input: ParseStream<'_>) {
        while !input.is_empty() {
            if let Err(finding) = self.option(input) {
                self.diag.push(finding);
                rest_of_option(input);
            }
            if let Err(finding) = comma(input) {
                self.diag.push(finding);
            }
        }
    }

    fn option(&mut self, input: ParseStream<'_>) -> Result<(), Finding> {
        if !input.peek(syn::Ident::peek_any) || input.peek(Lit) || input.peek2(Token![::]) {
            self.may_be_consumer = true;
            return Err(bare_value(input, self.seen.contains(&"consumer")));
        }
        let Ok(key) = input.call(Ident::parse_any) else {
            return Err(bare_value(input, self.seen.contains(&"consumer")));
        };
        let name = key.unraw().to_string();
        let Some(option) = OPTIONS.iter().find(|option| name == option.name) else {
            self.may_be_consumer = true;
            let (written, name) = hyphenated(key, name, input);
            return Err(Finding::new(written, format!("unknown option `{name}`"))
                .help(options::remedy(&name)));
        };
        if self.seen.contains(&option.name) {
            return Err(Finding::new(key, format!("`{name}` is given twice")).help("keep one"));
        }
        self.seen.push(option.name);
        let value = value(option, &key, input)?;
        // What follows the value is judged by itself, also when the value is wrong.
        if let Err(finding) = self.set(option, &value) {
            self.diag.push(finding);
        }
        Ok(())
    }

    fn set(&mut self, option: &AttrOption, value: &Expr) -> Result<(), Finding> {
        let args = &mut self.args;
        match option.name {
            "consumer" => args.consumer = Some(values::consumer::read(option, value)?),
            "on" => args.on = Some(Names::read(option, value)?),
            "from" => args.from = Some(Names::read(option, value)?),
            "key" => args.key = Some(DedupKey::read(option, value)?),
            "timeout" => args.timeout = Some(values::timeout::read(option, value)?),
            "max_attempts" => args.max_attempts = Some(values::attempts::read(option, value)?),
            "isolation" => args.isolation = Some(Isolation::read(option, value)?),
            _ => args.root = Some(Root::read(option, value)?),
        }
        Ok(())
    }

    fn missing_consumer(&mut self) {
        if self.may_be_consumer || self.seen.contains(&"consumer") {
            return;
        }
        let remedy = if self.seen.is_empty() {
            "write `#[inbox_handler(consumer = \"billing\")]`; the name is stored with every claimed message"
        } else {
            "add `consumer = \"...\"`"
        };
        self.diag
            .push(Finding::at_attribute("`#[inbox_handler]` needs a consumer name").help(remedy));
    }
}

/// The rest of `max-attempts`, which Rust reads as a difference.
fn hyphenated(key: Ident, mut name: String, input: ParseStream<'_>) -> (TokenStream, String) {
    let mut written = key.into_token_stream();
    while input.peek(Token![-]) && input.peek2(syn::Ident::peek_any) {
        let (Ok(hyphen), Ok(word)) = (input.parse::<Token![-]>(), input.call(Ident::parse_any))
        else {
            break;
        };
        name.push_str(&format!("-{word}"));
        written.extend(quote!(#hyphen #word));
    }
    (written, name)
}

/// The value behind `=`.
fn value(option: &AttrOption, key: &Ident, input: ParseStream<'_>) -> Result<Expr, Finding> {
    let name = option.name;
    let ends = |input: ParseStream<'_>| input.is_empty() || input.peek(Token![,]);
    if ends(input) {
        return Err(Finding::new(key, format!("`{name}` needs a value"))
            .help(format!("`{}`", option.example)));
    }
    if !input.peek(Token![=]) || input.peek(Token![==]) || input.peek(Token![=>]) {
        return Err(not_assigned(option, input));
    }
    let equals = input.parse::<Token![=]>().ok();
    if ends(input) {
        return Err(
            Finding::new(quote!(#key #equals), format!("`{name}` needs a value"))
                .help(format!("`{}`", option.example)),
        );
    }
    let ahead = input.fork();
    match ahead.parse::<Expr>() {
        Ok(value) => {
            input.advance_to(&ahead);
            Ok(value)
        }
        Err(_) => {
            let given = rest_of_option(input);
            let (headline, remedy) = match literal::unseparated(&given) {
                Some(list) => (
                    format!("the list in `{name}` needs commas"),
                    format!("`{name} = {list}`"),
                ),
                None => (
                    format!("`{name}` needs a value"),
                    format!("`{}`", option.example),
                ),
            };
            Err(Finding::new(given, headline).help(remedy))
        }
    }
}

/// `consumer("billing")`, `consumer: "billing"` or `consumer "billing"`.
fn not_assigned(option: &AttrOption, input: ParseStream<'_>) -> Finding {
    let in_parentheses = input.peek(token::Paren);
    let headline = format!("`{}` is written with `=`", option.name);
    let Ok(found) = input.parse::<TokenTree>() else {
        return Finding::at(input.span(), headline);
    };
    let (given, found) = match found {
        TokenTree::Group(group) if in_parentheses => {
            (literal::list(group.stream()), group.into_token_stream())
        }
        TokenTree::Literal(given) => (Some(given.to_string()), given.into_token_stream()),
        // `:`, `==`, `=>`, `:=`
        other => {
            let mut signs = other.into_token_stream();
            while let Ok(sign) = input.parse::<proc_macro2::Punct>() {
                sign.to_tokens(&mut signs);
            }
            let given = input.fork().parse::<Lit>().ok();
            (
                given.map(|given| given.to_token_stream().to_string()),
                signs,
            )
        }
    };
    let remedy = match given {
        Some(value) => format!("`{} = {value}`", option.name),
        None => format!("`{}`", option.example),
    };
    Finding::new(found, headline).help(remedy)
}

/// Something that is no option, where one should begin.
fn bare_value(input: ParseStream<'_>, has_consumer: bool) -> Finding {
    if input.peek(Token![,]) {
        return Finding::at(input.span(), "expected an option before `,`").help("remove the comma");
    }
    let is_path = input.peek(syn::Ident::peek_any) && !input.peek(Lit);
    let literal = input.fork().parse::<Lit>().ok();
    let found = rest_of_option(input);
    let what = match &literal {
        Some(literal) => literal::article(literal),
        None if is_path => "a path",
        None => "something else",
    };
    let remedy = match literal {
        _ if has_consumer => "remove it, or say which option it is".to_owned(),
        Some(Lit::Str(text)) => format!("`consumer = {}`", text.to_token_stream()),
        _ => r#"`consumer = "billing"`"#.to_owned(),
    };
    Finding::new(found, format!("expected `option = value`, found {what}")).help(remedy)
}

/// The comma between two options.
fn comma(input: ParseStream<'_>) -> Result<(), Finding> {
    if input.is_empty() || input.parse::<Token![,]>().is_ok() {
        return Ok(());
    }
    let next = input.fork().parse::<TokenTree>();
    let Ok(next) = next else { return Ok(()) };
    if let TokenTree::Ident(option) = &next {
        // Reading goes on with this option.
        return Err(
            Finding::new(option, format!("expected `,` before `{option}`"))
                .help(format!("write `, {option}`")),
        );
    }
    let found = next.to_string();
    rest_of_option(input);
    let _ = input.parse::<Token![,]>();
    let remedy = match found.as_str() {
        ";" => "write `,`".to_owned(),
        _ => format!("remove `{found}`, or write `, option = value`"),
    };
    Err(Finding::new(next, format!("expected `,`, found `{found}`")).help(remedy))
}

/// Takes the tokens before the next comma.
fn rest_of_option(input: ParseStream<'_>) -> TokenStream {
    let mut rest = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) {
        let Ok(token) = input.parse::<TokenTree>() else {
            break;
        };
        token.to_tokens(&mut rest);
    }
    rest
}
