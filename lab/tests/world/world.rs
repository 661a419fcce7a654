//! Loop of the world: gives turns to nodes and clients in an order drawn from the seed, and lets things break.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering,
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use tidegate::{fault::Gate, routes::SavedRoutes, store::SavedStore};
use tidegate_lab::{
    checker::{Closings, History, HistoryEvent},
    person::{Phase, Profile},
    rows,
};
use tidegate_protocol::{
    codec::Wire,
    id::{ConversationId, UserId},
};

use crate::{
    client::{Client, Dialer},
    deck::Deck,
    groups::{Administrator, Group},
    nemesis::{Fault, Move, Nemesis},
    node::{Node, Services, WALL_START_MS},
    pipes::ClientEnd,
};

const NODES: usize = 3;
const PARTITIONS: usize = 4;
const USERS: usize = 8;

/// Makes the seed of the edits another one than that of the rest.
const EDIT_STREAM: u64 = 0x5eed_0fed_1750_0000;

/// How long clients talk while things break.
const TALK_TIME: Duration = Duration::from_secs(20);

/// Longest time for everything to come to rest in a phase.
const REST_TIMEOUT: Duration = Duration::from_secs(90);

/// Time after the end of all faults until the closing messages of the room have come, or their loss was announced.
const CLOSINGS_TIMEOUT: Duration = Duration::from_secs(8);

/// Time from the eviction of a node that archives until it learns that it has archived.
const ARCHIVE_HELD: Duration = Duration::from_millis(30);

/// Time until the group of owners notices a crash.
const OWNER_SESSION: Duration = Duration::from_secs(6);

/// World of one seed.
pub(crate) struct World {
    rng: StdRng,
    services: Services,
    nodes: Vec<Option<Node>>,
    boots: Vec<u64>,
    clients: Vec<Client>,
    administrator: Administrator,
    nemesis: Nemesis,
    history: History,
    closings: Closings,
    now: Duration,
    phase: Phase,
    sessions: u64,
    /// States to which the routes and the store fall back.
    saved_routes: Option<SavedRoutes>,
    saved_store: Option<SavedStore>,
    /// Time at which the store fell back last: marks from before are lost with it.
    store_fell_back: Option<Duration>,
    /// Node whose next archive is held, and the gate that holds it.
    held_archive: Option<(usize, Gate)>,
    /// Gate of a node that was evicted meanwhile, and when it opens.
    opening: Option<(Gate, Duration)>,
    /// Members of the group of owners whose runs have ended, and when the group notices.
    crashed: Vec<(u64, Duration)>,
}

impl World {
    /// Creates the world of a seed, whose clients edit messages or not.
    pub(crate) fn new(seed: u64, edits: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        // A stream of its own: a world without edits is as it was before there were any.
        let mut editing = edits.then(|| StdRng::seed_from_u64(seed ^ EDIT_STREAM));
        let deck = Deck::of(seed);
        let services = Services::new(deck, rng.random(), PARTITIONS, seed % 2 == 1);
        let nodes = (0..NODES)
            .map(|nth| Some(Node::start(&services, nth, 1, rng.random(), Duration::ZERO)))
            .collect();
        let groups = groups();
        let client = |profile| {
            let edits = editing.as_mut().map(StdRng::random);
            Client::new(profile, deck.loses_pushes(), rng.random(), edits)
        };
        let clients = profiles(deck, &groups).into_iter().map(client).collect();
        let administrator = Administrator::new(groups, rng.random());
        let nemesis = Nemesis::new(deck, NODES, rng.random());
        Self {
            rng,
            services,
            nodes,
            boots: vec![1; NODES],
            clients,
            administrator,
            nemesis,
            history: History::default(),
            closings: Closings::default(),
            now: Duration::ZERO,
            phase: Phase::Talk,
            sessions: 0,
            saved_routes: None,
            saved_store: None,
            store_fell_back: None,
            held_archive: None,
            opening: None,
            crashed: Vec::new(),
        }
    }

