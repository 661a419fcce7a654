//! Property tests of complete drains: clients that move, answer late or never, or never disconnect; signals at any
//! time.

use super::{at, ms};
use proptest::prelude::*;
use tidegate_protocol::{
    Time,
    machine::drain::{Drain, DrainCounts, DrainOutcome, DrainStep, NodePhase, Settings, Share, plan},
};

#[derive(Clone, Debug)]
struct World {
    settings: Settings,
    /// For each client, its delay from the close to the disconnect, `None` if it never disconnects, and the time at
    /// which it disconnects by itself.
    clients: Vec<(Option<u64>, Option<u64>)>,
    shards: usize,
    /// Duration of the flush.
    flush: Option<u64>,
    signals: Vec<u64>,
    /// Start and length of a stall of one shard.
    stall: (u64, u64),
}

fn world() -> impl Strategy<Value = World> {
    let span = |max: u64| 0..=max;
    let settings = (span(2_000), span(4_000), 1..2_000u32, span(3_000), 10..8_000u64);
    let settings = settings.prop_map(|(lb, spread, max_rate, flush, deadline)| Settings {
        lb_delay: ms(lb),
        spread: ms(spread),
        max_rate,
        flush: ms(flush),
        deadline: ms(deadline),
    });
    let quick =
        prop_oneof![9 => (0..300u64).prop_map(Some), 1 => Just(None), 1 => (0..6_000u64).prop_map(Some)];
    let client = (quick, prop::option::weighted(0.2, 0..6_000u64));
    let signals = prop::collection::vec(0..9_000u64, 0..3);
    let rest = (1..4usize, prop::option::of(0..4_000u64), signals, (0..5_000u64, 0..1_500u64));
    (settings, prop::collection::vec(client, 0..200), rest).prop_map(
        |(settings, clients, (shards, flush, mut signals, stall))| {
            signals.sort_unstable();
            World { settings, clients, shards, flush, signals, stall }
        },
    )
}

#[derive(Clone, Copy, Default)]
struct Client {
    noticed: Option<Time>,
    asked: Option<Time>,
    gone: bool,
}

struct Run {
    steps: Vec<(Time, DrainStep)>,
    clients: Vec<Client>,
    /// Times at which clients were closed at the end of their slots.
    slots: Vec<Time>,
}

/// Runs the drain of a world, begun by a signal at 0, with a snapshot every 5 ms.
fn run(world: &World) -> Run {
    let mut drain = Drain::new(world.settings);
    drain.handle_started();
    let mut all =
        Run { steps: Vec::new(), clients: vec![Client::default(); world.clients.len()], slots: Vec::new() };
    let mut shares: Vec<Share<usize>> = Vec::new();
    let (mut signals, mut flushing) = (world.signals.iter().peekable(), None);
    let mut out = Vec::new();
    drain.handle_signal(at(0), &mut out);
    for now in (0..20_000).map(at) {
        while signals.next_if(|due| at(**due) <= now).is_some() {
            drain.handle_signal(now, &mut out);
        }
        if now.as_millis() % 5 == 0 || drain.poll_timeout().is_some_and(|due| due <= now) {
            drain.handle_snapshot(now, snapshot(&all.clients, &shares), &mut out);
        }
        if let Some(since) = flushing
            && world.flush.is_some_and(|takes| now >= since + ms(takes))
        {
            drain.handle_flushed(&mut out);
        }
        for step in out.drain(..) {
            all.steps.push((now, step));
            match step {
                DrainStep::Notice(pace, _) => {
                    let of = |index: usize| {
                        let mine = (index..all.clients.len()).step_by(world.shards);
                        Share::new(pace, index, world.shards, world.clients.len() as u64, mine)
                    };
                    shares = (0..world.shards).map(of).collect();
                }
                DrainStep::Rush(_) => {
                    shares.clear();
                    all.clients.iter_mut().for_each(|client| client.asked = client.asked.or(Some(now)));
                }
                DrainStep::Cut(_) => all.clients.iter_mut().for_each(|client| client.gone = true),
                DrainStep::Flush => flushing = Some(now),
                DrainStep::Exit(_) => return all,
                DrainStep::Cordon | DrainStep::Resume => {}
            }
        }
        serve(world, &mut all, &mut shares, now);
    }
    panic!("no end: {:?} in {:?}", all.steps, drain.phase());
}

fn snapshot(clients: &[Client], shares: &[Share<usize>]) -> DrainCounts {
    DrainCounts {
        conns: clients.iter().filter(|client| !client.gone).count(),
        unnoticed: shares.iter().map(Share::unnoticed).sum(),
        waiting: shares.iter().map(Share::waiting).sum(),
        in_flight: 0,
    }
}

