/* #[inbox_handler(consumer = "billing")]
pub async fn charge(order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), BillingError> { order. ; tx. } */

#[doc(hidden)]
#[allow(non_camel_case_types)]
pub struct charge {
    _private: (),
}
const _: () = {
    impl charge {
        /// The handler, to be registered with the builder of the inbox.
        #[must_use]
        pub const fn handler() -> Self {
            Self { _private: () }
        }
    }
    #[automatically_derived]
    impl ::inbox_core::__private::Handler for charge {
        type Db = <Tx<Postgres> as ::inbox_core::__private::HandlerTx>::Db;
        const SPEC: ::inbox_core::__private::HandlerSpec = ::inbox_core::__private::HandlerSpec::new(
            "billing",
            ::core::concat!(::core::module_path!(), "::charge"),
            ::core::file!(),
            ::core::line!(),
        );
        fn requirements(__needs: &mut ::inbox_core::__private::Requirements) {}
        fn call<'a>(
            &'a self,
            __incoming: &'a [::inbox_core::__private::Incoming<'_>],
            __tx: &'a mut ::inbox_core::__private::Tx<Self::Db>,
        ) -> ::inbox_core::__private::HandlerFuture<'a> {
            ::inbox_core::__private::run(
                ::inbox_core::__private::begin_0(
                    __incoming,
                    __tx,
                    <OrderPlaced as ::inbox_core::__private::Message>::decode,
                    <Tx<Postgres> as ::inbox_core::__private::HandlerTx>::lend,
                    charge,
                ),
                <Result<
                    (),
                    BillingError,
                > as ::inbox_core::__private::HandlerOutcome>::into_outcome,
            )
        }
    }
};
