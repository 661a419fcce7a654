//! Evidence of abuse: security events of all parts of the node, and the scores of the networks and users that cause them.
//!
//! Events are noted where a request, a token or a connection is refused, so that requests that are admitted cost nothing.
//! Equal events of a second are one row with a count. Each second the module `guard` takes the rows: for the metrics, the
//! file, the event `tidegate.security` and the scores. No row has a token, a key or the content of a message.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use serde::Serialize;
use tidegate_protocol::id::{DeviceId, UserId};
use tokio::time::Instant;

mod erasure;
mod file;
mod gateway;
mod kind;
mod scored;

pub use self::{
    erasure::{Erasure, erasable},
    file::EvidenceFile,
    gateway::GatewayPaths,
    kind::EvidenceKind,
    scored::{ScoreVerdict, Spared, SubjectScore, scored_network},
};
use self::{gateway::GatewayCounts, scored::SubjectScores};
use crate::{
    audit::AuditFile,
    bans::{BanBoard, BanSubject},
    budget::network_of,
    clock::{rfc3339, wall_ms},
    live::Live,
};

/// Most rows of a second; further ones are counted, and named nowhere.
const ROWS_MAX: usize = 4_096;

/// Most rows that are kept for the admin API.
const RECENT_MAX: usize = 4_096;

/// Most erasures that wait for [`EvidenceBoard::take_erased`]; the lines of further ones stay in the file.
const ERASED_MAX: usize = 4_096;

/// Most lifted bans that wait for [`EvidenceBoard::take_lifted`]; further ones leave decisions that wait as they are.
const LIFTED_MAX: usize = 1_024;

/// Scores that a security event raises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScoreScope {
    /// Those of the user and of the network.
    #[default]
    All,
    /// That of the user: the address is never banned.
    User,
    /// None: the client is on this machine.
    Nothing,
}

/// Origin of a security event, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EvidenceSource {
    /// Address of the client; of IPv6 the /64 around it.
    pub address: Option<IpAddr>,
    /// User whose valid token the connection has.
    pub user: Option<UserId>,
    /// Device of the user.
    pub device: Option<DeviceId>,
}

impl EvidenceSource {
    /// Returns whether the source is a subject, or a part of it.
    pub fn concerns(&self, subject: &BanSubject) -> bool {
        let Self { address, user, device } = self;
        match subject {
            BanSubject::Network(network) => address.is_some_and(|address| network.contains(address)),
            BanSubject::User(of) => user.as_ref() == Some(of),
            BanSubject::Device(of, named) => user.as_ref() == Some(of) && device.as_ref() == Some(named),
        }
    }

    /// Creates the source of a connection that has no valid token.
    pub fn of_address(address: IpAddr) -> Self {
        Self { address: Some(address), ..Self::default() }
    }
}

/// Equal security events of one second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceRow {
    /// End of the second, in ms since 1970.
    pub at_ms: u64,
    /// Kind.
    pub kind: EvidenceKind,
    /// Client that caused them, as far as it is known.
    pub source: EvidenceSource,
    /// Number of events.
    pub count: u32,
    /// Scores that they raise.
    pub scope: ScoreScope,
}

/// Row as JSON, in the file and in events.
#[derive(Serialize)]
pub struct EvidenceView<'a> {
    time: String,
    kind: &'static str,
    count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
}

impl EvidenceRow {
    /// Returns the row as events, the file and the admin API have it.
    pub fn view(&self) -> EvidenceView<'_> {
        EvidenceView {
            time: rfc3339(self.at_ms),
            kind: self.kind.name(),
            count: self.count,
            address: self.source.address,
            user: self.source.user.as_ref().map(UserId::as_str),
            device: self.source.device.as_ref().map(DeviceId::as_str),
        }
    }

    /// Returns approximately how many bytes the row has in memory.
    pub fn bytes(&self) -> usize {
        let EvidenceSource { user, device, .. } = &self.source;
        let user = user.as_ref().map_or(0, |user| user.as_str().len());
        size_of::<Self>() + user + device.as_ref().map_or(0, |device| device.as_str().len())
    }

    /// Returns whether the row is of a subject.
    pub fn concerns(&self, subject: &BanSubject) -> bool {
        self.source.concerns(subject)
    }
}

/// Rows of the last second.
#[derive(Debug, Default)]
pub struct EvidenceBatch {
    /// Rows.
    pub rows: Vec<EvidenceRow>,
    /// Events that have no row because there were too many.
    pub dropped: u64,
    /// Events of each kind, those without a row included.
    pub counts: Vec<(EvidenceKind, u64)>,
}

