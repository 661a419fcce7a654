//! Simulation of three nodes with two shards each, and a server that grants permits: answers that are lost, late or
//! doubled, clocks that are set back, a server that fails and returns, with or without its data.

mod outage;

use super::{at, rule};
use crate::seed::seed;
use std::{collections::BTreeMap, ops::Range, time::Duration};
use tidegate_protocol::{
    Time,
    machine::{
        breaker::{Breaker, BreakerRule, BreakerState, CallOutcome, CallPermit},
        permit::{
            ANSWER_TIMEOUT, ChargeStep, GrantLog, KeyUses, LimitSource, PermitAsk, PermitCheck, PermitRule,
            Permits, ShareSwitch, share_of,
        },
    },
};

const NODES: [u64; 3] = [101, 202, 303];
const KEY: u64 = 77;
const TIMEOUT_MS: u64 = ANSWER_TIMEOUT.as_millis() as u64;

/// Random numbers of a splitmix64 sequence.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns a number below `end`, 0 if that is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Debug)]
struct Plan {
    limit: u32,
    /// Requests in parts of the limit.
    offered: f64,
    /// Percent of the requests that the first node gets.
    first_percent: u64,
    /// Whether messages are lost, late and doubled, and the server's clock is set back.
    has_faults: bool,
    /// Time in which the server does not answer.
    outage: Range<u64>,
    /// Time at which another server takes over.
    fails_over_at: u64,
    /// Whether a server that returns or takes over has the data.
    keeps_data: bool,
    /// Whether all requests go to the other nodes when the server fails.
    moves_load: bool,
}

impl Plan {
    fn calm(limit: u32, offered: f64, first_percent: u64) -> Self {
        Self {
            limit,
            offered,
            first_percent,
            has_faults: false,
            outage: 0..0,
            fails_over_at: u64::MAX,
            keeps_data: true,
            moves_load: false,
        }
    }
}

enum Packet {
    Call { node: usize, shard: usize, call: u64, ask: Option<PermitAsk> },
    Answer { node: usize, shard: usize, call: u64, ask: Option<PermitAsk>, granted: u32, wait: Duration },
}

#[derive(Default)]
struct SimShard {
    permits: Permits,
    /// Times of arrival of requests that wait.
    parked: Vec<u64>,
}

struct SimNode {
    /// Its clock minus the true time.
    offset: u64,
    uses: KeyUses,
    switch: ShareSwitch,
    breaker: Breaker,
    shards: [SimShard; 2],
    /// Calls without an outcome, by their number, with the true time of sending and whether they charge.
    calls: BTreeMap<u64, (CallPermit, u64, bool)>,
}

struct Cluster {
    plan: Plan,
    rule: PermitRule,
    random: Random,
    now: u64,
    value: Vec<u8>,
    /// Microseconds by which the server's clock is ahead of the true time.
    server_offset: u64,
    nodes: Vec<SimNode>,
    packets: BTreeMap<(u64, u64), Packet>,
    packet_count: u64,
    by_permit: Vec<u64>,
    by_share: Vec<u64>,
    refused: u64,
    /// First time at which all nodes were on shares, and last one at which one was.
    on_shares: (Option<u64>, u64),
}

impl Cluster {
    fn new(plan: Plan, seed: u64) -> Self {
        let breaker = BreakerRule {
            in_row: 3,
            in_recent: 0,
            open_min: Duration::from_millis(100),
            open_max: Duration::from_millis(800),
            deadline: ANSWER_TIMEOUT,
            probe_max: Duration::from_millis(500),
        };
        let node = |n: u64| SimNode {
            offset: 1_000_000 * n + 17 * n,
            uses: KeyUses::new(0),
            switch: ShareSwitch::default(),
            breaker: Breaker::new(breaker, seed ^ n),
            shards: Default::default(),
            calls: BTreeMap::new(),
        };
        Self {
            rule: rule(plan.limit, 1_000),
            plan,
            random: Random(seed),
            now: 0,
            value: Vec::new(),
            server_offset: 1_700_000_000_000_000,
            nodes: (1..=3).map(node).collect(),
            packets: BTreeMap::new(),
            packet_count: 0,
            by_permit: Vec::new(),
            by_share: Vec::new(),
            refused: 0,
            on_shares: (None, 0),
        }
    }

