//! The work of a generated handler, one function for each number of extractors.
//!
//! A handler's own code is compiled once per handler. Here it is written once, so the attribute adds one call with the
//! steps as arguments: no block, no coroutine and no branch that the compiler would check for every handler.

use std::future::{Future, ready};

use futures_util::FutureExt as _;

use crate::error::{CallError, DecodeError, ExtractError};
use crate::handler::HandlerFuture;
use crate::incoming::Incoming;

/// What a handler answers to the runtime.
pub type Called = Result<(), CallError>;

macro_rules! begins {
    ($($name:ident, $batch:ident($($extractor:ident: $Extractor:ident),*);)*) => {$(
        /// Decodes the message, makes the extractors in their order and calls the handler. The first error ends it.
        #[allow(clippy::too_many_arguments)]
        pub fn $name<'a, Lent, Transaction, Message, $($Extractor,)* Running>(
            incoming: &[Incoming<'_>],
            tx: &'a mut Lent,
            decode: fn(&Incoming<'_>) -> Result<Message, DecodeError>,
            lend: fn(&mut Lent) -> &mut Transaction,
            $($extractor: fn(&Incoming<'_>) -> Result<$Extractor, ExtractError>,)*
            handler: impl FnOnce(Message, &'a mut Transaction, $($Extractor),*) -> Running,
        ) -> Result<Running, CallError>
        where
            Transaction: 'a,
        {
            let single = single(incoming)?;
            let message = decode(single)?;
            $(let $extractor = $extractor(single)?;)*
            Ok(handler(message, lend(tx), $($extractor),*))
        }

        /// The same for a handler of batches.
        #[allow(clippy::too_many_arguments)]
        pub fn $batch<'a, Lent, Transaction, Messages, $($Extractor,)* Running>(
            incoming: &[Incoming<'_>],
            tx: &'a mut Lent,
            decode: fn(&[Incoming<'_>]) -> Result<Messages, CallError>,
            lend: fn(&mut Lent) -> &mut Transaction,
            $($extractor: fn(&[Incoming<'_>]) -> Result<$Extractor, ExtractError>,)*
            handler: impl FnOnce(Messages, &'a mut Transaction, $($Extractor),*) -> Running,
        ) -> Result<Running, CallError>
        where
            Transaction: 'a,
        {
            let messages = decode(incoming)?;
            $(let $extractor = $extractor(incoming)?;)*
            Ok(handler(messages, lend(tx), $($extractor),*))
        }
    )*};
}

begins! {
    begin_0, begin_batch_0();
    begin_1, begin_batch_1(a: A);
    begin_2, begin_batch_2(a: A, b: B);
    begin_3, begin_batch_3(a: A, b: B, c: C);
    begin_4, begin_batch_4(a: A, b: B, c: C, d: D);
    begin_5, begin_batch_5(a: A, b: B, c: C, d: D, e: E);
    begin_6, begin_batch_6(a: A, b: B, c: C, d: D, e: E, f: F);
    begin_7, begin_batch_7(a: A, b: B, c: C, d: D, e: E, f: F, g: G);
    begin_8, begin_batch_8(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H);
    begin_9, begin_batch_9(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I);
    begin_10, begin_batch_10(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J);
    begin_11, begin_batch_11(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K);
    begin_12, begin_batch_12(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L);
    begin_13, begin_batch_13(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L, m: M);
    begin_14, begin_batch_14(a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K, l: L, m: M, n: N);
}

/// What the handler does once it began, or the error that kept it from beginning.
///
/// Apart from the functions above, for the compiler shows this one to whoever writes a handler that is not `Send`.
pub fn run<'a, Running, Returned>(
    begun: Result<Running, CallError>,
    outcome: fn(Returned) -> Called,
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
