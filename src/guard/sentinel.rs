//! Sentinel: takes the security events of each second, and bans or suspends their authors.
//!
//! Decisions are entries of the store, as those of operators are, so that all nodes have them within 2 s. Each node scores
//! what it sees itself.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::Time;
use tokio::time::Instant;

use self::lines::LineUpkeep;
use super::{
    candidates::Candidates,
    decisions::{AUTHOR, Decision, Decisions},
    looks,
    order_faults::OrderFaults,
    wide_bans,
};
use crate::{
    audit::{Actor, AuditEntry},
    bans::{BanRecord, BanSubject, REASON_BYTES_MAX},
    clock::wall_ms,
    cluster::Cluster,
    connections::Connections,
    events::{SECURITY_ROWS_MAX, SecurityNotice},
    evidence::{EvidenceBatch, EvidenceKind, EvidenceRow, ScoreScope, ScoreVerdict, scored_network},
    log_limit::log_limited,
    metrics::Metrics,
    networks::Network,
    store::{GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut, GuardRow},
    supervised,
};

mod lines;

/// Outcome of a decision at the store.
enum Stored {
    /// The decision is stored.
    Done,
    /// An entry that ends later is there already.
    Outlasted,
    /// Another entry came in between.
    Changed,
    /// There are too many entries.
    Full,
}

/// Task that acts on the evidence of a node.
pub struct Sentinel {
    cluster: Arc<Cluster>,
    connections: Arc<Connections>,
    metrics: Metrics,
    order_faults: OrderFaults,
    candidates: Candidates,
    decisions: Decisions,
    notices: u64,
    audited: u64,
    start: Instant,
    lines: LineUpkeep,
}

impl Sentinel {
    /// Creates the task of a node.
    pub fn new(cluster: Arc<Cluster>, connections: Arc<Connections>, metrics: Metrics) -> Self {
        Self {
            cluster,
            connections,
            metrics,
            order_faults: OrderFaults::default(),
            candidates: Candidates::default(),
            decisions: Decisions::default(),
            notices: 0,
            audited: 0,
            start: Instant::now(),
            lines: LineUpkeep::default(),
        }
    }

    /// Acts on evidence for as long as the node runs.
    pub async fn run(mut self) {
        let mut looks = looks();
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let mut batch = self.cluster.evidence.take();
        for (kind, count) in &batch.counts {
            kind.counter(&self.metrics).increment(*count);
        }
        self.metrics.evidence_dropped.increment(batch.dropped);
        for lifted in self.cluster.evidence.take_lifted() {
            self.decisions.forget(&lifted);
            self.candidates.forget(&lifted);
        }
        self.take_erased(&mut batch);
        self.clean_up().await;
        self.take_erased(&mut batch);
        if !batch.rows.is_empty() {
            self.write(&batch).await;
            // A line that was requested to be erased meanwhile is erased with the next look.
            self.take_erased(&mut batch);
            self.publish(&batch);
            self.judge(&batch.rows);
        }
        self.offer_wide(Instant::now());
        self.count_users().await;
        self.carry_out().await;
    }

    /// Publishes the rows as one event: those with the most weight, if there are too many.
    fn publish(&mut self, batch: &EvidenceBatch) {
        self.notices += 1;
        let mut rows: Vec<&EvidenceRow> = batch.rows.iter().collect();
        if rows.len() > SECURITY_ROWS_MAX {
            rows.sort_by_key(|row| Reverse(row.kind.weight().saturating_mul(row.count)));
        }
        let (rows, others) = rows.split_at(rows.len().min(SECURITY_ROWS_MAX));
        let left_out: u64 = others.iter().map(|row| u64::from(row.count)).sum();
        self.cluster.events.security(SecurityNotice {
            node: self.cluster.me.node.to_string(),
            number: (self.cluster.me.boot, self.notices),
            rows: rows.iter().map(|row| (*row).clone()).collect(),
            dropped: batch.dropped.saturating_add(left_out),
        });
    }

    /// Adds the rows to the scores. Bans users that have the score of a ban; networks become candidates.
    fn judge(&mut self, rows: &[EvidenceRow]) {
        let now = Instant::now();
        self.decisions.forget_stored(now);
        for row in rows {
            // Evidence without an address is of a client that has just left.
            let Some(address) = row.source.address else { continue };
            if row.scope == ScoreScope::Nothing {
                continue;
            }
            if row.kind == EvidenceKind::OrderBlocked {
                self.note_order_faults(row, now);
            }
            let user = row.source.user.clone().map(BanSubject::User);
            let network = (row.scope == ScoreScope::All).then(|| scored_network(address));
            for subject in user.into_iter().chain(network) {
                if !self.is_settled(&subject) {
                    self.score(&subject, row, now);
                }
            }
        }
    }

