//! The RabbitMQ adapter against a real server: `AMQP_URL` and `RABBITMQ_MANAGEMENT_URL` say which.
#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use inbox_core::IdProblem;
use inbox_runtime::brokers::{Declaration, QueueKind, RabbitMq, RabbitMqSource};
use inbox_runtime::{
    Assignment, Delivery, Envelope, PublishError, Publisher, SettleError, SettleToken, Source,
    SourceError, Verdict,
};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::time::timeout;

const HAND_BACK: Verdict = Verdict::HandBack { delay: None };

fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: these tests need a RabbitMQ server, which `tests/run` starts")
    })
}

fn url() -> String {
    setting("AMQP_URL")
}

fn broker() -> RabbitMq {
    RabbitMq::new(url())
}

/// A name that no other test and no other run uses.
fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("inbox-test-{}-{next}-{what}", std::process::id())
}

/// A queue that the server removes by itself should the test not come so far.
fn short_lived(kind: QueueKind) -> Declaration {
    Declaration::new(kind).argument("x-expires", 120_000)
}

/// A connection of the test's own, past the adapter.
struct Server {
    _connection: Connection,
    channel: Channel,
}

impl Server {
    async fn connect() -> Self {
        let connection = Connection::connect(&url(), ConnectionProperties::default())
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .unwrap();
        Self {
            _connection: connection,
            channel,
        }
    }

    async fn publish(&self, queue: &str, payload: &[u8], properties: BasicProperties) {
        let confirmation = self
            .channel
            .basic_publish(
                "".into(),
                queue.into(),
                BasicPublishOptions::default(),
                payload,
                properties,
            )
            .await
            .unwrap()
            .await
            .unwrap();
        assert!(confirmation.is_ack());
    }

    async fn publish_ids(&self, queue: &str, ids: &[&str]) {
        for id in ids {
            let properties = BasicProperties::default().with_message_id((*id).into());
            self.publish(queue, id.as_bytes(), properties).await;
        }
    }

    /// Messages and consumers of a queue.
    async fn counts(&self, queue: &str) -> (u32, u32) {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = self
            .channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .unwrap();
        (queue.message_count(), queue.consumer_count())
    }

