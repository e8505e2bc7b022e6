/* #[inbox_handler(consumer = "billing")]
async fn charge(&self, order: OrderPlaced, tx: &mut Tx<Postgres>) -> Result<(), BillingError> { Ok(()) } */

::core::compile_error! {
    "an inbox handler cannot take `self`\nhelp: move it out of the `impl` block and take the object as `State<T>`"
}