    /// Runs all phases.
    pub(crate) fn run(&mut self) {
        while self.now < TALK_TIME {
            self.step();
        }
        self.heal();
        for phase in [Phase::Settle, Phase::Mark, Phase::Check] {
            self.phase = phase;
            if phase == Phase::Mark {
                self.closings.begin();
            }
            let deadline = self.now + REST_TIMEOUT;
            let mut quiet = 0;
            while quiet < 50 {
                self.step();
                let busy = self.clients.iter().find(|client| client.is_busy(phase));
                quiet = if busy.is_some() || !self.administrator.is_idle() { 0 } else { quiet + 1 };
                if let Some(busy) = busy.filter(|_| self.now > deadline) {
                    let Profile { user, device, .. } = busy.profile();
                    panic!("{phase:?}: {user}/{device} waits for {}", busy.waiting());
                }
            }
        }
        self.await_closings();
    }

    /// Lets time pass until the closing messages have come, or have to be judged.
    fn await_closings(&mut self) {
        let deadline = self.now + CLOSINGS_TIMEOUT;
        while self.now < deadline && !self.closings.have_come() {
            self.step();
        }
        self.history.push(nanos(self.now), HistoryEvent::<&str>::Quiet {});
    }

    /// Returns the history with the log at the end.
    pub(crate) fn finish(mut self) -> History {
        let users: BTreeSet<String> =
            self.clients.iter().map(|client| client.profile().user.clone()).collect();
        let users = users.iter().map(String::as_str).collect();
        self.nodes.clear();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a valid value");
        let read = rows::read(&*self.services.store, &users, &mut self.history);
        runtime.block_on(read).expect("the store is in memory");
        self.without_lost_marks()
    }

    /// Removes the events of read marks that may be from before the store fell back: marks are not in the log. A read that
    /// was requested after that counts.
    fn without_lost_marks(mut self) -> History {
        let Some(fell_back) = self.store_fell_back.map(nanos) else { return self.history };
        let (mut requested, mut old_syncs) = (BTreeMap::new(), BTreeSet::new());
        self.history.events.retain(|stamped| match stamped.event {
            HistoryEvent::ReadInv { user, conv, seq } => {
                if stamped.at <= fell_back {
                    let highest: &mut u64 = requested.entry((user, conv)).or_default();
                    *highest = seq.max(*highest);
                }
                true
            }
            HistoryEvent::ReadOk { user, conv, seq } => {
                stamped.at > fell_back && requested.get(&(user, conv)).is_none_or(|before| seq > *before)
            }
            HistoryEvent::SyncInv { session } => {
                if stamped.at <= fell_back {
                    old_syncs.insert(session);
                } else {
                    old_syncs.remove(&session);
                }
                true
            }
            HistoryEvent::State { session, .. } | HistoryEvent::SyncEnd { session, .. } => {
                stamped.at > fell_back && !old_syncs.contains(&session)
            }
            _ => true,
        });
        self.history
    }