    async fn until_counts(&self, queue: &str, wanted: (u32, u32)) {
        let started = Instant::now();
        loop {
            let counts = self.counts(queue).await;
            if counts == wanted {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{queue} has {counts:?} and not {wanted:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn delete(&self, queue: &str) {
        self.channel
            .queue_delete(queue.into(), QueueDeleteOptions::default())
            .await
            .unwrap();
    }
}

async fn open(source: &RabbitMqSource, prefetch: usize) -> Assignment {
    assert_eq!(source.problems(), Vec::<String>::new());
    source
        .open(NonZeroUsize::new(prefetch).unwrap())
        .await
        .unwrap()
}

async fn refused(source: &RabbitMqSource) -> String {
    source
        .open(NonZeroUsize::MIN)
        .await
        .expect_err("the source must not open")
        .to_string()
}

async fn next(assignment: &mut Assignment) -> Delivery {
    timeout(Duration::from_secs(20), assignment.deliveries.next())
        .await
        .expect("a delivery in time")
        .unwrap()
        .expect("a delivery")
}

/// The error that ends the assignment; what was delivered before the end was noticed may come first.
async fn lost(assignment: &mut Assignment) -> SourceError {
    timeout(Duration::from_secs(20), async {
        loop {
            match assignment.deliveries.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a loss is not an orderly end"),
                Err(error) => return error,
            }
        }
    })
    .await
    .expect("the loss is noticed in time")
}

async fn nothing_comes(assignment: &mut Assignment) -> bool {
    timeout(Duration::from_millis(300), assignment.deliveries.next())
        .await
        .is_err()
}

async fn settle(
    assignment: &Assignment,
    token: SettleToken,
    verdict: Verdict,
) -> Result<(), SettleError> {
    let answers = assignment.settle.settle(vec![(token, verdict)]).await;
    let [answer] = <[_; 1]>::try_from(answers).expect("one answer");
    answer
}

fn id(delivery: &Delivery) -> &str {
    delivery.envelope.id.as_deref().unwrap()
}

/// Publishes a message whose properties are these very bytes, as no AMQP client would.
fn publish_raw(queue: &str, flags: u16, properties: &[u8]) {
    let short = |bytes: &[u8]| [&[u8::try_from(bytes.len()).unwrap()], bytes].concat();
    let frame = |kind: u8, channel: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, channel], &length[..], payload, &[0xCE]].concat()
    };
    let method = |channel: u8, class: u8, method: u8, arguments: &[u8]| {
        frame(1, channel, &[&[0, class, 0, method], arguments].concat())
    };
    let rest = url().split_once("://").unwrap().1.to_owned();
    let (user, place) = rest.rsplit_once('@').unwrap();
    let (user, password) = user.split_once(':').unwrap();
    let mut stream = TcpStream::connect(place.split('/').next().unwrap()).unwrap();
    let mut answer = |send: &[u8]| {
        stream.write_all(send).unwrap();
        let mut head = [0; 7];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
        let mut payload = vec![0; length as usize + 1];
        stream.read_exact(&mut payload).unwrap();
        (u16::from(payload[1]), u16::from(payload[3]))
    };
    assert_eq!(answer(b"AMQP\0\0\x09\x01"), (10, 10));
    let response = format!("\0{user}\0{password}");
    let start = [
        &[0; 4],
        &short(b"PLAIN")[..],
        &u32::try_from(response.len()).unwrap().to_be_bytes(),
        response.as_bytes(),
        &short(b"en_US"),
    ]
    .concat();
    assert_eq!(answer(&method(0, 10, 11, &start)), (10, 30));
    let tune = method(0, 10, 31, &[0, 10, 0, 2, 0, 0, 0, 0]);
    let open = method(0, 10, 40, &[1, b'/', 0, 0]);
    assert_eq!(answer(&[tune, open].concat()), (10, 41));
    assert_eq!(answer(&method(1, 20, 10, &[0])), (20, 11));
    assert_eq!(answer(&method(1, 85, 10, &[0])), (85, 11));
    let publish = [&[0, 0, 0], &short(queue.as_bytes())[..], &[0]].concat();
    let header = [
        &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..],
        &flags.to_be_bytes(),
        properties,
    ]
    .concat();
    let message = [
        method(1, 60, 40, &publish),
        frame(2, 1, &header),
        frame(3, 1, b"x"),
    ]
    .concat();
    assert_eq!(answer(&message), (60, 80), "the server confirms");
}

/// One request to the server's management interface: status and body.
fn manage(method: &str, path: &str) -> (u16, String) {
    let url = setting("RABBITMQ_MANAGEMENT_URL");
    let rest = url.strip_prefix("http://").expect("a http url");
    let (user, host) = rest.split_once('@').expect("a user in the url");
    let host = host.trim_end_matches('/');
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\nAuthorization: Basic {}\r\n\r\n",
        base64(user.as_bytes())
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a http answer");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let bits = chunk
                .iter()
                .chain([0, 0].iter())
                .take(3)
                .fold(0, |bits, byte| bits << 8 | usize::from(*byte));
            (0..4).map(move |digit| {
                if digit > chunk.len() {
                    '='
                } else {
                    char::from(DIGITS[bits >> (18 - 6 * digit) & 63])
                }
            })
        })
        .collect()
}

/// The server's names of the connections with this name of ours. Its list is some seconds old.
async fn connections(name: &str) -> Vec<String> {
    let (status, body) = tokio::task::spawn_blocking(|| {
        manage("GET", "/api/connections?columns=name,user_provided_name")
    })
    .await
    .unwrap();
    assert_eq!(status, 200, "{body}");
    let list: serde_json::Value = serde_json::from_str(&body).unwrap();
    list.as_array()
        .unwrap()
        .iter()
        .filter(|connection| connection["user_provided_name"] == name)
        .map(|connection| connection["name"].as_str().unwrap().to_owned())
        .collect()
}

