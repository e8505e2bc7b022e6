use inbox_core::InboxDatabase;
use sqlx::pool::PoolConnection;

/// A connection that goes back to the pool only when its transaction is known to have ended. A driver that is dropped
/// while BEGIN is under way need not know of the transaction, and would give it to the pool's next user.
pub(crate) struct ClosedUnlessDone<Db: InboxDatabase> {
    pub(crate) conn: PoolConnection<Db>,
    pub(crate) is_done: bool,
}

impl<Db: InboxDatabase> ClosedUnlessDone<Db> {
    pub(crate) const fn new(conn: PoolConnection<Db>) -> Self {
        Self {
            conn,
            is_done: false,
        }
    }
}

impl<Db: InboxDatabase> Drop for ClosedUnlessDone<Db> {
    fn drop(&mut self) {
        if !self.is_done {
            self.conn.close_on_drop();
        }
    }
}
