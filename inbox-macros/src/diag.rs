//! Findings: what is wrong, under which tokens, and what to type instead.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote_spanned};

/// One mistake.
pub(crate) struct Finding {
    tokens: TokenStream,
    message: String,
}

impl Finding {
    /// A mistake in `tokens`; all of them are underlined.
    pub(crate) fn new(tokens: impl ToTokens, message: impl Into<String>) -> Self {
        Self {
            tokens: tokens.into_token_stream(),
            message: message.into(),
        }
    }

    /// A mistake at a place of which no token is at hand.
    pub(crate) fn at(span: Span, message: impl Into<String>) -> Self {
        Self::new(quote_spanned!(span=> _), message)
    }

    /// A mistake that no token shows; the whole attribute is underlined.
    pub(crate) fn at_attribute(message: impl Into<String>) -> Self {
        Self::new(TokenStream::new(), message)
    }

    /// Adds the remedy, which rustc prints under the headline.
    pub(crate) fn help(mut self, remedy: impl AsRef<str>) -> Self {
        self.message.push_str("\nhelp: ");
        self.message.push_str(remedy.as_ref());
        self
    }

    fn into_tokens(self) -> TokenStream {
        syn::Error::new_spanned(self.tokens, self.message).into_compile_error()
    }
}

/// All findings of one definition, in source order.
#[derive(Default)]
pub(crate) struct Diagnostics {
    findings: Vec<Finding>,
}

impl Diagnostics {
    pub(crate) fn push(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub(crate) fn extend(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings);
    }

    /// How many were found so far.
    pub(crate) fn count(&self) -> usize {
        self.findings.len()
    }

    pub(crate) fn into_tokens(self) -> TokenStream {
        self.findings
            .into_iter()
            .map(Finding::into_tokens)
            .collect()
    }

    #[cfg(test)]
    pub(crate) fn into_pairs(self) -> impl Iterator<Item = (String, TokenStream)> {
        self.findings
            .into_iter()
            .map(|finding| (finding.message, finding.tokens))
    }
}
