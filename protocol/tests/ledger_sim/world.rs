//! Simulated cluster: one partition, one store, owners that start, hang and stop, clients, a network that loses, delays
//! and repeats, and a checker of every answer.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use tidegate_protocol::{
    Code,
    id::{DeviceId, MsgId, NodeId},
    machine::ledger::{Delta, LEDGER_NEWEST, Outcome},
    record::{Body, Message, Origin, Record},
};

use crate::{
    client::{Client, Sent},
    model::{Id, Model},
    ops,
    owner::{Answer, Fault, Log, Owner},
    rng::Rng,
    store::Store,
};

/// Number of occurrences of each case, to detect a simulation that does not cover them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) accepted: usize,
    pub(crate) duplicates: usize,
    pub(crate) conflicts: usize,
    pub(crate) broken: usize,
    pub(crate) void: usize,
    pub(crate) refused: usize,
    pub(crate) refused_before: usize,
    pub(crate) evicted: usize,
    pub(crate) zombies_stopped: usize,
    pub(crate) replaced: usize,
    pub(crate) renamed: usize,
    pub(crate) stopped_by_rules: usize,
}

pub(crate) struct World {
    rng: Rng,
    fault: Fault,
    log: Log,
    store: Store,
    model: Model,
    owners: Vec<Owner>,
    clients: Vec<Client>,
    flights: Vec<Record>,
    delayed: Vec<(u64, Delta)>,
    past: ops::Past,
    /// Error of each node's wall clock, in ms.
    clocks: [i64; 3],
    fence: u64,
    now: u64,
    /// Client and message of each request, by request number.
    requests: Vec<Option<(usize, usize)>>,
    /// Ids that were used against the specification, or dropped by the rules.
    exempt: BTreeSet<Id>,
    /// Whether no more disturbances occur.
    calm: bool,
    pub(crate) coverage: Coverage,
}

fn id_of(it: &Message) -> Id {
    (it.conversation.clone(), it.sender.clone(), it.device.clone(), it.msg_id.clone())
}

/// Runs a seed to its end; an error names the broken promise.
pub(crate) fn run(seed: u64, fault: Fault) -> Result<Coverage, String> {
    let mut world = World::new(seed, fault);
    world.submit(ops::first_group(), None);
    for _ in 0..90 + world.rng.below(120) {
        world.step()?;
    }
    let replace = fault == Fault::LogReplacedIgnored || seed.is_multiple_of(16);
    if replace {
        world.replace_log()?
    } else {
        world.settle()?
    }
    Ok(world.coverage)
}

