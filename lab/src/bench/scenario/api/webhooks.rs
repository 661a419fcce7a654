//! Webhooks: how late events come at a rate of messages, and what they cost the node beyond the messages themselves.

use super::{ApiCall, Callers, answered, batch, receiver::Receiver};
use crate::bench::{
    Args, Scenario,
    child::Launcher,
    host,
    report::{Section, median},
    scenario::{Sink, chat::durable},
};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Messages of one request of a sender.
const BATCH: u64 = 100;

/// Connections that send.
const SENDERS: usize = 4;

/// Longest time until the receiver has everything.
const CATCH_UP_MAX: Duration = Duration::from_secs(120);

/// Parameters of the scenario.
#[derive(Clone, Copy)]
struct WebhookLoad {
    /// Messages a second.
    rate: f64,
    seconds: f64,
    /// Requests of the endpoint that may be in flight.
    parallel: u32,
}

/// One round: what was sent, and the CPU of the node.
struct Round {
    messages: u64,
    cpu_us: f64,
    rate: f64,
}

/// Adds one section.
pub(in crate::bench::scenario) fn run(
    launcher: &Launcher,
    args: &Args,
    scenario: &Scenario,
    out: Sink<'_>,
) -> Result<()> {
    let Scenario::Webhooks { rate, seconds, parallel } = *scenario else { bail!("not this scenario") };
    let load = match args.quick {
        true => WebhookLoad { rate: 1_000.0, seconds: 0.5, parallel },
        false => WebhookLoad { rate, seconds, parallel },
    };
    ensure!(load.rate > 0.0, "at least a message a second");
    let own = host::cpus();
    host::pin(&launcher.client_cpus)?;
    let measured = measure(launcher, args, load);
    host::pin(&own)?;
    out(measured?);
    Ok(())
}

fn measure(launcher: &Launcher, args: &Args, load: WebhookLoad) -> Result<Section> {
    let mut launcher = durable(launcher);
    launcher.settings.insert(0, "webhooks.allow_plain=true".to_owned());
    launcher.settings.insert(0, "webhooks.content_hosts=[127.0.0.1]".to_owned());
    let (without, with) = (launcher.tidegate("webhooks-off", 1)?, launcher.tidegate("webhooks-on", 1)?);
    let mut off = Callers::connect(&without, SENDERS)?;
    let mut on = Callers::connect(&with, SENDERS)?;
    let receiver = Receiver::start()?;
    let endpoint = json!({
        "url": format!("http://{}/tg", receiver.address), "types": ["tidegate.message.*"], "content": true,
        "batch": {"max": 100, "waitMs": 0}, "parallel": load.parallel, "from": "now",
    });
    let put = ApiCall { method: "PUT", path: "/v1/webhooks/bench".to_owned(), body: endpoint.to_string() };
    answered(on.clients.first_mut().context("no connection")?, &put)?;
    let text = "x".repeat(args.size);
    let (mut cpu_off, mut cpu_on, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let (mut p50, mut p99, mut most, mut sizes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut repeated = 0;
    // The first round of each makes the conversations, and does not count.
    for counts in (0..=args.rounds).map(|round| round > 0) {
        let of_off = round(&mut off, load, &text, |_| Ok(()))?;
        let of_on = round(&mut on, load, &text, |sent| wait_for(&receiver, sent))?;
        let taken = receiver.take()?;
        ensure!(taken.events >= of_on.messages, "{} of {} events came", taken.events, of_on.messages);
        if counts {
            cpu_off.push(of_off.cpu_us);
            cpu_on.push(of_on.cpu_us);
            rates.push(of_on.rate);
            p50.push(taken.lag_ms.value_at_quantile(0.5) as f64);
            p99.push(taken.lag_ms.value_at_quantile(0.99) as f64);
            most.push(taken.lag_ms.max() as f64);
            repeated += taken.events - of_on.messages;
            sizes.push(taken.events as f64 / taken.requests.max(1) as f64);
        }
    }
    let title = format!(
        "Webhooks, {} messages/s of {} B to 1,000 users, {} requests in flight",
        load.rate, args.size, load.parallel
    );
    let mut section = Section::new(title);
    section.ratio("node CPU of a message, with an endpoint / without", &cpu_on, &cpu_off, None);
    section.one("node CPU of a message, without", median(&cpu_off), "µs", None);
    section.rounds("messages, as sent", rates, "/s", None);
    section.rounds("lag of an event, p50", p50, "ms", None);
    section.rounds("lag of an event, p99", p99, "ms", None);
    section.rounds("longest lag", most, "ms", None);
    section.rounds("events of a request", sizes, "", None);
    section.one("events that came again", repeated as f64, "", None);
    section.note(
        "The lag is from the receipt of the message by the node to the receipt of its event by the receiver, so it contains the archive. \
         The receiver shares its CPU with the senders.",
    );
    Ok(section)
}

/// Sends messages at the rate, and waits for `done` with their number.
fn round(
    callers: &mut Callers<'_>,
    load: WebhookLoad,
    text: &str,
    done: impl FnOnce(u64) -> Result<()>,
) -> Result<Round> {
    callers.reconnect(SENDERS)?;
    let (pid, run, next) = (callers.server.pid(), callers.run.clone(), &callers.next);
    let before = host::cpu(pid)?.ran;
    let began = Instant::now();
    let each = (load.rate * load.seconds / BATCH as f64 / SENDERS as f64).ceil().max(1.0) as u32;
    let pause = Duration::from_secs_f64(BATCH as f64 * SENDERS as f64 / load.rate);
    let first = next.fetch_add(u64::from(each) * SENDERS as u64, std::sync::atomic::Ordering::Relaxed);
    thread::scope(|scope| {
        let threads: Vec<_> = callers
            .clients
            .iter_mut()
            .zip(0_u64..)
            .map(|(client, nth)| {
                let run = &run;
                scope.spawn(move || {
                    for turn in 0..each {
                        // Behind its pace, a sender sends at once.
                        thread::sleep((began + pause * turn).saturating_duration_since(Instant::now()));
                        let number = first + nth * u64::from(each) + u64::from(turn);
                        let call = batch(run, number, BATCH, text);
                        ensure!(answered(client, &call)?["failed"] == 0, "a message was refused");
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|it| it.join().map_err(|_| anyhow::anyhow!("a sender panicked"))?)
    })?;
    let messages = u64::from(each) * SENDERS as u64 * BATCH;
    let took = began.elapsed();
    done(messages)?;
    let ran = host::cpu(pid)?.ran - before;
    let rate = messages as f64 / took.as_secs_f64();
    Ok(Round { messages, cpu_us: ran as f64 / 1e3 / messages as f64, rate })
}

/// Waits until the receiver has as many events.
fn wait_for(receiver: &Receiver, events: u64) -> Result<()> {
    let began = Instant::now();
    while receiver.events() < events {
        let has = receiver.events();
        ensure!(began.elapsed() < CATCH_UP_MAX, "the receiver has {has} of {events} events");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
