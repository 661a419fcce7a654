//! The admin API: cost and latency of messages that a back end sends, and of pages of a history, next to the cost of a
//! request that does nothing.

mod receiver;
pub(super) mod webhooks;

use super::{Sink, chat::durable};
use crate::bench::{
    Args, Scenario,
    child::{Launcher, Server},
    host,
    report::{Section, median},
    test_bed::TestBed,
};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};
use tidegate::cli::admin::AdminClient;

/// Messages of a batch.
const BATCH: u64 = 100;

/// Users who get messages.
const USERS: u64 = 1_000;

/// Messages of the history that is read, and of a page.
const HISTORY: u64 = 5_000;
const PAGE: u64 = 50;

/// Parameters of the scenario.
struct Load<'a> {
    /// Connections that send, each with a request at a time.
    conns: usize,
    seconds: f64,
    /// List of the services; `None` for a single node.
    services: Option<&'a Path>,
}

/// A request of the bench.
struct ApiCall {
    method: &'static str,
    path: String,
    body: String,
}

/// Connections to the admin port of a node.
struct Callers<'a> {
    server: &'a Server,
    clients: Vec<AdminClient>,
    /// Number of the next request, so that no two have the same ids.
    next: AtomicU64,
    /// Begin of all ids of this run.
    run: String,
}

/// Requests of one round.
struct Calls {
    /// Requests a second.
    rate: f64,
    /// CPU of the node for a request, in µs.
    cpu_us: f64,
    /// Times of requests, in µs.
    times: Histogram<u64>,
}

/// Rounds of one kind of request.
#[derive(Default)]
struct CallRounds {
    rate: Vec<f64>,
    cpu_us: Vec<f64>,
    p50_ms: Vec<f64>,
    p99_ms: Vec<f64>,
}

impl CallRounds {
    fn add(&mut self, calls: &Calls) {
        let ms = |quantile| calls.times.value_at_quantile(quantile) as f64 / 1e3;
        self.rate.push(calls.rate);
        self.cpu_us.push(calls.cpu_us);
        self.p50_ms.push(ms(0.5));
        self.p99_ms.push(ms(0.99));
    }
}

impl<'a> Callers<'a> {
    fn connect(server: &'a Server, count: usize) -> Result<Self> {
        let clients = (0..count).map(|_| AdminClient::connect(&server.second)).collect::<Result<_>>()?;
        Ok(Self { server, clients, next: AtomicU64::new(0), run: format!("{:x}", host::now_ns()) })
    }

    /// Opens the first `conns` connections again. The node closes those that send nothing for 5 s, as they do during the rounds
    /// of others.
    fn reconnect(&mut self, conns: usize) -> Result<()> {
        for client in self.clients.iter_mut().take(conns) {
            *client = AdminClient::connect(&self.server.second)?;
        }
        Ok(())
    }

    /// Sends requests for some time, one on each of `conns` connections at a time.
    fn call(&mut self, conns: usize, time: Duration, make: impl Fn(u64) -> ApiCall + Sync) -> Result<Calls> {
        self.reconnect(conns)?;
        let (began, next, pid) = (Instant::now(), &self.next, self.server.pid());
        let before = host::cpu(pid)?.ran;
        let work = &|client: &mut AdminClient| {
            let mut times = Histogram::new(3)?;
            while began.elapsed() < time {
                let call = make(next.fetch_add(1, Ordering::Relaxed));
                let sent = Instant::now();
                answered(client, &call)?;
                times.record(sent.elapsed().as_micros() as u64)?;
            }
            Ok(times)
        };
        let times: Vec<Result<Histogram<u64>>> = thread::scope(|scope| {
            let threads: Vec<_> =
                self.clients.iter_mut().take(conns).map(|it| scope.spawn(move || work(it))).collect();
            threads.into_iter().map(|it| it.join().map_err(|_| anyhow!("a caller panicked"))?).collect()
        });
        let (took, ran) = (began.elapsed(), host::cpu(pid)?.ran - before);
        let mut all = Histogram::new(3)?;
        for of_one in times {
            all.add(of_one?)?;
        }
        ensure!(!all.is_empty(), "no request was answered");
        let count = all.len() as f64;
        Ok(Calls { rate: count / took.as_secs_f64(), cpu_us: ran as f64 / 1e3 / count, times: all })
    }
}

/// Sends a request that has to be accepted.
fn answered(client: &mut AdminClient, call: &ApiCall) -> Result<Value> {
    let ApiCall { method, path, body } = call;
    let (status, answer) = client.request(method, path, body)?;
    ensure!((200..300).contains(&status), "{method} {path}: {status} {}", answer.trim());
    Ok(serde_json::from_str(&answer).unwrap_or_default())
}

/// Returns the request for a batch, all of whose messages have ids of their own.
fn batch(run: &str, nth: u64, size: u64, text: &str) -> ApiCall {
    let messages: Vec<Value> = (nth * size..(nth + 1) * size)
        .map(|n| json!({"to": format!("u{}", n % USERS), "content": {"text": text}, "requestId": format!("{run}-{n}")}))
        .collect();
    let body = json!({ "messages": messages }).to_string();
    ApiCall { method: "POST", path: "/v1/messages/batch".to_owned(), body }
}