async fn until_connections(name: &str, count: usize) -> Vec<String> {
    let started = Instant::now();
    loop {
        let found = connections(name).await;
        if found.len() == count {
            return found;
        }
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{found:?} and not {count} connections called {name}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Lets the server close the connections with this name of ours.
async fn kill(name: &str) {
    for connection in until_connections(name, 1).await {
        let path: String = connection
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let path = format!("/api/connections/{path}");
        let (status, body) = tokio::task::spawn_blocking(move || manage("DELETE", &path))
            .await
            .unwrap();
        assert_eq!(status, 204, "{body}");
    }
}

#[tokio::test]
async fn a_message_arrives_as_its_producer_made_it() {
    let server = Server::connect().await;
    let queue = unique("mapping");
    let mut assignment = open(
        &broker()
            .queue(&queue)
            .declare(short_lived(QueueKind::Classic)),
        1,
    )
    .await;
    let mut nested = FieldTable::default();
    nested.insert("n".into(), AMQPValue::LongInt(1));
    nested.insert("t".into(), AMQPValue::LongString("x".into()));
    let mut headers = BTreeMap::<ShortString, AMQPValue>::new();
    for (name, value) in [
        (
            "array",
            AMQPValue::FieldArray(FieldArray::from(vec![
                AMQPValue::Boolean(false),
                AMQPValue::LongString("a".into()),
            ])),
        ),
        ("binary", AMQPValue::LongString(vec![0, 255, 13].into())),
        ("bool", AMQPValue::Boolean(true)),
        ("bytes", AMQPValue::ByteArray(vec![1, 254].into())),
        (
            "decimal",
            AMQPValue::DecimalValue(DecimalValue {
                scale: 2,
                value: 1205,
            }),
        ),
        ("double", AMQPValue::Double(-0.25)),
        ("empty", AMQPValue::LongString("".into())),
        ("float", AMQPValue::Float(1.5)),
        ("i16", AMQPValue::ShortInt(-300)),
        ("i32", AMQPValue::LongInt(-70_000)),
        ("i64", AMQPValue::LongLongInt(i64::MAX)),
        ("i8", AMQPValue::ShortShortInt(-7)),
        ("none", AMQPValue::Void),
        ("table", AMQPValue::FieldTable(nested)),
        ("text", AMQPValue::LongString("grüße".into())),
        ("time", AMQPValue::Timestamp(1_700_000_000)),
        ("u16", AMQPValue::ShortUInt(60_000)),
        ("u32", AMQPValue::LongUInt(4_000_000_000)),
        ("u8", AMQPValue::ShortShortUInt(200)),
    ] {
        headers.insert(name.into(), value);
    }
    let payload: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let properties = BasicProperties::default()
        .with_message_id(" Ü-1 ".into())
        .with_type("OrderPlaced".into())
        .with_content_type("application/octet-stream".into())
        .with_correlation_id("c-1".into())
        .with_timestamp(1_700_000_000)
        .with_headers(headers.into());
    server.publish(&queue, &payload, properties).await;

    let delivery = next(&mut assignment).await;
    let envelope = &delivery.envelope;
    assert_eq!(envelope.id.as_deref(), Some(" Ü-1 "));
    assert_eq!(envelope.message_type.as_deref(), Some("OrderPlaced"));
    assert_eq!(
        envelope.content_type.as_deref(),
        Some("application/octet-stream")
    );
    assert_eq!(envelope.correlation_id.as_deref(), Some("c-1"));
    assert_eq!(envelope.key.as_deref(), Some(queue.as_str()));
    let published_at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert_eq!(envelope.published_at, Some(published_at));
    assert_eq!(envelope.payload, payload);
    assert!(!delivery.redelivered);
    assert_eq!(delivery.earlier_deliveries, None);
    let expected: [(&str, &[u8]); 18] = [
        ("array", br#"[false,"a"]"#),
        ("binary", &[0, 255, 13]),
        ("bool", b"true"),
        ("bytes", &[1, 254]),
        ("decimal", b"12.05"),
        ("double", b"-0.25"),
        ("empty", b""),
        ("float", b"1.5"),
        ("i16", b"-300"),
        ("i32", b"-70000"),
        ("i64", b"9223372036854775807"),
        ("i8", b"-7"),
        ("table", br#"{"n":1,"t":"x"}"#),
        ("text", "grüße".as_bytes()),
        ("time", b"1700000000"),
        ("u16", b"60000"),
        ("u32", b"4000000000"),
        ("u8", b"200"),
    ];
    assert_eq!(envelope.headers.iter().collect::<Vec<_>>(), expected);
    settle(&assignment, delivery.token, Verdict::Ack)
        .await
        .unwrap();

    // Nothing set at all, and an empty payload.
    server
        .publish(&queue, b"", BasicProperties::default())
        .await;
    let bare = next(&mut assignment).await;
    assert_eq!(bare.envelope, Envelope::new("").key(&queue));
    settle(&assignment, bare.token, Verdict::Ack).await.unwrap();

    // The values that other systems are known to send: nothing where an id should be, milliseconds as seconds.
    server
        .publish(
            &queue,
            b"{}",
            BasicProperties::default()
                .with_message_id("".into())
                .with_timestamp(u64::MAX),
        )
        .await;
    let odd = next(&mut assignment).await;
    assert_eq!(odd.envelope.id.as_deref(), Some(""));
    assert_eq!(odd.envelope.published_at, None);
    settle(&assignment, odd.token, Verdict::Ack).await.unwrap();
    server.delete(&queue).await;
}

#[tokio::test]
async fn an_id_header_without_a_value_is_a_missing_id() {
    let server = Server::connect().await;
    let queue = unique("null-id");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Classic))
        .id_header("x-event-id");
    let mut assignment = open(&source, 1).await;
    let mut headers = FieldTable::default();
    headers.insert("x-event-id".into(), AMQPValue::Void);
    let properties = BasicProperties::default().with_headers(headers);
    server.publish(&queue, b"{}", properties).await;
    let delivery = next(&mut assignment).await;
    let problem = delivery.envelope.identify(
        inbox_runtime::DedupKey::MessageId,
        &source.id_sources(),
        None,
    );
    assert!(
        matches!(&problem, Err(IdProblem::Missing { looked_at }) if looked_at.contains("x-event-id")),
        "{problem:?}"
    );
    server.delete(&queue).await;
}

#[tokio::test]
async fn no_message_is_too_odd_to_be_delivered() {
    let server = Server::connect().await;
    let queue = unique("odd");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Quorum));
    let mut assignment = open(&source, 10).await;
    let long = |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
    let nested = (0..5_000).fold(vec![b'V'], |inner, _| [&b"A"[..], &long(&inner)].concat());
    let raw = queue.clone();
    tokio::task::spawn_blocking(move || {
        publish_raw(&raw, 1 << 7, b"\x02\xff\xfe");
        publish_raw(&raw, 1 << 13, &long(b"\x02\xffnS\0\0\0\x01v"));
        publish_raw(&raw, 1 << 13, &long(&[b"\x01h", &nested[..]].concat()));
    })
    .await
    .unwrap();
    server.publish_ids(&queue, &["ordinary"]).await;

    let odd = next(&mut assignment).await;
    let problem = odd.envelope.identify(
        inbox_runtime::DedupKey::MessageId,
        &source.id_sources(),
        None,
    );
    assert!(
        matches!(problem, Err(IdProblem::Invalid { .. })),
        "{problem:?}"
    );
    let named = next(&mut assignment).await;
    assert_eq!(named.envelope.headers.get("?n"), Some(&b"v"[..]));
    let deep = next(&mut assignment).await;
    assert!(deep.envelope.headers.get("h").is_some());
    let ordinary = next(&mut assignment).await;
    assert_eq!(id(&ordinary), "ordinary");
    for delivery in [odd, named, deep, ordinary] {
        settle(&assignment, delivery.token, Verdict::Ack)
            .await
            .unwrap();
    }
    drop(assignment);
    server.until_counts(&queue, (0, 0)).await;
    server.delete(&queue).await;
}

