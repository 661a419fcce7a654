//! `tidegate-lab attack`: hostile clients against a running node, and whether it sees each attack, acts on it and ends its
//! restrictions without a person.

mod client;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use self::client::{AttackClient, Node};

/// Connections of the flood.
const FLOODERS: usize = 10;

/// Messages that all clients together may send with the same text, and those that they send.
const COPIES_MAX: usize = 8;
const COPIES: usize = 30;

/// Messages of the storm, and its threshold.
const STORM_MESSAGES: usize = 30;
const STORM_THRESHOLD: usize = 20;

/// Window of the storm.
const STORM_WINDOW: Duration = Duration::from_millis(1_500);

/// Arguments of the command.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Client port of the node.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7800")]
    pub node: String,
    /// Admin port of the node, which has to be one for development.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7801")]
    pub admin: String,
    /// Attacks to run; by default all.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub attack: Vec<String>,
    /// Seconds in which the node has to see each step of an attack, and to act on it.
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    pub within: u64,
}

/// Outcome of an attack, as a row of the report.
struct Outcome {
    seen: String,
    acted: String,
    ended: String,
}

/// Attack with its name.
type AttackCase = (&'static str, fn(&Node, &str) -> Result<Outcome>);

/// All attacks.
const ATTACKS: [AttackCase; 5] =
    [("probe", probe), ("order", order), ("spam", spam), ("storm", storm), ("flood", flood)];

/// Attacks the node, and prints what it did. Fails if it does not see an attack, or does not act on it.
pub fn run(args: &Args) -> Result<()> {
    let unknown = args.attack.iter().find(|name| ATTACKS.iter().all(|(known, _)| known != name));
    if let Some(name) = unknown {
        let known: Vec<&str> = ATTACKS.iter().map(|(name, _)| *name).collect();
        bail!("{name}: no such attack; there are {}", known.join(", "));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let within = Duration::from_secs(args.within);
    let node = Node { client: args.node.clone(), admin: args.admin.clone(), runtime, within };
    // Users of this run alone, so that the command can be repeated.
    let run = format!("{:x}", rand::random::<u32>());
    let mut honest = node.login(&format!("honest-{run}"), "phone", "")?;
    println!("| attack | seen | acted on | ended without a person | after |\n|---|---|---|---|---|");
    for (number, (name, attack)) in ATTACKS.iter().enumerate() {
        if !args.attack.is_empty() && !args.attack.iter().any(|it| it == name) {
            continue;
        }
        let begun = Instant::now();
        let Outcome { seen, acted, ended } = attack(&node, &run).with_context(|| (*name).to_owned())?;
        println!("| {name} | {seen} | {acted} | {ended} | {:.1} s |", begun.elapsed().as_secs_f64());
        let refused =
            honest.send(&format!("friend-{run}"), &format!("h{number}"), &format!("after {name}"))?;
        ensure!(refused.is_none(), "{name}: an honest client is refused: {refused:?}");
    }
    Ok(())
}

fn subject(node: &Node, name: &str) -> Result<Value> {
    node.read(&format!("/v1/subjects/{}", name.replace('/', "%2F")))
}

fn count_of(view: &Value, kind: &str) -> u64 {
    let counts = view["evidence"]["counts"].as_array();
    let found = counts.into_iter().flatten().find(|it| it["kind"] == kind);
    found.and_then(|it| it["count"].as_u64()).unwrap_or(0)
}

/// Waits until the node has banned a user by itself, and returns its view and the minutes of the ban.
fn banned(node: &Node, user: &str) -> Result<(Value, u64)> {
    let name = format!("user:{user}");
    let view = node.until("an automatic ban", || {
        let view = subject(node, &name)?;
        Ok((view["banned"] == true).then_some(view))
    })?;
    let ban = &view["bans"][0];
    ensure!(ban["by"] == "automatic", "not by the node itself: {ban}");
    let until = ban["untilMs"].as_u64().context("the ban has no end")?;
    let minutes = until.saturating_sub(ban["sinceMs"].as_u64().unwrap_or(until)) / 60_000;
    Ok((view, minutes))
}

/// A user tries groups that do not exist.
fn probe(node: &Node, run: &str) -> Result<Outcome> {
    let user = format!("prober-{run}");
    let mut client = node.login(&user, "phone", "")?;
    let mut n = 0;
    node.until("the end of the connection", || {
        n += 1;
        match client.send(&format!("g:guess-{run}-{n}"), &format!("m{n}"), "x") {
            Ok(refused) => ensure!(refused.is_some(), "a group that does not exist takes a message"),
            Err(_) => return Ok(Some(())),
        }
        Ok(None)
    })?;
    let (view, minutes) = banned(node, &user)?;
    Ok(Outcome {
        seen: format!("{} `probe`", count_of(&view, "probe")),
        acted: format!("user banned after {n} requests"),
        ended: format!("the ban ends after {minutes} min"),
    })
}

/// A device announces messages that it never sends, three times.
fn order(node: &Node, run: &str) -> Result<Outcome> {
    let user = format!("blocker-{run}");
    let mut client = node.login(&user, "phone", "a")?;
    for (msg_id, next_id) in [("b", "c"), ("d", "e"), ("f", "g")] {
        let to = format!("friend-{run}");
        let body = json!({"toUser": to, "msgId": msg_id, "nextId": next_id, "content": {"text": "x"}});
        let id = client.write("send", &body)?;
        client.answer(id)?;
    }
    let mut n = 0;
    node.until("a suspension", || {
        n += 1;
        let refused = client.send(&format!("friend-{run}"), &format!("m{n}"), "x")?;
        Ok((refused.as_deref() == Some("SUSPENDED")).then_some(()))
    })?;
    let view = subject(node, &format!("device:{user}/phone"))?;
    let suspension = &view["suspensions"][0];
    ensure!(suspension["by"] == "automatic", "not by the node itself: {suspension}");
    let until = suspension["untilMs"].as_u64().context("the suspension has no end")?;
    let seconds = until.saturating_sub(suspension["sinceMs"].as_u64().unwrap_or(until)) / 1_000;
    Ok(Outcome {
        seen: format!("{} `order_blocked`", count_of(&view, "order_blocked")),
        acted: "device suspended, sends `SUSPENDED`".to_owned(),
        ended: format!("the suspension ends after {seconds} s"),
    })
}

/// Puts a rule in force while `attack` runs.
fn with_rule<T>(node: &Node, id: &str, rule: &Value, attack: impl FnOnce() -> Result<T>) -> Result<T> {
    node.change("PUT", &format!("/v1/rules/{id}"), rule)?;
    let outcome = attack();
    node.change("DELETE", &format!("/v1/rules/{id}"), &Value::Null)?;
    outcome
}

/// Three users send the same text again and again.
fn spam(node: &Node, run: &str) -> Result<Outcome> {
    let rule = json!({"level": "content", "calls": ["send"], "window": "2s", "limit": COPIES_MAX});
    with_rule(node, &format!("attack-text-{run}"), &rule, || {
        let begun = Instant::now();
        let login = |n| node.login(&format!("spammer-{n}-{run}"), "phone", "");
        let mut clients = (0..3).map(login).collect::<Result<Vec<AttackClient>>>()?;
        let text = format!("Buy our watches now, offer {run}");
        let (mut accepted, mut refused) = (0, 0);
        for n in 0..COPIES {
            match clients[n % 3].send(&format!("victim-{n}-{run}"), &format!("m{n}"), &text)?.as_deref() {
                None => accepted += 1,
                Some("RATE_LIMITED") => refused += 1,
                Some(other) => bail!("refused with {other}"),
            }
        }
        let is_quick = begun.elapsed() < Duration::from_secs(2);
        ensure!(refused > 0 && (accepted == COPIES_MAX || !is_quick), "{accepted} of {COPIES} accepted");
        ensure!(clients[0].send(&format!("friend-{run}"), "other", "something else")?.is_none());
        let hits = node.until("the evidence of a limit", || {
            let view = subject(node, &format!("user:spammer-0-{run}"))?;
            Ok(Some(count_of(&view, "limit_hit")).filter(|count| *count > 0))
        })?;
        let mut n = COPIES;
        node.until("the text is admitted again", || {
            n += 1;
            Ok(clients[1].send(&format!("victim-{run}"), &format!("m{n}"), &text)?.is_none().then_some(()))
        })?;
        Ok(Outcome {
            seen: format!("{refused} refusals, {hits} `limit_hit` of one of 3 users"),
            acted: format!("{accepted} of {COPIES} copies accepted, other texts pass"),
            ended: "the text is admitted again after the window".to_owned(),
        })
    })
}

/// A group gets more messages than its threshold.
fn storm(node: &Node, run: &str) -> Result<Outcome> {
    let (owner, group) = (format!("owner-{run}"), format!("storm-{run}"));
    let members: Vec<String> = (0..3).map(|n| format!("member-{n}-{run}")).collect();
    node.change("POST", "/v1/groups", &json!({"id": group, "owner": owner, "members": members}))?;
    let window_ms = u64::try_from(STORM_WINDOW.as_millis())?;
    let rule = json!({"threshold": STORM_THRESHOLD, "windowMs": window_ms, "actions": ["alert", "slow:5s"]});
    node.change("PUT", &format!("/v1/groups/{group}/storm"), &rule)?;
    let mut clients =
        members.iter().map(|user| node.login(user, "phone", "")).collect::<Result<Vec<AttackClient>>>()?;
    for n in 0..STORM_MESSAGES {
        clients[n % 3].send(&format!("g:{group}"), &format!("m{n}"), &format!("text {n}"))?;
    }
    let path = format!("/v1/storms/{group}");
    let mut n = STORM_MESSAGES;
    let mut peak = 0;
    node.until("slow mode", || {
        n += 1;
        peak = node.read(&path)?["peak"].as_u64().unwrap_or(0).max(peak);
        let refused = clients[0].send(&format!("g:{group}"), &format!("m{n}"), "more")?;
        Ok((refused.as_deref() == Some("RATE_LIMITED")).then_some(()))
    })?;
    peak = node.read(&path)?["peak"].as_u64().unwrap_or(0).max(peak);
    node.until("the end of the storm", || Ok((node.read(&path)?["state"] == "quiet").then_some(())))?;
    node.until("the end of slow mode", || {
        n += 1;
        let first = clients[1].send(&format!("g:{group}"), &format!("m{n}"), "calm")?;
        n += 1;
        let second = clients[1].send(&format!("g:{group}"), &format!("m{n}"), "calm, too")?;
        Ok((first.is_none() && second.is_none()).then_some(()))
    })?;
    Ok(Outcome {
        seen: format!("storm, peak {peak} of {STORM_THRESHOLD}"),
        acted: "slow mode, one message per user and 5 s".to_owned(),
        ended: "slow mode ended with the storm".to_owned(),
    })
}

/// A user with many connections sends without a pause, whatever the node says.
fn flood(node: &Node, run: &str) -> Result<Outcome> {
    let user = format!("flooder-{run}");
    let rule = json!({"level": "user", "calls": ["send"], "window": "10s", "limit": 20});
    with_rule(node, &format!("attack-user-{run}"), &rule, || {
        let login = |n| node.login(&user, &format!("d{n}"), "");
        let mut clients = (0..FLOODERS).map(login).collect::<Result<Vec<AttackClient>>>()?;
        let (mut accepted, mut refused, mut n) = (0_u64, 0_u64, 0_u64);
        node.until("the end of all connections", || {
            clients.retain_mut(|client| {
                n += 1;
                match client.send(&format!("friend-{run}"), &format!("m{n}"), &format!("flood {n}")) {
                    Ok(None) => accepted += 1,
                    Ok(Some(_)) => refused += 1,
                    Err(_) => return false,
                }
                true
            });
            Ok(clients.is_empty().then_some(()))
        })?;
        let (view, minutes) = banned(node, &user)?;
        let again = node.login(&user, "new", "");
        ensure!(again.is_err(), "the banned user logs in again");
        let impatience = count_of(&view, "impatience");
        ensure!(impatience > 0, "no impatience: {view}");
        Ok(Outcome {
            seen: format!("{} `limit_hit`, {impatience} `impatience`", count_of(&view, "limit_hit")),
            acted: format!("{accepted} accepted, {refused} refused, then the user is banned"),
            ended: format!("the ban ends after {minutes} min"),
        })
    })
}
