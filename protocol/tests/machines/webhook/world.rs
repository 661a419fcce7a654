//! Model of a cluster that delivers to one endpoint: nodes that freeze and crash, a store with fences that falls back to an
//! older state, a network that loses answers, orders of an operator, and a receiver that checks the order of what it takes.

use std::{collections::BTreeMap, time::Duration};
use tidegate_protocol::{
    Time,
    id::ConversationId,
    machine::webhook::{
        CURSOR_BYTES_MAX, WEBHOOK_EVENTS_MAX, WebhookBatch, WebhookChange, WebhookDelivery, WebhookEvent,
        WebhookEventKind, WebhookNotice, WebhookOutcome, WebhookSave, WebhookSettings, WebhookStep,
    },
};

use super::{
    feed::{Feed, Key, key},
    receiver::{FAILED, Receiver, is_wanted},
};

const PARTITIONS: u32 = 2;
const CONVERSATIONS: u64 = 6;

/// Most orders of a run.
const ORDERS_MAX: usize = 6;

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

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
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

/// Order of the operator.
#[derive(Clone)]
enum Order {
    /// Replays from so many eighths of the feed.
    Replay(u64),
    Drop(ConversationId, u64),
    Resume,
}

struct FencedSave {
    fence: u64,
    save: WebhookSave,
}

struct Node {
    delivery: WebhookDelivery,
    run: u64,
    fences: BTreeMap<u32, u64>,
    is_frozen: bool,
    /// Cursors to be saved, with the fence of their partition.
    saves: Vec<FencedSave>,
    /// Numbers from which replays begin that are not saved, by partition and order.
    replays: BTreeMap<(u32, u64), u64>,
    /// Requests that the receiver took.
    successes: u64,
    /// Successes before the last failure of an event, and before the one before.
    failures: BTreeMap<Key, (Option<u64>, u64)>,
}

pub(super) struct World {
    seed: u64,
    rng: Rng,
    now: u64,
    feeds: BTreeMap<u32, Feed>,
    last_seqs: BTreeMap<ConversationId, u64>,
    fences: BTreeMap<u32, u64>,
    orders: Vec<Order>,
    nodes: Vec<Node>,
    flights: Vec<Flight>,
    receiver: Receiver,
    is_healed: bool,
}

