//! Bans: networks, users and devices that this node refuses, and networks that are never refused.
//!
//! The store keeps them (`store/guard.rs`); each node has all in memory, because each connection and each login is
//! checked. They end by the clock of the store.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    ops::Bound,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tidegate_protocol::{
    Code,
    code::Reconnect,
    id::{DeviceId, UserId},
    pb,
};
use tokio::time::Instant;

mod networks;
mod people;
mod record;
mod subject;
mod suspensions;
mod table;
mod within;

use self::{
    networks::{NO_END, NetworkChanges, NetworkSet},
    people::People,
};
pub use self::{
    record::{BanRecord, REASON_BYTES_MAX},
    subject::BanSubject,
    suspensions::SuspensionBoard,
};
use crate::{clock::wall_ms, live::Live, networks::Network, networks::Networks};

/// Least time between two removals of entries that have ended, in ms.
const SWEEP_INTERVAL_MS: u64 = 60_000;

/// New bans that are remembered by name; with more at once, all connections are looked through.
const RECENT_MAX: usize = 64;

/// Ban in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Reason, author and time.
    pub record: BanRecord,
    /// End by the store's clock, in ms since 1970; `None` if it lasts until it is lifted.
    pub until_ms: Option<u64>,
}

/// Refusal of a client because of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanRefusal {
    /// Time until the last ban of the client ends; `None` if one has no end.
    pub left: Option<Duration>,
}

impl BanRefusal {
    /// Returns when the client may connect again, and after which wait.
    pub fn reconnect(&self) -> (Reconnect, Duration) {
        self.left.map_or((Reconnect::Never, Duration::ZERO), |left| (Reconnect::After, left))
    }

    /// Returns the last frame of a connection that is refused.
    pub fn close(&self) -> pb::Close {
        let (reconnect, wait) = self.reconnect();
        let after_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        pb::Close { reconnect: pb::Reconnect::from(reconnect) as i32, ..Code::Banned.close("", after_ms) }
    }
}

/// Bans that came into force since an earlier version, for connections that are open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewBans {
    /// Users and devices.
    pub named: Vec<BanSubject>,
    /// Whether all connections have to be looked through, because of a network or of many names.
    pub is_wide: bool,
}

/// Kind of an entry of the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanKind {
    /// Refused.
    Ban,
    /// Never refused; only networks have it.
    Allow,
}

/// Bans and allowed networks of a node. Checks wait for no change of it.
pub struct BanBoard {
    state: Mutex<BoardState>,
    banned: Live<NetworkSet>,
    allowed: Live<NetworkSet>,
    /// Networks of the configuration that are never banned.
    exempt: Live<Networks>,
    /// Addresses of the peers of the node, which are never banned.
    peers: Live<Networks>,
    people: RwLock<People>,
    has_people: AtomicBool,
    /// Whether addresses of this machine are banned like others.
    includes_loopback: AtomicBool,
    recent: Mutex<VecDeque<BanSubject>>,
    /// Number of bans that came into force.
    version: AtomicU64,
    /// Number of changes of entries and of what is exempt.
    revision: AtomicU64,
    /// Whether all rows were read once.
    is_complete: AtomicBool,
    started: Instant,
    /// Store's clock at the start, in ms since 1970.
    clock_ms: AtomicU64,
}

#[derive(Default)]
struct BoardState {
    bans: BTreeMap<BanSubject, Kept>,
    allowed: BTreeMap<BanSubject, Kept>,
    /// Number of times that all rows were read from the first on.
    reads: u64,
    /// Whether all rows are read from the first on: those that do not follow no longer exist.
    is_reading: bool,
    ban_changes: NetworkChanges,
    allow_changes: NetworkChanges,
    /// Users and devices that have changed since the last publication.
    changed_people: Vec<BanSubject>,
    /// First [`RECENT_MAX`] bans that are not published yet, and the number of all.
    new: Vec<BanSubject>,
    new_count: u64,
    /// Time of the last removal of entries that have ended, by the store's clock.
    swept_ms: u64,
}

struct Kept {
    ban: Ban,
    /// Read in which the row was found last.
    read: u64,
}

impl Default for BanBoard {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            banned: Live::default(),
            allowed: Live::default(),
            exempt: Live::default(),
            peers: Live::default(),
            people: RwLock::default(),
            has_people: AtomicBool::default(),
            includes_loopback: AtomicBool::default(),
            recent: Mutex::default(),
            version: AtomicU64::default(),
            revision: AtomicU64::default(),
            is_complete: AtomicBool::default(),
            started: Instant::now(),
            clock_ms: AtomicU64::new(wall_ms()),
        }
    }
}

