/* #[inbox_handler(consumer = "billing")]
pub async fn charge(order: OrderPlaced, tx: &mut ) -> Result<(), BillingError> { order. } */

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
