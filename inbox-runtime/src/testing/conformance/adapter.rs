//! The adapter alone: a source, its deliveries, its settles.

use std::collections::BTreeSet;
use std::time::Duration;

use inbox_core::{BoxError, Envelope, SettleToken, Verdict};
use tokio::time::Instant;

use super::rig::{Rig, Setup};
use super::scene::{order, orders};
use super::stage::{Opened, QUIET, Stage, Taken};
use super::{ensure, ensure_eq};

type Done = Result<(), BoxError>;

const AT_ONCE: Verdict = Verdict::HandBack { delay: None };

fn ids(taken: &[Taken]) -> Vec<&str> {
    taken.iter().map(|one| one.id.as_str()).collect()
}

/// The delivery of this message.
fn pick(taken: &mut Vec<Taken>, id: &str) -> Result<Taken, BoxError> {
    let position = taken.iter().position(|one| one.id == id);
    let position = position.ok_or_else(|| format!("`{id}` was not delivered"))?;
    Ok(taken.remove(position))
}

pub(super) async fn arrives_unchanged<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    let every_byte: Vec<u8> = (0..=255).collect();
    let payloads = [
        b"{\"account\":\"acc-1\"}".to_vec(),
        Vec::new(),
        b"\xff\xfe no text".to_vec(),
        every_byte,
        vec![b'x'; 100_000],
    ];
    for (n, payload) in payloads.iter().enumerate() {
        let message = Envelope::new(payload.clone())
            .id(format!("m-{n}"))
            .message_type("OrderPlaced")
            .header(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )
            .header("x-umlaut", "grüße");
        stage.rig.publish(&[message]).await?;
    }
    let mut opened = stage.open(payloads.len()).await?;
    let mut taken = opened.take(payloads.len()).await?;
    for (n, payload) in payloads.iter().enumerate() {
        let one = pick(&mut taken, &format!("m-{n}"))?;
        let envelope = &one.delivery.envelope;
        ensure!(
            envelope.payload == *payload,
            "the payload of `m-{n}` ({} bytes) arrives as other {} bytes",
            payload.len(),
            envelope.payload.len()
        );
        ensure_eq!(
            envelope.message_type.as_deref(),
            Some("OrderPlaced"),
            "the type of `m-{n}`"
        );
        ensure_eq!(
            envelope.headers.get_str("traceparent"),
            Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            "a header of `m-{n}`"
        );
        ensure_eq!(
            envelope.headers.get_str("x-umlaut"),
            Some("grüße"),
            "a header of `m-{n}`"
        );
        opened.ack(one).await?;
    }
    drop(opened);
    stage.ensure_left(0).await
}

pub(super) async fn unsettled_comes_again<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    stage.rig.publish(&orders(["m-1", "m-2", "m-3"])).await?;
    let mut first = stage.open(3).await?;
    let mut taken = first.take(3).await?;
    let acked = pick(&mut taken, "m-1")?;
    first.ack(acked).await?;
    drop((taken, first));

    let mut second = stage.open(3).await?;
    let again = second.take_ids(&["m-2", "m-3"]).await?;
    ensure!(
        again.iter().all(|one| one.id != "m-1"),
        "`m-1` was acked and came again: {:?}",
        ids(&again)
    );
    second.settle_all(again, Verdict::Ack).await?;
    ensure_silent(&mut second, "all are acked").await?;
    drop(second);
    stage.ensure_left(0).await
}

async fn ensure_silent(opened: &mut Opened, why: &str) -> Done {
    match opened.next_within(QUIET).await? {
        None => Ok(()),
        Some(taken) => Err(format!("{why}, and `{}` is delivered", taken.id).into()),
    }
}

