//! A live room over its rate, with important messages among the others, next to the kernel's cost of one pass.

use super::{Side, Sink, each, load, turns};
use crate::bench::{
    Args, Scenario,
    child::Launcher,
    host,
    orders::{Order, Outcome},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::{Result, bail, ensure};
use serde_json::json;
use tidegate::cli::admin::AdminClient;

/// Room of all users.
const ROOM: &str = "hot";

/// Parameters of the room.
#[derive(Clone, Copy)]
struct Crowd {
    members: usize,
    rate: f64,
    important_every: u64,
    room_rate: u32,
    publishers: usize,
    seconds: f64,
}

/// Kind of a node that is measured.
struct Kind {
    name: &'static str,
    shards: usize,
    tick_ms: u32,
}

const KINDS: [Kind; 4] = [
    Kind { name: "one shard", shards: 1, tick_ms: 0 },
    Kind { name: "two shards", shards: 2, tick_ms: 0 },
    Kind { name: "one shard, tick of 20 ms", shards: 1, tick_ms: 20 },
    Kind { name: "one shard, tick of 50 ms", shards: 1, tick_ms: 50 },
];

/// Adds one section for each transport.
pub(super) fn run(launcher: &Launcher, args: &Args, scenario: &Scenario, out: Sink<'_>) -> Result<()> {
    let Scenario::Rooms { members, rate, important_every, room_rate, publishers, seconds } = scenario else {
        bail!("not a room")
    };
    ensure!(*publishers > 1 && *important_every > 0, "two publishers at least, and one important message");
    let mut crowd = Crowd {
        members: *members,
        rate: *rate,
        important_every: *important_every,
        room_rate: *room_rate,
        publishers: *publishers,
        seconds: *seconds,
    };
    if args.quick {
        (crowd.members, crowd.seconds) = (300, 0.5);
    }
    for &transport in &args.transport {
        out(compare(launcher, args, crowd, transport)?);
    }
    Ok(())
}

fn order(crowd: Crowd, rate: Option<f64>) -> Order {
    Order::Room {
        conversation: format!("r:{ROOM}"),
        rate,
        // The burst of the room is used up before it counts.
        warm_ms: 1_500,
        measure_ms: (crowd.seconds * 1000.0) as u64,
        important_every: rate.map(|_| crowd.important_every),
    }
}

/// Starts a node whose first publisher has priority 2.
fn node(
    launcher: &Launcher,
    args: &Args,
    crowd: Crowd,
    transport: BenchTransport,
    kind: &Kind,
) -> Result<Side> {
    let mut launcher = launcher.clone();
    launcher.settings.push(format!("rooms.rate={}", crowd.room_rate));
    launcher.settings.push(format!("rooms.tick_ms={}", kind.tick_ms));
    if kind.shards > 1 {
        launcher.server_cpus = host::cpus();
    }
    let label = format!("rooms-{}-{}", kind.shards, kind.tick_ms);
    let mut side = Side::tidegate(&launcher, &label, kind.shards, transport, args.size)?;
    let mut admin = AdminClient::connect(&side.server.second)?;
    let (status, answer) = admin.request("PUT", "/v1/users/p0/prio", &json!({"prio": 2}).to_string())?;
    ensure!(status == 200, "PUT /v1/users/p0/prio: {status} {answer}");
    side.connect(crowd.members, crowd.publishers, Some(ROOM))?;
    Ok(side)
}

fn compare(launcher: &Launcher, args: &Args, crowd: Crowd, transport: BenchTransport) -> Result<Section> {
    let mut raw = Side::raw_fanout(launcher, transport, args.size)?;
    raw.connect(crowd.members, 1, None)?;
    let mut section = Section::new(format!(
        "Live room over its rate of {}/s, {} people, {:.0} messages/s of {} B offered, one of {} important, {}",
        crowd.room_rate,
        crowd.members,
        crowd.rate,
        args.size,
        crowd.important_every,
        transport.name()
    ));
    for kind in &KINDS {
        let mut side = node(launcher, args, crowd, transport, kind)?;
        let (flat_out, hot) = (order(crowd, None), order(crowd, Some(crowd.rate)));
        let outcomes = turns(args.rounds, &mut [&mut || raw.ask(&flat_out), &mut || side.ask(&hot)])?;
        add(&mut section, crowd, kind, &outcomes[0], &outcomes[1]);
        side.ask(&Order::Hangup)?;
    }
    Ok(section)
}

fn add(section: &mut Section, crowd: Crowd, kind: &Kind, raw: &[Outcome], ours: &[Outcome]) {
    let name = kind.name;
    let members = crowd.members as f64;
    let figure = |what: &str| format!("{name}: {what}");
    let ms = |us: u64| us as f64 / 1e3;
    let arrived = |it: &Outcome| {
        let expected = it.important * crowd.members as u64;
        100.0 * it.important_count as f64 / expected.max(1) as f64
    };
    section.rounds(
        &figure("kernel's cost of one pass, raw"),
        each(raw, |it| members * it.cpu_us() / 1e3),
        "ms",
        None,
    );
    section.rounds(
        &figure("important messages that arrived"),
        each(ours, arrived),
        "% of copies",
        Some(FigureTarget::AtLeast(100.0)),
    );
    let per_second = |it: &Outcome| it.count as f64 / members * 1e9 / it.wall_ns.max(1) as f64;
    section.rounds(&figure("messages that each member got"), each(ours, per_second), "/s", None);
    section.rounds(&figure("deliveries"), each(ours, Outcome::rate), "/s", None);
    section.rounds(&figure("latency p99"), each(ours, |it| ms(it.p99_us)), "ms", None);
    section.rounds(&figure("latency p50"), each(ours, |it| ms(it.p50_us)), "ms", None);
    section.rounds(
        &figure("latency p99 of important ones"),
        each(ours, |it| ms(it.important_p99_us)),
        "ms",
        None,
    );
    let left_out = |it: &Outcome| 100.0 * it.left_out as f64 / it.offered.max(1) as f64;
    section.rounds(&figure("left out, and answered so"), each(ours, left_out), "% of offered", None);
    let others = |it: &Outcome| (it.refused - it.left_out) as f64;
    section.rounds(&figure("refused otherwise"), each(ours, others), "messages", None);
    let shed = |it: &Outcome| 100.0 * it.shed as f64 / (it.shed + it.count).max(1) as f64;
    section.rounds(&figure("shed, and reported"), each(ours, shed), "% of copies", None);
    let per_read = |it: &Outcome| it.count as f64 / it.reads.max(1) as f64;
    section.rounds(&figure("messages per read"), each(ours, per_read), "", None);
    section.rounds(
        &figure("logical messages per server CPU second"),
        each(ours, |it| 1e6 / it.cpu_us()),
        "/s",
        Some(FigureTarget::AtLeast(1e6)),
    );
    load(section, ours);
}
