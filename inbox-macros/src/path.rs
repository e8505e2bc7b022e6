//! The crate through which generated code reaches the framework.

use crate::diag::Finding;
use crate::options::AttrOption;
use crate::values::literal;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
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

    /// Gives what the user wrote one name in the generated code: a path that leads nowhere is one error, under the
    /// user's tokens.
    pub(crate) fn import(&self) -> Option<TokenStream> {
        match self {
            Self::Crate(_) => None,
            Self::Given(path) => {
                let place = path.span();
                let name = Ident::new(IMPORTED, place);
                Some(quote_spanned!(place=> use #path as #name;))
            }
        }
    }

    /// The path, located at `span`, so that an error in generated code appears there.
    pub(crate) fn at(&self, span: Span) -> TokenStream {
        match self {
            Self::Crate(name) => {
                let name = Ident::new(name, span);
                quote_spanned!(span=> ::#name)
            }
            Self::Given(_) => Ident::new(IMPORTED, span).into_token_stream(),
        }
    }
}

const IMPORTED: &str = "__inbox";

fn is_absolute(path: &Path) -> bool {
    // `$crate` in a `macro_rules!` arrives as one identifier.
    path.leading_colon.is_some()
        || path
            .segments
            .first()
            .is_some_and(|first| first.ident == "crate" || first.ident == "$crate")
}