impl BanBoard {
    /// Returns the clock of the store, in ms since 1970: of the last page that was read, and the time since. Until the
    /// first page it is the clock of this machine.
    pub fn now_ms(&self) -> u64 {
        self.clock_ms.load(Ordering::Relaxed).saturating_add(self.age_ms())
    }

    /// Notes the clock of the store.
    pub fn note_clock(&self, store_ms: u64) {
        self.clock_ms.store(store_ms.saturating_sub(self.age_ms()), Ordering::Relaxed);
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the refusal of a connection from an address; `None` if it is welcome.
    pub fn refusal_of_address(&self, address: IpAddr) -> Option<BanRefusal> {
        let end = self.banned.get().end_of(address, || self.now_ms())?;
        (!self.is_exempt(address)).then(|| self.refusal(end))
    }

    /// Returns the refusal of a login; `None` if it is welcome.
    pub fn refusal_of_login(&self, address: IpAddr, user: &UserId, device: &DeviceId) -> Option<BanRefusal> {
        let (of_user, of_address) =
            (self.refusal_of_user(user, Some(device)), self.refusal_of_address(address));
        // The later of both ends; none is the latest.
        let end = |refusal: &BanRefusal| refusal.left.unwrap_or(Duration::MAX);
        of_user.into_iter().chain(of_address).max_by_key(end)
    }

    /// Returns the refusal of a user, or of a device if it is known; `None` if they are welcome.
    pub fn refusal_of_user(&self, user: &UserId, device: Option<&DeviceId>) -> Option<BanRefusal> {
        if !self.has_people.load(Ordering::Acquire) {
            return None;
        }
        let people = self.people.read();
        let of_user = people.users.get(user).copied();
        let devices = people.devices.get(user).into_iter().flatten();
        let of_device = devices.filter(|(id, _)| Some(id) == device).map(|(_, end)| *end).max();
        let end = of_user.max(of_device)?;
        (end > self.now_ms()).then(|| self.refusal(end))
    }

    fn refusal(&self, end: u64) -> BanRefusal {
        let left = || Duration::from_millis(end.saturating_sub(self.now_ms()).max(1));
        BanRefusal { left: (end != NO_END).then(left) }
    }

    /// Returns whether an address is never banned.
    pub fn is_exempt(&self, address: IpAddr) -> bool {
        self.is_local(address)
            || self.exempt.get().contains(address)
            || self.peers.get().contains(address)
            || self.allowed.get().end_of(address, || self.now_ms()).is_some()
    }

    /// Returns whether the address is one of this machine, which is exempt.
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.to_canonical().is_loopback() && !self.includes_loopback.load(Ordering::Relaxed)
    }

    /// Sets whether addresses of this machine are banned like others.
    pub fn set_includes_loopback(&self, includes: bool) {
        if self.includes_loopback.swap(includes, Ordering::Relaxed) != includes {
            self.look_again();
        }
    }

    /// Returns whether the whole network is never banned because of the allow-list; `None` if a part of it may be.
    pub fn allowed_by(&self, network: &Network) -> Option<BanSubject> {
        let (state, now_ms) = (self.state.lock(), self.now_ms());
        let includes = |subject: &BanSubject| matches!(subject, BanSubject::Network(allowed) if allowed.includes(network));
        let mut live = state.allowed.iter().filter(|(_, kept)| !kept.ban.has_ended(now_ms));
        live.find(|(subject, _)| includes(subject)).map(|(subject, _)| subject.clone())
    }

    /// Replaces the networks of the configuration that are never banned.
    pub fn set_exempt(&self, networks: Networks) {
        if *self.exempt.get() != networks {
            self.exempt.set(networks);
            self.look_again();
        }
    }

    /// Replaces the addresses of the peers, which are never banned.
    pub fn set_peers(&self, peers: Networks) {
        if *self.peers.get() != peers {
            self.peers.set(peers);
            self.look_again();
        }
    }

    /// Returns whether the whole network is never banned because of the configuration, the peers or this machine.
    pub fn is_exempt_network(&self, network: &Network) -> bool {
        let is_loopback = ["127.0.0.0/8", "::1/128"].into_iter().filter_map(|it| it.parse::<Network>().ok());
        let exempts_loopback = !self.includes_loopback.load(Ordering::Relaxed);
        (exempts_loopback && is_loopback.into_iter().any(|it| it.includes(network)))
            || self.exempt.get().includes(network)
            || self.peers.get().includes(network)
    }

