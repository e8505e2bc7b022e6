//! What a handler does to its session ends with its message: neither the next message nor the pool's next user
//! sees any of it, and what the pool itself has set on its sessions stays.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use inbox_guarantees::script::{Script, Stage, Step, run};
use inbox_guarantees::{OrderPlaced, Sandbox, TestDatabase, bill, eventually, on_each_database};
use inbox_runtime::{HandlerError, MessageId, State, Tx, inbox_handler};
use sqlx::{AssertSqlSafe, Pool};

on_each_database! {
    #[inbox_handler(consumer = "billing", timeout = "20s")]
    pub(super) async fn charge(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        bill!(Db, order, id, tx);
        script.play(&id, tx).await
    }

    /// Does the script's work in a savepoint that it rolls back, and some in one that it keeps.
    #[inbox_handler(consumer = "billing")]
    async fn takes_back(
        order: OrderPlaced,
        tx: &mut Tx<Db>,
        id: MessageId,
        State(script): State<Script>,
    ) -> Result<(), HandlerError> {
        let mut taken_back = tx.savepoint().await?;
        let failed = script.play(&id, &mut taken_back).await;
        taken_back.rollback().await?;
        assert!(failed.is_err());
        let mut dropped = tx.savepoint().await?;
        let _ = script.play(&id, &mut dropped).await;
        drop(dropped);
        let mut kept = tx.savepoint().await?;
        bill!(Db, order, id, kept);
        kept.release().await?;
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_savepoint_that_was_rolled_back_is_absent_and_the_rest_is_stored() {
        let sandbox = Db::fresh(2).await;
        let script = Script::default().always("m-1", [
            run("INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-2', 1, 'taken back')"),
            run("INSERT INTO accounts (id, balance) VALUES ('acc-1', 0)"),
        ]);
        let stage = Stage::start(&sandbox.pool, script, takes_back::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        sandbox.assert_stored_once("m-1").await;
        assert_eq!(sandbox.ledger_total().await, 1);
        assert_eq!(stage.acks("m-1"), 1);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_idle_worker_returns_its_connection() {
        let sandbox = Db::fresh(2).await;
        let stage = Stage::start(&sandbox.pool, Script::default(), charge::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        idle(&sandbox.pool).await;
        stage.deliver("m-2").await;
        sandbox.assert_stored_once("m-2").await;
        stage.stop().await;
    }
}

/// How many connections of the pool nobody holds.
fn free<Db: TestDatabase>(pool: &Pool<Db>) -> usize {
    let most = usize::try_from(pool.options().get_max_connections()).unwrap();
    let open = usize::try_from(pool.size()).unwrap();
    most - open + pool.num_idle()
}

/// Waits until the worker has returned its connection.
async fn idle<Db: TestDatabase>(pool: &Pool<Db>) {
    let all = usize::try_from(pool.options().get_max_connections()).unwrap();
    eventually("the worker returns its connection", || async {
        free(pool) == all
    })
    .await;
}

mod on_postgres {
    use super::postgres::charge;
    use super::*;
    use sqlx::postgres::PgPoolOptions;
    use sqlx::{Connection as _, Postgres};

    /// What a session looks like.
    const LOOK: [&str; 15] = [
        "SHOW search_path",
        "SHOW synchronous_commit",
        "SHOW default_transaction_isolation",
        "SHOW transaction_isolation",
        "SHOW lock_timeout",
        "SHOW statement_timeout",
        "SHOW application_name",
        "SELECT current_user",
        "SELECT current_setting('app.tenant', true)",
        "SELECT 'inbox_processed_messages'::regclass::oid",
        "SELECT 'ledger'::regclass::oid",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        "SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()",
        "SELECT count(*) FROM pg_cursors WHERE is_holdable",
        "SELECT count(*) FROM pg_listening_channels()",
    ];

    /// What a handler can do to a session, given a schema `elsewhere`.
    const HAVOC: [&str; 12] = [
        "SET search_path = elsewhere",
        "SET synchronous_commit = off",
        "SET default_transaction_isolation = serializable",
        "SET default_transaction_read_only = off",
        "SET lock_timeout = 1",
        "SET statement_timeout = '19s'",
        "SET application_name = 'havoc'",
        "SET app.tenant = 'havoc'",
        "CREATE TEMP TABLE inbox_processed_messages (message_id text); CREATE TEMP TABLE ledger (msg_id text)",
        "SELECT pg_advisory_lock(1)",
        "DECLARE havoc CURSOR WITH HOLD FOR SELECT 1",
        "LISTEN havoc",
    ];

    async fn sandbox() -> Sandbox<Postgres> {
        let sandbox = Postgres::fresh(2).await;
        let elsewhere = "CREATE SCHEMA elsewhere; \
             CREATE TABLE elsewhere.inbox_processed_messages (LIKE public.inbox_processed_messages INCLUDING ALL); \
             CREATE TABLE elsewhere.ledger (LIKE public.ledger INCLUDING ALL)";
        Postgres::run(&sandbox.pool, elsewhere).await;
        sandbox
    }

    fn look() -> Vec<Step> {
        LOOK.into_iter().map(run).collect()
    }

    /// The same look at every connection of a pool, from outside the inbox.
    async fn look_at_pool(pool: &Pool<Postgres>) -> Vec<Vec<String>> {
        let mut looks = Vec::new();
        let mut connections = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            let mut conn = pool.acquire().await.unwrap();
            let mut seen = Vec::new();
            for sql in LOOK {
                let sql = format!(
                    "SELECT ({})::text",
                    sql.strip_prefix("SELECT ").map_or_else(
                        || format!("SELECT current_setting('{}')", &sql[5..]),
                        |_| sql.to_owned(),
                    )
                );
                let value: Option<String> = sqlx::query_scalar(AssertSqlSafe(sql))
                    .fetch_one(&mut *conn)
                    .await
                    .unwrap();
                seen.push(value.unwrap_or_default());
            }
            looks.push(seen);
            connections.push(conn);
        }
        looks
    }

    /// m-1 and m-3 look, m-2 wreaks havoc in between; then the pool's next users look. All see the same.
    async fn sees_nothing(
        sandbox: &Sandbox<Postgres>,
        pool: &Pool<Postgres>,
        havoc: Vec<Step>,
    ) -> Vec<String> {
        let before = look_at_pool(pool).await;
        assert_eq!(before[0], before[1]);
        let mut pid = vec![run("SELECT pg_backend_pid()")];
        pid.extend(look());
        let script = Script::default()
            .always("m-1", pid.clone())
            .always("m-2", havoc)
            .always("m-4", pid);
        let stage = Stage::start(pool, script, charge::handler(), |builder| builder).await;
        // LISTEN ends with the commit of the next transaction: m-3 is there for it.
        for id in ["m-1", "m-2", "m-3", "m-4"] {
            stage.deliver(id).await;
            assert_eq!(
                stage.script.runs(id),
                1,
                "{id} failed: {:?}",
                stage.script.answers(id)
            );
        }
        let (first, last) = (stage.script.answers("m-1"), stage.script.answers("m-4"));
        assert_eq!(
            first, last,
            "the first answer is the process id of the session"
        );
        assert_eq!(
            first[1..],
            before[0],
            "a handler sees the session as the pool made it"
        );
        idle(pool).await;
        assert_eq!(look_at_pool(pool).await, before);
        for id in ["m-1", "m-2", "m-3", "m-4"] {
            sandbox.assert_stored_once(id).await;
        }
        // And it can write again.
        for _ in 0..2 {
            sqlx::query("CREATE TABLE IF NOT EXISTS public.mine ()")
                .execute(pool)
                .await
                .unwrap();
        }
        stage.stop().await;
        first
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_that_a_handler_does_to_its_session_reaches_the_next_message_or_user() {
        let sandbox = sandbox().await;
        let havoc = HAVOC.into_iter().map(run).collect();
        sees_nothing(&sandbox, &sandbox.pool, havoc).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_role_of_a_handler_ends_with_its_message() {
        let sandbox = sandbox().await;
        let role = sandbox.role().await;
        let grant = format!("GRANT SELECT ON inbox_processed_messages TO {role}");
        Postgres::run(&sandbox.pool, &grant).await;
        sees_nothing(
            &sandbox,
            &sandbox.pool,
            vec![run(format!("SET ROLE {role}"))],
        )
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_the_pool_set_on_its_sessions_stays() {
        let sandbox = sandbox().await;
        let role = sandbox.role().await;
        let grant = format!(
            "GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"
        );
        Postgres::run(&sandbox.pool, &grant).await;
        let set = format!(
            "SET search_path = \"$user\", public, elsewhere; SET application_name = 'the shop''s'; \
             SET lock_timeout = '4321ms'; SET statement_timeout = '17s'; SET ROLE {role}"
        );
        let options = sqlx::postgres::PgConnectOptions::clone(&sandbox.pool.connect_options());
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .after_connect(move |conn, _| {
                let set = set.clone();
                Box::pin(async move {
                    sqlx::raw_sql(AssertSqlSafe(set)).execute(conn).await?;
                    Ok(())
                })
            })
            // A setting that no part of the server knows survives only as an option of the connection.
            .connect_with(options.options([("app.tenant", "home")]))
            .await
            .unwrap();
        let havoc = HAVOC
            .into_iter()
            .map(run)
            .chain([run("RESET ROLE")])
            .collect();
        let seen = sees_nothing(&sandbox, &pool, havoc).await;
        assert_eq!(seen[1], "\"$user\", public, elsewhere");
        assert_eq!(seen[5..10], ["4321ms", "17s", "the shop's", &role, "home"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_handler_cannot_make_its_commit_asynchronous() {
        let sandbox = sandbox().await;
        let watch = "CREATE TABLE commits (msg_id text, durability text); \
            CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                INSERT INTO public.commits VALUES (NEW.msg_id, current_setting('synchronous_commit')); \
                RETURN NULL; END $$; \
            CREATE CONSTRAINT TRIGGER watch AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED \
                FOR EACH ROW EXECUTE FUNCTION watch()";
        Postgres::run(&sandbox.pool, watch).await;
        let script = Script::default()
            .always("m-1", [run("SET synchronous_commit = off")])
            .always("m-3", [run("SET LOCAL synchronous_commit = off")]);
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
        for id in ["m-1", "m-2", "m-3", "m-4"] {
            stage.deliver(id).await;
        }
        let commits = Postgres::texts(
            &sandbox.pool,
            "SELECT msg_id || ' ' || durability FROM commits ORDER BY msg_id",
        );
        assert_eq!(commits.await, ["m-1 on", "m-2 on", "m-3 on", "m-4 on"]);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_advisory_lock_that_a_handler_keeps_is_free_for_the_next_message() {
        let sandbox = sandbox().await;
        let script = Script::default().always("m-1", [run("SELECT pg_advisory_lock(7)")]);
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        stage.deliver("m-2").await;
        let other: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock(7)")
            .fetch_one(&sandbox.pool)
            .await
            .unwrap();
        assert!(other, "still locked by the worker");
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_holder_that_is_cut_off_is_ended_by_the_server() {
        let sandbox = sandbox().await;
        let script = Script::default().always(
            "m-1",
            [
                run("SHOW idle_in_transaction_session_timeout"),
                run("SHOW client_connection_check_interval"),
            ],
        );
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        // The handler's 20 s and the margin.
        assert_eq!(stage.script.answers("m-1"), ["50s", "500ms"]);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_that_the_server_drops_during_a_handler_is_a_retryable_failure() {
        let sandbox = sandbox().await;
        let name: String = sqlx::query_scalar("SELECT current_database()")
            .fetch_one(&sandbox.pool)
            .await
            .unwrap();
        let limit =
            format!("ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '300ms'");
        Postgres::run(&sandbox.pool, &limit).await;
        let options = sqlx::postgres::PgConnectOptions::clone(&sandbox.pool.connect_options());
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .connect_with(options)
            .await
            .unwrap();
        let script = Script::default().once(
            "m-1",
            [
                Step::Sleep(Duration::from_secs(1)),
                run("INSERT INTO ledger (account, amount, msg_id) VALUES ('acc-1', 1, 'second')"),
            ],
        );
        let retry = inbox_runtime::RetryPolicy::default().first_delay(Duration::from_secs(3));
        let stage = Stage::start(&pool, script, charge::handler(), |builder| {
            builder.retry(retry)
        })
        .await;
        stage.publish("m-1");
        eventually("the first try ends", || async {
            !stage.verdicts("m-1").is_empty()
        })
        .await;
        assert_eq!(sandbox.ledger_total().await, 0);
        assert_eq!(sandbox.claims_total().await, 0);
        assert_eq!(stage.acks("m-1"), 0);
        assert_eq!(sandbox.attempts("m-1").await, 1);
        stage.publish("m-2");
        eventually("m-2 is acked", || async { stage.acks("m-2") == 1 }).await;
        assert_eq!(stage.acks("m-1"), 0, "m-2 waited for m-1");
        inbox_guarantees::all_acked(&stage.broker).await;
        for id in ["m-1", "m-2"] {
            sandbox.assert_stored_once(id).await;
        }
        assert_eq!(sandbox.ledger_total().await, 2);
        stage.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_released_connection_is_an_ordinary_one() {
        let sandbox = sandbox().await;
        let stage = Stage::start(
            &sandbox.pool,
            Script::default(),
            charge::handler(),
            |builder| builder,
        )
        .await;
        stage.deliver("m-1").await;
        idle(&sandbox.pool).await;
        let mut held = Vec::new();
        for number in 0..2 {
            let mut conn = sandbox.pool.acquire().await.unwrap();
            let mut tx = conn.begin().await.unwrap();
            let sql = format!("INSERT INTO accounts (id, balance) VALUES ('new-{number}', 0)");
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut *tx)
                .await
                .unwrap();
            tx.commit().await.unwrap();
            held.push(conn);
        }
        let new = "SELECT count(*) FROM accounts WHERE id LIKE 'new-%'";
        drop(held);
        assert_eq!(Postgres::number(&sandbox.pool, new).await, 2);
        stage.stop().await;
    }
}

mod on_mysql {
    use super::mysql::charge;
    use super::*;
    use sqlx::MySql;
    use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

    /// What a session looks like to a handler and to other users of the pool.
    const LOOK: [&str; 14] = [
        "SELECT @@sql_mode",
        "SELECT @@time_zone",
        "SELECT @@autocommit + 0",
        "SELECT @@character_set_client",
        "SELECT @@collation_connection",
        "SELECT @@innodb_lock_wait_timeout",
        "SELECT @@foreign_key_checks + 0",
        "SELECT @@sql_select_limit",
        "SELECT @@auto_increment_increment",
        "SELECT @@timestamp > 1000000",
        "SELECT @tenant",
        "SELECT DATABASE()",
        "SELECT IS_USED_LOCK('havoc')",
        "SELECT COUNT(*) FROM ledger WHERE msg_id = 'none'",
    ];

    /// What a handler can do to a session.
    const HAVOC: [&str; 13] = [
        "SET SESSION sql_mode = 'ANSI_QUOTES'",
        "SET SESSION time_zone = '+05:00'",
        "SET SESSION autocommit = 0",
        "SET NAMES latin1",
        "SET SESSION innodb_lock_wait_timeout = 1",
        "SET SESSION foreign_key_checks = 0",
        "SET SESSION sql_select_limit = 1",
        "SET SESSION auto_increment_increment = 7",
        "SET SESSION timestamp = 1",
        "SET @tenant = 'havoc', @`an odd ``name` = 1",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION TRANSACTION READ ONLY",
        "DO GET_LOCK('havoc', 1)",
    ];

    /// The same look at every connection of a pool, from outside the inbox.
    async fn look_at_pool(pool: &Pool<MySql>) -> Vec<Vec<String>> {
        let mut looks = Vec::new();
        let mut connections = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            let mut conn = pool.acquire().await.unwrap();
            let mut seen = Vec::new();
            for sql in LOOK
                .into_iter()
                .chain(["SELECT @@tx_isolation", "SELECT @@tx_read_only"])
            {
                let sql = format!("SELECT CAST(({sql}) AS CHAR)");
                let value: Option<String> = sqlx::query_scalar(AssertSqlSafe(sql))
                    .fetch_one(&mut *conn)
                    .await
                    .unwrap();
                seen.push(value.unwrap_or_default());
            }
            looks.push(seen);
            connections.push(conn);
        }
        looks
    }

    fn look() -> Vec<Step> {
        std::iter::once("SELECT CONNECTION_ID()")
            .chain(LOOK)
            .map(run)
            .collect()
    }

    /// m-1 and m-3 look, m-2 wreaks havoc in between; then the pool's next users look. All see the same.
    async fn sees_nothing(sandbox: &Sandbox<MySql>, pool: &Pool<MySql>) -> Vec<String> {
        let before = look_at_pool(pool).await;
        assert_eq!(before[0], before[1]);
        let script = Script::default()
            .always("m-1", look())
            .always("m-2", HAVOC.map(run))
            .always("m-3", look());
        let stage = Stage::start(pool, script, charge::handler(), |builder| builder).await;
        for id in ["m-1", "m-2", "m-3"] {
            stage.deliver(id).await;
            let answers = stage.script.answers(id);
            assert_eq!(stage.script.runs(id), 1, "{id} failed: {answers:?}");
        }
        let (first, last) = (stage.script.answers("m-1"), stage.script.answers("m-3"));
        assert_eq!(first, last, "the first answer is the number of the session");
        assert_eq!(first[1..], before[0][..LOOK.len()]);
        idle(pool).await;
        assert_eq!(look_at_pool(pool).await, before);
        for id in ["m-1", "m-2", "m-3"] {
            sandbox.assert_stored_once(id).await;
        }
        stage.stop().await;
        first
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_that_a_handler_sets_on_its_session_reaches_the_next_message_or_user() {
        let sandbox = MySql::fresh(2).await;
        sees_nothing(&sandbox, &sandbox.pool).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_the_pool_set_on_its_sessions_stays() {
        let sandbox = MySql::fresh(2).await;
        let options = MySqlConnectOptions::clone(&sandbox.pool.connect_options());
        let pool = MySqlPoolOptions::new()
            .max_connections(2)
            .after_connect(|conn, _| {
                Box::pin(async move {
                    let set = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES', time_zone = '-03:00', \
                               innodb_lock_wait_timeout = 17, foreign_key_checks = 0, tx_isolation = 'READ-UNCOMMITTED'";
                    sqlx::raw_sql(set).execute(conn).await?;
                    Ok(())
                })
            })
            .connect_with(options)
            .await
            .unwrap();
        let seen = sees_nothing(&sandbox, &pool).await;
        assert_eq!(seen[1], "NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES");
        assert_eq!((&*seen[2], &*seen[6], &*seen[7]), ("-03:00", "17", "0"));
    }

    /// Another database, or temporary tables: the next message gets another session.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_cannot_be_taken_back_costs_the_session() {
        let scratch = "CREATE TEMPORARY TABLE scratch (id INT)";
        for (havoc, then) in [
            ("USE information_schema", "SELECT DATABASE()"),
            (scratch, scratch),
            ("CREATE TEMPORARY TABLE ledger_copy LIKE ledger", "SELECT 1"),
        ] {
            let sandbox = MySql::fresh(3).await;
            let id = || run("SELECT CONNECTION_ID()");
            let script = Script::default()
                .always("m-1", [id(), run(havoc)])
                .always("m-2", [id(), run(then)])
                // Also behind a failure.
                .once("m-3", [run(havoc), Step::Fail("once")])
                .always("m-4", [id(), run(then)]);
            let stage =
                Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
            for id in ["m-1", "m-2", "m-3", "m-4"] {
                stage.deliver(id).await;
                sandbox.assert_stored_once(id).await;
            }
            let sessions = ["m-1", "m-2", "m-4"].map(|id| stage.script.answers(id)[0].clone());
            assert_ne!(sessions[0], sessions[1], "{havoc}");
            assert_ne!(sessions[1], sessions[2], "{havoc}");
            assert_ne!(stage.script.answers("m-2")[1], "information_schema");
            assert_eq!(stage.script.runs("m-2") + stage.script.runs("m-4"), 2);
            stage.stop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_holder_that_is_cut_off_is_ended_by_the_server() {
        let sandbox = MySql::fresh(3).await;
        let limits =
            "SELECT CONCAT(@@idle_transaction_timeout, ' ', CAST(@@max_statement_time AS SIGNED))";
        let script = Script::default()
            .always("m-1", [run(limits)])
            // A time limit of the server works in a transaction of ours, whatever sets it.
            .once(
                "m-2",
                [
                    run("SET SESSION idle_transaction_timeout = 1"),
                    Step::Sleep(Duration::from_secs(3)),
                    run("SELECT 1"),
                ],
            );
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| builder).await;
        stage.deliver("m-1").await;
        // The handler's 20 s and the margin.
        assert_eq!(stage.script.answers("m-1"), ["50 50"]);
        stage.deliver("m-2").await;
        assert_eq!(stage.script.runs("m-2"), 2);
        sandbox.assert_stored_once("m-2").await;
        stage.stop().await;
    }
}

mod on_sqlite {
    use super::sqlite::charge;
    use super::*;
    use sqlx::Sqlite;

    const LOOK: [&str; 2] = [
        "SELECT CAST(timeout AS TEXT) FROM pragma_busy_timeout",
        "SELECT CAST(count(*) AS TEXT) FROM temp.sqlite_schema",
    ];

    const HAVOC: [&str; 5] = [
        "PRAGMA busy_timeout = 1",
        "CREATE TEMP TABLE ledger (msg_id TEXT)",
        "CREATE TEMP TABLE inbox_processed_messages (message_id TEXT PRIMARY KEY)",
        "CREATE TEMP VIEW accounts AS SELECT 1 AS id",
        "CREATE TEMP TRIGGER havoc AFTER INSERT ON main.ledger BEGIN SELECT RAISE(FAIL, 'havoc'); END",
    ];

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_that_a_handler_does_to_its_session_reaches_the_next_message_or_user() {
        let sandbox = Sqlite::fresh(2).await;
        let script = Script::default()
            .always("m-1", LOOK.map(run))
            .always("m-2", HAVOC.map(run))
            .always("m-3", LOOK.map(run))
            .always("m-4", HAVOC.map(run));
        let stage = Stage::start(&sandbox.pool, script, charge::handler(), |builder| {
            builder.claim_wait(Duration::from_millis(1234))
        })
        .await;
        for id in ["m-1", "m-2", "m-3", "m-4"] {
            stage.deliver(id).await;
            assert_eq!(
                stage.script.runs(id),
                1,
                "{id} failed: {:?}",
                stage.script.answers(id)
            );
        }
        assert_eq!(stage.script.answers("m-1"), ["1234", "0"]);
        assert_eq!(stage.script.answers("m-3"), ["1234", "0"]);
        idle(&sandbox.pool).await;
        let mut held = Vec::new();
        for number in 0..2 {
            let mut conn = sandbox.pool.acquire().await.unwrap();
            for (sql, expected) in LOOK.into_iter().zip(["5000", "0"]) {
                let value: String = sqlx::query_scalar(sql).fetch_one(&mut *conn).await.unwrap();
                assert_eq!(value, expected, "{sql}");
            }
            // No hook refuses what its new user commits.
            let sql = format!("INSERT INTO accounts (id, balance) VALUES ('new-{number}', 0)");
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut *conn)
                .await
                .unwrap();
            held.push(conn);
        }
        drop(held);
        for id in ["m-1", "m-2", "m-3", "m-4"] {
            sandbox.assert_stored_once(id).await;
        }
        stage.stop().await;
    }
}
