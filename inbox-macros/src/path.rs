//! The crate through which generated code reaches the framework.

use crate::diag::Finding;
use crate::options::AttrOption;
use crate::values::literal;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, Path};

/// An absolute path to `inbox-core`, `inbox-runtime` or a re-export of one of them.
pub(crate) enum Root {
    /// A crate in the extern prelude.
    Crate(&'static str),
    /// What the user wrote.
    Given(Path),
}

impl Root {
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
            return Ok(Self::Given(path));
        }
        Err(Finding::new(value, "the `crate` path must be absolute")
            .help("start with `::` or `crate::`"))
    }

    /// The path, located at `span`, so that an error in generated code appears there.
    pub(crate) fn at(&self, span: Span) -> TokenStream {
        match self {
            Self::Crate(name) => {
                let name = Ident::new(name, span);
                quote_spanned!(span=> ::#name)
            }
            Self::Given(path) => relocated(path.to_token_stream(), span),
        }
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

/// Moves a path to `span` but lets it resolve where it was written, which `$crate` needs.
fn relocated(path: TokenStream, span: Span) -> TokenStream {
    path.into_iter()
        .map(|mut token| {
            token.set_span(token.span().located_at(span));
            token
        })
        .collect()
}