impl World {
    fn new(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng::new(seed);
        let device = |name: &str| DeviceId::new(name).unwrap();
        let mut clients = Vec::new();
        for (index, name) in ops::USERS.iter().enumerate() {
            clients.push(Client::new(ops::user(name), device("phone"), index % 2 == 0));
        }
        clients.push(Client::new(ops::user(ops::USERS[0]), device("desk"), rng.percent(50)));
        let store = Store::new(fault != Fault::ArchiveWithoutFence, fault != Fault::ArchiveWithoutPosition);
        Self {
            rng,
            fault,
            log: Log::default(),
            store,
            model: Model::default(),
            owners: Vec::new(),
            clients,
            flights: Vec::new(),
            delayed: Vec::new(),
            past: ops::Past::default(),
            clocks: [0, 3_600_000, -3_600_000],
            fence: 0,
            now: 0,
            requests: Vec::new(),
            exempt: BTreeSet::new(),
            calm: false,
            coverage: Coverage::default(),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        match self.rng.below(100) {
            0..20 => self.send(),
            20..28 => self.retry(),
            28..34 => {
                let body = ops::random(&mut self.rng, &self.past, self.log.entries.len());
                self.submit(body, None);
            }
            34..60 => self.land()?,
            60..93 => self.own()?,
            93..95 => self.take_over()?,
            95 if self.rng.percent(30) => {
                self.fence += 1;
                self.store.restore(self.fence);
            }
            95 => self.take_over()?,
            96 => self.land_delayed()?,
            97 => self.store.drop_old_keys(self.fault == Fault::StoreDropsKeys),
            98 => self.poison(),
            _ => {
                let node = self.rng.below(3);
                self.clocks[node] = [0, 3_600_000, -3_600_000, 1_000][self.rng.below(4)];
            }
        }
        Ok(())
    }

    /// Passes a record to a node's producer, where it is lost, sent once, or sent twice.
    fn submit(&mut self, body: Body, from: Option<(usize, usize)>) {
        let node = from.map_or(0, |(client, _)| self.clients[client].node);
        self.past.note(&body);
        let clock = 10_000_000 + 10 * self.now as i64 + self.clocks[node];
        let request = self.requests.len() as u64;
        self.requests.push(from);
        let origin = Origin { node: NodeId::new(&format!("n{node}")).unwrap(), boot: 1, conn: 1, request };
        let record = Record { origin, received_at: clock.max(0) as u64, body, trace: None };
        let copies = match self.rng.below(100) {
            _ if self.calm => 1,
            0..7 => 0,
            7..14 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.flights.push(record.clone());
        }
    }

    fn send(&mut self) {
        let index = self.rng.below(self.clients.len());
        let conversation = ops::conversation(&mut self.rng, self.clients[index].user.as_str());
        let number = self.requests.len();
        let client = &mut self.clients[index];
        let misuses = !client.sent.is_empty() && self.rng.percent(5);
        if misuses {
            return self.misuse(index);
        }
        client.sent.push(Sent {
            conversation,
            msg_id: MsgId::new(&format!("m{number}")).unwrap(),
            content: Bytes::from(format!("c{number}")),
            attempt: 0,
            begun: self.now,
            acked: None,
            refused: false,
        });
        let sent = client.sent.len() - 1;
        let message = client.message(sent, client.chains);
        self.submit(Body::Message(message), Some((index, sent)));
    }

    /// Reuses an id for other content, or as if it were new.
    fn misuse(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let sent = self.rng.below(client.sent.len());
        let mut message = client.message(sent, false);
        if self.rng.percent(60) {
            message.attempt = client.sent[sent].attempt + 1;
            message.content = Bytes::from_static(b"another");
            message.body_hash = tidegate_protocol::record::body_hash(&message.content);
        } else {
            message.attempt = 0;
        }
        self.exempt.insert(id_of(&message));
        self.submit(Body::Message(message), None);
    }

    /// Lets a client resend all unanswered messages, in order and from a new connection; sometimes an answered one
    /// instead.
    fn retry(&mut self) {
        let index = self.rng.below(self.clients.len());
        if self.rng.percent(40) || self.clients[index].sent.is_empty() {
            return self.resend(index, 0);
        }
        let client = &mut self.clients[index];
        let sent = self.rng.below(client.sent.len());
        if client.sent[sent].acked.is_some() || !client.chains {
            client.sent[sent].attempt += 1;
            let message = client.message(sent, false);
            self.submit(Body::Message(message), Some((index, sent)));
        }
    }

    fn resend(&mut self, index: usize, above: u64) {
        let node = self.rng.below(3);
        let client = &mut self.clients[index];
        client.reconnect(above, node);
        for sent in client.open() {
            let client = &mut self.clients[index];
            client.sent[sent].attempt += 1;
            let message = client.message(sent, client.chains);
            self.submit(Body::Message(message), Some((index, sent)));
        }
    }

    /// Appends a record in flight to the log, mostly the oldest one.
    fn land(&mut self) -> Result<(), String> {
        if self.flights.is_empty() {
            return Ok(());
        }
        let late = !self.calm && self.rng.percent(25);
        let index = if late { self.rng.below(self.flights.len()) } else { 0 };
        let record = self.flights.remove(index);
        self.append(record.encode())
    }

    fn poison(&mut self) {
        let bytes = Bytes::from_static(b"\xff\x01 not a record");
        self.append(bytes).expect("the model has no outcome for it");
    }

    /// Appends to the log; the model immediately determines the expected outcome.
    fn append(&mut self, bytes: Bytes) -> Result<(), String> {
        let record = self.log.push(bytes);
        let message = record.as_deref().and_then(|record| match &record.body {
            Body::Message(it) => Some(it.clone()),
            _ => None,
        });
        let before = message.as_ref().and_then(|it| self.model.ids.get(&id_of(it)).cloned());
        let rules = self.model.rules;
        let Some(outcome) = self.model.push(record.as_deref()) else { return Ok(()) };
        self.count(outcome);
        let Some(message) = message else { return Ok(()) };
        if let (Outcome::Accepted { .. }, Some(decision)) = (outcome, before) {
            self.coverage.renamed += 1;
            let dropped = decision.offset < rules.keys_from;
            self.exempt.insert(id_of(&message));
            if message.attempt > 0 && !dropped {
                return Err(format!("{} is decided twice by the model", message.msg_id));
            }
        }
        Ok(())
    }

    fn count(&mut self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Accepted { .. } => &mut self.coverage.accepted,
            Outcome::Duplicate { .. } => &mut self.coverage.duplicates,
            Outcome::Void { .. } => &mut self.coverage.void,
            Outcome::Refused { code: Code::Conflict } => &mut self.coverage.conflicts,
            Outcome::Refused { code: Code::OrderBroken } => &mut self.coverage.broken,
            Outcome::Refused { .. } => &mut self.coverage.refused,
            Outcome::RefusedBefore { .. } => &mut self.coverage.refused_before,
            Outcome::Noted => return,
        };
        *counter += 1;
    }