#[tokio::test]
async fn never_more_than_the_prefetch_is_unsettled() {
    let server = Server::connect().await;
    let queue = unique("prefetch");
    let mut assignment = open(
        &broker()
            .queue(&queue)
            .declare(short_lived(QueueKind::Quorum)),
        3,
    )
    .await;
    server
        .publish_ids(&queue, &["0", "1", "2", "3", "4", "5", "6"])
        .await;
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(next(&mut assignment).await);
    }
    assert!(nothing_comes(&mut assignment).await);
    // The others are still in the queue, not in a buffer of ours.
    server.until_counts(&queue, (4, 1)).await;
    let first = taken.remove(0);
    settle(&assignment, first.token, Verdict::Ack)
        .await
        .unwrap();
    assert_eq!(id(&next(&mut assignment).await), "3");
    assert!(nothing_comes(&mut assignment).await);
    drop(assignment);
    server.until_counts(&queue, (6, 0)).await;
    server.delete(&queue).await;
}

#[tokio::test]
async fn a_quorum_queue_counts_and_a_classic_one_only_flags() {
    let server = Server::connect().await;
    for (kind, counts) in [
        (QueueKind::Quorum, [Some(0), Some(1), Some(2)]),
        (QueueKind::Classic, [None; 3]),
    ] {
        let queue = unique("counts");
        let source = broker().queue(&queue).declare(short_lived(kind));
        let mut assignment = open(&source, 1).await;
        server.publish_ids(&queue, &["a"]).await;
        for (earlier, count) in counts.into_iter().enumerate() {
            let delivery = next(&mut assignment).await;
            assert_eq!(delivery.redelivered, earlier > 0, "{kind:?}");
            assert_eq!(delivery.earlier_deliveries, count, "{kind:?}");
            settle(&assignment, delivery.token, HAND_BACK)
                .await
                .unwrap();
        }
        let delivery = next(&mut assignment).await;
        settle(&assignment, delivery.token, Verdict::Ack)
            .await
            .unwrap();
        assert!(nothing_comes(&mut assignment).await);
        drop(assignment);
        server.until_counts(&queue, (0, 0)).await;
        server.delete(&queue).await;
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_order() {
    let server = Server::connect().await;
    let queue = unique("batch");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Quorum));
    let mut assignment = open(&source, 10).await;
    server.publish_ids(&queue, &["a", "b", "c"]).await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(next(&mut assignment).await.token);
    }
    let used = SettleToken::new(tokens[0].number());
    let mut tokens = tokens.into_iter();
    let answers = assignment
        .settle
        .settle(vec![
            (tokens.next().unwrap(), Verdict::Ack),
            // A second settle of one delivery would close the channel; it is answered and not sent.
            (used, Verdict::Ack),
            (SettleToken::new(u64::MAX), Verdict::Ack),
            (tokens.next().unwrap(), HAND_BACK),
            (tokens.next().unwrap(), Verdict::Ack),
        ])
        .await;
    assert!(
        matches!(
            answers[..],
            [
                Ok(()),
                Err(SettleError::Gone),
                Err(SettleError::Gone),
                Ok(()),
                Ok(())
            ]
        ),
        "{answers:?}"
    );
    let again = next(&mut assignment).await;
    assert_eq!(id(&again), "b");
    settle(&assignment, again.token, Verdict::Ack)
        .await
        .unwrap();
    assert!(nothing_comes(&mut assignment).await);
    drop(assignment);
    server.until_counts(&queue, (0, 0)).await;
    server.delete(&queue).await;
}