fn conversation(number: u64) -> ConversationId {
    ConversationId::parse(&format!("g:c{number}")).unwrap()
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut world = Self {
            seed,
            rng: Rng(seed),
            now: 0,
            feeds: (0..PARTITIONS).map(|it| (it, Feed::new(3))).collect(),
            last_seqs: BTreeMap::new(),
            fences: (0..PARTITIONS).map(|it| (it, 0)).collect(),
            orders: Vec::new(),
            nodes: Vec::new(),
            flights: Vec::new(),
            receiver: Receiver::new(seed),
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
            parallel: 1 + self.rng.index(4),
            batch_max: 1 + self.rng.index(8),
            batch_wait: Duration::from_millis(self.rng.below(2) * 50),
            aside_after: Duration::from_secs(24 * 3_600),
        }
    }

    fn node(&mut self) -> Node {
        let (settings, seed) = (self.settings(), self.rng.below(u64::MAX));
        Node {
            delivery: WebhookDelivery::new(settings, seed, 0),
            run: self.rng.below(u64::MAX),
            fences: BTreeMap::new(),
            is_frozen: false,
            saves: Vec::new(),
            replays: BTreeMap::new(),
            successes: 0,
            failures: BTreeMap::new(),
        }
    }

    const fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn take_over(&mut self, partition: u32, node: usize) {
        let fence = self.fences.get_mut(&partition).unwrap();
        *fence += 1;
        let (cursor, now) = (self.feeds[&partition].cursor(), Time::from_millis(self.now));
        let node = &mut self.nodes[node];
        node.fences.insert(partition, *fence);
        node.replays.retain(|(of, _), _| *of != partition);
        node.delivery.handle_owned(partition, cursor, now);
    }

    fn append(&mut self, number: u64) {
        let conversation = conversation(number);
        let partition = u32::try_from(number).unwrap() % PARTITIONS;
        let last = self.last_seqs.entry(conversation.clone()).or_default();
        let (is_pruning, is_poison) = (*last > 0 && self.rng.one_in(12), self.rng.one_in(15));
        let kind = if is_pruning { WebhookEventKind::Pruned } else { WebhookEventKind::Message };
        *last += u64::from(!is_pruning);
        let event = WebhookEvent { conversation: conversation.clone(), seq: *last, kind };
        if is_poison && !is_pruning && !self.is_healed && is_wanted(&event) {
            self.receiver.poison(conversation, *last);
        }
        let feed = self.feeds.get_mut(&partition).unwrap();
        feed.append(event.clone(), is_wanted(&event));
        feed.archive(if self.is_healed { usize::MAX } else { 2 });
    }

    /// Lets a node do everything that it wants to do now.
    fn poll(&mut self, at: usize) {
        let now = self.time();
        for (partition, feed) in &self.feeds {
            self.nodes[at].delivery.handle_newest(*partition, feed.newest());
        }
        self.give_orders(at);
        for _ in 0..20 {
            let Some(read) = self.nodes[at].delivery.poll_read(now) else { break };
            if !self.is_healed && self.rng.one_in(20) {
                self.nodes[at].delivery.handle_read_failed(read.partition, now);
                continue;
            }
            let limit = 1 + self.rng.index(9);
            let delivery = &mut self.nodes[at].delivery;
            match self.feeds[&read.partition].read(read.after, limit) {
                Ok(page) => delivery.handle_page(read.partition, &page, now),
                Err(newest) => delivery.handle_ahead(read.partition, newest, now),
            }
        }
        while let Some(batch) = self.nodes[at].delivery.poll_send(now) {
            self.check_sent(at, &batch);
            let run = self.nodes[at].run;
            self.flights.push(Flight { node: at, run, batch, answer: None });
        }
        while let Some(save) = self.nodes[at].delivery.poll_save(now) {
            assert!(save.bytes.len() <= CURSOR_BYTES_MAX);
            let fence = self.nodes[at].fences[&save.partition];
            self.nodes[at].saves.push(FencedSave { fence, save });
        }
        self.note(at);
        let node = &self.nodes[at].delivery;
        assert!(node.events() <= WEBHOOK_EVENTS_MAX && node.in_flight() <= 6, "{}: bounds", self.seed);
    }

    fn check_sent(&self, at: usize, batch: &WebhookBatch) {
        assert!(!batch.events.is_empty(), "{}: no request is empty", self.seed);
        let (feed, node) = (&self.feeds[&batch.partition], &self.nodes[at]);
        let is_owner = node.fences.get(&batch.partition) == Some(&self.fences[&batch.partition]);
        if is_owner && !feed.has_fallen_back {
            let (saved, taken) = (feed.cursor().last_order, node.delivery.last_order(batch.partition));
            assert_eq!(taken, Some(saved), "{}: something is sent before an order is saved", self.seed);
        }
    }

    /// Gives a node the orders that its partitions have not taken.
    fn give_orders(&mut self, at: usize) {
        let now = self.time();
        for (partition, feed) in &self.feeds {
            let node = &mut self.nodes[at];
            let Some(last) = node.delivery.last_order(*partition) else { continue };
            for (number, order) in (1..).zip(&self.orders).filter(|(number, _)| *number > last) {
                let change = match order {
                    Order::Replay(eighths) => {
                        let after = feed.newest() * eighths / 8;
                        node.replays.insert((*partition, number), after);
                        WebhookChange::Replay { after }
                    }
                    Order::Drop(conversation, seq) => {
                        WebhookChange::Drop { conversation: conversation.clone(), seq: *seq }
                    }
                    Order::Resume => WebhookChange::Resume,
                };
                node.delivery.handle_order(*partition, WebhookStep { number, change }, now);
            }
        }
    }

    /// Notes the effect of the orders that a saved cursor has carried out.
    fn note_orders(&mut self, at: usize, partition: u32, before: u64) {
        let cursor = self.feeds[&partition].cursor();
        assert!(before <= cursor.last_order, "{}: an order is repeated", self.seed);
        for number in before + 1..=cursor.last_order {
            match &self.orders[usize::try_from(number - 1).unwrap()] {
                Order::Replay(_) => {
                    // None if it was carried out before, and the store has fallen back since.
                    let Some(after) = self.nodes[at].replays.remove(&(partition, number)) else { continue };
                    let feed = self.feeds.get_mut(&partition).unwrap();
                    let passed = feed.log.iter().take_while(|item| item.number <= after);
                    self.receiver.skipped.extend(passed.map(|item| key(&item.event)));
                    feed.begins_after = after;
                    self.receiver.begin_replay(partition);
                }
                Order::Drop(conversation, seq) => {
                    let is_dropped =
                        |event: &WebhookEvent| event.conversation == *conversation && event.seq == *seq;
                    assert!(
                        !cursor.aside.iter().any(|it| is_dropped(&it.event)),
                        "{}: not dropped",
                        self.seed
                    );
                }
                Order::Resume => {}
            }
        }
    }

    fn note(&mut self, at: usize) {
        while let Some(notice) = self.nodes[at].delivery.poll_notice() {
            match notice {
                WebhookNotice::Aside(event) => {
                    let key = key(&event);
                    assert!(self.receiver.poison.contains(&key), "{}: {event:?} set aside", self.seed);
                    let (before, last) = self.nodes[at].failures[&key];
                    assert!(
                        before.is_some_and(|it| it < last),
                        "{}: {event:?} set aside in an outage",
                        self.seed
                    );
                    self.receiver.aside.insert(key);
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
        let at = self.rng.index(self.flights.len());
        if self.flights[at].answer.is_none() {
            self.flights[at].answer = Some(self.receive(at));
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
        let (answer, is_lost) = (flight.answer.unwrap(), !self.is_healed && self.rng.one_in(10));
        let outcome = if is_lost && answer != WebhookOutcome::Passed { FAILED } else { answer };
        let (now, node) = (self.time(), &mut self.nodes[flight.node]);
        match outcome {
            WebhookOutcome::Taken => node.successes += 1,
            WebhookOutcome::Failed(_) | WebhookOutcome::Refused(_) => {
                for event in &flight.batch.events {
                    let last = node.failures.get(&key(event)).map(|(_, last)| *last);
                    node.failures.insert(key(event), (last, node.successes));
                }
            }
            _ => {}
        }
        node.delivery.handle_outcome(flight.batch.ticket, outcome, now);
        self.note(flight.node);
    }

    fn receive(&mut self, flight: usize) -> WebhookOutcome {
        let batch = &self.flights[flight].batch;
        let feed = &self.feeds[&batch.partition];
        if !batch.events.iter().all(|event| feed.has(event)) {
            return WebhookOutcome::Unsent;
        }
        if !self.is_healed && self.rng.one_in(25) {
            let nothing = [FAILED, WebhookOutcome::Unsent, Receiver::busy()];
            return nothing[self.rng.index(nothing.len())];
        }
        self.receiver.receive(batch.partition, &batch.events)
    }

    fn store(&mut self, at: usize) {
        let now = self.time();
        for FencedSave { fence, save } in std::mem::take(&mut self.nodes[at].saves) {
            let is_down = !self.is_healed && self.rng.one_in(8);
            let is_owner = fence == self.fences[&save.partition];
            let is_current = self.nodes[at].fences.get(&save.partition) == Some(&fence);
            let is_lost = !self.is_healed && self.rng.one_in(10);
            if !is_down && is_owner {
                let feed = self.feeds.get_mut(&save.partition).unwrap();
                let before = feed.cursor().last_order;
                feed.cursor = save.bytes;
                self.note_orders(at, save.partition, before);
            }
            let delivery = &mut self.nodes[at].delivery;
            match is_owner || is_down {
                _ if !is_current => {}
                true => delivery.handle_save(save.partition, !is_down && !is_lost, now),
                false => delivery.handle_lost(save.partition),
            }
        }
        self.note(at);
    }

    pub(super) fn step(&mut self) {
        let at = self.rng.index(2);
        let partition = u32::try_from(self.rng.below(u64::from(PARTITIONS))).unwrap();
        match self.rng.below(42) {
            0..8 => {
                let number = self.rng.below(CONVERSATIONS);
                self.append(number);
            }
            8..16 if !self.nodes[at].is_frozen => self.poll(at),
            16..28 => self.advance_flight(),
            28..31 if !self.nodes[at].is_frozen => self.store(at),
            31..35 => self.now += self.rng.below(2_000),
            35 => self.now += self.rng.below(90_000),
            36 => {
                self.receiver.is_down = self.rng.one_in(4);
                self.receiver.is_gone = self.rng.one_in(12);
            }
            37 => self.disturb(at, partition),
            38 => self.disturb_store(partition),
            39 => self.order(),
            _ => self.settle_ownership(at, partition),
        }
    }

    /// Freezes, wakes or kills a node, or changes its settings.
    fn disturb(&mut self, at: usize, partition: u32) {
        let now = self.time();
        match self.rng.below(7) {
            0 | 1 => self.nodes[at].is_frozen = !self.nodes[at].is_frozen,
            2 => self.nodes[at] = self.node(),
            3 => {
                let settings = self.settings();
                self.nodes[at].delivery.handle_settings(settings, now);
            }
            4 => self.nodes[at].delivery.handle_release(partition, now),
            5 => {
                let is_paused = self.rng.one_in(2);
                self.nodes[at].delivery.handle_paused(is_paused);
            }
            _ => self.take_over(partition, at),
        }
    }

    /// Has the store fall back, or prepares that. The log refills it.
    fn disturb_store(&mut self, partition: u32) {
        let feed = self.feeds.get_mut(&partition).unwrap();
        match self.rng.below(4) {
            0 => feed.snapshot(),
            1 => feed.fall_back(),
            _ => feed.archive(3),
        }
    }

    fn order(&mut self) {
        if self.orders.len() >= ORDERS_MAX || !self.rng.one_in(3) {
            return;
        }
        let aside = self.receiver.aside.first().cloned();
        self.orders.push(match (self.rng.below(4), aside) {
            (0, Some((conversation, seq, _))) => Order::Drop(conversation, seq),
            (1, _) => Order::Resume,
            _ => Order::Replay(self.rng.below(9)),
        });
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
        (self.receiver.is_down, self.receiver.is_gone) = (false, false);
        self.orders.push(Order::Resume);
        for node in &mut self.nodes {
            node.is_frozen = false;
            node.delivery.handle_paused(false);
        }
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
        let nodes: Vec<_> = self.nodes.iter().map(|it| (it.delivery.state(), it.delivery.parked())).collect();
        panic!("TIDEGATE_SEED run {}: {:?} is missing, {nodes:?}", self.seed, self.missing());
    }

    /// Returns an event that has yet to be taken, or the last event if an order has yet to be carried out.
    fn missing(&self) -> Option<WebhookEvent> {
        let newest = self.orders.len() as u64;
        let missing = |(partition, feed): (&u32, &Feed)| {
            if feed.cursor().last_order < newest {
                return feed.log.last().map(|item| item.event.clone());
            }
            let wanted = feed.log.iter().filter(|item| item.is_wanted && item.number > feed.begins_after);
            let mut events = wanted.map(|item| &item.event);
            events.find(|event| !self.receiver.is_done(*partition, event)).cloned()
        };
        self.feeds.iter().find_map(missing)
    }

    pub(super) fn aside(&self) -> usize {
        self.receiver.aside.len()
    }
}
