use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Postgres};

use crate::{Sandbox, environment, unique};

impl Sandbox<Postgres> {
    /// A role without any right, which the sandbox's user may SET.
    ///
    /// # Panics
    ///
    /// When the administrator cannot make it.
    pub async fn role(&self) -> String {
        let admin: PgConnectOptions = environment("POSTGRES_ADMIN_URL")
            .parse()
            .expect("POSTGRES_ADMIN_URL is no address");
        let role = unique("role");
        let user = self.pool.connect_options().get_username().to_owned();
        let mut conn = admin.connect().await.expect("PostgreSQL does not answer");
        let sql = format!("CREATE ROLE {role}; GRANT {role} TO {user}");
        conn.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .expect("no role");
        role
    }
}