pub(super) async fn any_order<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    let all: Vec<String> = (0..20).map(|n| format!("m-{n}")).collect();
    stage.rig.publish(&orders(all.clone())).await?;
    let mut first = stage.open(20).await?;
    let mut taken = first.take(20).await?;
    // Alone, from the back; then several at once with gaps and in no order; `m-3` and `m-11` are left.
    for id in ["m-19", "m-7"] {
        let one = pick(&mut taken, id)?;
        first.ack(one).await?;
    }
    for group in [
        &["m-5", "m-0", "m-12"][..],
        &["m-18", "m-1", "m-2", "m-10"],
        &["m-4", "m-6", "m-17", "m-8", "m-9"],
        &["m-16", "m-15", "m-13", "m-14"],
    ] {
        let mut together = Vec::new();
        for id in group {
            together.push(pick(&mut taken, id)?);
        }
        first.settle_all(together, Verdict::Ack).await?;
    }
    ensure_eq!(ids(&taken), ["m-3", "m-11"], "what is in work");
    drop((taken, first));

    let mut second = stage.open(20).await?;
    let again = second.take_ids(&["m-3", "m-11"]).await?;
    let acked: Vec<_> = again
        .iter()
        .map(|one| one.id.as_str())
        .filter(|id| !["m-3", "m-11"].contains(id))
        .collect();
    if stage.capabilities().acks_in_order {
        ensure!(
            !acked.iter().any(|id| ["m-0", "m-1", "m-2"].contains(id)),
            "before `m-3` all is acked, and {acked:?} came again"
        );
        let rest = drain(&mut second).await?;
        second.settle_all(rest, Verdict::Ack).await?;
    } else {
        ensure!(acked.is_empty(), "{acked:?} were acked and came again");
    }
    second.settle_all(again, Verdict::Ack).await?;
    drop(second);
    stage.ensure_left(0).await
}

/// Takes what else comes.
async fn drain(opened: &mut Opened) -> Result<Vec<Taken>, BoxError> {
    let mut rest = Vec::new();
    while let Some(taken) = opened.next_within(QUIET).await? {
        rest.push(taken);
    }
    Ok(rest)
}

pub(super) async fn settled_once<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    stage
        .rig
        .publish(&orders(["m-1", "m-2", "m-3", "m-4"]))
        .await?;
    let mut first = stage.open(4).await?;
    let mut taken = first.take_ids(&["m-1", "m-2", "m-3", "m-4"]).await?;
    let one = pick(&mut taken, "m-1")?;
    let number = one.delivery.token.number();
    first.ack(one).await?;
    // The type forbids it; an adapter that is asked all the same must not settle anything else for it. The answer is its
    // own affair: nothing is left to do.
    for verdict in [Verdict::Ack, AT_ONCE] {
        let _ = first
            .settle(vec![(SettleToken::new(number), verdict)])
            .await?;
    }
    let unknown = taken.iter().map(|one| one.delivery.token.number()).max();
    let unknown = unknown.unwrap_or_default().saturating_add(1_000_000);
    let answers = first
        .settle(vec![(SettleToken::new(unknown), Verdict::Ack)])
        .await?;
    ensure!(
        answers.iter().all(Result::is_err),
        "a token that was never given out is answered with Ok"
    );
    // The assignment is as good as before.
    let two = pick(&mut taken, "m-2")?;
    first.ack(two).await?;
    drop((taken, first));

    let mut second = stage.open(4).await?;
    let again = second.take_ids(&["m-3", "m-4"]).await?;
    ensure!(
        again.iter().all(|one| ["m-3", "m-4"].contains(&&*one.id)),
        "`m-1` and `m-2` were acked, and this came again: {:?}",
        ids(&again)
    );
    second.settle_all(again, Verdict::Ack).await?;
    drop(second);
    stage.ensure_left(0).await
}

pub(super) async fn stale_tokens<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    stage.rig.publish(&orders(["m-1", "m-2", "m-3"])).await?;
    let mut first = stage.open(1).await?;
    let one = first.next().await?;
    let mut numbers = vec![one.delivery.token.number()];
    let acked = one.id.clone();
    first.ack(one).await?;
    let two = first.next().await?;
    numbers.push(two.delivery.token.number());
    let left: BTreeSet<_> = ["m-1", "m-2", "m-3"]
        .into_iter()
        .filter(|id| *id != acked)
        .collect();
    drop((two, first));

    // Two are unsettled here, whose numbers may be anything but those of the first assignment, unless they name the same
    // messages.
    let mut second = stage.open(2).await?;
    let left: Vec<&str> = left.into_iter().collect();
    let again = second.take_ids(&left).await?;
    for number in numbers {
        let same = again
            .iter()
            .any(|one| one.delivery.token.number() == number && one.id != acked);
        if same && stage.capabilities().acks_in_order {
            // A position in a log is the same number in each assignment, and means the same message.
            continue;
        }
        let _ = second
            .settle(vec![(SettleToken::new(number), Verdict::Ack)])
            .await?;
    }
    drop((again, second));

    let mut third = stage.open(2).await?;
    let again = third.take_ids(&left).await?;
    third.settle_all(again, Verdict::Ack).await?;
    drop(third);
    stage.ensure_left(0).await
}

