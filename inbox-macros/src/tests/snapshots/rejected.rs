/* #[inbox_handler(consumer = "billing")]
pub async fn charge(order: OrderPlaced) -> Result<(), BillingError> { Ok(()) } */

::core::compile_error! {
    "`charge` has no transaction parameter\nhelp: add `tx: &mut Tx<Postgres>` after the message; work done outside it is not rolled back with the claim"
}
#[doc(hidden)]
#[allow(non_camel_case_types)]
pub struct charge {
    _private: (),
}
const _: () = {
    impl charge {
        #[doc(hidden)]
        pub const fn handler() -> ::inbox_core::__private::Rejected {
            ::inbox_core::__private::Rejected::new()
        }
    }
};