#[derive(Default)]
struct PendingRows {
    /// Time since which they are noted, in ms since 1970.
    since_ms: u64,
    rows: HashMap<(EvidenceKind, EvidenceSource, ScoreScope), u32, RandomState>,
    dropped: u64,
}

/// Security events and scores of a node.
#[derive(Default)]
pub struct EvidenceBoard {
    pending: Mutex<PendingRows>,
    counts: [AtomicU64; EvidenceKind::ALL.len()],
    recent: Mutex<VecDeque<EvidenceRow>>,
    scores: Mutex<SubjectScores>,
    bans: AtomicBool,
    /// Addresses that are never banned.
    board: Arc<BanBoard>,
    gateway: Mutex<GatewayCounts>,
    /// Subjects whose bans were lifted.
    lifted: Mutex<Vec<BanSubject>>,
    /// Erasures that were requested since the last look.
    erased: Mutex<Vec<Erasure>>,
    /// Paths at a gateway to which single requests are evidence.
    paths: Live<GatewayPaths>,
    file: OnceLock<EvidenceFile>,
    audit: OnceLock<Arc<AuditFile>>,
}

impl EvidenceBoard {
    /// Creates the board of a node with these bans.
    pub fn new(board: Arc<BanBoard>) -> Self {
        Self { board, ..Self::default() }
    }

    /// Returns the scores that evidence of a client raises. The whole address counts, not its network.
    fn scope_of(&self, address: Option<IpAddr>) -> ScoreScope {
        match address {
            Some(address) if self.board.is_local(address) => ScoreScope::Nothing,
            Some(address) if self.board.is_exempt(address) => ScoreScope::User,
            _ => ScoreScope::All,
        }
    }

    /// Notes a request to a gateway, unless it is of a kind that honest clients cause and its network has caused few;
    /// returns whether it is evidence.
    pub fn note_gateway(&self, kind: EvidenceKind, address: IpAddr) -> bool {
        let is_evidence = self.gateway.lock().admits(kind, network_of(address), Instant::now());
        if is_evidence {
            self.note(kind, EvidenceSource::of_address(address));
        }
        is_evidence
    }

