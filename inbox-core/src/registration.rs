//! What an inbox on a database takes as a handler. The two traits say what is wrong with anything else.

use crate::db::InboxDatabase;
use crate::error::ExtractError;
use crate::extract::Requirements;
use crate::handler::{Handler, HandlerFuture, HandlerSpec, Rejected};
use crate::incoming::Incoming;
use crate::tx::Tx;

/// A [`Handler`] that an inbox on the database `Db` can run.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an inbox handler",
    label = "expected `name::handler()`",
    note = "annotate the function with `#[inbox_handler(consumer = \"...\")]` and register `name::handler()`, not the function itself"
)]
pub trait HandlerOn<Db: InboxDatabase>: Send + Sync + 'static {
    /// [`Handler::SPEC`].
    const SPEC: HandlerSpec;

    /// [`Handler::requirements`].
    fn requirements(needs: &mut Requirements);

    /// [`Handler::call`], in a transaction of the inbox.
    fn call<'a>(&'a self, incoming: &'a [Incoming<'_>], tx: &'a mut Tx<Db>) -> HandlerFuture<'a>;
}

impl<H, Db> HandlerOn<Db> for H
where
    H: Handler,
    H::Db: SameDatabase<Db>,
    Db: InboxDatabase,
{
    const SPEC: HandlerSpec = H::SPEC;

    fn requirements(needs: &mut Requirements) {
        H::requirements(needs);
    }

    fn call<'a>(&'a self, incoming: &'a [Incoming<'_>], tx: &'a mut Tx<Db>) -> HandlerFuture<'a> {
        Handler::call(self, incoming, H::Db::same(tx))
    }
}

/// The program does not compile anyway; its registration adds no second error.
impl<Db: InboxDatabase> HandlerOn<Db> for Rejected {
    const SPEC: HandlerSpec = HandlerSpec::new("rejected", "rejected", file!(), line!());

    fn requirements(_needs: &mut Requirements) {}

    fn call<'a>(&'a self, _incoming: &'a [Incoming<'_>], _tx: &'a mut Tx<Db>) -> HandlerFuture<'a> {
        let error = ExtractError::new("the handler did not compile");
        Box::pin(std::future::ready(Err(error.into())))
    }
}

/// The database of a handler is that of its inbox: every database is the same as itself.
#[diagnostic::on_unimplemented(
    message = "this handler works on `{Self}`, but the inbox is on `{Db}`",
    label = "its transaction is `Tx<{Self}>`",
    note = "write `tx: &mut Tx<{Db}>` in the handler, or register it with an inbox that was built from a `Pool<{Self}>`"
)]
pub trait SameDatabase<Db: InboxDatabase>: InboxDatabase {
    /// The transaction of the inbox as the handler's.
    fn same(tx: &mut Tx<Db>) -> &mut Tx<Self>;
}

impl<Db: InboxDatabase> SameDatabase<Db> for Db {
    fn same(tx: &mut Tx<Db>) -> &mut Tx<Self> {
        tx
    }
}