    /// Starts a new owner. The old one may have crashed, or may continue as a zombie.
    fn take_over(&mut self) -> Result<(), String> {
        self.fence += 1;
        if !self.owners.is_empty() && (self.owners.len() == 3 || self.rng.percent(50)) {
            let gone = self.rng.below(self.owners.len());
            let gone = self.owners.remove(gone);
            self.coverage.evicted += gone.evicted;
            self.coverage.zombies_stopped += usize::from(gone.stopped);
            self.coverage.stopped_by_rules += usize::from(gone.stopped_by_rules);
        }
        // In the final phase every node runs the newest version.
        let older =
            if !self.calm && self.rng.percent(30) { self.rng.below(LEDGER_NEWEST as usize) } else { 0 };
        let newest = if older > 0 { older as u32 } else { LEDGER_NEWEST };
        match Owner::take_over(self.fence, &self.log, &mut self.store, self.fault, newest, &mut self.rng) {
            Some(owner) => self.owners.push(owner),
            None if self.log.topic > 0 => self.coverage.replaced += 1,
            None => return Err("LOG_REPLACED, but the log was not replaced".to_owned()),
        }
        Ok(())
    }

    fn own(&mut self) -> Result<(), String> {
        if self.owners.is_empty() {
            return self.take_over();
        }
        let index = self.rng.below(self.owners.len());
        self.own_by(index)
    }

    fn own_by(&mut self, index: usize) -> Result<(), String> {
        let owner = &mut self.owners[index];
        let answers = owner.step(&self.log, &mut self.store, &mut self.delayed, &mut self.rng)?;
        answers.into_iter().try_for_each(|answer| self.check(answer))
    }

    /// Delivers a delayed commit to the store.
    fn land_delayed(&mut self) -> Result<(), String> {
        if self.delayed.is_empty() {
            return Ok(());
        }
        let index = self.rng.below(self.delayed.len());
        let (fence, delta) = self.delayed.remove(index);
        self.store.commit(fence, &delta).map(|_| ())
    }

