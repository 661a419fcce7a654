//! Faults of a single node: one at a time in the order of a shuffled deck, each healed before the next.

use std::{
    iter,
    time::{Duration, Instant},
};

use rand::{RngExt as _, rngs::StdRng, seq::SliceRandom as _};
use rustix::process::Signal;

use super::{process::Process, world::World};
use crate::{
    checker::HistoryEvent,
    proxy::{Mode, Proxy},
};

/// Number of faults by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) kills: u64,
    /// Connections that were cut.
    pub(super) cuts: u64,
    /// Faults of the disk.
    pub(super) disks: u64,
}

/// A fault of the network that strikes some connections.
pub(super) struct Spoil {
    pub(super) name: &'static str,
    pub(super) mode: Mode,
    /// Share of the connections that it strikes.
    pub(super) share: f64,
    pub(super) time: Duration,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// kill -9, and the return of the node.
    Kill,
    /// SIGSTOP for a moment.
    Stop,
    /// A write or a sync fails: the node gives up, and is started again.
    Eio,
    EioSync,
    /// There is no space for a write or a sync for a while, or none is left before it.
    Enospc,
    EnospcSync,
    Full,
    /// Some connections of clients are spoiled or cut.
    Network,
}

/// The kinds, and how often each is in a deck.
const DECK: [(Fault, usize); 8] = [
    (Fault::Kill, 8),
    (Fault::Stop, 2),
    (Fault::Eio, 1),
    (Fault::EioSync, 1),
    (Fault::Enospc, 1),
    (Fault::EnospcSync, 1),
    (Fault::Full, 1),
    (Fault::Network, 7),
];

impl Fault {
    /// The name in a history; for a disk also the fault that the node plants.
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Eio => "eio",
            Self::EioSync => "eio-sync",
            Self::Enospc => "enospc",
            Self::EnospcSync => "enospc-sync",
            Self::Full => "full",
            Self::Network => "network",
        }
    }
}

/// Injects faults until `end`, and heals them all.
pub(super) async fn run(
    world: &World,
    proxy: &Proxy,
    process: &mut Process,
    end: Instant,
    rng: &mut StdRng,
) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    let mut deck = Vec::new();
    while Instant::now() < end {
        pause(rng, 200..1_200).await;
        if deck.is_empty() {
            deck = DECK.iter().flat_map(|(fault, count)| iter::repeat_n(*fault, *count)).collect();
            deck.shuffle(rng);
        }
        let Some(fault) = deck.pop() else { continue };
        let name = fault.name();
        match fault {
            Fault::Kill => {
                record_fault(world, true, name);
                kill(world, proxy, process, rng).await?;
                counts.kills += 1;
            }
            Fault::Stop => {
                record_fault(world, true, name);
                process.signal(Signal::STOP)?;
                pause(rng, 50..800).await;
                process.signal(Signal::CONT)?;
            }
            Fault::Eio | Fault::EioSync => {
                record_fault(world, true, name);
                process.set_disk(name)?;
                // The node gives up at the first commit, and clients send all the time.
                process.ended().await?;
                world.admin.forget_address(0);
                counts.disks += 1;
                come_back(world, proxy, process, rng).await?;
            }
            Fault::Enospc | Fault::EnospcSync | Fault::Full => {
                record_fault(world, true, name);
                process.set_disk(name)?;
                pause(rng, 100..1_500).await;
                process.set_disk("")?;
                counts.disks += 1;
            }
            Fault::Network => {
                let spoil = spoil(rng);
                record_fault(world, true, spoil.name);
                let touched = proxy.set(spoil.mode, || rng.random_bool(spoil.share)) as u64;
                if matches!(spoil.mode, Mode::Reset | Mode::Finish) {
                    counts.cuts += touched;
                }
                tokio::time::sleep(spoil.time).await;
                proxy.set(Mode::Pass, || true);
                record_fault(world, false, spoil.name);
                continue;
            }
        }
        record_fault(world, false, name);
    }
    Ok(counts)
}

async fn kill(world: &World, proxy: &Proxy, process: &mut Process, rng: &mut StdRng) -> anyhow::Result<()> {
    world.admin.forget_address(0);
    process.kill().await?;
    come_back(world, proxy, process, rng).await
}

/// Starts the node again, with a disk that works.
async fn come_back(
    world: &World,
    proxy: &Proxy,
    process: &mut Process,
    rng: &mut StdRng,
) -> anyhow::Result<()> {
    pause(rng, 0..300).await;
    process.set_disk("")?;
    process.restart().await?;
    proxy.set_target(process.client);
    world.admin.set_address(0, process.admin);
    Ok(())
}

pub(super) fn spoil(rng: &mut StdRng) -> Spoil {
    let ms = Duration::from_millis;
    let time = ms(rng.random_range(200..2_000));
    match rng.random_range(0..5) {
        0 => Spoil { name: "reset", mode: Mode::Reset, share: 0.3, time: ms(20) },
        1 => Spoil { name: "finish", mode: Mode::Finish, share: 0.3, time: ms(20) },
        2 => Spoil { name: "delay", mode: Mode::Delay(ms(rng.random_range(5..80))), share: 0.7, time },
        3 => Spoil { name: "freeze", mode: Mode::Freeze, share: 0.5, time },
        _ => Spoil { name: "dribble", mode: Mode::Dribble, share: 0.7, time },
    }
}

pub(super) fn record_fault(world: &World, on: bool, fault: &str) {
    world.recorder.add(HistoryEvent::Nemesis { on, fault });
}

pub(super) async fn pause(rng: &mut StdRng, ms: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(ms))).await;
}
