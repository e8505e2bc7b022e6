//! The work of a generated handler, one function for each number of extractors.
//!
//! A handler's own code is compiled once per handler. Here it is written once, so the attribute adds one expression with
//! the steps as arguments: no block, no future and no branch that the compiler would check for every handler.

use std::future::{Future, ready};

use futures_util::FutureExt as _;

use crate::db::InboxDatabase;
use crate::error::{CallError, DecodeError, ExtractError};
use crate::handler::HandlerFuture;
use crate::incoming::Incoming;
use crate::tx::Tx;

macro_rules! begins {
    ($($name:ident($($extractor:ident: $Extractor:ident),*);)*) => {$(
        /// Decodes the message, makes the extractors in their order and calls the handler.
        ///
        /// # Errors
        ///
        /// The first that decoding or an extractor answered.
        #[allow(clippy::too_many_arguments)]
        pub fn $name<'a, Db, Message, Transaction, $($Extractor,)* Running>(
            incoming: &'a [Incoming<'_>],
            tx: &'a mut Tx<Db>,
            decode: fn(&Incoming<'_>) -> Result<Message, DecodeError>,
            lend: fn(&mut Tx<Db>) -> &mut Transaction,
            $($extractor: fn(&Incoming<'_>) -> Result<$Extractor, ExtractError>,)*
            handler: impl FnOnce(Message, &'a mut Transaction, $($Extractor),*) -> Running,
        ) -> Result<Running, CallError>
        where
            Db: InboxDatabase,
            Transaction: 'a,
        {
            let single = single(incoming)?;
            let message = decode(single)?;
            $(let $extractor = $extractor(single)?;)*
            Ok(handler(message, lend(tx), $($extractor),*))
        }
    )*};
}

begins! {
    begin_0();
    begin_1(a: A);
    begin_2(a: A, b: B);
    begin_3(a: A, b: B, c: C);
    begin_4(a: A, b: B, c: C, d: D);
    begin_5(a: A, b: B, c: C, d: D, e: E);
    begin_6(a: A, b: B, c: C, d: D, e: E, f: F);
    begin_7(a: A, b: B, c: C, d: D, e: E, f: F, g: G);
    begin_8(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H);
    begin_9(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I);
    begin_10(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J);
    begin_11(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K);
    begin_12(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L);
    begin_13(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L, m: M);
    begin_14(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L, m: M, n: N);
}

/// The rest of a handler that began. Its bound is outside of the macro above, for the compiler shows it to whoever holds
/// something over an `.await` that is not `Send`.
pub fn run<'a, Running, Returned>(
    begun: Result<Running, CallError>,
    outcome: fn(Returned) -> Result<(), CallError>,
) -> HandlerFuture<'a>
where
    Running: Future<Output = Returned> + Send + 'a,
    Returned: 'a,
{
    match begun {
        Ok(running) => Box::pin(running.map(outcome)),
        Err(error) => Box::pin(ready(Err(error))),
    }
}

/// The one message of a handler of single messages. The runtime never hands over another number.
fn single<'a, 'm>(incoming: &'a [Incoming<'m>]) -> Result<&'a Incoming<'m>, CallError> {
    match incoming {
        [one] => Ok(one),
        other => {
            let count = other.len();
            Err(ExtractError::new(format!(
                "a handler of single messages was given {count} messages"
            ))
            .into())
        }
    }
}