    /// Notes a security event.
    pub fn note(&self, kind: EvidenceKind, source: EvidenceSource) {
        if let Some(count) = self.counts.get(kind as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let scope = self.scope_of(source.address);
        let key = (kind, EvidenceSource { address: source.address.map(network_of), ..source }, scope);
        let mut pending = self.pending.lock();
        let is_full = pending.rows.len() >= ROWS_MAX;
        match pending.rows.get_mut(&key) {
            Some(count) => *count = count.saturating_add(1),
            None if is_full => pending.dropped += 1,
            None => drop(pending.rows.insert(key, 1)),
        }
    }

    /// Returns the rows since the last call, and keeps them for [`Self::recent`].
    pub fn take(&self) -> EvidenceBatch {
        let counts = EvidenceKind::ALL.iter().zip(&self.counts);
        let counts = counts.map(|(kind, count)| (*kind, count.swap(0, Ordering::Relaxed)));
        let counts = counts.filter(|(_, count)| *count > 0).collect();
        // Locked before the pending rows, as by [`Self::erase`], which would miss those in between otherwise.
        let mut recent = self.recent.lock();
        let at_ms = wall_ms();
        let (rows, dropped) = {
            let mut pending = self.pending.lock();
            pending.since_ms = at_ms;
            (std::mem::take(&mut pending.rows), std::mem::take(&mut pending.dropped))
        };
        let row = |((kind, source, scope), count)| EvidenceRow { at_ms, kind, source, count, scope };
        let mut rows: Vec<EvidenceRow> = rows.into_iter().map(row).collect();
        // By the whole key: the order of the map differs from process to process.
        rows.sort_unstable_by(|a, b| (a.kind, &a.source, a.scope).cmp(&(b.kind, &b.source, b.scope)));
        recent.extend(rows.iter().cloned());
        let surplus = recent.len().saturating_sub(RECENT_MAX);
        recent.drain(..surplus);
        EvidenceBatch { rows, dropped, counts }
    }

    /// Returns the last rows of a subject, at most `limit`, the newest first.
    pub fn recent(&self, subject: &BanSubject, limit: usize) -> Vec<EvidenceRow> {
        let recent = self.recent.lock();
        recent.iter().rev().filter(|row| row.concerns(subject)).take(limit).cloned().collect()
    }

    /// Returns the number of recent events of a subject by kind, the most frequent first.
    pub fn recent_counts(&self, subject: &BanSubject) -> Vec<(EvidenceKind, u64)> {
        let mut counts: HashMap<EvidenceKind, u64> = HashMap::new();
        for row in self.recent.lock().iter().filter(|row| row.concerns(subject)) {
            *counts.entry(row.kind).or_default() += u64::from(row.count);
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(kind, count)| (std::cmp::Reverse(*count), *kind));
        counts
    }

    /// Sets whether a score of 100 bans its subject.
    pub fn set_bans(&self, bans: bool) {
        self.bans.store(bans, Ordering::Relaxed);
    }

    /// Sets the paths at a gateway to which requests are evidence.
    pub fn set_gateway_paths(&self, paths: GatewayPaths) {
        self.paths.set(paths);
    }

    /// Returns the paths at a gateway to which requests are evidence.
    pub fn gateway_paths(&self) -> Arc<GatewayPaths> {
        self.paths.get()
    }

    /// Returns whether a score of 100 bans its subject.
    pub fn bans(&self) -> bool {
        self.bans.load(Ordering::Relaxed)
    }

    /// Adds a row to the score of one of its subjects. Without `may_ban`, a user keeps a score of 100.
    pub fn score(&self, subject: &BanSubject, row: &EvidenceRow, may_ban: bool) -> ScoreVerdict {
        self.scores.lock().note(subject, row, self.bans(), may_ban)
    }

    /// Makes a network whose parts are banned a candidate for a ban.
    pub fn suspect(&self, subject: &BanSubject) {
        self.scores.lock().suspect(subject);
    }

    /// Decides about a network that has the score of a ban, and these connected users.
    pub fn decide(&self, subject: &BanSubject, users: &std::collections::HashSet<UserId>) -> ScoreVerdict {
        self.scores.lock().decide(subject, users)
    }

    /// Returns the score of a subject on this node.
    pub fn score_of(&self, subject: &BanSubject) -> SubjectScore {
        self.scores.lock().score(subject)
    }

    /// Returns the subjects with the highest scores on this node.
    pub fn top(&self, limit: usize) -> Vec<(BanSubject, u32)> {
        self.scores.lock().top(limit)
    }

    /// Forgets the scores and the former bans of a subject whose ban was lifted, and of all that it covers.
    pub fn lift(&self, subject: &BanSubject) {
        self.scores.lock().forget(subject);
        let mut lifted = self.lifted.lock();
        if lifted.len() < LIFTED_MAX {
            lifted.push(subject.clone());
        }
    }

    /// Erases what this node knows of a subject from before the request: rows, counts of a gateway, and the whole score,
    /// former bans and decisions that wait. The lines of the file follow. Bans in force stay.
    pub fn erase(&self, erasure: &Erasure) {
        {
            let mut recent = self.recent.lock();
            recent.retain(|row| !erasure.includes(&row.source, row.at_ms));
            let mut pending = self.pending.lock();
            if pending.since_ms <= erasure.until_ms {
                pending.rows.retain(|(_, source, _), _| !source.concerns(&erasure.subject));
            }
        }
        self.gateway.lock().forget(&erasure.subject);
        self.lift(&erasure.subject);
        self.erase_lines(erasure);
    }

    /// Erases the lines of the file alone, for a request from before the start of this node.
    pub fn erase_lines(&self, erasure: &Erasure) {
        let mut erased = self.erased.lock();
        if erased.len() < ERASED_MAX {
            erased.push(erasure.clone());
        }
    }

    /// Returns the erasures since the last call.
    pub fn take_erased(&self) -> Vec<Erasure> {
        std::mem::take(&mut self.erased.lock())
    }

    /// Returns the subjects whose bans were lifted since the last call.
    pub fn take_lifted(&self) -> Vec<BanSubject> {
        std::mem::take(&mut self.lifted.lock())
    }

    /// Sets the files in which evidence and decisions are recorded. Only the first call counts.
    pub fn set_files(&self, file: Option<EvidenceFile>, audit: Arc<AuditFile>) {
        if let Some(file) = file {
            self.file.set(file).ok();
        }
        self.audit.set(audit).ok();
    }

    /// Returns the file of security events; `None` if there is none.
    pub fn file(&self) -> Option<&EvidenceFile> {
        self.file.get()
    }

    /// Returns the file of the audit log; `None` on a node without an admin port.
    pub fn audit(&self) -> Option<&Arc<AuditFile>> {
        self.audit.get()
    }
}

#[cfg(test)]
mod tests;
