//! Model of a cluster that delivers to one endpoint: nodes that freeze and crash, a store with fences, a network that
//! loses answers, and a receiver that checks the order of what it takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tidegate_protocol::{
    Time,
    id::ConversationId,
    machine::webhook::{
        CURSOR_BYTES_MAX, WEBHOOK_EVENTS_MAX, WebhookBatch, WebhookCursor, WebhookDelivery, WebhookEvent,
        WebhookEventKind, WebhookItem, WebhookNotice, WebhookOutcome, WebhookPage, WebhookSave,
        WebhookSettings,
    },
};

const PARTITIONS: u32 = 2;
const CONVERSATIONS: u64 = 6;

/// Entries of each conversation with such a seq are not wanted.
const UNWANTED: u64 = 7;

/// Random numbers of one run.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// Request on its way.
struct Flight {
    /// Node, with its run, that waits for the answer.
    node: usize,
    run: u64,
    batch: WebhookBatch,
    answer: Option<WebhookOutcome>,
}

struct Node {
    delivery: WebhookDelivery,
    run: u64,
    fences: BTreeMap<u32, u64>,
    is_frozen: bool,
    saves: Vec<WebhookSave>,
}

#[derive(Default)]
struct Receiver {
    entries: BTreeSet<(ConversationId, u64)>,
    prunings: BTreeSet<(ConversationId, u64)>,
    poison: BTreeSet<(ConversationId, u64)>,
    is_down: bool,
}

pub(super) struct World {
    seed: u64,
    rng: Rng,
    now: u64,
    feeds: BTreeMap<u32, Vec<WebhookItem>>,
    last_seqs: BTreeMap<ConversationId, u64>,
    fences: BTreeMap<u32, u64>,
    cursors: BTreeMap<u32, Vec<u8>>,
    nodes: Vec<Node>,
    flights: Vec<Flight>,
    receiver: Receiver,
    aside: BTreeSet<(ConversationId, u64)>,
    is_healed: bool,
}

fn conversation(number: u64) -> ConversationId {
    ConversationId::parse(&format!("g:c{number}")).unwrap()
}