    /// Lets the shards look through all connections: some may be banned now that were not before.
    pub fn look_again(&self) {
        let mut recent = self.recent.lock();
        recent.clear();
        self.version.fetch_add(1, Ordering::Release);
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of changes of entries and of what is exempt; `None` until all rows were read once. Entries that
    /// end by themselves change it only when they are removed.
    pub fn revision(&self) -> Option<u64> {
        self.is_complete.load(Ordering::Acquire).then(|| self.revision.load(Ordering::Acquire))
    }

    /// Returns an entry in force.
    pub fn get(&self, kind: BanKind, subject: &BanSubject) -> Option<Ban> {
        let (state, now_ms) = (self.state.lock(), self.now_ms());
        let found = state.of(kind).get(subject)?;
        (!found.ban.has_ended(now_ms)).then(|| found.ban.clone())
    }

    /// Returns entries in force after a subject, by order of the subjects: networks, users, devices.
    pub fn list(&self, kind: BanKind, after: Option<&BanSubject>, limit: usize) -> Vec<(BanSubject, Ban)> {
        let (state, now_ms) = (self.state.lock(), self.now_ms());
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = state.of(kind).range::<BanSubject, _>((after, Bound::Unbounded));
        let live = rows.filter(|(_, kept)| !kept.ban.has_ended(now_ms)).take(limit);
        live.map(|(subject, kept)| (subject.clone(), kept.ban.clone())).collect()
    }

    /// Returns the number of entries, including those that have ended and are not removed yet.
    pub fn count(&self, kind: BanKind) -> usize {
        self.state.lock().of(kind).len()
    }

    /// Returns all bans in force that concern an address, a user or a device.
    pub fn bans_of(&self, subject: &BanSubject) -> Vec<(BanSubject, Ban)> {
        let (state, now_ms) = (self.state.lock(), self.now_ms());
        let keys = match subject {
            BanSubject::Network(network) => {
                let wider = (0..=network.prefix()).map(|prefix| Network::around(network.address(), prefix));
                wider.map(BanSubject::Network).collect()
            }
            BanSubject::User(_) => vec![subject.clone()],
            BanSubject::Device(user, _) => vec![BanSubject::User(user.clone()), subject.clone()],
        };
        let found = keys.into_iter().filter_map(|key| Some((key.clone(), state.bans.get(&key)?)));
        let live = found.filter(|(_, kept)| !kept.ban.has_ended(now_ms));
        live.map(|(key, kept)| (key, kept.ban.clone())).collect()
    }

    /// Notes that all entries follow again, and that those which do not until [`Self::publish`] no longer exist.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        state.reads += 1;
        state.is_reading = true;
    }

    /// Returns whether all entries follow since [`Self::restart`].
    pub fn is_reading(&self) -> bool {
        self.state.lock().is_reading
    }

    /// Notes an entry, or that it was removed if it is `None`. It comes into force with [`Self::publish`].
    pub fn note(&self, kind: BanKind, subject: BanSubject, ban: Option<Ban>) {
        let now_ms = self.now_ms();
        let mut state = self.state.lock();
        let read = state.reads;
        let ban = ban.filter(|ban| !ban.has_ended(now_ms));
        state.note_change(kind, &subject, ban.as_ref().map(Ban::end));
        let Some(ban) = ban else {
            let was_there = state.of_mut(kind).remove(&subject).is_some();
            if was_there && kind == BanKind::Allow {
                state.note_new(&subject);
            }
            return;
        };
        let is_new = |kept: &Kept| kept.ban.has_ended(now_ms) || kept.ban.end() < ban.end();
        let is_closing = match kind {
            BanKind::Ban => state.bans.get(&subject).is_none_or(is_new),
            // The clients of a network that is allowed for less time may be banned after it.
            BanKind::Allow => state.allowed.get(&subject).is_some_and(|kept| kept.ban.end() > ban.end()),
        };
        if is_closing {
            state.note_new(&subject);
        }
        state.of_mut(kind).insert(subject, Kept { ban, read });
    }

