//! Who takes part: users, devices, groups; and the phase that the run is in.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate_protocol::{
    codec::Wire,
    id::{ConversationId, UserId},
};
use tokio::sync::watch;

use super::{admin::Admin, record::Recorder};

/// Groups, and users in each; the last ones of a group come and go.
pub(super) const GROUPS: usize = 6;
const GROUP_USERS: usize = 8;
pub(super) const COMING_AND_GOING: usize = 3;

/// Users to whom a user talks directly.
const PEERS: usize = 3;

/// Live rooms; every client is in one of them, and may leave it for the rest of a connection.
const ROOMS: usize = 2;

/// What clients do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// They talk.
    Talk,
    /// They finish what they began.
    Settle,
    /// They send their markers.
    Mark,
    /// They make sure that they have everything.
    Check,
}

/// One device of one user.
pub(super) struct Device {
    pub(super) user: String,
    pub(super) device: String,
    pub(super) wire: Wire,
    /// Whether its messages are chained.
    pub(super) chained: bool,
    /// Conversations that it sends to, beside its room.
    pub(super) places: Vec<String>,
    /// The live room that it joins with each connection.
    pub(super) room: String,
    /// What it still waits for; `usize::MAX` = it is not logged in.
    pub(super) waiting: AtomicUsize,
    /// Whether it has sent its markers.
    pub(super) marked: AtomicBool,
    /// Whether it says that it has everything.
    pub(super) complete: AtomicBool,
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

/// What all tasks share.
pub(super) struct World {
    pub(super) clients: Vec<Device>,
    pub(super) groups: Vec<Group>,
    /// Where clients connect: a door for each node.
    pub(super) doors: Vec<SocketAddr>,
    pub(super) key: Vec<u8>,
    pub(super) recorder: Arc<Recorder>,
    pub(super) admin: Admin,
    /// Between two messages of one client.
    pub(super) pace: Duration,
    phase: watch::Sender<Phase>,
    sessions: AtomicU64,
}

impl World {
    pub(super) fn new(
        (users, rate): (usize, u32),
        doors: Vec<SocketAddr>,
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
        let mut clients = Vec::new();
        for user in 0..users {
            let mut places: Vec<String> =
                (1..=PEERS).map(|peer| direct(&name(user), &name(user + peer))).collect();
            let mine = groups.iter().filter(|group| group.users.contains(&name(user)));
            places.extend(mine.map(|group| format!("g:{}", group.id)));
            for device in 0..if user % 3 == 0 { 1 } else { 2 } {
                clients.push(Device {
                    user: name(user),
                    device: format!("dev{device}"),
                    wire: Wire::ALL[clients.len() % Wire::ALL.len()],
                    chained: clients.len() % 3 == 1,
                    places: places.clone(),
                    room: format!("hall{}", clients.len() % ROOMS),
                    waiting: AtomicUsize::new(usize::MAX),
                    marked: AtomicBool::new(false),
                    complete: AtomicBool::new(false),
                });
            }
        }
        let pace = Duration::from_secs_f64(clients.len() as f64 / f64::from(rate.max(1)));
        let phase = watch::Sender::new(Phase::Talk);
        let (admin, sessions) = (Admin::default(), AtomicU64::new(1));
        Self { clients, groups, doors, key, recorder, admin, pace, phase, sessions }
    }

    /// The name of a node.
    pub(super) fn node(nth: usize) -> String {
        format!("n{}", nth + 1)
    }

    /// Whether there are several nodes: then pushes of conversations may be lost on the way without a word.
    pub(super) fn is_cluster(&self) -> bool {
        self.doors.len() > 1
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// A number for a new connection.
    pub(super) fn next_session(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn users(&self) -> BTreeSet<&str> {
        self.clients.iter().map(|client| client.user.as_str()).collect()
    }

    /// Waits until all clients have been there with nothing to wait for, for a moment.
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
                return Err(format!("{}/{} {what}", busy.user, busy.device));
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
