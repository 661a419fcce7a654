//! Participants of a run: users, devices and groups; and the phase of the run.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::anyhow;
use tidegate_protocol::{
    codec::Wire,
    id::{ConversationId, UserId},
};
use tokio::sync::watch;

use super::{admin::Admin, record::Recorder};
use crate::person::{Phase, Profile};

/// Number of groups, and of users in each. The last users of a group come and go.
pub(super) const GROUPS: usize = 6;
const GROUP_USERS: usize = 8;
pub(super) const COMING_AND_GOING: usize = 3;

/// Users to whom a user talks directly.
const PEERS: usize = 3;

/// Number of live rooms. Every client is in one, and may leave it for the rest of a connection.
const ROOMS: usize = 2;

/// Most unanswered sends of a client while it talks.
const IN_FLIGHT: usize = 32;

/// Ticks in which a client of a cluster goes to another node, per ten thousand.
const HOPS: u32 = 15;

/// A device of a user.
pub(super) struct Device {
    /// Who it is, and where it talks.
    pub(super) profile: Profile,
    /// Number of answers and conversations that it waits for; `usize::MAX` if it is not logged in.
    pub(super) waiting: AtomicUsize,
    /// Whether it has sent its markers.
    pub(super) marked: AtomicBool,
    /// Whether it has reported that it has everything.
    pub(super) complete: AtomicBool,
    /// Number of the adapter whose library is the client of this device; `None` for the lab's own client.
    pub(super) library: Option<usize>,
}

impl Device {
    fn is_busy(&self, phase: Phase) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
            || (phase == Phase::Mark && !self.marked.load(Ordering::Acquire))
            || (phase == Phase::Check && !self.complete.load(Ordering::Acquire))
    }
}

pub(super) struct Group {
    pub(super) id: String,
    pub(super) users: Vec<String>,
}

/// State that all tasks share.
pub(super) struct World {
    pub(super) clients: Vec<Device>,
    pub(super) groups: Vec<Group>,
    /// Addresses for clients, one for each node.
    pub(super) client_addresses: Vec<SocketAddr>,
    pub(super) key: Vec<u8>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) admin: Admin,
    phase: watch::Sender<Phase>,
    sessions: AtomicU64,
    failure: watch::Sender<Option<String>>,
}

impl World {
    pub(super) fn new(
        users: usize,
        rate: u32,
        client_addresses: Vec<SocketAddr>,
        key: Vec<u8>,
        recorder: Arc<Recorder>,
    ) -> Self {
        let users = users.max(GROUP_USERS);
        let name = |number: usize| format!("u{}", number % users);
        let groups: Vec<Group> = (0..GROUPS)
            .map(|group| Group {
                id: format!("team{group}"),
                users: (0..GROUP_USERS).map(|member| name(group * 5 + member)).collect(),
            })
            .collect();
        let is_cluster = client_addresses.len() > 1;
        let mut clients = Vec::new();
        for user in 0..users {
            let mut places: Vec<String> =
                (1..=PEERS).map(|peer| direct(&name(user), &name(user + peer))).collect();
            let mine = groups.iter().filter(|group| group.users.contains(&name(user)));
            places.extend(mine.map(|group| format!("g:{}", group.id)));
            for device in 0..if user % 3 == 0 { 1 } else { 2 } {
                let number = clients.len();
                let profile = Profile {
                    number,
                    user: name(user),
                    device: format!("dev{device}"),
                    wire: Wire::ALL[number % Wire::ALL.len()],
                    chained: number % 3 == 1,
                    places: places.clone(),
                    room: format!("hall{}", number % ROOMS),
                    pace: Duration::MAX,
                    in_flight_max: IN_FLIGHT,
                    hops: if is_cluster { HOPS } else { 0 },
                    hints: is_cluster,
                };
                clients.push(Device {
                    profile,
                    waiting: AtomicUsize::new(usize::MAX),
                    marked: AtomicBool::new(false),
                    complete: AtomicBool::new(false),
                    library: None,
                });
            }
        }
        let pace = Duration::from_secs_f64(clients.len() as f64 / f64::from(rate.max(1)));
        clients.iter_mut().for_each(|client| client.profile.pace = pace);
        let phase = watch::Sender::new(Phase::Talk);
        let (admin, sessions) = (Admin::default(), AtomicU64::new(1));
        let failure = watch::Sender::new(None);
        Self { clients, groups, client_addresses, key, recorder, admin, phase, sessions, failure }
    }

    /// Makes libraries the clients of that many devices for each adapter, spread over all users.
    pub(super) fn hand_over(&mut self, adapters: usize, devices: usize) {
        let (all, handed) = (self.clients.len(), (adapters * devices).min(self.clients.len()));
        for nth in 0..handed {
            // From the end, where the devices of users with two devices are.
            self.clients[all - 1 - nth * all / handed].library = Some(nth % adapters);
        }
    }

    /// Ends the run with an error: what takes part in it has failed.
    pub(super) fn fail(&self, why: String) {
        self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            failure.get_or_insert(why);
            is_first
        });
    }

    /// Waits until the run has failed, and returns why.
    pub(super) async fn failed(&self) -> anyhow::Error {
        let mut failure = self.failure.subscribe();
        let failure = failure.wait_for(Option::is_some).await;
        anyhow!(failure.ok().and_then(|it| it.clone()).unwrap_or_default())
    }

    /// Returns the name of a node.
    pub(super) fn node(nth: usize) -> String {
        format!("n{}", nth + 1)
    }

    /// Returns the time since the start of the run.
    pub(super) fn elapsed(&self) -> Duration {
        self.recorder.elapsed()
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Returns a number for a new connection.
    pub(super) fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn users(&self) -> BTreeSet<&str> {
        self.clients.iter().map(|client| client.profile.user.as_str()).collect()
    }

    /// Waits until all clients are online and wait for nothing, several times in a row.
    pub(super) async fn rest(&self, deadline: Instant) -> Result<(), String> {
        let mut quiet = 0;
        while quiet < 5 {
            let busy = self.clients.iter().find(|client| client.is_busy(self.phase()));
            quiet = if busy.is_some() { 0 } else { quiet + 1 };
            if let Some(busy) = busy
                && Instant::now() > deadline
            {
                let left = busy.waiting.load(Ordering::Acquire);
                let what =
                    if left == usize::MAX { "can't log in".into() } else { format!("waits for {left}") };
                return Err(format!("{}/{} {what}", busy.profile.user, busy.profile.device));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

/// Returns the conversation of two users.
pub(super) fn direct(a: &str, b: &str) -> String {
    match (UserId::new(a), UserId::new(b)) {
        (Ok(a), Ok(b)) => ConversationId::direct(&a, &b).to_string(),
        _ => String::new(),
    }
}