    fn run(plan: Plan, seed: u64, ms: u64) -> Self {
        let mut cluster = Self::new(plan, seed);
        for now in 0..ms {
            cluster.now = now;
            cluster.step();
        }
        cluster
    }

    fn step(&mut self) {
        if self.now == self.plan.fails_over_at || self.now == self.plan.outage.end {
            if !self.plan.keeps_data {
                self.value.clear();
            }
            if self.now == self.plan.fails_over_at {
                self.nodes.iter_mut().for_each(|node| node.switch.handle_server_change());
                self.nodes
                    .iter_mut()
                    .flat_map(|node| &mut node.shards)
                    .for_each(|it| it.permits.handle_change());
            }
        }
        if self.plan.has_faults && self.random.below(700) == 0 {
            self.server_offset -= self.random.below(3_000_000);
        }
        while let Some(entry) = self.packets.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let packet = entry.remove();
            self.deliver(packet);
        }
        for node in 0..NODES.len() {
            self.watch(node);
            for shard in 0..2 {
                self.turn(node, shard);
            }
        }
        let on_shares = self.nodes.iter().filter(|it| it.switch.source() == LimitSource::Shares).count();
        if on_shares == NODES.len() {
            self.on_shares.0 = self.on_shares.0.or(Some(self.now));
        }
        if on_shares > 0 {
            self.on_shares.1 = self.now;
        }
    }

    /// Sends a message, which may be lost, late or doubled.
    fn send(&mut self, packet: impl Fn() -> Packet) {
        let has_faults = self.plan.has_faults;
        let copies = 1 + u64::from(has_faults && self.random.percent(2));
        if has_faults && self.random.percent(2) {
            return;
        }
        for copy in 0..copies {
            // A call is executed once; only answers are doubled.
            if copy > 0 && matches!(packet(), Packet::Call { .. }) {
                continue;
            }
            let is_slow = has_faults && self.random.percent(2);
            let delay = if is_slow { 20 + self.random.below(150) } else { self.random.below(3) };
            self.packet_count += 1;
            self.packets.insert((self.now + delay, self.packet_count), packet());
        }
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Call { .. } if self.plan.outage.contains(&self.now) => {}
            Packet::Call { node, shard, call, ask } => {
                let (mut granted, mut wait) = (0, Duration::ZERO);
                if let Some(ask) = ask {
                    let mut log = GrantLog::decode(&self.value);
                    let answer = log.grant(&self.rule.request(ask, self.server_offset + self.now * 1_000));
                    self.value = log.encode();
                    (granted, wait) = (answer.granted, Duration::from_micros(answer.wait_us));
                }
                self.send(|| Packet::Answer { node, shard, call, ask, granted, wait });
            }
            Packet::Answer { .. } if self.plan.outage.contains(&self.now) => {}
            Packet::Answer { node, shard, call, ask, granted, wait } => {
                let of = &mut self.nodes[node];
                let clock = at(self.now + of.offset);
                if let Some((permit, _, charges)) = of.calls.remove(&call) {
                    of.breaker.record(permit, CallOutcome::Succeeded, clock);
                    if charges {
                        of.uses.handle_charged(&self.rule, clock);
                    }
                }
                let Some(ask) = ask else { return };
                let of_shard = &mut of.shards[shard];
                of_shard.permits.handle_answer(&self.rule, ask.id, granted, wait, clock);
            }
        }
    }

    /// Ends the calls of a node that are overdue, and reports its breaker.
    fn watch(&mut self, node: usize) {
        let now = self.now;
        let of = &mut self.nodes[node];
        let clock = at(now + of.offset);
        let overdue: Vec<u64> =
            of.calls.iter().filter(|(_, call)| call.1 + TIMEOUT_MS <= now).map(|(id, _)| *id).collect();
        for id in overdue {
            let Some((permit, _, charges)) = of.calls.remove(&id) else { continue };
            of.breaker.record(permit, CallOutcome::Late, clock);
            if charges {
                of.uses.handle_charge_lost();
            }
        }
        of.switch.handle_breaker(of.breaker.state(clock) != BreakerState::Closed, clock);
        of.switch.handle_timeout(clock);
        // Calls of other parts of the node, which are probes too.
        if (now + node as u64 * 30).is_multiple_of(100) {
            self.call(node, 0, |_, _, _| Some(None));
        }
    }

    /// Makes a call if the breaker permits it.
    fn call(
        &mut self,
        node: usize,
        shard: usize,
        ask: impl FnOnce(&mut SimShard, &PermitRule, Time) -> Option<Option<PermitAsk>>,
    ) {
        let of = &mut self.nodes[node];
        let clock = at(self.now + of.offset);
        let Some(permit) = of.breaker.acquire(clock) else { return };
        let Some(ask) = ask(&mut of.shards[shard], &self.rule, clock) else {
            of.breaker.record(permit, CallOutcome::Abandoned, clock);
            return;
        };
        self.packet_count += 1;
        let call = self.packet_count;
        let charges = ask.is_some_and(|ask| ask.charge > 0);
        if charges {
            of.uses.handle_charge_sent(of.switch.generation());
        }
        of.calls.insert(call, (permit, self.now, charges));
        self.send(|| Packet::Call { node, shard, call, ask });
    }

    /// Returns the percent of the requests that a node gets, before or after the load has moved.
    fn percent_of(&self, node: usize, has_moved: bool) -> u64 {
        match (node, has_moved) {
            (0, false) => self.plan.first_percent,
            (0, true) => 0,
            (_, false) => (100 - self.plan.first_percent) / 2,
            (_, true) => 50,
        }
    }

    fn arrivals(&mut self, node: usize) -> usize {
        let percent = self.percent_of(node, self.plan.moves_load && self.now >= self.plan.outage.start);
        let mean = f64::from(self.plan.limit) * self.plan.offered / 1_000.0 * percent as f64 / 200.0;
        let whole = mean.floor();
        whole as usize + usize::from(self.random.below(1 << 20) as f64 / f64::from(1 << 20) < mean - whole)
    }

    fn turn(&mut self, node: usize, shard: usize) {
        let arrivals = self.arrivals(node);
        let (now, rule) = (self.now, self.rule);
        let of = &mut self.nodes[node];
        let clock = at(now + of.offset);
        let share = share_of(rule.limit(), KEY, NODES[node], &NODES);
        let mut charge = ChargeStep::Pending;
        if of.switch.source() == LimitSource::Permits {
            charge = of.uses.poll_charge(&rule, &of.switch, clock);
        }
        let of_shard = &mut of.shards[shard];
        let mut requests = std::mem::take(&mut of_shard.parked);
        requests.extend(std::iter::repeat_n(now, arrivals));
        let mut taken = 0;
        for since in requests {
            let permits = &mut of_shard.permits;
            match permits.check(clock) {
                PermitCheck::Ready => {
                    assert!(permits.take(&rule, clock));
                    taken += 1;
                    self.by_permit.push(now);
                    continue;
                }
                PermitCheck::Refused(_) if charge == ChargeStep::Done => {
                    self.refused += 1;
                    continue;
                }
                check @ (PermitCheck::Missing | PermitCheck::Waiting(_)) if charge == ChargeStep::Done => {
                    if check == PermitCheck::Missing {
                        permits.handle_waiting();
                    }
                    if now < since + TIMEOUT_MS {
                        of_shard.parked.push(since);
                        continue;
                    }
                }
                _ => permits.handle_waiting(),
            }
            if of.uses.check_share(&rule, share, clock).is_ok() {
                of.uses.commit_share(&rule, share, clock);
                self.by_share.push(now);
            } else {
                self.refused += 1;
            }
        }
        of.uses.handle_permits(&rule, taken, clock);
        let units = match charge {
            ChargeStep::Done => 0,
            ChargeStep::Send(units) => units,
            ChargeStep::Pending => return,
        };
        self.call(node, shard, |of, rule, clock| of.permits.poll_ask(rule, units, clock).map(Some));
    }

    /// Returns the largest number of uses within a window, in parts of the limit.
    fn worst(&self, uses: &[u64]) -> f64 {
        let (mut first, mut most) = (0, 0);
        for (last, time) in uses.iter().enumerate() {
            while uses[first] + 1_000 < *time {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most as f64 / f64::from(self.plan.limit)
    }

    fn all_uses(&self) -> Vec<u64> {
        let mut all = [self.by_permit.clone(), self.by_share.clone()].concat();
        all.sort_unstable();
        all
    }

    /// Checks what holds whatever happens, and returns the worst window of all uses.
    fn check(&self, seed: u64) -> f64 {
        let all = self.worst(&self.all_uses());
        let (permits, shares) = (self.worst(&self.by_permit), self.worst(&self.by_share));
        if self.plan.keeps_data {
            assert!(permits <= 1.0, "{permits} by permit, seed {seed}, {:?}", self.plan);
        }
        assert!(shares <= 1.0, "{shares} by share, seed {seed}, {:?}", self.plan);
        let factor = if self.plan.keeps_data { 2.0 } else { 3.0 };
        assert!(all <= factor, "{all}, seed {seed}, {:?}", self.plan);
        all
    }
}

#[test]
fn permits_keep_the_limit_of_a_cluster_and_use_most_of_it() {
    println!("limit offered first_percent: worst window, rate, in parts of the limit");
    for (n, limit) in [6, 40, 1_000, 10_000].into_iter().enumerate() {
        for (offered, first_percent) in [(0.7, 34), (3.0, 34), (3.0, 90)] {
            let seed = seed() ^ n as u64;
            // Long enough that chance moves the rate of few requests by no more than a few percent.
            let seconds = if limit < 100 { 320 } else { 8 };
            let cluster = Cluster::run(Plan::calm(limit, offered, first_percent), seed, seconds * 1_000);
            let worst = cluster.check(seed);
            let rate = cluster.all_uses().iter().filter(|use_at| **use_at >= 2_000).count() as f64
                / ((seconds - 2) as f64 * f64::from(limit));
            println!("{limit:6} {offered} {first_percent}: {worst:.3}, {rate:.3}");
            assert_eq!(cluster.by_share.len(), 0, "no answer was late");
            assert!(worst <= 1.0);
            let least = if offered < 1.0 { 0.5 } else { 0.82 };
            assert!(rate >= least, "{rate} of a limit of {limit}, {offered} offered, seed {seed}");
        }
    }
}

#[test]
fn permits_keep_the_limit_when_answers_are_lost_late_or_doubled() {
    let mut worst = 0.0_f64;
    for n in 0..24 {
        let seed = seed().wrapping_add(n * 1_000);
        let limit = [5, 16, 60, 700][n as usize % 4];
        let plan =
            Plan { has_faults: true, ..Plan::calm(limit, [0.9, 2.0, 4.0][n as usize % 3], 34 + n * 2) };
        worst = worst.max(Cluster::run(plan, seed, 5_000).check(seed));
    }
    println!("worst window {worst:.3}");
}

#[test]
fn permits_are_charged_to_a_server_that_takes_over() {
    let mut worst = [0.0_f64; 2];
    for n in 0..12 {
        let seed = seed().wrapping_add(n * 555);
        let plan = Plan {
            fails_over_at: 3_000,
            keeps_data: n % 2 == 0,
            ..Plan::calm([6, 50, 1_000][n as usize % 3], 3.0, [34, 90][n as usize / 2 % 2])
        };
        let cluster = Cluster::run(plan, seed, 6_000);
        let of_plan = &mut worst[usize::from(cluster.plan.keeps_data)];
        *of_plan = of_plan.max(cluster.check(seed));
        let after: Vec<u64> = cluster.all_uses().into_iter().filter(|use_at| *use_at >= 4_100).collect();
        assert!(cluster.worst(&after) <= 1.0);
    }
    println!("worst window {:.3} with the data, {:.3} without", worst[1], worst[0]);
    assert!(worst[1] <= 2.0 && worst[0] <= 2.0);
}
