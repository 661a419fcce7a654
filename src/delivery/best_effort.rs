//! What is told to other nodes beside the log: signals, and what a user's devices hear of marks. Best effort, never waited
//! for.
//!
//! Users are found by their routes, many in one look; while the routes can't be read all peers are told, as they are of
//! signals to groups: a node that has nobody of the group drops them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
};
use tokio::{runtime::Handle, sync::mpsc};

use crate::{
    link::{Stray, StrayLanes},
    metrics::Metrics,
    ports::Ports,
    routes::NodeBoot,
};

/// Words that may wait for the routes; further ones are dropped.
const WORDS_MAX: usize = 4_096;

/// Words looked up in one turn.
const TURN_MAX: usize = 512;

/// Users looked up in one call.
const USERS_MAX: usize = 1_000;

/// The way of signals and marks to other nodes.
pub struct Beside {
    words: mpsc::Sender<Word>,
    metrics: Metrics,
}

/// Something to tell.
struct Word {
    stray: Stray,
    /// Whose nodes; none = all of them.
    of: Option<Vec<UserId>>,
}

struct Teller {
    ports: Arc<Ports>,
    lanes: Arc<StrayLanes>,
}

impl Beside {
    /// Begins, on that runtime.
    pub fn start(
        runtime: &Handle,
        ports: &Arc<Ports>,
        lanes: Arc<StrayLanes>,
        metrics: Metrics,
    ) -> Arc<Self> {
        let (words, waiting) = mpsc::channel(WORDS_MAX);
        runtime.spawn(Teller { ports: Arc::clone(ports), lanes }.run(waiting));
        Arc::new(Self { words, metrics })
    }

    /// A signal to a direct conversation, for the nodes of its two users.
    pub fn signal_to_users(&self, conversation: &ConversationId, users: &[UserId], frame: &PushFrame) {
        self.signal(conversation, users.to_vec(), Some(users.to_vec()), frame);
    }

    /// A signal to a group, for these members of it.
    pub fn signal_to_group(
        &self,
        conversation: &ConversationId,
        members: impl IntoIterator<Item = UserId>,
        frame: &PushFrame,
    ) {
        self.signal(conversation, members.into_iter().collect(), None, frame);
    }

    fn signal(
        &self,
        conversation: &ConversationId,
        users: Vec<UserId>,
        of: Option<Vec<UserId>>,
        frame: &PushFrame,
    ) {
        let (conversation, frame) = (conversation.clone(), Bytes::copy_from_slice(frame.proto()));
        let word = Word { stray: Stray::Signal { conversation, users, frame }, of };
        if self.words.try_send(word).is_err() {
            self.metrics.signals_dropped.increment(1);
        }
    }

    /// What a user's devices are to hear of a change of what the user keeps.
    pub fn mark(&self, conversation: &ConversationId, user: &UserId, seq: u64, frame: &PushFrame) {
        let frame = Bytes::copy_from_slice(frame.proto());
        let stray = Stray::Mark { conversation: conversation.clone(), user: user.clone(), seq, frame };
        if self.words.try_send(Word { stray, of: Some(vec![user.clone()]) }).is_err() {
            self.metrics.peer_marks_lost.increment(1);
        }
    }
}

impl Teller {
    async fn run(self, mut waiting: mpsc::Receiver<Word>) {
        let mut turn = Vec::with_capacity(TURN_MAX);
        let mut looks = self.ports.peers.changes();
        loop {
            tokio::select! {
                Ok(()) = looks.changed() => {
                    self.lanes.forget_ended(|run| self.ports.peers.is_live(run));
                    continue;
                }
                words = waiting.recv_many(&mut turn, TURN_MAX) => if words == 0 { return },
            }
            let peers = self.ports.peers.others();
            // Nobody is there to be looked for.
            if peers.is_empty() {
                turn.clear();
                continue;
            }
            let all: Vec<NodeBoot> = peers.iter().map(|row| row.info.boot.clone()).collect();
            let homes = self.homes(&turn).await;
            for word in turn.drain(..) {
                match (&word.of, &homes) {
                    (Some(users), Some(homes)) => {
                        let to: BTreeSet<&NodeBoot> =
                            users.iter().filter_map(|user| homes.get(user)).flatten().collect();
                        to.into_iter().for_each(|node| self.lanes.send(node, word.stray.clone()));
                    }
                    _ => all.iter().for_each(|node| self.lanes.send(node, word.stray.clone())),
                }
            }
        }
    }

    /// The other nodes on which users of the turn are; none while nobody knows all of them.
    async fn homes(&self, turn: &[Word]) -> Option<HashMap<UserId, Vec<NodeBoot>>> {
        if self.ports.peers.doubtful() {
            return None;
        }
        let users: BTreeSet<&UserId> = turn.iter().filter_map(|word| word.of.as_ref()).flatten().collect();
        let users: Vec<UserId> = users.into_iter().cloned().collect();
        let mut homes = HashMap::with_capacity(users.len());
        for page in users.chunks(USERS_MAX) {
            let rows = match self.ports.routes.lookup(page).await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::debug!(%error, "signals and marks go to all peers");
                    return None;
                }
            };
            for (user, devices) in page.iter().zip(rows) {
                let elsewhere = devices.into_iter().map(|(_, token)| token.at);
                homes.insert(user.clone(), elsewhere.filter(|at| *at != self.ports.me).collect());
            }
        }
        Some(homes)
    }
}