pub(super) async fn handed_back<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    stage.rig.publish(&orders(["m-1", "m-2", "m-3"])).await?;
    let mut first = stage.open(3).await?;
    let mut taken = first.take_ids(&["m-1", "m-2", "m-3"]).await?;
    let one = pick(&mut taken, "m-1")?;
    let two = pick(&mut taken, "m-2")?;
    // In one call with an ack of what is behind them.
    let three = pick(&mut taken, "m-3")?;
    let verdicts = vec![
        (one.delivery.token, AT_ONCE),
        (three.delivery.token, Verdict::Ack),
        (two.delivery.token, AT_ONCE),
    ];
    for (answer, what) in first
        .settle(verdicts)
        .await?
        .into_iter()
        .zip(["m-1", "m-3", "m-2"])
    {
        answer.map_err(|error| format!("`{what}`: {error}"))?;
    }
    // Where a log goes on only with the next assignment, it comes with that.
    drop((taken, first));
    let mut second = stage.open(3).await?;
    let again = second.take_ids(&["m-1", "m-2"]).await?;
    second.settle_all(again, Verdict::Ack).await?;
    let rest = drain(&mut second).await?;
    if !stage.capabilities().acks_in_order {
        ensure!(rest.is_empty(), "{:?} was acked and came again", ids(&rest));
    }
    second.settle_all(rest, Verdict::Ack).await?;
    drop(second);
    stage.ensure_left(0).await
}

pub(super) async fn handed_back_with_a_delay<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    let longest = stage.capabilities().longest_delay.unwrap_or_default();
    let delay = longest.min(Duration::from_secs(2));
    stage.rig.publish(&orders(["m-1"])).await?;
    let mut opened = stage.open(2).await?;
    let one = opened.next().await?;
    let before = Instant::now();
    opened
        .settle_all([one], Verdict::HandBack { delay: Some(delay) })
        .await?;
    // Others pass meanwhile.
    stage.rig.publish(&orders(["m-2"])).await?;
    let next = opened.next().await?;
    ensure_eq!(next.id.as_str(), "m-2", "what comes while `m-1` waits");
    opened.ack(next).await?;
    let again = opened.next().await?;
    let waited = before.elapsed();
    ensure_eq!(again.id.as_str(), "m-1", "what comes after the delay");
    // A broker's clock counts in its own steps.
    ensure!(
        waited + Duration::from_millis(50) >= delay,
        "it came after {waited:?}, and the delay was {delay:?}"
    );
    opened.ack(again).await?;
    drop(opened);
    stage.ensure_left(0).await
}

pub(super) async fn counted<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    stage.rig.publish(&orders(["m-1"])).await?;
    let mut last = None;
    for expected in 0..3 {
        let mut opened = stage.open(1).await?;
        let one = opened.next().await?;
        let count = one.delivery.earlier_deliveries;
        match expected {
            0 => {
                ensure_eq!(count, Some(0), "earlier deliveries at the first one");
                ensure!(
                    !one.delivery.redelivered,
                    "the first delivery is called a repetition"
                );
            }
            _ => {
                ensure!(count > last, "{count:?} earlier deliveries after {last:?}");
                ensure!(one.delivery.redelivered, "a repetition is not called one");
            }
        }
        last = count;
        if expected == 2 {
            opened.ack(one).await?;
        } else {
            opened.settle_all([one], AT_ONCE).await?;
        }
    }
    stage.ensure_left(0).await
}

