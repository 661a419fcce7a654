//! Group fan-out, one message at a time, compared with a loop of `send` over as many sockets; and two shards compared
//! with one.

use super::{Side, Sink, each, in_turns, load, people, rival};
use crate::bench::{
    Args,
    admin::create_group,
    child::Launcher,
    host,
    orders::{Order, Outcome},
    report::{FigureTarget, Section},
    wire::BenchTransport,
};
use anyhow::Result;
use tidegate::cli::admin::AdminClient;

/// Deliveries of a round.
const DELIVERIES: usize = 200_000;
/// Group of all users.
const GROUP: &str = "bench";
/// Number of members above that of groups whose clients must confirm each message.
pub(super) const QUICK_MEMBERS: usize = 600;

/// Adds one section for each transport and number of members.
pub(super) fn run(launcher: &Launcher, args: &Args, members: &[usize], out: Sink<'_>) -> Result<()> {
    let quick = [QUICK_MEMBERS];
    for &members in if args.quick { &quick } else { members } {
        for &transport in &args.transport {
            out(compare(launcher, args, members, transport)?);
        }
    }
    Ok(())
}

pub(super) fn order(args: &Args, members: usize) -> Order {
    let messages = if args.quick { 20 } else { (DELIVERIES / members).max(10) as u32 };
    Order::Fanout { conversation: format!("g:{GROUP}"), messages }
}

/// Starts a node with a group of connected `members`, and a publisher who is a member, too.
pub(super) fn node(
    launcher: &Launcher,
    args: &Args,
    shards: usize,
    members: usize,
    transport: BenchTransport,
) -> Result<Side> {
    let mut side =
        Side::tidegate(launcher, &format!("fanout-{members}-{shards}"), shards, transport, args.size)?;
    create_group(&mut AdminClient::connect(&side.server.second)?, GROUP, &["p0".into()], 0..members)?;
    side.connect(members, 1, None)?;
    Ok(side)
}

fn raw(launcher: &Launcher, args: &Args, members: usize, transport: BenchTransport) -> Result<Side> {
    let mut side = Side::raw_fanout(launcher, transport, args.size)?;
    side.connect(members, 1, None)?;
    Ok(side)
}

fn compare(launcher: &Launcher, args: &Args, members: usize, transport: BenchTransport) -> Result<Section> {
    let mut left = raw(launcher, args, members, transport)?;
    let mut right = if args.raw_twice {
        raw(launcher, args, members, transport)?
    } else {
        node(launcher, args, 1, members, transport)?
    };
    let order = order(args, members);
    let (raw, ours) = in_turns(args.rounds, || left.ask(&order), || right.ask(&order))?;
    let mut section = Section::new(format!(
        "Fan-out to {members} members, {} B, one message at a time, {}",
        args.size,
        transport.name()
    ));
    let (raw_us, our_us) = (each(&raw, Outcome::cpu_us), each(&ours, Outcome::cpu_us));
    let what = format!("server CPU per delivery, {} / raw", rival(args));
    section.ratio(&what, &our_us, &raw_us, Some(FigureTarget::AtMost(1.05)));
    section.rounds(&format!("server CPU per delivery, {}", rival(args)), our_us, "µs", None);
    section.rounds("server CPU per delivery, raw", raw_us, "µs", None);
    section.rounds(&format!("deliveries, {}", rival(args)), each(&ours, Outcome::rate), "/s", None);
    section.rounds("deliveries, raw", each(&raw, Outcome::rate), "/s", None);
    people::lag(&mut section, "of all members", &ours);
    load(&mut section, &ours);
    Ok(section)
}

/// Compares two shards with one. Shards and load generator share all CPUs in both cases, so that only the number of
/// shards differs.
pub(super) fn shards(launcher: &Launcher, args: &Args, members: usize, out: Sink<'_>) -> Result<()> {
    let members = if args.quick { QUICK_MEMBERS } else { members };
    let all = host::cpus();
    let launcher = Launcher { server_cpus: all.clone(), client_cpus: all, ..launcher.clone() };
    for &transport in &args.transport {
        // One node after the other would compare two times of day; a process holds the sockets of one side only.
        let mut one = node(&launcher, args, 1, members, transport)?;
        let mut two = node(&launcher, args, 2, members, transport)?;
        let order = order(args, members);
        let (ones, twos) = in_turns(args.rounds, || one.ask(&order), || two.ask(&order))?;
        let mut section =
            Section::new(format!("Two shards against one, {members} members, {}", transport.name()));
        let (one_us, two_us) = (each(&ones, Outcome::cpu_us), each(&twos, Outcome::cpu_us));
        section.ratio("CPU per delivery, 2 shards / 1", &two_us, &one_us, Some(FigureTarget::AtMost(1.11)));
        section.rounds("CPU per delivery, 1 shard", one_us, "µs", None);
        section.rounds("CPU per delivery, 2 shards", two_us, "µs", None);
        section.note("Nothing is bound to a CPU here: servers and load generators share all of them.");
        out(section);
    }
    Ok(())
}