    /// Checks that an answer equals that of a replay of the whole log.
    fn check(&mut self, answer: Answer) -> Result<(), String> {
        if answer.topic != 0 {
            return Err("an answer from a log that replaced ours".to_owned());
        }
        let canonical = self.model.answers.get(answer.offset as usize).copied().flatten();
        if canonical != Some(answer.outcome) {
            let record = self.log.entries[answer.offset as usize].1.as_ref();
            return Err(format!("{answer:?}, but the replay gives {canonical:?} for {record:?}"));
        }
        if !self.calm && self.rng.percent(20) {
            return Ok(());
        }
        let record = self.log.entries[answer.offset as usize].1.clone();
        let Some(record) = record else { return Err("an answer to poison".to_owned()) };
        self.deliver(&record, answer.outcome)
    }

    fn deliver(&mut self, record: &Arc<Record>, outcome: Outcome) -> Result<(), String> {
        let Body::Message(message) = &record.body else { return Ok(()) };
        let Some((client, sent)) = self.requests[record.origin.request as usize] else { return Ok(()) };
        let exempt = self.exempt.contains(&id_of(message));
        self.clients[client].answered(sent, outcome, self.now, exempt)?;
        let open = self.clients[client].open().contains(&sent);
        match outcome {
            Outcome::Void { newest } if open => self.resend(client, newest),
            Outcome::Refused { code: Code::OrderBroken }
                if open && message.order.epoch == self.clients[client].epoch =>
            {
                self.resend(client, 0);
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs the final phase: everything in flight arrives, a last owner takes over, and all promises are checked.
    fn settle(&mut self) -> Result<(), String> {
        self.calm = true;
        for _ in 0..12 {
            self.now += 1;
            while !self.flights.is_empty() {
                self.land()?;
            }
            self.take_over()?;
            self.drain()?;
            for client in 0..self.clients.len() {
                if !self.clients[client].open().is_empty() {
                    self.resend(client, 0);
                }
            }
            if self.flights.is_empty() {
                return self.verdict();
            }
        }
        Err("a client never gets an answer".to_owned())
    }

    fn drain(&mut self) -> Result<(), String> {
        for _ in 0..5_000 {
            let last = self.owners.len() - 1;
            if self.owners[last].stopped {
                // It read a lagging copy; in the final phase there is no other reason.
                self.take_over()?;
            } else if self.owners[last].is_idle(&self.log) {
                break;
            } else {
                self.own_by(last)?;
            }
        }
        while !self.delayed.is_empty() {
            self.land_delayed()?;
        }
        let last = self.owners.len() - 1;
        if self.owners[last].stopped || !self.owners[last].is_idle(&self.log) {
            return Err("the last owner does not finish".to_owned());
        }
        Ok(())
    }

    fn verdict(&self) -> Result<(), String> {
        crate::check::store(&self.store.now, &self.model)?;
        crate::check::seqs(&self.model, &self.log)?;
        for client in &self.clients {
            crate::check::client(client, &self.model, &self.exempt)?;
        }
        Ok(())
    }

    /// Replaces the log by another one with the same name.
    fn replace_log(&mut self) -> Result<(), String> {
        // The replacement is recognisable either by its id, with equal bytes at equal offsets, or by the bytes alone.
        let topic_id = self.rng.below(2) as u64;
        let old = std::mem::replace(&mut self.log, Log { topic: 1, topic_id, entries: Vec::new() });
        for (bytes, record) in old.entries.iter().rev() {
            let mut bytes = bytes.clone();
            if let (0, Some(record)) = (topic_id, record) {
                let mut other = Record::clone(record);
                other.origin.boot = 2;
                bytes = other.encode();
            }
            if topic_id == 1 || record.is_some() {
                self.log.push(bytes);
            }
        }
        if self.store.now.position.offset == 0 || old.entries.len() < 3 {
            return Ok(());
        }
        for _ in 0..40 {
            if self.rng.percent(20) {
                self.take_over()?;
            } else if !self.owners.is_empty() {
                let index = self.rng.below(self.owners.len());
                self.own_by(index)?;
            }
        }
        Ok(())
    }
}