    /// Returns whether a subject is banned, or a suspended device, or will be once the store has the decision. What it does
    /// until then leads to no longer ban.
    fn is_settled(&self, subject: &BanSubject) -> bool {
        let cluster = &self.cluster;
        let is_in_force = match subject {
            // The first address alone, or a part of the network, may be banned as well.
            BanSubject::Network(network) => {
                cluster.bans.refusal_of_address(network.address()).is_some()
                    && !cluster.bans.bans_of(subject).is_empty()
            }
            BanSubject::User(user) => cluster.bans.refusal_of_user(user, None).is_some(),
            BanSubject::Device(user, device) => {
                cluster.suspensions.left(user, device, || cluster.guard.now_ms()).is_some()
            }
        };
        is_in_force || self.decisions.has(subject)
    }

    fn score(&mut self, subject: &BanSubject, row: &EvidenceRow, now: Instant) {
        let may_ban = self.decisions.has_budget(false, now);
        match self.cluster.evidence.score(subject, row, may_ban) {
            ScoreVerdict::Banned { length, former } => self.ban(subject.clone(), length, former),
            ScoreVerdict::Undecided(offenders) => self.candidates.offer(subject, offenders, now),
            ScoreVerdict::Deferred => self.note_deferred(subject),
            ScoreVerdict::Watched | ScoreVerdict::Spared => {}
        }
    }

    /// Lets the network around a banned one be decided about, if many of its parts are banned. It is banned only if no node
    /// has a user in it.
    fn suspect_around(&mut self, banned: &BanSubject, now: Instant) {
        let wide = wide_bans::around(&self.cluster.bans, banned);
        if let Some(wide) = wide.filter(|wide| !self.is_settled(wide)) {
            self.offer_suspect(wide, now);
        }
    }

    /// Lets the networks around banned ones that were spared be decided about again.
    fn offer_wide(&mut self, now: Instant) {
        for wide in self.candidates.take_wide(now) {
            if wide_bans::has_banned_parts(&self.cluster.bans, &wide) && !self.is_settled(&wide) {
                self.offer_suspect(wide, now);
            }
        }
    }

    fn offer_suspect(&mut self, wide: BanSubject, now: Instant) {
        self.cluster.evidence.suspect(&wide);
        self.candidates.offer(&wide, 0, now);
        if !self.candidates.has(&wide) {
            self.candidates.note_wide(wide, now);
        }
    }

    fn note_deferred(&self, subject: &BanSubject) {
        self.metrics.decisions_dropped.increment(1);
        log_limited!(
            error,
            kind = subject.kind(),
            "too many automatic bans and suspensions in a minute; this one is put off"
        );
    }

    /// Decides about the candidates that are next in turn, by the users of all nodes behind them.
    async fn count_users(&mut self) {
        if self.candidates.is_empty() || !self.cluster.evidence.bans() {
            return;
        }
        if !self.decisions.has_budget(true, Instant::now()) {
            self.metrics.decisions_dropped.increment(1);
            log_limited!(error, "too many automatic bans of networks in a minute; others are put off");
            return;
        }
        let mut next = self.candidates.next();
        next.retain(|(subject, _)| !self.is_settled(subject));
        let networks: Vec<Network> = next.iter().filter_map(|(subject, _)| network_of(subject)).collect();
        let users = self.connections.users_of(&networks).await;
        let now = Instant::now();
        for ((subject, offenders), users) in next.into_iter().zip(users) {
            if !self.decisions.has_budget(true, now) {
                self.note_deferred(&subject);
                self.candidates.offer(&subject, offenders, now);
                continue;
            }
            // A node that does not answer may have healthy users.
            let verdict = users.map(|users| self.cluster.evidence.decide(&subject, &users));
            match verdict {
                Some(ScoreVerdict::Banned { length, former }) => self.ban(subject, length, former),
                Some(ScoreVerdict::Spared) | None => self.spare(subject, offenders, now),
                Some(_) => {}
            }
        }
    }

    fn spare(&mut self, subject: BanSubject, offenders: usize, now: Instant) {
        if wide_bans::has_banned_parts(&self.cluster.bans, &subject) {
            self.candidates.note_wide(subject.clone(), now);
        }
        self.candidates.note_spared(subject, offenders, now);
    }

    fn note_order_faults(&mut self, row: &EvidenceRow, now: Instant) {
        let (Some(user), Some(device)) = (&row.source.user, &row.source.device) else { return };
        let subject = BanSubject::Device(user.clone(), device.clone());
        if !self.cluster.evidence.bans() || self.is_settled(&subject) {
            return;
        }
        if !self.decisions.has_budget(false, now) {
            return self.note_deferred(&subject);
        }
        let since = now.saturating_duration_since(self.start);
        let at = Time::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        // The first suspension covers the rest.
        let decided = (0..row.count).find_map(|_| self.order_faults.note(user, device, at));
        if let Some((length, former)) = decided {
            let reason = format!("three blocked chains in 10 min; {former} suspensions before");
            self.decide(GuardKind::Suspend, subject, length, reason);
        }
    }

    fn ban(&mut self, subject: BanSubject, length: Duration, former: u32) {
        let counts = self.cluster.evidence.recent_counts(&subject);
        let counts: Vec<String> =
            counts.iter().take(4).map(|(kind, count)| format!("{count} {}", kind.name())).collect();
        let cause = wide_bans::reason(&self.cluster.bans, &subject).unwrap_or_else(|| "score 100".to_owned());
        let reason = format!("{cause}: {}; {former} bans before", counts.join(", "));
        self.decide(GuardKind::Ban, subject, length, reason);
    }

