/* #[deprecated]
#[inbox_handler(
    consumer = "billing", on = ["OrderPlaced", "OrderChanged"], from = "orders", key = "header:x-event-id",
    timeout = "2m", max_attempts = 3, isolation = "serializable", crate = crate::facade
)]
#[cfg(unix)]
#[cfg_attr(feature = "a", inline, cfg(feature = "b"))]
pub(crate) async fn r#move(
    OrderPlaced { id }: OrderPlaced, tx: &mut Tx<Postgres>, State(rates): State<Rates>, Attempt(n): Attempt<'_>,
) -> Outcome { Ok(()) } */

#[cfg(unix)]
#[cfg_attr(feature = "a", cfg(feature = "b"))]
#[doc(hidden)]
#[allow(non_camel_case_types)]
pub(crate) struct r#move {
    _private: (),
}
#[cfg(unix)]
#[cfg_attr(feature = "a", cfg(feature = "b"))]
const _: () = {
    impl r#move {
        /// The handler, to be registered with the builder of the inbox.
        #[must_use]
        pub const fn handler() -> Self {
            Self { _private: () }
        }
    }
    #[automatically_derived]
    #[allow(deprecated)]
    impl crate::facade::__private::Handler for r#move {
        type Db = <Tx<Postgres> as crate::facade::__private::HandlerTx>::Db;
        const SPEC: crate::facade::__private::HandlerSpec = crate::facade::__private::HandlerSpec::new(
                "billing",
                ::core::concat!(::core::module_path!(), "::move"),
                ::core::file!(),
                ::core::line!(),
            )
            .on(&["OrderPlaced", "OrderChanged"])
            .from(&["orders"])
            .key(crate::facade::__private::DedupKey::Header("x-event-id"))
            .timeout(::core::time::Duration::from_millis(120000u64))
            .max_attempts(3u32)
            .isolation(crate::facade::__private::Isolation::Serializable);
        fn requirements(__needs: &mut crate::facade::__private::Requirements) {
            <State<
                Rates,
            > as crate::facade::__private::FromDelivery>::requirements(__needs);
            <Attempt<
                '_,
            > as crate::facade::__private::FromDelivery>::requirements(__needs);
        }
        fn call<'a>(
            &'a self,
            __incoming: &'a [crate::facade::__private::Incoming<'_>],
            __tx: &'a mut crate::facade::__private::Tx<Self::Db>,
        ) -> crate::facade::__private::HandlerFuture<'a> {
            ::std::boxed::Box::pin(async move {
                let __single = crate::facade::__private::single(__incoming)?;
                let __message = <OrderPlaced as crate::facade::__private::Message>::decode(
                    __single,
                )?;
                let __arg0 = <State<
                    Rates,
                > as crate::facade::__private::FromDelivery>::from_delivery(__single)?;
                let __arg1 = <Attempt<
                    '_,
                > as crate::facade::__private::FromDelivery>::from_delivery(__single)?;
                let __tx = <Tx<
                    Postgres,
                > as crate::facade::__private::HandlerTx>::lend(&mut *__tx);
                let __returned = r#move(__message, __tx, __arg0, __arg1).await;
                <Outcome as crate::facade::__private::HandlerOutcome>::into_outcome(
                    __returned,
                )
            })
        }
    }
};
