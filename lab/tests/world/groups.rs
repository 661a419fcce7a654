//! Administrator of the world: creates the groups, then adds and removes users, and repeats each change until it is
//! answered.

use std::collections::{BTreeMap, BTreeSet};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use std::time::Duration;
use tidegate_lab::{
    checker::{Change, HistoryEvent},
    person::PersonEvent,
};
use tidegate_protocol::{
    id::{ConversationId, MsgId, UserId},
    machine::session::SubmitAnswer,
    record::{MemberAction, MemberChange},
};
use tokio::task::JoinHandle;

use crate::node::{Node, WALL_START_MS};

/// Time after which a change is sent again, through any node.
const RETRY_AFTER: Duration = Duration::from_secs(7);

/// Group with its users; the last ones come and go.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) users: Vec<String>,
    pub(crate) going: usize,
}

/// Change that waits for its answer.
struct Open {
    request: String,
    group: usize,
    action: MemberAction,
    users: Vec<String>,
    answer: Option<JoinHandle<SubmitAnswer>>,
    sent: Duration,
}

/// Administrator.
pub(crate) struct Administrator {
    groups: Vec<Group>,
    rng: StdRng,
    open: Option<Open>,
    /// Groups that are not created yet.
    to_create: Vec<usize>,
    away: BTreeSet<(usize, String)>,
    changes: u64,
    next_at: Duration,
}

impl Administrator {
    pub(crate) fn new(groups: Vec<Group>, seed: u64) -> Self {
        let to_create = (0..groups.len()).rev().collect();
        let rng = StdRng::seed_from_u64(seed);
        let (away, next_at) = (BTreeSet::new(), Duration::ZERO);
        Self { groups, rng, open: None, to_create, away, changes: 0, next_at }
    }

    /// Returns whether all groups exist and no change waits for its answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.is_none() && self.to_create.is_empty()
    }

    /// Continues the open change, or begins another one while `talks`. Returns events for the history.
    pub(crate) fn step(
        &mut self,
        now: Duration,
        nodes: &mut [Option<Node>],
        talks: bool,
    ) -> Vec<PersonEvent> {
        if let Some(open) = &mut self.open {
            let is_answered = open.answer.as_ref().is_some_and(JoinHandle::is_finished);
            if !is_answered && now < open.sent + RETRY_AFTER {
                return Vec::new();
            }
            // A task that has ended is ready at once.
            let answer = open
                .answer
                .take()
                .filter(|_| is_answered)
                .and_then(|task| futures_util::FutureExt::now_or_never(task).and_then(Result::ok));
            if let Some(SubmitAnswer::Accepted { seq, .. } | SubmitAnswer::Duplicate { seq, .. }) = answer {
                return self.done(now, seq);
            }
            self.send(now, nodes);
            return Vec::new();
        }
        if let Some(group) = self.to_create.pop() {
            let users = self.groups[group].users.clone();
            self.begin(now, nodes, group, MemberAction::Create, users);
        } else if talks && now >= self.next_at {
            let group = self.rng.random_range(0..self.groups.len());
            let Group { users, going, .. } = &self.groups[group];
            let user = users[users.len() - 1 - self.rng.random_range(0..*going)].clone();
            let is_away = self.away.contains(&(group, user.clone()));
            let action = if is_away { MemberAction::Join } else { MemberAction::Kick };
            self.begin(now, nodes, group, action, vec![user]);
        }
        Vec::new()
    }

    fn begin(
        &mut self,
        now: Duration,
        nodes: &mut [Option<Node>],
        group: usize,
        action: MemberAction,
        users: Vec<String>,
    ) {
        let request = format!("change-{}", self.changes);
        self.changes += 1;
        self.open = Some(Open { request, group, action, users, answer: None, sent: now });
        self.send(now, nodes);
    }

    fn send(&mut self, now: Duration, nodes: &mut [Option<Node>]) {
        let Some(open) = &mut self.open else { return };
        open.sent = now;
        let alive: Vec<&Node> = nodes.iter().flatten().collect();
        if alive.is_empty() {
            return;
        }
        let (admin, runtime) = alive[self.rng.random_range(0..alive.len())].admin();
        let change = MemberChange {
            conversation: conversation(&self.groups[open.group].id),
            action: open.action,
            users: open.users.iter().map(|user| UserId::new(user).expect("a good id")).collect(),
            role: None,
            by: None,
            settings: BTreeMap::new(),
            request_id: MsgId::new(&open.request).expect("a good id"),
        };
        let received_at = WALL_START_MS + u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        open.answer = Some(runtime.spawn(async move { admin.change(change, received_at).await }));
    }

    fn done(&mut self, now: Duration, seq: u64) -> Vec<PersonEvent> {
        let Some(open) = self.open.take() else { return Vec::new() };
        self.next_at = now + Duration::from_millis(self.rng.random_range(20..400));
        let change = if open.action == MemberAction::Kick { Change::Kick } else { Change::Join };
        for user in &open.users {
            let key = (open.group, user.clone());
            match open.action {
                MemberAction::Kick => drop(self.away.insert(key)),
                _ => drop(self.away.remove(&key)),
            }
        }
        let conv = conversation(&self.groups[open.group].id).to_string();
        let event = |user: String| HistoryEvent::Member { conv: conv.clone(), user, change, seq };
        open.users.into_iter().map(event).collect()
    }
}

fn conversation(group: &str) -> ConversationId {
    ConversationId::parse(&format!("g:{group}")).expect("a good id")
}
