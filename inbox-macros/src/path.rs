//! The crate through which generated code reaches the framework.

use crate::diag::Finding;
use crate::options::AttrOption;
use crate::values::literal;
use proc_macro2::{Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::{Expr, Path};

/// An absolute path to `inbox-core`, `inbox-runtime` or a re-export of one of them.
pub(crate) struct Root(TokenStream);

impl Root {
    /// The crate of this name in the extern prelude.
    pub(crate) fn of_crate(name: &str) -> Self {
        let name = Ident::new(name, Span::call_site());
        Self(quote!(::#name))
    }

    /// Reads `crate = "::path"` or `crate = ::path`.
    pub(crate) fn read(option: &AttrOption, value: &Expr) -> Result<Self, Finding> {
        let path = match literal::peel(value) {
            Expr::Path(path) if path.qself.is_none() && path.attrs.is_empty() => path.path.clone(),
            other => {
                let text = literal::string(option, other, option.example)?;
                text.parse_with(Path::parse_mod_style).map_err(|_| {
                    Finding::new(
                        &text,
                        format!("`{}` is not a path", text.value().escape_debug()),
                    )
                    .help(format!("write `{}`", option.example))
                })?
            }
        };
        if is_absolute(&path) {
            return Ok(Self(path.into_token_stream()));
        }
        Err(Finding::new(value, "the `crate` path must be absolute")
            .help("start with `::` or `crate::`"))
    }

    /// The path, located at `span`, so that an error in generated code appears there.
    pub(crate) fn at(&self, span: Span) -> TokenStream {
        relocated(self.0.clone(), span)
    }
}

fn is_absolute(path: &Path) -> bool {
    // `$crate` in a `macro_rules!` arrives as one identifier.
    path.leading_colon.is_some()
        || path
            .segments
            .first()
            .is_some_and(|first| first.ident == "crate" || first.ident == "$crate")
}

/// Moves tokens to `span` but lets them resolve where they were written, which `$crate` needs.
fn relocated(tokens: TokenStream, span: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut token| {
            token.set_span(token.span().located_at(span));
            match token {
                TokenTree::Group(group) => {
                    let mut moved = Group::new(group.delimiter(), relocated(group.stream(), span));
                    moved.set_span(group.span());
                    moved.into()
                }
                other => other,
            }
        })
        .collect()
}