const fn is_wanted(event: &WebhookEvent) -> bool {
    matches!(event.kind, WebhookEventKind::Pruned) || !event.seq.is_multiple_of(UNWANTED)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut world = Self {
            seed,
            rng: Rng(seed),
            now: 0,
            feeds: (0..PARTITIONS).map(|it| (it, Vec::new())).collect(),
            last_seqs: BTreeMap::new(),
            fences: (0..PARTITIONS).map(|it| (it, 0)).collect(),
            cursors: (0..PARTITIONS).map(|it| (it, WebhookCursor::at(0, 3).encode())).collect(),
            nodes: Vec::new(),
            flights: Vec::new(),
            receiver: Receiver::default(),
            aside: BTreeSet::new(),
            is_healed: false,
        };
        for _ in 0..2 {
            let node = world.node();
            world.nodes.push(node);
        }
        for partition in 0..PARTITIONS {
            world.take_over(partition, 0);
        }
        world
    }

    fn settings(&mut self) -> WebhookSettings {
        WebhookSettings {
            parallel: 1 + usize::try_from(self.rng.below(4)).unwrap(),
            batch_max: 1 + usize::try_from(self.rng.below(8)).unwrap(),
            batch_wait: Duration::from_millis(self.rng.below(2) * 50),
            aside_after: Duration::from_secs(24 * 3_600),
        }
    }

    fn node(&mut self) -> Node {
        let (settings, seed) = (self.settings(), self.rng.below(u64::MAX));
        let (delivery, run) = (WebhookDelivery::new(settings, seed), self.rng.below(u64::MAX));
        Node { delivery, run, fences: BTreeMap::new(), is_frozen: false, saves: Vec::new() }
    }

    const fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn take_over(&mut self, partition: u32, node: usize) {
        let fence = self.fences.get_mut(&partition).unwrap();
        *fence += 1;
        let cursor = WebhookCursor::decode(&self.cursors[&partition]).unwrap();
        let now = Time::from_millis(self.now);
        let node = &mut self.nodes[node];
        node.fences.insert(partition, *fence);
        node.delivery.handle_owned(partition, cursor, now);
    }

    fn append(&mut self, number: u64) {
        let conversation = conversation(number);
        let partition = u32::try_from(number).unwrap() % PARTITIONS;
        let last = self.last_seqs.entry(conversation.clone()).or_default();
        let (is_pruning, is_poison) = (*last > 0 && self.rng.one_in(12), self.rng.one_in(15));
        let kind = if is_pruning { WebhookEventKind::Pruned } else { WebhookEventKind::Entry };
        *last += u64::from(!is_pruning);
        let event = WebhookEvent { conversation: conversation.clone(), seq: *last, kind };
        if is_poison && !is_pruning && !self.is_healed && is_wanted(&event) {
            self.receiver.poison.insert((conversation, *last));
        }
        let feed = self.feeds.get_mut(&partition).unwrap();
        let item = WebhookItem { number: feed.len() as u64 + 1, is_wanted: is_wanted(&event), event };
        feed.push(item);
    }

    /// Lets a node do everything that it wants to do now.
    fn poll(&mut self, at: usize) {
        let now = self.time();
        let newest: Vec<(u32, u64)> = self.feeds.iter().map(|(it, feed)| (*it, feed.len() as u64)).collect();
        for (partition, newest) in newest {
            self.nodes[at].delivery.handle_newest(partition, newest);
        }
        for _ in 0..20 {
            let Some(read) = self.nodes[at].delivery.poll_read(now) else { break };
            if !self.is_healed && self.rng.one_in(20) {
                self.nodes[at].delivery.handle_read_failed(read.partition, now);
                continue;
            }
            let feed = &self.feeds[&read.partition];
            let end = feed.len().min(usize::try_from(read.after + 1 + self.rng.below(9)).unwrap());
            let items = feed[usize::try_from(read.after).unwrap().min(end)..end].to_vec();
            let page = WebhookPage { after: read.after, end: end as u64, newest: feed.len() as u64, items };
            self.nodes[at].delivery.handle_page(read.partition, &page, now);
        }
        while let Some(batch) = self.nodes[at].delivery.poll_send(now) {
            let run = self.nodes[at].run;
            assert!(!batch.events.is_empty(), "{}: no request is empty", self.seed);
            self.flights.push(Flight { node: at, run, batch, answer: None });
        }
        while let Some(save) = self.nodes[at].delivery.poll_save(now) {
            assert!(save.bytes.len() <= CURSOR_BYTES_MAX);
            self.nodes[at].saves.push(save);
        }
        self.note(at);
        let node = &self.nodes[at].delivery;
        assert!(node.events() <= WEBHOOK_EVENTS_MAX && node.in_flight() <= 6, "{}: bounds", self.seed);
    }

    fn note(&mut self, at: usize) {
        while let Some(notice) = self.nodes[at].delivery.poll_notice() {
            match notice {
                WebhookNotice::Aside(event) => {
                    let key = (event.conversation.clone(), event.seq);
                    assert!(self.receiver.poison.contains(&key), "{}: {event:?} set aside", self.seed);
                    self.aside.insert(key);
                }
                WebhookNotice::Released(partition) => {
                    let fence = self.nodes[at].fences.remove(&partition);
                    if fence == Some(self.fences[&partition]) {
                        let other = (at + 1) % self.nodes.len();
                        self.take_over(partition, other);
                    }
                }
                _ => {}
            }
        }
    }

    /// Lets a request arrive, or its answer return.
    fn advance_flight(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let at = usize::try_from(self.rng.below(self.flights.len() as u64)).unwrap();
        if self.flights[at].answer.is_none() {
            let events = self.flights[at].batch.events.clone();
            self.flights[at].answer = Some(self.receive(&events));
            return;
        }
        let node = &self.nodes[self.flights[at].node];
        if node.is_frozen {
            return;
        }
        let flight = self.flights.swap_remove(at);
        if self.nodes[flight.node].run != flight.run {
            return;
        }
        let is_lost = !self.is_healed && self.rng.one_in(10);
        let outcome = if is_lost { WebhookOutcome::Failed } else { flight.answer.unwrap() };
        let now = self.time();
        self.nodes[flight.node].delivery.handle_outcome(flight.batch.ticket, outcome, now);
        self.note(flight.node);
    }

    fn receive(&mut self, events: &[WebhookEvent]) -> WebhookOutcome {
        if !self.is_healed && self.rng.one_in(25) {
            return [WebhookOutcome::Failed, WebhookOutcome::Unsent, WebhookOutcome::Busy(None)]
                [usize::try_from(self.rng.below(3)).unwrap()];
        }
        if self.receiver.is_down {
            return WebhookOutcome::Failed;
        }
        let key = |event: &WebhookEvent| (event.conversation.clone(), event.seq);
        let is_poison = |event: &WebhookEvent| {
            event.kind == WebhookEventKind::Entry && self.receiver.poison.contains(&key(event))
        };
        if events.iter().any(is_poison) {
            return WebhookOutcome::Refused;
        }
        for event in events.iter().filter(|event| is_wanted(event)) {
            let before = match event.kind {
                WebhookEventKind::Entry => 1..event.seq,
                WebhookEventKind::Pruned => 1..event.seq + 1,
            };
            for seq in before.filter(|seq| !seq.is_multiple_of(UNWANTED)) {
                let before = (event.conversation.clone(), seq);
                let is_done = self.receiver.entries.contains(&before) || self.aside.contains(&before);
                assert!(is_done, "TIDEGATE_SEED run {}: {event:?} before {seq}", self.seed);
            }
            match event.kind {
                WebhookEventKind::Entry => self.receiver.entries.insert(key(event)),
                WebhookEventKind::Pruned => self.receiver.prunings.insert(key(event)),
            };
        }
        WebhookOutcome::Taken
    }

    fn store(&mut self, at: usize) {
        let now = self.time();
        for save in std::mem::take(&mut self.nodes[at].saves) {
            let current = self.fences[&save.partition];
            let is_down = !self.is_healed && self.rng.one_in(8);
            let is_owner = self.nodes[at].fences.get(&save.partition) == Some(&current);
            let is_lost = !self.is_healed && self.rng.one_in(10);
            if !is_down && is_owner {
                self.cursors.insert(save.partition, save.bytes);
            }
            let delivery = &mut self.nodes[at].delivery;
            match is_owner || is_down {
                true => delivery.handle_save(save.partition, !is_down && !is_lost, now),
                false => delivery.handle_lost(save.partition),
            }
        }
        self.note(at);
    }

    pub(super) fn step(&mut self) {
        let at = usize::try_from(self.rng.below(2)).unwrap();
        let partition = u32::try_from(self.rng.below(u64::from(PARTITIONS))).unwrap();
        match self.rng.below(40) {
            0..8 => {
                let number = self.rng.below(CONVERSATIONS);
                self.append(number);
            }
            8..16 if !self.nodes[at].is_frozen => self.poll(at),
            16..28 => self.advance_flight(),
            28..31 if !self.nodes[at].is_frozen => self.store(at),
            31..35 => self.now += self.rng.below(2_000),
            35 => self.now += self.rng.below(90_000),
            36 => self.receiver.is_down = self.rng.one_in(4),
            37 => self.disturb(at, partition),
            _ => self.settle_ownership(at, partition),
        }
    }

    /// Freezes, wakes or kills a node, or changes its settings.
    fn disturb(&mut self, at: usize, partition: u32) {
        match self.rng.below(6) {
            0 | 1 => self.nodes[at].is_frozen = !self.nodes[at].is_frozen,
            2 => self.nodes[at] = self.node(),
            3 => {
                let (settings, now) = (self.settings(), self.time());
                self.nodes[at].delivery.handle_settings(settings, now);
            }
            4 => {
                let now = self.time();
                self.nodes[at].delivery.handle_release(partition, now);
            }
            _ => self.take_over(partition, at),
        }
    }

    /// Gives a partition without a working owner to a node. The former owner, if it is frozen, does not know.
    fn settle_ownership(&mut self, at: usize, partition: u32) {
        let current = self.fences[&partition];
        let is_owned =
            self.nodes.iter().any(|it| !it.is_frozen && it.fences.get(&partition) == Some(&current));
        if !is_owned && !self.nodes[at].is_frozen {
            self.take_over(partition, at);
        }
    }

    /// Ends all faults except the poison, and delivers until nothing is left.
    pub(super) fn heal(&mut self) {
        self.is_healed = true;
        self.receiver.is_down = false;
        self.nodes.iter_mut().for_each(|it| it.is_frozen = false);
        for partition in 0..PARTITIONS {
            self.settle_ownership(0, partition);
        }
        for round in 0..1_500 {
            // Others succeed, so that poison is recognised.
            if round % 8 == 0 {
                (0..4).for_each(|it| self.append(100 + it));
            }
            for at in 0..2 {
                self.poll(at);
                while self.flights.iter().any(|it| it.node == at) {
                    self.advance_flight();
                }
                self.store(at);
            }
            self.now += 700 + self.rng.below(60_000);
            let is_parked = self.nodes.iter().any(|it| it.delivery.parked() > 0);
            if !is_parked && self.missing().is_none() {
                return;
            }
        }
        let parked: Vec<_> =
            self.nodes.iter().map(|it| (it.delivery.state(), it.delivery.parked())).collect();
        panic!("TIDEGATE_SEED run {}: {:?} is missing, {parked:?}", self.seed, self.missing());
    }

    fn missing(&self) -> Option<WebhookEvent> {
        let items = self.feeds.values().flatten().filter(|item| item.is_wanted);
        let mut events = items.map(|item| &item.event).filter(|event| {
            let key = (event.conversation.clone(), event.seq);
            match event.kind {
                WebhookEventKind::Entry => {
                    !self.receiver.entries.contains(&key) && !self.aside.contains(&key)
                }
                // A later pruning includes the former ones.
                WebhookEventKind::Pruned => {
                    let later = (event.conversation.clone(), u64::MAX);
                    self.receiver.prunings.range(key..=later).next().is_none()
                }
            }
        });
        events.next().cloned()
    }

    pub(super) fn aside(&self) -> usize {
        self.aside.len()
    }
}