    /// Lets a moment pass.
    fn step(&mut self) {
        self.now += Duration::from_millis(self.rng.random_range(1..=6));
        let millis = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX);
        self.services.clock.store(millis, Ordering::Relaxed);
        self.services.store.set_now_ms(WALL_START_MS + millis);
        self.evict_crashed();
        self.evict_archiving();
        if let Some((gate, _)) = self.opening.take_if(|(_, at)| *at <= self.now) {
            gate.open();
        }
        self.replace_ended();
        let mut order: Vec<usize> = (0..NODES).collect();
        order.shuffle(&mut self.rng);
        for nth in order {
            if let Some(node) = &mut self.nodes[nth] {
                node.turn(self.now);
            }
        }
        let mut order: Vec<usize> = (0..self.clients.len()).collect();
        order.shuffle(&mut self.rng);
        for nth in order {
            let mut doors = Doors { nodes: &mut self.nodes, sessions: &mut self.sessions };
            self.clients[nth].step(self.now, self.phase, &mut doors);
            for event in self.clients[nth].take_events() {
                self.history.push(nanos(self.now), event);
                self.closings.note(&self.history);
            }
        }
        let talks = self.phase == Phase::Talk;
        for event in self.administrator.step(self.now, &mut self.nodes, talks) {
            self.history.push(nanos(self.now), event);
        }
        match self.nemesis.step(self.now, talks) {
            Some(Move::Begin(fault)) => self.begin(fault),
            Some(Move::End(fault)) => self.end(fault),
            None => {}
        }
    }

    fn note(&mut self, on: bool, fault: Fault) {
        tracing::info!(now = ?self.now, on, ?fault, "nemesis");
        self.history.push(nanos(self.now), HistoryEvent::Nemesis { on, fault: fault.name() });
    }

    fn begin(&mut self, fault: Fault) {
        self.note(true, fault);
        match fault {
            Fault::Kill(nth) => self.kill(nth),
            Fault::Freeze(nth) => self.on_node(nth, |node| node.frozen_until = Duration::MAX),
            Fault::Cut(one, other) => {
                if let (Some(one), Some(other)) = (&self.nodes[one], &self.nodes[other]) {
                    self.services.network.cut(&one.me.node, &other.me.node);
                }
            }
            Fault::SlowLink => self.services.network.degrade(300, 30),
            Fault::LoseRoutes => self.services.routes.lose_everything(),
            Fault::LoseRoutesApart(nth) => {
                self.services.routes.lose_everything();
                self.on_node(nth, |node| node.set_routes_apart(true));
            }
            Fault::RestoreRoutes => self.saved_routes = Some(self.services.routes.save()),
            Fault::RestoreStore => self.saved_store = Some(self.services.store.save()),
            Fault::Leave(nth) => self.on_node(nth, Node::leave),
            Fault::Evict(nth) => {
                if let Some(member) = self.nodes[nth].as_ref().and_then(Node::member) {
                    self.services.log.evict(member);
                }
            }
            Fault::EvictArchiving(nth) => {
                let gate = Gate::new();
                self.on_node(nth, |node| node.hold_archive(gate.clone()));
                self.held_archive = Some((nth, gate));
            }
            Fault::CutClients => {
                for client in &mut self.clients {
                    if self.rng.random_ratio(1, 3) {
                        client.cut();
                    }
                }
            }
            Fault::StallClients => {
                for client in &mut self.clients {
                    if self.rng.random_ratio(1, 3) {
                        client.stall(self.now, self.now + Duration::from_secs(4));
                    }
                }
            }
            Fault::ClockJump(nth) => {
                let jump = self.rng.random_range(-3_600_000..3_600_000);
                self.on_node(nth, |node| node.wall_offset_ms = jump);
            }
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(nth) if self.nodes[nth].is_none() => self.start(nth),
            Fault::Kill(_) => {}
            Fault::Freeze(nth) => self.on_node(nth, |node| node.frozen_until = Duration::ZERO),
            Fault::Cut(..) | Fault::SlowLink => self.services.network.heal(),
            Fault::Evict(nth) => {
                if let Some(member) = self.nodes[nth].as_ref().and_then(Node::member) {
                    self.services.log.notify_eviction(member);
                }
            }
            Fault::EvictArchiving(nth) => {
                self.on_node(nth, |node| node.forget_held_archive());
                if let Some((_, gate)) = self.held_archive.take() {
                    gate.open();
                }
            }
            Fault::ClockJump(nth) => self.on_node(nth, |node| node.wall_offset_ms = 0),
            Fault::LoseRoutesApart(nth) => self.on_node(nth, |node| node.set_routes_apart(false)),
            Fault::RestoreRoutes => {
                if let Some(saved) = self.saved_routes.take() {
                    self.services.routes.restore(saved);
                }
            }
            Fault::RestoreStore => {
                if let Some(saved) = self.saved_store.take() {
                    self.services.store.restore(saved);
                    self.store_fell_back = Some(self.now);
                }
            }
            Fault::Leave(_) | Fault::LoseRoutes | Fault::CutClients | Fault::StallClients => {}
        }
        self.note(false, fault);
    }

    fn on_node(&mut self, nth: usize, change: impl FnOnce(&mut Node)) {
        if let Some(node) = &mut self.nodes[nth] {
            change(node);
        }
    }

    fn kill(&mut self, nth: usize) {
        let Some(node) = self.nodes[nth].take() else { return };
        self.history.push(nanos(self.now), HistoryEvent::Down { node: node.me.node.to_string() });
        self.end_sessions(&node);
    }

    /// Lets the sessions of a run that has ended time out in the group of owners. The group does not depend on the
    /// runtime of the node for that: also a member that the run lost, as with the answer to its join, holds partitions.
    fn end_sessions(&mut self, node: &Node) {
        let until = self.now + OWNER_SESSION;
        self.crashed.extend(node.members().into_iter().map(|member| (member, until)));
    }

    fn start(&mut self, nth: usize) {
        self.boots[nth] += 1;
        let node = Node::start(&self.services, nth, self.boots[nth], self.rng.random(), self.now);
        self.nodes[nth] = Some(node);
    }

    /// Replaces the runs that have ended, as a supervisor does.
    fn replace_ended(&mut self) {
        for nth in 0..NODES {
            if self.nodes[nth].as_ref().is_some_and(Node::has_ended) {
                if let Some(node) = self.nodes[nth].take_if(|node| node.is_leaving()) {
                    self.end_sessions(&node);
                } else {
                    self.kill(nth);
                }
                self.start(nth);
            }
        }
    }

    /// Evicts the node whose archive is done and held, and opens the gate soon after.
    fn evict_archiving(&mut self) {
        let Some((nth, gate)) = self.held_archive.take_if(|(_, gate)| gate.reached() > 0) else { return };
        if let Some(member) = self.nodes[nth].as_ref().and_then(Node::member) {
            self.services.log.evict(member);
            self.services.log.notify_eviction(member);
        }
        self.opening = Some((gate, self.now + ARCHIVE_HELD));
    }

    fn evict_crashed(&mut self) {
        let now = self.now;
        for (member, _) in self.crashed.extract_if(.., |(_, at)| *at <= now) {
            self.services.log.evict(member);
        }
    }

    /// Ends all faults. A run that its peers have retired is replaced, as by its supervisor.
    fn heal(&mut self) {
        if let Some(Move::End(fault)) = self.nemesis.step(self.now, false) {
            self.end(fault);
        }
        self.services.network.heal();
        self.nodes.iter_mut().flatten().for_each(Node::heal);
    }
}