#[tokio::test]
async fn a_dropped_assignment_leaves_no_connection_and_no_message_behind() {
    let server = Server::connect().await;
    let queue = unique("dropped");
    let source = broker()
        .connection_name(&queue)
        .queue(&queue)
        .declare(short_lived(QueueKind::Quorum));
    let mut assignment = open(&source, 2).await;
    server.publish_ids(&queue, &["a", "b", "c"]).await;
    let taken = next(&mut assignment).await;
    assert_eq!(id(&taken), "a");
    until_connections(&queue, 1).await;
    // As long as one half lives, the delivery can be settled.
    let Assignment { deliveries, settle } = assignment;
    drop(deliveries);
    let answers = settle.settle(vec![(taken.token, Verdict::Ack)]).await;
    assert!(answers[0].is_ok());
    drop(settle);
    server.until_counts(&queue, (2, 0)).await;
    until_connections(&queue, 0).await;

    let mut assignment = open(&source, 2).await;
    let again = next(&mut assignment).await;
    assert_eq!(id(&again), "b");
    assert!(again.redelivered);
    assert_eq!(again.earlier_deliveries, Some(1));
    server.delete(&queue).await;
}

#[tokio::test]
async fn a_token_of_a_killed_connection_settles_nothing_anywhere() {
    let server = Server::connect().await;
    let queue = unique("killed");
    let source = broker()
        .connection_name(&queue)
        .queue(&queue)
        .declare(short_lived(QueueKind::Quorum));
    let mut assignment = open(&source, 2).await;
    server.publish_ids(&queue, &["a", "b", "c"]).await;
    let stale = next(&mut assignment).await;
    kill(&queue).await;
    let error = lost(&mut assignment).await.to_string();
    assert!(error.contains(&queue), "{error}");
    assert!(error.contains("CONNECTION_FORCED"), "{error}");
    // And it stays lost.
    assert!(assignment.settle.is_gone());
    assert_eq!(lost(&mut assignment).await.to_string(), error);

    let mut again = open(&source, 2).await;
    let first = next(&mut again).await;
    let second = next(&mut again).await;
    assert_eq!((id(&first), id(&second)), ("a", "b"));
    assert!(first.redelivered && second.redelivered);
    // Both channels know a delivery tag 1. Neither its own nor the new assignment lets the stale token through.
    let number = stale.token.number();
    for on in [&assignment, &again] {
        assert!(matches!(
            settle(on, SettleToken::new(number), Verdict::Ack).await,
            Err(SettleError::Gone)
        ));
    }
    assert!(nothing_comes(&mut again).await);
    settle(&again, second.token, Verdict::Ack).await.unwrap();
    drop((assignment, again));
    server.until_counts(&queue, (2, 0)).await;
    server.delete(&queue).await;
}

