//! The crate through which generated code reaches the framework.

use crate::diag::Finding;
use crate::options::AttrOption;
use crate::values::literal;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, Path, Token};

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
                let text = literal::string(option, other, &format!("write `{}`", option.example))?;
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
        let remedy = match path.segments.first() {
            Some(first) if first.ident != "self" && first.ident != "super" => {
                let path = path.to_token_stream().to_string().replace(' ', "");
                format!("write `{} = \"::{path}\"`", option.name)
            }
            _ => "start with `::` or `crate::`".to_owned(),
        };
        Err(Finding::new(value, "the `crate` path must be absolute").help(remedy))
    }

    /// Gives what the user wrote one name in the generated code: a path that leads nowhere, or to another crate, is
    /// one error, under the user's tokens.
    pub(crate) fn import(&self) -> Option<TokenStream> {
        match self {
            Self::Crate(_) => None,
            Self::Given(path) => {
                let place = path.span();
                let name = Ident::new(IMPORTED, place);
                // Known to be the macro's, for clippy has an opinion on visibilities.
                let import = quote_spanned!(Span::call_site().located_at(place)=> pub(super) use);
                Some(quote_spanned!(place=> mod #name { #import #path::__private; }))
            }
        }
    }

    /// The path, located at `span`, so that an error in generated code appears there.
    pub(crate) fn at(&self, span: Span) -> At {
        match self {
            Self::Crate(name) => At {
                colons: Some(Token![::](span)),
                name: Ident::new(name, span),
            },
            Self::Given(_) => At {
                colons: None,
                name: Ident::new(IMPORTED, span),
            },
        }
    }
}

/// The path in one place.
pub(crate) struct At {
    colons: Option<Token![::]>,
    name: Ident,
}

impl ToTokens for At {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.colons.to_tokens(tokens);
        self.name.to_tokens(tokens);
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
