//! Simulation of a shard in overload: one core, a log with group commits that stall at times, and clients that offer twice
//! what the core can do.
//!
//! Clients are open-loop. Those that keep an announced wait send nothing until it is over, and then the refused message
//! again; the others send on. The shard visits a connection that it refused 50 ms later at the earliest.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};
use tidegate_protocol::{
    Time,
    machine::gate::{AnnouncedWait, COST_UNIT, GateClass, GateRule, LoadGate},
};

/// Costs on the core, in µs.
const RECEIVE: f64 = 1.0;
const DECODE: f64 = 1.2;
const SUBMIT: f64 = 1.5;
const APPEND_TO_ACK: f64 = 7.0;
const ACK: f64 = 1.7;
const PUSH: f64 = 5.1;
/// Reading kind and id of a frame that is refused; the write is once a visit.
const PEEK: f64 = 0.3;

const COMMIT: f64 = 150.0;
const STALL: f64 = 30_000.0;
const PAUSE: f64 = 50_000.0;
/// Frames that the buffers of a connection hold; its client can't send more.
const BUFFERED_MAX: usize = 64;
/// Frames that are read in one visit.
const VISIT_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq)]
enum Guard {
    None,
    Gate { clients_wait: bool },
}

#[derive(Default)]
struct Client {
    /// Arrival times of the frames in the buffers.
    frames: VecDeque<f64>,
    unanswered: u32,
    /// Time before which the client sends nothing.
    waits_until: f64,
    /// Time before which the shard does not visit it.
    paused_until: f64,
    /// Time since which the connection is ready to be visited; none while it is not.
    ready_since: Option<f64>,
}

struct Shard {
    guard: Guard,
    receivers: f64,
    gap: f64,
    random: u64,
    /// Current time, in µs.
    now: f64,
    clients: Vec<Client>,
    ready: VecDeque<usize>,
    next_arrival: f64,
    /// Messages that clients send again, and connections to visit after a pause; by time in µs.
    timers: BinaryHeap<Reverse<(u64, bool, usize)>>,
    gate: LoadGate,
    wait: AnnouncedWait,
    /// Submitted messages: client and time since which they were delayed, with that of arrival.
    batch: Vec<(usize, f64, f64)>,
    in_commit: Vec<(usize, f64, f64)>,
    commit_ends: f64,
    measured_from: f64,
    latencies: Vec<f64>,
    refused: u64,
}

struct Outcome {
    rate: f64,
    p99_ms: f64,
    refused: f64,
    wait: Duration,
}

