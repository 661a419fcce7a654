//! `Routes` adapter in memory.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    ops::Bound,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tidegate_protocol::{
    Time,
    id::{ConversationId, DeviceId, UserId},
};

use super::{
    Interest, Lease, NodeBoot, NodeInfo, NodeRow, Registered, Registration, Retire, Route, Routes,
    RoutesError, Token,
};
use crate::fault::planted::{Planted, is_planted};

/// Number of retired runs that are remembered, so that they stay retired.
const RETIRED_RUNS_MAX: usize = 4_096;

/// Routes of profile `single`, and of tests with many nodes in one process.
pub struct MemoryRoutes {
    now: Box<dyn Fn() -> Time + Send + Sync>,
    leases: Leases,
    state: Mutex<State>,
}

/// Lease times: how long an entry counts without renewal.
#[derive(Clone, Copy, Debug)]
pub struct Leases {
    /// Lease of a node run.
    pub node: Duration,
    /// Lease of an interest.
    pub interest: Duration,
}

impl Default for Leases {
    fn default() -> Self {
        Self { node: Duration::from_secs(10), interest: Duration::from_secs(60) }
    }
}

type Devices = SmallVec<[(DeviceId, Token); 1]>;

/// Copy of all routes, as in a dump.
pub struct SavedRoutes(State);

#[derive(Clone, Default)]
struct State {
    /// Last assigned epoch; a single counter, so it rises for each device.
    epoch: u64,
    /// Devices of each user. A user has one or two, so a list takes a tenth of a map's memory.
    users: HashMap<UserId, Devices>,
    runs: HashMap<NodeBoot, Run>,
    retired: HashSet<NodeBoot>,
    retired_order: VecDeque<NodeBoot>,
    interests: HashMap<ConversationId, Vec<(Interest, Time)>>,
    interests_swept: Time,
}

/// State of one node run.
#[derive(Clone, Default)]
struct Run {
    /// Last announcement and its time; `None` before the first one.
    announced: Option<(NodeInfo, Time)>,
    renewals: u64,
    /// Number of requests for a recheck.
    rechecks: u64,
    /// Rows of the run, the same as in `users`.
    rows: BTreeMap<(UserId, DeviceId), u64>,
}

impl MemoryRoutes {
    /// Creates empty routes. `now` is monotonic time.
    ///
    /// Epochs start at `wall_ms` (ms since 1970), in µs: they rise across restarts as long as that clock does, and have
    /// the same range as those of a Redis clock.
    pub fn new(wall_ms: u64, leases: Leases, now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        let state = State { epoch: wall_ms.saturating_mul(1_000), ..State::default() };
        Self { now: Box::new(now), leases, state: Mutex::new(state) }
    }

    /// Drops everything, like an emptied Redis, for tests of the recovery. Epochs keep rising, as they do by Redis's
    /// clock.
    pub fn lose_everything(&self) {
        let mut state = self.lock();
        *state = State { epoch: state.epoch, ..State::default() };
    }

    /// Copies the state.
    pub fn save(&self) -> SavedRoutes {
        SavedRoutes(self.lock().clone())
    }

