//! A platform crate through which applications see the framework.

pub use inbox_core as inbox;

/// Declares a handler that does nothing, from wherever it is called.
#[macro_export]
macro_rules! ignore_messages {
    ($name:ident, $message:ty, $database:ty, $consumer:literal) => {
        #[$crate::inbox::inbox_handler(consumer = $consumer, crate = $crate::inbox)]
        async fn $name(
            message: $message,
            tx: &mut $crate::inbox::Tx<$database>,
        ) -> ::core::result::Result<(), $crate::inbox::HandlerError> {
            let __tx = tx;
            drop((message, __tx));
            ::core::result::Result::Ok(())
        }
    };
}
