/* #[deprecated]
#[inbox_handler(
    consumer = "billing", on = ["OrderPlaced", "OrderChanged"], from = "orders", key = "header:x-event-id",
    timeout = "2m", max_attempts = 3, retry(first = "200ms", longest = "5m"), isolation = "serializable",
    order_by = "payload:/account", own_transaction = true, crate = crate::facade
)]
#[cfg(unix)]
#[cfg_attr(feature = "a", inline, cfg(feature = "b"))]
#[expect(unused_parens, reason = "an example")]
#[cfg_attr(unix, inline, allow(clippy::too_many_arguments))]
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
#[allow(unused_parens, reason = "an example")]
#[cfg_attr(unix, allow(clippy::too_many_arguments))]
const _: () = {
    mod __inbox {
        pub(super) use crate::facade::__private;
    }
    impl r#move {
        /// The handler, to be registered with the builder of the inbox.
        #[must_use]
        pub const fn handler() -> Self {
            Self { _private: () }
        }
    }
    #[automatically_derived]
    #[allow(deprecated)]
    #[allow(unused_qualifications)]
    impl __inbox::__private::Handler for r#move {
        type Db = <Tx<Postgres> as __inbox::__private::HandlerTx>::Db;
        const SPEC: __inbox::__private::HandlerSpec = __inbox::__private::HandlerSpec::new(
                "billing",
                ::core::concat!(::core::module_path!(), "::move"),
                ::core::file!(),
                ::core::line!(),
            )
            .on(&["OrderPlaced", "OrderChanged"])
            .from(&["orders"])
            .key(__inbox::__private::DedupKey::Header("x-event-id"))
            .timeout(::core::time::Duration::from_millis(120000u64))
            .max_attempts(3u32)
            .retry(
                __inbox::__private::RetryDelays::new()
                    .first(::core::time::Duration::from_millis(200u64))
                    .longest(::core::time::Duration::from_millis(300000u64)),
            )
            .isolation(__inbox::__private::Isolation::Serializable)
            .order_by(__inbox::__private::OrderBy::Payload("/account"))
            .own_transaction(true);
        fn requirements(__needs: &mut __inbox::__private::Requirements) {
            <State<Rates> as __inbox::__private::FromDelivery>::requirements(__needs);
            <Attempt<'_> as __inbox::__private::FromDelivery>::requirements(__needs);
        }
        fn call<'a>(
            &'a self,
            __incoming: &'a [__inbox::__private::Incoming<'_>],
            __tx: &'a mut __inbox::__private::Tx<Self::Db>,
        ) -> __inbox::__private::HandlerFuture<'a> {
            __inbox::__private::run(
                __inbox::__private::begin_2(
                    __incoming,
                    __tx,
                    <OrderPlaced as __inbox::__private::Message>::decode,
                    <Tx<Postgres> as __inbox::__private::HandlerTx>::lend,
                    <State<Rates> as __inbox::__private::FromDelivery>::from_delivery,
                    <Attempt<'_> as __inbox::__private::FromDelivery>::from_delivery,
                    r#move,
                ),
                <Outcome as __inbox::__private::HandlerOutcome>::into_outcome,
            )
        }
    }
};
