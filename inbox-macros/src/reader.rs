//! Reads options one at a time. After a mistake reading goes on behind the next comma.

use crate::diag::{Diagnostics, Finding};
use crate::options::{self, AttrOption, OPTIONS};
use crate::values::literal;
use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, ExprLit, Lit, LitStr, Token, token};

/// Options one after another: those of the attribute, or those in the parentheses of one of them.
pub(crate) struct Reader<'d, Set> {
    /// The option in whose parentheses they stand.
    whole: Option<&'static AttrOption>,
    /// Takes an option, from behind its name.
    set: Set,
    seen: Vec<&'static str>,
    /// What was given and is no option.
    unknown: Vec<String>,
    diag: &'d mut Diagnostics,
}

/// What was given, right or wrong.
pub(crate) struct Read {
    pub(crate) seen: Vec<&'static str>,
    pub(crate) unknown: Vec<String>,
}

impl Read {
    /// Whether the option is missing, and nothing was given that may be meant to be it.
    pub(crate) fn lacks(&self, name: &str) -> bool {
        self.unknown.is_empty() && !self.seen.contains(&name)
    }
}

impl<'d, Set> Reader<'d, Set>
where
    Set: FnMut(
        &'static AttrOption,
        &Ident,
        ParseStream<'_>,
        &mut Diagnostics,
    ) -> Result<(), Finding>,
{
    pub(crate) const fn new(
        whole: Option<&'static AttrOption>,
        set: Set,
        diag: &'d mut Diagnostics,
    ) -> Self {
        Self {
            whole,
            set,
            seen: Vec::new(),
            unknown: Vec::new(),
            diag,
        }
    }

    pub(crate) fn read(mut self, tokens: TokenStream) -> Read {
        let read = |input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Err(finding) = self.option(input) {
                    self.diag.push(finding);
                    rest_of_option(input);
                }
                self.diag.extend(comma(input).err());
            }
            Ok(())
        };
        if let Err(error) = read.parse2(tokens) {
            self.diag.push(Finding::at(error.span(), error.to_string()));
        }
        Read {
            seen: self.seen,
            unknown: self.unknown,
        }
    }

    fn options(&self) -> &'static [AttrOption] {
        self.whole.map_or(OPTIONS, |whole| whole.parts)
    }

    fn is_in(&self, name: &str) -> bool {
        self.whole.is_some_and(|whole| whole.name == name)
    }

    fn option(&mut self, input: ParseStream<'_>) -> Result<(), Finding> {
        let starts_an_option =
            input.peek(syn::Ident::peek_any) && !input.peek(Lit) && !input.peek2(Token![::]);
        let Some(key) = starts_an_option
            .then(|| input.call(Ident::parse_any).ok())
            .flatten()
        else {
            self.unknown.push(String::new());
            return Err(self.bare_value(input));
        };
        let name = key.unraw().to_string();
        let Some(option) = options::named(self.options(), &name) else {
            let (written, name) = hyphenated(key, name, input);
            let finding = match self.whole {
                None => Finding::new(written, format!("unknown option `{name}`"))
                    .help(options::remedy(&name)),
                Some(whole) => Finding::new(
                    written,
                    format!("unknown option `{name}` of `{}`", whole.name),
                )
                .help(options::remedy_within(whole, &name)),
            };
            self.unknown.push(name);
            return Err(finding);
        };
        if self.seen.contains(&option.name) {
            return Err(Finding::new(key, format!("`{name}` is given twice")).help("keep one"));
        }
        self.seen.push(option.name);
        (self.set)(option, &key, input, self.diag)
    }

    /// Something that is no option, where one should begin.
    fn bare_value(&self, input: ParseStream<'_>) -> Finding {
        if input.peek(Token![,]) {
            return Finding::at(input.span(), "expected an option before `,`")
                .help("remove the comma");
        }
        let is_path = input.peek(syn::Ident::peek_any) && !input.peek(Lit);
        let literal = input.fork().parse::<Lit>().ok();
        let found = rest_of_option(input);
        let what = match &literal {
            Some(literal) => literal::article(literal),
            None if is_path => "a path",
            None => "something else",
        };
        let main = options::main(self.options());
        let remedy = match (literal, main) {
            (_, Some(main)) if self.seen.contains(&main.name) => {
                "remove it, or say which option it is".to_owned()
            }
            (Some(Lit::Int(runs)), Some(main)) if self.is_in("retry") => format!(
                "write `max_attempts = {}` behind the parentheses, and `{}` in them",
                runs.base10_digits(),
                main.example
            ),
            (Some(Lit::Str(text)), Some(main)) if main.takes_text() => {
                format!("`{} = {}`", main.name, text.to_token_stream())
            }
            (Some(Lit::Int(number)), Some(main)) if !main.takes_text() => {
                format!("`{} = {}`", main.name, number.base10_digits())
            }
            (_, main) => format!("`{}`", main.map_or("option = value", |main| main.example)),
        };
        Finding::new(found, format!("expected `option = value`, found {what}")).help(remedy)
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
pub(crate) fn value(
    option: &AttrOption,
    key: &Ident,
    input: ParseStream<'_>,
) -> Result<Expr, Finding> {
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
    // Most values are a string, which is read sooner than any expression.
    if let Ok(lit) = ahead.parse::<LitStr>()
        && ends(&ahead)
    {
        input.advance_to(&ahead);
        let (attrs, lit) = (Vec::new(), Lit::Str(lit));
        return Ok(Expr::Lit(ExprLit { attrs, lit }));
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
    let headline = format!("`{}` is written with `=`", option.name);
    let is_list = input.peek(token::Paren);
    let Ok(found) = input.parse::<TokenTree>() else {
        return Finding::at(input.span(), headline);
    };
    let (found, given) = signs(found, input);
    let given = given.and_then(|given| match given {
        TokenTree::Group(group) => is_list.then(|| literal::list(group.stream()))?,
        given => Some(given.to_string()),
    });
    let remedy = match given {
        Some(value) => format!("`{} = {value}`", option.name),
        None => format!("`{}`", option.example),
    };
    Finding::new(found, headline).help(remedy)
}

/// What stands where something else should, and the value in it or behind it.
///
/// Input: `: "billing"`, `=> "billing"`, `("billing")` or `"billing"`.
fn signs(found: TokenTree, input: ParseStream<'_>) -> (TokenStream, Option<TokenTree>) {
    match found {
        TokenTree::Group(_) | TokenTree::Literal(_) => (found.clone().into(), Some(found)),
        other => {
            let mut signs = other.into_token_stream();
            while let Ok(sign) = input.parse::<proc_macro2::Punct>() {
                sign.to_tokens(&mut signs);
            }
            let ahead = input.fork();
            let is_value = ahead.peek(Lit) || ahead.peek(token::Paren);
            (signs, is_value.then(|| ahead.parse().ok()).flatten())
        }
    }
}

/// The parentheses behind an option that has options of its own. `meant` is what to write for a value in another form.
pub(crate) fn parentheses(
    option: &AttrOption,
    key: &Ident,
    meant: fn(TokenTree) -> Option<String>,
    input: ParseStream<'_>,
) -> Result<Group, Finding> {
    let headline = format!("`{}` is written with parentheses", option.name);
    if input.is_empty() || input.peek(Token![,]) {
        return Err(Finding::new(key, headline).help(format!("`{}`", option.example)));
    }
    let in_parentheses = input.peek(token::Paren);
    let (found, given) = match input.parse::<TokenTree>() {
        Ok(TokenTree::Group(group)) if in_parentheses => return Ok(group),
        Ok(found) => signs(found, input),
        Err(_) => return Err(Finding::at(input.span(), headline)),
    };
    let remedy = given
        .and_then(meant)
        .unwrap_or_else(|| format!("`{}`", option.example));
    Err(Finding::new(found, headline).help(remedy))
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