pub(super) async fn within_the_prefetch<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    let all: Vec<String> = (0..12).map(|n| format!("m-{n}")).collect();
    stage.rig.publish(&orders(all)).await?;
    let mut opened = stage.open(4).await?;
    let mut taken = opened.take(4).await?;
    ensure_silent(&mut opened, "four of a prefetch of four are unsettled").await?;
    // Each settle makes room for one.
    for settled in 1..=8 {
        let one = taken.remove(0);
        opened.ack(one).await?;
        let next = opened.next().await;
        taken.push(next.map_err(|error| format!("{settled} of four were settled: {error}"))?);
    }
    ensure_silent(&mut opened, "all are delivered").await?;
    opened.settle_all(taken, Verdict::Ack).await?;
    drop(opened);
    stage.ensure_left(0).await
}

pub(super) async fn dropped_waits<R: Rig>() -> Done {
    const MESSAGES: usize = 200;
    let stage = Stage::<R>::new(Setup::Shared).await?;
    let mut opened = stage.open(MESSAGES).await?;
    let all: Vec<String> = (0..MESSAGES).map(|n| format!("m-{n}")).collect();
    let mut missing: BTreeSet<String> = all.iter().cloned().collect();
    let deadline = Instant::now() + stage.patience();
    let messages = orders(all);
    let publishing = async {
        for some in messages.chunks(10) {
            stage.rig.publish(some).await?;
        }
        Ok::<_, BoxError>(())
    };
    let taking = async {
        let mut waits = 0_u64;
        while !missing.is_empty() {
            ensure!(
                Instant::now() < deadline,
                "{} of {MESSAGES} messages do not come, the first is {:?}: dropping `next` lost them",
                missing.len(),
                missing.first()
            );
            waits += 1;
            // Asked once, or for about as long as a delivery takes.
            let next = match waits % 4 {
                0 => {
                    let wait = Duration::from_millis(waits % 20);
                    opened.next_within(wait).await?
                }
                _ => opened.next_at_once()?,
            };
            if let Some(taken) = next {
                ensure!(missing.remove(&taken.id), "`{}` came twice", taken.id);
                opened.ack(taken).await?;
            } else {
                tokio::task::yield_now().await;
            }
        }
        Ok::<_, BoxError>(())
    };
    futures_util::future::try_join(publishing, taking).await?;
    drop(opened);
    stage.ensure_left(0).await
}

pub(super) async fn stopped<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::Shared).await?;
    let all: Vec<String> = (0..6).map(|n| format!("m-{n}")).collect();
    stage.rig.publish(&orders(all)).await?;
    let mut opened = stage.open(4).await?;
    let taken = opened.take(2).await?;
    opened.stop().await?;
    opened.stop().await?;
    ensure_silent(&mut opened, "it was stopped").await?;
    let done: Vec<String> = taken.iter().map(|one| one.id.clone()).collect();
    opened.settle_all(taken, Verdict::Ack).await?;
    drop(opened);

    let mut next = stage.open(6).await?;
    let rest = next.take(4).await?;
    ensure!(
        rest.iter().all(|one| !done.contains(&one.id)),
        "{done:?} were acked after the stop, and this comes: {:?}",
        ids(&rest)
    );
    next.settle_all(rest, Verdict::Ack).await?;
    drop(next);
    stage.ensure_left(0).await
}

pub(super) async fn kept_beyond_its_lease<R: Rig>() -> Done {
    let stage = Stage::<R>::new(Setup::ShortWindow).await?;
    let lease = stage
        .capabilities()
        .lease
        .ok_or("the source states no lease")?;
    stage.rig.publish(&[order("m-1")]).await?;
    let mut first = stage.open(1).await?;
    let one = first.next().await?;
    let mut second = stage.open(1).await?;
    // Nobody polls the first one meanwhile, as when all places of the prefetch are taken.
    if let Some(taken) = second.next_within(lease * 3).await? {
        return Err(format!("`{}` is in work, and was given to another one", taken.id).into());
    }
    first.ack(one).await?;
    drop(first);
    ensure_silent(&mut second, "it was acked").await?;

    // What nobody holds any more comes again.
    stage.rig.publish(&[order("m-2")]).await?;
    let one = second.next().await?;
    drop((one, second));
    let mut third = stage.open(1).await?;
    let again = third.next().await?;
    ensure_eq!(again.id.as_str(), "m-2", "what was left behind");
    third.ack(again).await?;
    drop(third);
    stage.ensure_left(0).await
}