    /// Falls back to an earlier state, as a Redis that restarts from an old dump. Epochs keep rising, as they do by
    /// Redis's clock.
    pub fn restore(&self, saved: SavedRoutes) {
        let mut state = self.lock();
        *state = State { epoch: state.epoch, ..saved.0 };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn refuse_retired(&self, run: &NodeBoot) -> Result<(), RoutesError> {
        if self.retired.contains(run) { Err(RoutesError::LeaseLost) } else { Ok(()) }
    }

    fn current(&self, user: &UserId, device: &DeviceId) -> Option<&Token> {
        self.users.get(user)?.iter().find_map(|(id, token)| (id == device).then_some(token))
    }

    fn set(&mut self, user: UserId, device: DeviceId, token: Token) -> Option<Token> {
        let devices = self.users.entry(user.clone()).or_default();
        let replaced = match devices.iter_mut().find(|(id, _)| *id == device) {
            Some((_, present)) => Some(std::mem::replace(present, token.clone())),
            None => {
                devices.push((device.clone(), token.clone()));
                None
            }
        };
        if let Some(old) = &replaced
            && old.at != token.at
        {
            self.forget_row(old, &user, &device);
        }
        self.runs.entry(token.at).or_default().rows.insert((user, device), token.epoch);
        replaced
    }

    fn forget_row(&mut self, owner: &Token, user: &UserId, device: &DeviceId) {
        let Some(run) = self.runs.get_mut(&owner.at) else { return };
        run.rows.remove(&(user.clone(), device.clone()));
        let is_swept = run.rows.is_empty() && (run.announced.is_none() || self.retired.contains(&owner.at));
        if is_swept {
            self.runs.remove(&owner.at);
        }
    }

    fn remove(&mut self, row: &Route) -> bool {
        let Some(current) = self.current(&row.user, &row.device).cloned() else { return false };
        if current != row.token && !is_planted(Planted::RouteWithoutToken) {
            return false;
        }
        if let Some(devices) = self.users.get_mut(&row.user) {
            devices.retain(|(id, _)| *id != row.device);
            if devices.is_empty() {
                self.users.remove(&row.user);
            }
        }
        self.forget_row(&current, &row.user, &row.device);
        true
    }

    fn retire(&mut self, run: &NodeBoot) {
        if self.retired.insert(run.clone()) {
            self.retired_order.push_back(run.clone());
        }
        if self.retired_order.len() > RETIRED_RUNS_MAX
            && let Some(oldest) = self.retired_order.pop_front()
        {
            self.retired.remove(&oldest);
        }
        if self.runs.get(run).is_some_and(|it| it.rows.is_empty()) {
            self.runs.remove(run);
        }
    }

    fn lease(&self, run: &NodeBoot, leases: Leases, now: Time) -> Lease {
        if self.retired.contains(run) {
            return Lease::Retired;
        }
        let announced = self.runs.get(run).and_then(|it| it.announced.as_ref());
        if announced.is_some_and(|(_, renewed)| now < *renewed + leases.node) {
            Lease::Live
        } else {
            Lease::Lapsed
        }
    }

    fn sweep_interests(&mut self, leases: Leases, now: Time) {
        if now.since(self.interests_swept) < leases.interest {
            return;
        }
        self.interests_swept = now;
        self.interests.retain(|_, nodes| {
            nodes.retain(|(_, until)| now < *until);
            !nodes.is_empty()
        });
    }
}

#[async_trait]
impl Routes for MemoryRoutes {
    async fn register(&self, registration: Registration) -> Result<Registered, RoutesError> {
        let Registration { user, device, at, above, only_if, policy } = registration;
        let mut state = self.lock();
        state.refuse_retired(&at)?;
        let current = state.current(&user, &device);
        if only_if.is_some() && only_if.as_ref() != current {
            return Err(RoutesError::NotCurrent(current.cloned()));
        }
        let rows = state.users.get(&user).map_or(&[][..], |devices| devices);
        let evicted = match only_if {
            Some(_) => Some(Vec::new()),
            None => policy.evicted(&device, rows),
        };
        let Some(evicted) = evicted else { return Err(RoutesError::TooManyDevices) };
        let newest = evicted.iter().map(|(_, token)| token.epoch).max().unwrap_or(0);
        // The row may have been re-asserted with an epoch above this counter.
        let highest = current.map_or(0, |it| it.epoch).max(above).max(newest);
        state.epoch = state.epoch.max(highest) + 1;
        let token = Token { at, epoch: state.epoch };
        let replaced = state.set(user, device, token.clone());
        Ok(Registered { token, replaced, evicted })
    }

    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let mut state = self.lock();
        Ok(rows.iter().map(|row| state.remove(row)).collect())
    }

    async fn lookup(&self, users: &[UserId]) -> Result<Vec<Vec<(DeviceId, Token)>>, RoutesError> {
        let state = self.lock();
        let devices = |user| {
            let rows = state.users.get(user).into_iter().flatten();
            rows.map(|(device, token)| (device.clone(), token.clone())).collect()
        };
        Ok(users.iter().map(devices).collect())
    }