fn serve(world: &World, all: &mut Run, shares: &mut [Share<usize>], now: Time) {
    let (from, length) = world.stall;
    for (index, share) in shares.iter_mut().enumerate() {
        if index == 0 && (at(from)..at(from + length)).contains(&now) {
            continue;
        }
        if let Some(notice) = share.poll_notice(now) {
            all.clients[notice.who].noticed = Some(now);
        }
        while let Some(who) = share.poll_close(now) {
            if !all.clients[who].gone {
                all.clients[who].asked = Some(now);
                all.slots.push(now);
            }
        }
    }
    for (client, (answers, leaves)) in all.clients.iter_mut().zip(&world.clients) {
        let answered = client.asked.zip(*answers).is_some_and(|(since, takes)| now >= since + ms(takes));
        client.gone |= answered || leaves.is_some_and(|leaves| now >= at(leaves));
    }
}

fn rank(step: &DrainStep) -> u8 {
    match step {
        DrainStep::Resume => panic!("the drain was not aborted"),
        DrainStep::Cordon => 0,
        DrainStep::Notice(..) => 1,
        DrainStep::Rush(_) => 2,
        DrainStep::Cut(_) => 3,
        DrainStep::Flush => 4,
        DrainStep::Exit(_) => 5,
    }
}

proptest! {
    #[test]
    fn drain_only_advances_and_ends_in_time(world in world()) {
        let all = run(&world);
        let ranks: Vec<u8> = all.steps.iter().map(|(_, step)| rank(step)).collect();
        prop_assert!(ranks.is_sorted_by(|a, b| a < b), "each step once and forward: {:?}", all.steps);
        prop_assert_eq!(&ranks[ranks.len() - 2..], [4, 5], "flush last");
        let (end, DrainStep::Exit(outcome)) = all.steps[all.steps.len() - 1] else { panic!("no exit") };
        // The run polls once per millisecond, and the flush ends one poll after it began.
        prop_assert!(end <= at(1) + world.settings.deadline, "the end at {end}: {:?}", all.steps);
        if let Some(second) = world.signals.first().filter(|second| at(**second) < end) {
            prop_assert!(end <= at(second + 2_000), "the end at {end}: {:?}", all.steps);
            prop_assert!(matches!(outcome, DrainOutcome::Fast(_)));
        }
        let cut = all.steps.iter().find_map(|(_, step)| match step { DrainStep::Cut(cut) => Some(*cut), _ => None });
        let expected = match (outcome, cut) {
            (DrainOutcome::Fast(_), cut) => DrainOutcome::Fast(cut.unwrap_or(0)),
            (_, Some(cut)) => DrainOutcome::Cut(cut),
            (_, None) => DrainOutcome::Drained,
        };
        prop_assert_eq!(outcome, expected, "all cut clients are counted");
        prop_assert!(all.clients.iter().all(|client| client.gone), "no client is left when the flush begins");
    }

    #[test]
    fn clients_are_notified_before_their_close_and_the_pace_holds(world in world()) {
        let all = run(&world);
        let notice = all.steps.iter().find_map(|(now, step)| match step { DrainStep::Notice(_, plan) => Some((*now, *plan)), _ => None });
        let Some((began, plan)) = notice else {
            prop_assert!(all.slots.is_empty());
            return Ok(());
        };
        let rushed = all.steps.iter().find(|(_, step)| matches!(step, DrainStep::Rush(_))).map(|(now, _)| *now);
        for client in &all.clients {
            if let Some(asked) = client.asked.filter(|asked| rushed.is_none_or(|rush| *asked < rush)) {
                prop_assert!(client.noticed.is_some_and(|noticed| began <= noticed && noticed <= asked));
            }
        }
        prop_assert!(plan.raised || plan.rate <= world.settings.max_rate.max(1) + 1, "{plan:?}");
        // The planned closes of one second, plus what a late shard may catch up on.
        let most = (f64::from(plan.rate) * 1.1).ceil() as usize + 2 * world.shards;
        for (nth, from) in all.slots.iter().enumerate() {
            let within = all.slots[nth..].iter().take_while(|slot| slot.since(*from) < ms(1_000)).count();
            prop_assert!(within <= most, "{within} in a second from {from}, planned {plan:?}");
        }
    }

    #[test]
    fn deadline_of_a_plan_needs_no_raised_pace(conns in 0..300_000usize, spread in 0..60_000u64, max_rate in 1..5_000u32) {
        let settings = Settings { lb_delay: ms(5_000), spread: ms(spread), max_rate, flush: ms(5_000), deadline: ms(50_000) };
        let first = plan(conns, &settings);
        let deadline = first.deadline.max(ms(50_000));
        let second = plan(conns, &Settings { deadline, ..settings });
        prop_assert!(!second.raised, "{first:?} {second:?}");
        prop_assert!(second.deadline <= second.grace, "the grace period covers the deadline");
    }
}

#[test]
fn drain_does_nothing_before_it_begins() {
    let settings = super::DEFAULTS;
    let mut drain = Drain::new(settings);
    let mut out = Vec::new();
    drain.handle_snapshot(at(99_999), DrainCounts::default(), &mut out);
    drain.handle_flushed(&mut out);
    assert_eq!((out, drain.phase(), drain.poll_timeout()), (vec![], NodePhase::Starting, None));
}
