//! What a message says reaches the text of a statement as data and nothing else.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::envelope::Envelope;

/// Any text, with what means something to a server or a parser more often than chance has it.
fn text() -> impl Strategy<Value = String> {
    let pointed = prop::sample::select(vec![
        "'",
        "''",
        "\\",
        "\\'",
        "\"",
        "\"\"",
        "$$",
        "$1",
        "$x$",
        ";",
        "--",
        "/*",
        "*/",
        "E'",
        "U&'\\0027'",
        "\0",
        "\r\n",
        "{",
        "}",
        "\",\"",
        "NULL",
        "');",
        "COMMIT",
        "\u{2019}",
        "\u{ff07}",
        "\u{fe00}",
        "\u{1f4a3}",
        "\u{10ffff}",
        "%s",
        "?",
        ":x",
    ]);
    let piece = prop_oneof![
        any::<char>().prop_map(String::from),
        pointed.prop_map(str::to_owned),
    ];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

#[derive(Debug)]
struct Message {
    id: String,
    envelope: Envelope,
}

fn message() -> impl Strategy<Value = Message> {
    let bytes = vec(any::<u8>(), 0..40);
    let optional = || prop::option::of(text());
    (text(), optional(), optional(), bytes).prop_map(|(id, name, correlation, payload)| {
        let mut envelope = Envelope::new(payload).id(id.as_str());
        if let Some(name) = name {
            envelope = envelope.message_type(name);
        }
        envelope.correlation_id = correlation;
        Message { id, envelope }
    })
}

fn statements() -> PostgresStatements {
    let effective = Effective {
        synchronous_commit: "on".to_owned(),
        fsync: "on".to_owned(),
        lock_timeout: "0".to_owned(),
        idle_limit: None,
        prepared_transactions: 0,
        in_recovery: false,
        version: 150_000,
        encoding: "UTF8".to_owned(),
        is_superuser: false,
        own_role: "RESET ROLE".to_owned(),
        own_settings: String::new(),
    };
    PostgresStatements::new(&Tables::default(), "public", &effective, true)
}

/// A settled session that has prepared everything.
fn session(claim_rows: String) -> PostgresGuard {
    PostgresGuard {
        is_settled: true,
        prepared: Prepared(Query::ALL.map(|query| Some(format!("inbox_{}", query as usize)))),
        claim_rows,
        ..PostgresGuard::default()
    }
}

/// The claims of these messages, their seal, and the question what is there under their ids.
fn texts(consumer: &str, messages: &[Message]) -> [String; 3] {
    let (statements, nonce) = (statements(), Nonce([b'0'; 16]));
    let keys: Vec<ClaimKey<'_>> = messages
        .iter()
        .map(|message| ClaimKey {
            consumer,
            message_id: &message.id,
        })
        .collect();
    let claims: Vec<Claim<'_>> = keys
        .iter()
        .zip(messages)
        .map(|(key, message)| Claim::new(*key, &message.envelope))
        .collect();
    let begin = "BEGIN".into();
    let claims = Claims {
        begin: &begin,
        claims: &claims,
    };
    let places: Vec<String> = (1..=messages.len())
        .map(|n| format!("\"(0,{n})\""))
        .collect();
    let mut guard = session(format!("{{{}}}", places.join(",")));
    let done = Done {
        keys: &keys,
        have_failures: true,
        is_durable: true,
    };
    let mut texts = [String::new(), String::new(), String::new()];
    let [claim, seal, existing] = &mut texts;
    statements.write_claims(claim, &mut guard, &claims, &nonce);
    let sealed = statements.write_seal(seal, &guard, &done, &nonce);
    assert_eq!(sealed.ok(), Some(5));
    let asked = statements.write_existing(existing, &mut guard, &keys, &nonce);
    assert_eq!(asked.ok().map(|preparing| preparing.statements), Some(0));
    texts
}

/// What stands between quotes, and the text without it. No literal of ours has a quote or a backslash inside, so
/// this is how the server reads it too, whatever its settings.
fn literals(text: &str) -> (Vec<&str>, String) {
    let mut frame = String::new();
    let mut literals = Vec::new();
    for (n, part) in text.split('\'').enumerate() {
        if n % 2 == 0 {
            frame.push_str(part);
            frame.push('\'');
        } else {
            literals.push(part);
        }
    }
    (literals, frame)
}

fn from_digits(digits: &str) -> Vec<u8> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    assert!(
        digits.bytes().all(is_digit) && digits.len().is_multiple_of(2),
        "not hex: {digits}"
    );
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| {
            let pair = std::str::from_utf8(pair).unwrap_or_default();
            u8::from_str_radix(pair, 16).unwrap_or_default()
        })
        .collect()
}

/// The elements of a literal that is one value, or an array of them.
fn values(literal: &str) -> Vec<Option<Vec<u8>>> {
    let Some(array) = literal.strip_prefix('{') else {
        return vec![Some(from_digits(literal))];
    };
    let array = array.strip_suffix('}').unwrap_or("no array");
    let elements = array.split(',');
    elements
        .map(|element| {
            let quoted = element.strip_prefix('"').and_then(|e| e.strip_suffix('"'));
            match quoted {
                Some(digits) => Some(from_digits(digits)),
                None => {
                    assert_eq!(element, "NULL");
                    None
                }
            }
        })
        .collect()
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_a_message_says_reaches_a_text_as_digits_that_mean_it_and_changes_nothing_else(
        consumer in text(),
        messages in vec(message(), 1..6),
    ) {
        let harmless: Vec<Message> = messages
            .iter()
            .map(|message| {
                let mut envelope = Envelope::new("").id("a");
                if message.envelope.type_name().is_some() {
                    envelope = envelope.message_type("a");
                }
                if message.envelope.correlation_id.is_some() {
                    envelope.correlation_id = Some("a".to_owned());
                }
                Message { id: "a".to_owned(), envelope }
            })
            .collect();
        let [claims, seal, existing] = texts(&consumer, &messages);
        for (text, harmless) in [&claims, &seal, &existing].into_iter().zip(texts("a", &harmless)) {
            prop_assert!(text.is_ascii());
            prop_assert_eq!(literals(text).1, literals(&harmless).1, "{}", text);
        }

        let (found, _) = literals(&claims);
        let claims: Vec<Claim<'_>> = messages
            .iter()
            .map(|message| {
                let key = ClaimKey { consumer: &consumer, message_id: &message.id };
                Claim::new(key, &message.envelope)
            })
            .collect();
        let is_one = claims.len() == 1;
        let mut found = found.into_iter();
        for part in 0..CLAIM_PARTS {
            let expected: Vec<Option<Vec<u8>>> = claims
                .iter()
                .map(|claim| claim_parts(claim)[part].map(<[u8]>::to_vec))
                .collect();
            // A single value that is none is a word of the text.
            if is_one && expected == [None] {
                continue;
            }
            prop_assert_eq!(found.next().map(values), Some(expected), "part {}", part);
        }
        prop_assert_eq!(found.next(), Some("0000000000000000"), "the nonce follows");

        let (found, _) = literals(&seal);
        let ids: Vec<_> = messages.iter().map(|message| Some(message.id.as_bytes().to_vec())).collect();
        prop_assert_eq!(values(found[1]), &*ids);
        prop_assert_eq!(values(found[2]), [Some(consumer.as_bytes().to_vec())]);

        let (found, _) = literals(&existing);
        prop_assert_eq!(values(found[0]), &*ids);
        prop_assert_eq!(values(found[1]), [Some(consumer.as_bytes().to_vec())]);
    }
}