#[tokio::test]
async fn the_end_of_a_queue_is_an_error_and_not_an_end() {
    let server = Server::connect().await;
    let queue = unique("deleted");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Classic));
    let mut assignment = open(&source, 1).await;
    server.publish_ids(&queue, &["a"]).await;
    let delivery = next(&mut assignment).await;
    server.delete(&queue).await;
    let error = lost(&mut assignment).await.to_string();
    assert!(error.contains(&queue), "{error}");
    assert!(error.contains("deleted"), "{error}");
    // The channel lives on, so this is sent and does no harm.
    let _ = settle(&assignment, delivery.token, Verdict::Ack).await;
}

#[tokio::test]
async fn a_stopped_source_settles_what_it_took_and_returns_the_rest() {
    let server = Server::connect().await;
    let queue = unique("stopped");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Classic));
    let mut assignment = open(&source, 3).await;
    server.publish_ids(&queue, &["a", "b", "c", "d"]).await;
    let delivery = next(&mut assignment).await;
    // Until "b" and "c" are in the client's buffer.
    server.until_counts(&queue, (1, 1)).await;
    assignment.deliveries.stop().await;
    assert!(assignment.deliveries.next().await.unwrap().is_none());
    // The rest is there for others while "a" is still in work.
    server.until_counts(&queue, (3, 0)).await;
    settle(&assignment, delivery.token, Verdict::Ack)
        .await
        .unwrap();
    drop(assignment);
    server.until_counts(&queue, (3, 0)).await;
    let mut again = open(&source, 3).await;
    assert_eq!(id(&next(&mut again).await), "b");
    server.delete(&queue).await;
}

#[tokio::test]
async fn no_delivery_is_lost_with_a_dropped_future() {
    let server = Server::connect().await;
    let queue = unique("cancelled");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Classic));
    let mut assignment = open(&source, 500).await;
    let names: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let publishing = {
        let (queue, names) = (queue.clone(), names.clone());
        tokio::spawn(async move {
            for name in &names {
                server.publish_ids(&queue, &[name]).await;
            }
            server
        })
    };
    let mut seen = Vec::new();
    while seen.len() < names.len() {
        let delivery = timeout(Duration::from_micros(200), assignment.deliveries.next()).await;
        if let Ok(delivery) = delivery {
            seen.push(id(&delivery.unwrap().unwrap()).to_owned());
        }
    }
    assert_eq!(seen, names);
    publishing.await.unwrap().delete(&queue).await;
}

#[tokio::test]
async fn a_missing_queue_or_exchange_is_named_with_its_remedy() {
    let server = Server::connect().await;
    let queue = unique("missing");
    let error = refused(&broker().queue(&queue)).await;
    assert!(error.contains(&queue), "{error}");
    assert!(error.contains("declare(QueueKind::Quorum)"), "{error}");

    let exchange = unique("no-exchange");
    let declaration = short_lived(QueueKind::Classic).bind(&exchange, "#");
    let error = refused(&broker().queue(&queue).declare(declaration)).await;
    assert!(error.contains(&exchange), "{error}");
    assert!(error.contains("`bind`"), "{error}");

    // The attempt made the queue; now it exists with another kind.
    let error = refused(
        &broker()
            .queue(&queue)
            .declare(short_lived(QueueKind::Quorum)),
    )
    .await;
    assert!(error.contains("PRECONDITION_FAILED"), "{error}");
    assert!(error.contains("other settings"), "{error}");

    // An existing queue needs no declaration.
    server.publish_ids(&queue, &["a"]).await;
    assert_eq!(
        id(&next(&mut open(&broker().queue(&queue), 1).await).await),
        "a"
    );
    server.delete(&queue).await;
}