    fn decide(&mut self, kind: GuardKind, subject: BanSubject, length: Duration, mut reason: String) {
        reason.truncate(REASON_BYTES_MAX);
        self.decisions.add(Decision { kind, subject, length, reason, made_at: Instant::now() });
    }

    /// Stores the decisions; those that the store does not take now are tried again in the next second.
    async fn carry_out(&mut self) {
        for _ in 0..self.decisions.waiting() {
            let Some(decision) = self.decisions.next() else { return };
            let (now, kind) = (Instant::now(), decision.subject.kind());
            if decision.has_expired(now) {
                self.metrics.decisions_dropped.increment(1);
                continue;
            }
            match self.store(&decision).await {
                Ok(Stored::Done | Stored::Outlasted) => {
                    self.suspect_around(&decision.subject, now);
                    self.decisions.note_stored(decision.subject, now);
                }
                Ok(Stored::Changed) => self.decisions.put_last(decision),
                Ok(Stored::Full) => {
                    self.metrics.decisions_dropped.increment(1);
                    log_limited!(error, kind, "automatic decision left out: the store has too many entries");
                }
                Err(why) => {
                    log_limited!(warn, why, kind, "automatic decision not stored yet; retrying");
                    return self.decisions.put_back(decision);
                }
            }
        }
    }

    /// Stores a decision, unless there is an entry that ends later, such as one of an operator.
    async fn store(&mut self, decision: &Decision) -> Result<Stored, String> {
        let Decision { kind, subject, length, reason, .. } = decision;
        let since_ms = self.cluster.guard.now_ms();
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let until_ms = since_ms.saturating_add(length_ms);
        let key = GuardKey::new(*kind, subject.to_string()).map_err(|error| error.to_string())?;
        let present = self.cluster.ports.store.guard_get(&key).await.map_err(|error| error.to_string())?;
        let ends_later = |row: &GuardRow| row.until_ms.is_none_or(|end| end >= until_ms);
        if present.as_ref().is_some_and(ends_later) {
            return Ok(Stored::Outlasted);
        }
        let record = BanRecord { reason: reason.clone(), by: AUTHOR.to_owned(), since_ms };
        let entry = GuardEntry::new(key, Bytes::from(record.encoded()), Some(until_ms));
        let expected = Some(present.map_or(0, |row| row.version));
        let put = GuardPut { entry: entry.map_err(|error| error.to_string())?, expected };
        let change = self.cluster.put_guard(&put.into()).await.map_err(|error| error.to_string())?;
        match change.outcome {
            GuardOutcome::Full(_) => return Ok(Stored::Full),
            GuardOutcome::Conflict(..) => return Ok(Stored::Changed),
            GuardOutcome::Stored(_) | GuardOutcome::Unchanged => {}
        }
        self.record(decision).await;
        Ok(Stored::Done)
    }

    /// Counts, logs and audits a stored decision.
    async fn record(&mut self, decision: &Decision) {
        let Decision { kind, subject, length, reason, .. } = decision;
        let is_ban = *kind == GuardKind::Ban;
        let counter = if is_ban { &self.metrics.automatic_bans } else { &self.metrics.automatic_suspensions };
        counter.increment(1);
        let decided = if is_ban { "banned" } else { "suspended" };
        let (user, network) = match subject {
            BanSubject::User(user) | BanSubject::Device(user, _) => (Some(user.as_str()), None),
            BanSubject::Network(network) => (None, Some(network.to_string())),
        };
        tracing::warn!(user, network, decided, ?length, reason, "automatic decision of the guard");
        self.audit(decision, is_ban).await;
    }

    /// Records a decision in the audit log, as a change by an administrator is.
    async fn audit(&mut self, decision: &Decision, is_ban: bool) {
        self.audited += 1;
        let entry = AuditEntry {
            at_ms: wall_ms(),
            node: self.cluster.me.node.as_str().into(),
            id: format!("{:x}-automatic-{}", self.cluster.me.boot, self.audited),
            actor: Actor::Automatic,
            address: None,
            method: "POST".to_owned(),
            route: if is_ban { "/v1/bans" } else { "/v1/suspensions" },
            targets: BTreeMap::from([("subject".to_owned(), vec![decision.subject.to_string()])]),
            more_targets: 0,
            request: String::new(),
            request_id: None,
            status: 200,
            code: None,
            reason: Some(if is_ban { "evidence" } else { "order" }),
            suppressed: 0,
            ms: 0,
        };
        let line = entry.line();
        self.cluster.events.audit(Arc::new(entry));
        if let Some(file) = self.cluster.evidence.audit().cloned() {
            // The file logs a line that it can't write.
            supervised::run_blocking(move || file.append(line, true).ok()).await.ok();
        }
    }
}

fn network_of(subject: &BanSubject) -> Option<Network> {
    match subject {
        BanSubject::Network(network) => Some(*network),
        BanSubject::User(_) | BanSubject::Device(..) => None,
    }
}

#[cfg(test)]
mod tests;