    /// Puts noted entries in force. With the last page, `is_last`, those that a complete read did not find are removed.
    pub fn publish(&self, is_last: bool) {
        let now_ms = self.now_ms();
        let mut state = self.state.lock();
        if is_last {
            self.is_complete.fetch_or(state.is_reading, Ordering::Release);
            state.remove_old(now_ms);
        }
        self.revision.fetch_add(u64::from(state.is_changed()), Ordering::Release);
        let BoardState { bans, allowed, ban_changes, allow_changes, changed_people, .. } = &mut *state;
        ban_changes.publish(&self.banned, || networks_of(bans));
        allow_changes.publish(&self.allowed, || networks_of(allowed));
        if !changed_people.is_empty() {
            let mut people = self.people.write();
            for subject in changed_people.drain(..) {
                people.set(&subject, bans.get(&subject).map(|kept| kept.ban.end()));
            }
            let has_people = !people.users.is_empty() || !people.devices.is_empty();
            self.has_people.store(has_people, Ordering::Release);
        }
        let (new, count) = (std::mem::take(&mut state.new), std::mem::take(&mut state.new_count));
        if count == 0 {
            return;
        }
        let mut recent = self.recent.lock();
        if count > new.len() as u64 {
            // Some have no name here.
            recent.clear();
        } else {
            recent.extend(new);
            let excess = recent.len().saturating_sub(RECENT_MAX);
            recent.drain(..excess);
        }
        // After the bans themselves: a login that does not find them is found by a reader of the version.
        self.version.fetch_add(count, Ordering::Release);
    }

    /// Returns the number of bans that came into force so far.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the bans that came into force since a version, and the present one.
    pub fn new_since(&self, seen: u64) -> (NewBans, u64) {
        let (recent, version) = (self.recent.lock(), self.version());
        let count = usize::try_from(version.saturating_sub(seen)).unwrap_or(usize::MAX);
        if count > recent.len() {
            return (NewBans { named: Vec::new(), is_wide: true }, version);
        }
        let new = recent.iter().skip(recent.len() - count);
        let (networks, named): (Vec<_>, Vec<_>) =
            new.cloned().partition(|subject| matches!(subject, BanSubject::Network(_)));
        (NewBans { named, is_wide: !networks.is_empty() }, version)
    }
}

impl Ban {
    /// Returns whether the ban has ended at `now_ms`.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.end() <= now_ms
    }

    /// Returns the end by the store's clock; the largest number if there is none.
    pub fn end(&self) -> u64 {
        self.until_ms.unwrap_or(NO_END)
    }
}

/// Returns the networks among the subjects, which come first.
fn networks_of(all: &BTreeMap<BanSubject, Kept>) -> Vec<(Network, u64)> {
    let networks = all.iter().map_while(|(subject, kept)| match subject {
        BanSubject::Network(network) => Some((*network, kept.ban.end())),
        BanSubject::User(_) | BanSubject::Device(..) => None,
    });
    networks.collect()
}

impl BoardState {
    fn of(&self, kind: BanKind) -> &BTreeMap<BanSubject, Kept> {
        match kind {
            BanKind::Ban => &self.bans,
            BanKind::Allow => &self.allowed,
        }
    }

    fn of_mut(&mut self, kind: BanKind) -> &mut BTreeMap<BanSubject, Kept> {
        match kind {
            BanKind::Ban => &mut self.bans,
            BanKind::Allow => &mut self.allowed,
        }
    }

    /// Notes that an entry has changed; without an end it was removed.
    fn note_change(&mut self, kind: BanKind, subject: &BanSubject, end: Option<u64>) {
        match (kind, subject) {
            (BanKind::Ban, BanSubject::Network(network)) => self.ban_changes.note(*network, end),
            (BanKind::Allow, BanSubject::Network(network)) => self.allow_changes.note(*network, end),
            (BanKind::Ban, _) => self.changed_people.push(subject.clone()),
            (BanKind::Allow, _) => {}
        }
    }

    /// Returns whether an entry has changed since the last publication.
    fn is_changed(&self) -> bool {
        self.ban_changes.is_pending() || self.allow_changes.is_pending() || !self.changed_people.is_empty()
    }

    /// Notes a subject whose open connections may have to be closed.
    fn note_new(&mut self, subject: &BanSubject) {
        self.new_count += 1;
        if self.new.len() < RECENT_MAX {
            self.new.push(subject.clone());
        }
    }

    /// Removes entries that have ended, and those that a complete read did not find.
    fn remove_old(&mut self, now_ms: u64) {
        let (read, was_reading) = (self.reads, std::mem::take(&mut self.is_reading));
        if !was_reading && now_ms < self.swept_ms.saturating_add(SWEEP_INTERVAL_MS) {
            return;
        }
        self.swept_ms = now_ms;
        for kind in [BanKind::Ban, BanKind::Allow] {
            let is_old = |kept: &Kept| kept.ban.has_ended(now_ms) || (was_reading && kept.read != read);
            let old = self.of(kind).iter().filter(|(_, kept)| is_old(kept));
            let old: Vec<BanSubject> = old.map(|(subject, _)| subject.clone()).collect();
            for subject in old {
                self.of_mut(kind).remove(&subject);
                self.note_change(kind, &subject, None);
                if kind == BanKind::Allow {
                    self.note_new(&subject);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