impl Shard {
    fn run(clients: usize, receivers: u32, rate: f64, guard: Guard, seconds: f64, seed: u64) -> Outcome {
        let rule = GateRule { min: 64, max: 8_192, excess: Duration::from_millis(20) };
        let mut shard = Self {
            guard,
            receivers: receivers.into(),
            gap: 1e6 / rate,
            random: seed,
            now: 0.0,
            clients: std::iter::repeat_with(Client::default).take(clients).collect(),
            ready: VecDeque::new(),
            next_arrival: 0.0,
            timers: BinaryHeap::new(),
            gate: LoadGate::new(rule, Time::ZERO),
            wait: AnnouncedWait::new(Time::ZERO),
            batch: Vec::new(),
            in_commit: Vec::new(),
            commit_ends: f64::MAX,
            measured_from: seconds * 0.6e6,
            latencies: Vec::new(),
            refused: 0,
        };
        while shard.now < seconds * 1e6 {
            shard.turn();
        }
        let measured = seconds * 0.4;
        shard.latencies.sort_unstable_by(f64::total_cmp);
        let p99 = shard.latencies.get(shard.latencies.len() * 99 / 100).copied().unwrap_or(f64::MAX);
        Outcome {
            rate: shard.latencies.len() as f64 / measured,
            p99_ms: p99 / 1e3,
            refused: shard.refused as f64 / measured,
            wait: shard.wait.mean(),
        }
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn turn(&mut self) {
        self.arrive();
        if self.commit_ends <= self.now {
            self.answer();
        }
        if self.commit_ends == f64::MAX && !self.batch.is_empty() {
            std::mem::swap(&mut self.batch, &mut self.in_commit);
            let takes = if self.unit() < 0.002 { STALL } else { COMMIT };
            self.commit_ends = self.now + takes;
        }
        let now = Time::from_millis((self.now / 1e3) as u64);
        self.gate.handle_timeout(now);
        self.wait.handle_timeout(now);
        if self.ready.is_empty() {
            let timer = self.timers.peek().map_or(f64::MAX, |Reverse((at, ..))| *at as f64);
            self.now = self.now.max(self.next_arrival.min(self.commit_ends).min(timer));
            return;
        }
        for _ in 0..self.ready.len() {
            if let Some(client) = self.ready.pop_front() {
                self.visit(client);
            }
        }
    }

    fn arrive(&mut self) {
        while self.next_arrival <= self.now {
            let (time, client) = (self.next_arrival, self.draw() as usize % self.clients.len());
            if self.clients[client].waits_until <= time {
                self.push(client, time);
            }
            self.next_arrival -= self.gap * (1.0 - self.unit()).ln();
        }
        while let Some(Reverse((time, is_message, client))) = self.timers.peek().copied()
            && time as f64 <= self.now
        {
            self.timers.pop();
            if is_message {
                self.push(client, time as f64);
            } else {
                self.make_ready(client);
            }
        }
    }

    fn push(&mut self, client: usize, time: f64) {
        let of = &mut self.clients[client];
        if of.frames.len() < BUFFERED_MAX || self.guard == Guard::None {
            of.frames.push_back(time);
        }
        if of.paused_until <= self.now {
            self.make_ready(client);
        }
    }

    fn make_ready(&mut self, client: usize) {
        let of = &mut self.clients[client];
        if of.ready_since.is_none() && !of.frames.is_empty() {
            of.ready_since = Some(self.now);
            self.ready.push_back(client);
        }
    }

    fn visit(&mut self, client: usize) {
        let since = self.clients[client].ready_since.take().unwrap_or(self.now);
        let mut has_refused = false;
        for _ in 0..VISIT_MAX {
            let of = &mut self.clients[client];
            let Some(arrived) = of.frames.pop_front() else { break };
            let is_light = of.unanswered < 2;
            let is_admitted =
                self.guard == Guard::None || self.gate.enter(GateClass::Send, COST_UNIT, is_light);
            self.wait.handle_frame(!is_admitted);
            if is_admitted {
                self.now += RECEIVE + DECODE + SUBMIT;
                of.unanswered += 1;
                self.batch.push((client, since, arrived));
            } else {
                self.now += RECEIVE + PEEK;
                has_refused = true;
                self.refused += u64::from(self.now > self.measured_from);
            }
        }
        if has_refused {
            self.now += ACK;
            self.refuse(client);
        }
        if self.clients[client].paused_until <= self.now {
            self.make_ready(client);
        }
    }

    fn refuse(&mut self, client: usize) {
        if self.guard == (Guard::Gate { clients_wait: true }) {
            let random = self.draw();
            let until = self.now + self.wait.announced(random).as_micros() as f64;
            self.clients[client].waits_until = until;
            self.timers.push(Reverse((until as u64, true, client)));
        } else {
            let until = self.now + PAUSE;
            self.clients[client].paused_until = until;
            self.timers.push(Reverse((until as u64 + 1, false, client)));
        }
    }

    fn answer(&mut self) {
        self.commit_ends = f64::MAX;
        let answered = std::mem::take(&mut self.in_commit);
        for (client, since, arrived) in answered {
            self.now += APPEND_TO_ACK + ACK + PUSH * self.receivers;
            self.clients[client].unanswered -= 1;
            if self.guard != Guard::None {
                self.gate.leave(COST_UNIT, Some(Duration::from_micros((self.now - since) as u64)));
            }
            if self.now > self.measured_from {
                self.latencies.push(self.now - arrived);
            }
        }
    }
}

/// Highest rate without a guard whose p99 is at most 3 times that of half load.
fn knee(clients: usize, receivers: u32, flat_out: f64, half: f64, seconds: f64) -> f64 {
    let (mut low, mut high) = (0.6, 1.05);
    for _ in 0..5 {
        let middle = (low + high) / 2.0;
        let p99 = Shard::run(clients, receivers, flat_out * middle, Guard::None, seconds, 0).p99_ms;
        if p99 <= 3.0 * half { low = middle } else { high = middle }
    }
    flat_out * low
}

#[test]
fn gate_keeps_goodput_and_delay_at_twice_the_capacity() {
    println!(
        "connections, receivers: knee; half load p99; no guard p99; clients that keep the wait: rate / knee, p99 / half, \
         refused/s, wait; that ignore it: rate / knee, p99 / half"
    );
    for (clients, receivers) in [(2_000, 1), (2_000, 20), (20_000, 1)] {
        let cost = RECEIVE + DECODE + SUBMIT + APPEND_TO_ACK + ACK + PUSH * f64::from(receivers);
        let flat_out = 1e6 / cost;
        let run = |part: f64, guard, seconds, seed| {
            Shard::run(clients, receivers, flat_out * part, guard, seconds, seed)
        };
        let half = run(0.5, Guard::None, 5.0, 0).p99_ms;
        let knee = knee(clients, receivers, flat_out, half, 5.0);
        let none = run(2.0, Guard::None, 5.0, 0);
        // The limit and the wait swing, so the mean of three runs is compared.
        let runs = [0, 1, 2].map(|seed| run(2.0, Guard::Gate { clients_wait: true }, 30.0, seed));
        let mean = |of: fn(&Outcome) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let (rate, p99_ms) = (mean(|it| it.rate), mean(|it| it.p99_ms));
        let ignore = run(2.0, Guard::Gate { clients_wait: false }, 8.0, 0);
        println!(
            "{clients:6}, {receivers:2}: {knee:6.0}/s; {half:3.0} ms; {:5.0} ms; {:.2}, {:.1} x, {:4.0}/s, {:?}; {:.2}, {:.1} x",
            none.p99_ms,
            rate / knee,
            p99_ms / half,
            mean(|it| it.refused),
            runs[0].wait,
            ignore.rate / knee,
            ignore.p99_ms / half,
        );
        assert!(rate >= 0.9 * knee, "{rate} of {knee}");
        assert!(p99_ms <= 3.0 * half, "{p99_ms} ms, {half} ms at half load");
    }
}