    async fn reassert(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let mut state = self.lock();
        if let Some(row) = rows.first() {
            state.refuse_retired(&row.token.at)?;
        }
        let mut in_force = Vec::with_capacity(rows.len());
        for row in rows {
            let current = state.current(&row.user, &row.device);
            let is_replaced = current.is_some_and(|it| it.epoch >= row.token.epoch && *it != row.token);
            if !is_replaced {
                state.epoch = state.epoch.max(row.token.epoch);
                state.set(row.user.clone(), row.device.clone(), row.token.clone());
            }
            in_force.push(!is_replaced);
        }
        Ok(in_force)
    }

    async fn renew(&self, info: &NodeInfo) -> Result<u64, RoutesError> {
        let mut state = self.lock();
        let now = (self.now)();
        state.refuse_retired(&info.boot)?;
        let run = state.runs.entry(info.boot.clone()).or_default();
        run.announced = Some((info.clone(), now));
        run.renewals += 1;
        Ok(run.renewals)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, RoutesError> {
        let state = self.lock();
        let now = (self.now)();
        let row = |(boot, run): (&NodeBoot, &Run)| {
            let (info, _) = run.announced.clone()?;
            Some(NodeRow { info, renewals: run.renewals, lease: state.lease(boot, self.leases, now) })
        };
        let mut rows: Vec<_> = state.runs.iter().filter_map(row).collect();
        rows.sort_by(|a, b| a.info.boot.cmp(&b.info.boot));
        Ok(rows)
    }

    async fn retire(&self, of: &NodeBoot, ground: Retire) -> Result<bool, RoutesError> {
        let mut state = self.lock();
        let now = (self.now)();
        if ground == Retire::Lapsed && state.lease(of, self.leases, now) == Lease::Live {
            return Ok(false);
        }
        state.retire(of);
        Ok(true)
    }

    async fn rows_of(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError> {
        let state = self.lock();
        let Some(run) = state.runs.get(of) else { return Ok(Vec::new()) };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let row = |((user, device), &epoch): (&(UserId, DeviceId), &u64)| Route {
            user: user.clone(),
            device: device.clone(),
            token: Token { at: of.clone(), epoch },
        };
        Ok(run.rows.range((from, Bound::Unbounded)).take(limit).map(row).collect())
    }

    async fn request_recheck(&self, of: &NodeBoot) -> Result<(), RoutesError> {
        if let Some(run) = self.lock().runs.get_mut(of) {
            run.rechecks += 1;
        }
        Ok(())
    }

    async fn recheck_requested(&self, of: &NodeBoot) -> Result<Option<u64>, RoutesError> {
        Ok(self.lock().runs.get(of).map(|run| run.rechecks).filter(|count| *count > 0))
    }

    async fn declare(
        &self,
        by: &NodeBoot,
        interests: &[(ConversationId, u64)],
    ) -> Result<Vec<bool>, RoutesError> {
        let mut state = self.lock();
        let now = (self.now)();
        state.refuse_retired(by)?;
        state.sweep_interests(self.leases, now);
        let until = now + self.leases.interest;
        let mut were_in_force = Vec::with_capacity(interests.len());
        for (conversation, generation) in interests {
            let nodes = state.interests.entry(conversation.clone()).or_default();
            if let Some((interest, lease)) = nodes.iter_mut().find(|(it, _)| it.node == *by) {
                interest.generation = interest.generation.max(*generation);
                were_in_force.push(now < std::mem::replace(lease, until));
            } else {
                nodes.push((Interest { node: by.clone(), generation: *generation }, until));
                were_in_force.push(false);
            }
        }
        Ok(were_in_force)
    }

    async fn interested(&self, conversations: &[ConversationId]) -> Result<Vec<Vec<Interest>>, RoutesError> {
        let state = self.lock();
        let now = (self.now)();
        let live = |conversation| {
            let nodes = state.interests.get(conversation).into_iter().flatten();
            let live = nodes
                .filter(|(it, until)| now < *until && state.lease(&it.node, self.leases, now) == Lease::Live);
            live.map(|(it, _)| it.clone()).collect()
        };
        Ok(conversations.iter().map(live).collect())
    }
}