/// Adds a section for a single node, or one for a node of a cluster.
pub(super) fn run(launcher: &Launcher, args: &Args, scenario: &Scenario, out: Sink<'_>) -> Result<()> {
    let Scenario::Api { conns, seconds, cluster } = scenario else { bail!("not this scenario") };
    let load = &match args.quick {
        true => Load { conns: 4, seconds: 0.3, services: cluster.as_deref() },
        false => Load { conns: *conns, seconds: *seconds, services: cluster.as_deref() },
    };
    ensure!(load.conns > 0, "at least one connection");
    let own = host::cpus();
    host::pin(&launcher.client_cpus)?;
    let measured = match load.services {
        None => {
            let server = durable(launcher).tidegate("api", 1)?;
            measure("embedded store", &server, args, load)
        }
        Some(services) => {
            let test_bed = TestBed::make(services, launcher, 1, 4)?;
            let server = test_bed.start(launcher, 1, &[])?;
            test_bed.settle(&[&server])?;
            measure("Kafka, Redis and Postgres", &server, args, load)
        }
    };
    host::pin(&own)?;
    out(measured?);
    Ok(())
}

fn measure(store: &str, server: &Server, args: &Args, load: &Load<'_>) -> Result<Section> {
    let mut callers = Callers::connect(server, load.conns)?;
    let text = "x".repeat(args.size);
    let run = callers.run.clone();
    fill_history(&mut callers, &text)?;
    let time = Duration::from_secs_f64(load.seconds);
    let [mut idle, mut few_idle, mut one_idle] = [(); 3].map(|()| CallRounds::default());
    let [mut single, mut batches, mut pages] = [(); 3].map(|()| CallRounds::default());
    let few = load.conns.min(4);
    // The first round of each makes the conversations, and does not count.
    for counts in (0..=args.rounds).map(|round| round > 0) {
        let nothing = |_| ApiCall { method: "GET", path: "/livez".to_owned(), body: String::new() };
        let one = |n: u64| {
            let id = format!("{run}-s{n}");
            let message =
                json!({"to": format!("u{}", n % USERS), "content": {"text": &text}, "requestId": id});
            ApiCall { method: "POST", path: "/v1/messages".to_owned(), body: message.to_string() }
        };
        let page = |n: u64| {
            // Steps that are prime to the length visit all parts.
            let around = n.wrapping_mul(7_919) % HISTORY + 1;
            let path = format!("/v1/conversations/d:reader:system/messages?around={around}&limit={PAGE}");
            ApiCall { method: "GET", path, body: String::new() }
        };
        let rounds = [
            (&mut idle, callers.call(load.conns, time, nothing)?),
            (&mut single, callers.call(load.conns, time, one)?),
            (&mut few_idle, callers.call(few, time, nothing)?),
            (&mut batches, callers.call(few, time, |n| batch(&run, n, BATCH, &text))?),
            (&mut one_idle, callers.call(1, time, nothing)?),
            (&mut pages, callers.call(1, time, page)?),
        ];
        for (rounds, calls) in rounds {
            if counts {
                rounds.add(&calls);
            }
        }
    }
    let title = format!("Admin API, {store}, {} connections, contents of {} B", load.conns, args.size);
    let mut section = Section::new(title);
    let of_batch: Vec<f64> = batches.cpu_us.iter().map(|us| us / BATCH as f64).collect();
    section.ratio("node CPU: one message a request / GET /livez", &single.cpu_us, &idle.cpu_us, None);
    section.ratio("node CPU: a message of a batch of 100 / GET /livez", &of_batch, &few_idle.cpu_us, None);
    section.ratio("node CPU: a page of 50 entries / GET /livez", &pages.cpu_us, &one_idle.cpu_us, None);
    section.one("node CPU of GET /livez", median(&idle.cpu_us), "µs", None);
    section.one("requests, GET /livez", median(&idle.rate), "/s", None);
    section.rounds("messages, one a request", single.rate, "/s", None);
    section.rounds("the same, p50", single.p50_ms, "ms", None);
    section.rounds("the same, p99", single.p99_ms, "ms", None);
    let messages = batches.rate.iter().map(|rate| rate * BATCH as f64).collect();
    section.rounds("messages, batches of 100", messages, "/s", None);
    section.rounds("a batch, p99", batches.p99_ms, "ms", None);
    section.rounds("a page of 50 entries, p50", pages.p50_ms, "ms", None);
    section.rounds("a page of 50 entries, p99", pages.p99_ms, "ms", None);
    section.note(format!("Each ratio is to GET /livez over as many connections: {} for messages, {few} for batches, 1 for pages.", load.conns));
    Ok(section)
}

/// Sends the messages of the history that is read.
fn fill_history(callers: &mut Callers<'_>, text: &str) -> Result<()> {
    let run = callers.run.clone();
    let client = callers.clients.first_mut().context("no connection")?;
    for first in (0..HISTORY).step_by(1_000) {
        let messages: Vec<Value> = (first..first + 1_000)
            .map(|n| json!({"to": "reader", "content": {"text": text}, "requestId": format!("{run}-h{n}")}))
            .collect();
        let body = json!({ "messages": messages }).to_string();
        let call = ApiCall { method: "POST", path: "/v1/messages/batch".to_owned(), body };
        ensure!(answered(client, &call)?["failed"] == 0, "a message of the history was refused");
    }
    Ok(())
}