#[tokio::test]
async fn a_bound_queue_gets_what_its_exchange_gets() {
    let server = Server::connect().await;
    let queue = unique("bound");
    let declaration = short_lived(QueueKind::Quorum)
        .delivery_limit(50)
        .dead_letter_exchange("amq.fanout")
        .bind("amq.topic", format!("{queue}.*"));
    let mut assignment = open(&broker().queue(&queue).declare(declaration), 1).await;
    let destination = format!("amq.topic/{queue}.placed");
    let publisher = broker().publisher();
    publisher
        .publish(&destination, &Envelope::new("x").id("a"))
        .await
        .unwrap();
    let delivery = next(&mut assignment).await;
    assert_eq!(delivery.envelope.key, Some(format!("{queue}.placed")));
    server.delete(&queue).await;
}

#[tokio::test]
async fn wrong_credentials_name_the_setting_and_no_password() {
    let (scheme, rest) = url()
        .split_once("://")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let place = rest
        .rsplit_once('@')
        .map_or(rest.as_str(), |(_, place)| place);
    let host = place.split('/').next().unwrap();
    let credentials = rest
        .rsplit_once('@')
        .map_or("guest:guest", |(user, _)| user);
    for (url, says) in [
        (
            format!("{scheme}://guest:hunter2@{place}"),
            "user and password",
        ),
        (
            format!("{scheme}://{credentials}@{host}/hunter2-vhost"),
            "virtual host",
        ),
        (
            format!("{scheme}://u:hunter2@127.0.0.1:1/%2f"),
            "host and port",
        ),
    ] {
        let error = refused(&RabbitMq::new(&url).queue("orders")).await;
        assert!(error.contains(says), "{error}");
        assert!(error.contains("RabbitMq::new"), "{error}");
        assert!(!error.contains(":hunter2"), "{error}");
        assert!(!error.contains(":guest@"), "{error}");
    }
    let error = refused(&RabbitMq::new("amqp:u:hunter2").queue("orders")).await;
    assert!(
        error.contains("url") && !error.contains("hunter2"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let started = Instant::now();
    let url = format!("amqp://127.0.0.1:{port}/%2f?connection_timeout=300");
    let error = refused(&RabbitMq::new(url).queue("orders")).await;
    assert!(error.contains("did not answer"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn an_encrypted_url_is_never_plain_text() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reading = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let limit = Some(Duration::from_millis(500));
        stream.set_read_timeout(limit).unwrap();
        let mut first = [0; 8];
        let length = stream.read(&mut first).unwrap_or(0);
        first[..length].to_vec()
    });
    let url = format!("amqps://guest:hunter2@127.0.0.1:{port}/%2f?connection_timeout=2000");
    let error = refused(&RabbitMq::new(url).queue("orders")).await;
    assert!(error.contains("TLS"), "{error}");
    // With a TLS feature this is the beginning of its handshake, without one there is nothing.
    let first = reading.await.unwrap();
    assert!(!first.starts_with(b"AMQP"), "{first:?}");
}

#[tokio::test]
async fn a_published_message_arrives_unchanged() {
    let server = Server::connect().await;
    let queue = unique("published");
    let mut assignment = open(
        &broker()
            .queue(&queue)
            .declare(short_lived(QueueKind::Quorum)),
        1,
    )
    .await;
    let mut envelope = Envelope::new(vec![0, 255, 7])
        .id("m-1")
        .message_type("OrderPlaced")
        .content_type("application/json")
        .correlation_id("c-1")
        .header("text", "grüße")
        .header("zero", vec![0, 255]);
    envelope.published_at = Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let publisher = broker().publisher();
    publisher.publish(&queue, &envelope).await.unwrap();
    let mut delivery = next(&mut assignment).await;
    assert_eq!(
        delivery.envelope.key.take().as_deref(),
        Some(queue.as_str())
    );
    // A quorum queue adds its count to the headers.
    let headers = std::mem::take(&mut delivery.envelope.headers);
    delivery.envelope.headers = headers
        .iter()
        .filter(|(name, _)| *name != "x-delivery-count")
        .map(|(name, value)| (name, value.to_vec()))
        .collect();
    assert_eq!(delivery.envelope, envelope);
    server.delete(&queue).await;
}

#[tokio::test]
async fn each_confirm_goes_to_its_own_message() {
    let server = Server::connect().await;
    let queue = unique("confirms");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Quorum));
    let assignment = open(&source, 1).await;
    let publisher = broker().publisher();
    let nowhere = unique("nowhere");
    let mut tasks = Vec::new();
    for n in 0..200 {
        let (publisher, queue) = (publisher.clone(), queue.clone());
        let nowhere = nowhere.clone();
        tasks.push(tokio::spawn(async move {
            let envelope = Envelope::new("x").id(n.to_string());
            let answer = match n % 4 {
                0 => publisher.publish(&nowhere, &envelope).await,
                1 => {
                    publisher
                        .publish(&format!("{nowhere}/key"), &envelope)
                        .await
                }
                _ => publisher.publish(&queue, &envelope).await,
            };
            (n, answer)
        }));
    }
    for task in tasks {
        let (n, answer) = task.await.unwrap();
        match (n % 4, &answer) {
            (0, Err(PublishError::Unroutable { destination })) => assert_eq!(*destination, nowhere),
            (1, Err(PublishError::Unroutable { .. })) | (2 | 3, Ok(())) => {}
            _ => panic!("{n}: {answer:?}"),
        }
    }
    drop(assignment);
    server.until_counts(&queue, (100, 0)).await;
    server.delete(&queue).await;
}