/// Listeners of the nodes, for clients.
struct Doors<'a> {
    nodes: &'a mut [Option<Node>],
    sessions: &'a mut u64,
}

impl Dialer for Doors<'_> {
    fn connect(&mut self, rng: &mut StdRng) -> Option<(usize, ClientEnd)> {
        let nth = rng.random_range(0..self.nodes.len());
        Some((nth, self.nodes[nth].as_mut()?.accept(rng)?))
    }

    fn next_session(&mut self) -> u64 {
        *self.sessions += 1;
        *self.sessions
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn user(number: usize) -> String {
    format!("u{}", number % USERS)
}

fn groups() -> Vec<Group> {
    // One is small, the other two are large.
    let group = |nth: usize, size: usize| Group {
        id: format!("team{nth}"),
        users: (0..size).map(|member| user(nth * 3 + member)).collect(),
        going: 2,
    };
    vec![group(0, 4), group(1, 7), group(2, 8)]
}

fn profiles(deck: Deck, groups: &[Group]) -> Vec<Profile> {
    let mut profiles = Vec::new();
    let direct = |one: &str, other: &str| {
        let id = |user: &str| UserId::new(user).expect("a good id");
        ConversationId::direct(&id(one), &id(other)).to_string()
    };
    for number in 0..USERS {
        let mut places =
            vec![direct(&user(number), &user(number + 1)), direct(&user(number), &user(number + 3))];
        let mine = groups.iter().filter(|group| group.users.contains(&user(number)));
        places.extend(mine.map(|group| format!("g:{}", group.id)));
        for device in 0..if number % 3 == 0 { 1 } else { 2 } {
            let number_of_client = profiles.len();
            profiles.push(Profile {
                number: number_of_client,
                user: user(number),
                device: format!("dev{device}"),
                wire: if number_of_client % 2 == 0 { Wire::Tcp } else { Wire::JsonLine },
                chained: number_of_client % 3 == 1,
                places: places.clone(),
                room: "hall".to_owned(),
                pace: deck.pace(),
                in_flight_max: 32,
                hops: deck.hops(),
                hints: true,
            });
        }
    }
    profiles
}