#[tokio::test]
async fn a_message_that_the_server_refuses_is_not_published() {
    let server = Server::connect().await;
    let queue = unique("full");
    let declaration = short_lived(QueueKind::Classic)
        .argument("x-max-length", 1)
        .argument("x-overflow", "reject-publish");
    drop(open(&broker().queue(&queue).declare(declaration), 1).await);
    server.until_counts(&queue, (0, 0)).await;
    let publisher = broker().publisher();
    let envelope = Envelope::new("x").id("a");
    publisher.publish(&queue, &envelope).await.unwrap();
    let answer = publisher.publish(&queue, &envelope).await;
    assert!(
        matches!(&answer, Err(PublishError::Refused { destination }) if *destination == queue),
        "{answer:?}"
    );
    // What cannot be sent at all takes nothing else down.
    let long = Envelope::new("x").id("a".repeat(300));
    let wide = Envelope::new("x").header("h", vec![b'x'; 200_000]);
    for envelope in [long, wide] {
        let answer = publisher.publish(&queue, &envelope).await;
        assert!(
            matches!(answer, Err(PublishError::Failed { .. })),
            "{answer:?}"
        );
    }
    server.until_counts(&queue, (1, 0)).await;
    server.delete(&queue).await;
}

#[tokio::test]
async fn a_publisher_connects_again_after_a_loss() {
    let server = Server::connect().await;
    let queue = unique("lost-publisher");
    let source = broker()
        .queue(&queue)
        .declare(short_lived(QueueKind::Classic));
    drop(open(&source, 1).await);
    let publisher = broker().connection_name(&queue).publisher();
    let envelope = Envelope::new("x").id("a");
    publisher.publish(&queue, &envelope).await.unwrap();
    kill(&queue).await;
    // The loss may be noticed only by a message that is then not published.
    let started = Instant::now();
    while let Err(error) = publisher.publish(&queue, &envelope).await {
        assert!(matches!(error, PublishError::Failed { .. }), "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    server.until_counts(&queue, (2, 0)).await;
    drop(publisher);
    until_connections(&queue, 0).await;
    server.delete(&queue).await;

    let unreachable = RabbitMq::new("amqp://u:hunter2@127.0.0.1:1").publisher();
    let answer = unreachable.publish(&queue, &envelope).await;
    assert!(matches!(&answer, Err(PublishError::Failed { .. })));
    assert!(!format!("{answer:?}").contains("hunter2"));
}
