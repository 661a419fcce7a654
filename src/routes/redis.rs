//! `Routes` in Redis: rows and run lists in hashes and sorted sets, every step a script over one slot.
//!
//! A row is `route:{user}`: device → node/boot/epoch. What runs are known, and which rows each has, lies in the slot
//! of the run: `run:{node/boot}` and `rows:{node/boot}`. Nothing spans two slots, so a registration first claims a
//! place in the list of its run, which a retired run does not get, and then takes the row; a place without a row is
//! swept, a row without a place can't be (ADR 9; flaws S1-S5, S9).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

use super::{
    Interest, Lease, Leases, NodeBoot, NodeInfo, NodeRow, Registered, Registration, Retire, Route, Routes,
    RoutesError, Token,
};
use crate::{
    config,
    redis::{Call, CallError, Client, ConnectError, Script},
};

mod codec;
mod ids;
mod rows;

pub use ids::Lapses;

static INTEREST_GET: Script = Script::new(include_str!("../redis/interest_get.lua"));
static INTEREST_PUT: Script = Script::new(include_str!("../redis/interest_put.lua"));
static RUN_RENEW: Script = Script::new(include_str!("../redis/run_renew.lua"));
static RUN_RETIRE: Script = Script::new(include_str!("../redis/run_retire.lua"));
static RUN_STATE: Script = Script::new(include_str!("../redis/run_state.lua"));

/// How long what nobody touches stays: bounds garbage. A conn that lives longer is asserted again before.
pub const ROW_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How long a retired run is remembered as such.
const RETIRED_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);
/// From a claim to its row, at most: later the claim is made again.
const CLAIM_FOR: Duration = Duration::from_secs(2);
/// How old a claim without a row is when a sweep drops it: more than [`CLAIM_FOR`] and a call.
const CLAIM_OVER: Duration = Duration::from_secs(5);
/// How long a row that was deleted is remembered, so that epochs rise although the clocks of two servers differ.
const GONE_TTL: Duration = Duration::from_secs(60);
/// How often a registration comes back above an epoch that was in its way. Before the nth time it waits up to 2^n ms, by chance: of
/// many that come for one device at once, each would be in the way of the others.
const TRIES: u32 = 10;

/// The routes of profile `cluster`.
pub struct RedisRoutes {
    client: Arc<Client>,
    leases: Leases,
    /// [`Client::changes`], as the last renewal saw them.
    changes: AtomicU64,
}

impl RedisRoutes {
    /// Routes at the servers that the configuration names; connects with the first call, on the runtime of its caller.
    ///
    /// # Errors
    /// What is wrong with the configuration or its files; a server that is away is told by each call.
    pub fn connect(config: &config::Redis, leases: Leases) -> Result<Self, ConnectError> {
        Ok(Self::over(Arc::new(Client::new(config)?), leases))
    }

    /// Routes over a connection that is shared.
    pub(crate) fn over(client: Arc<Client>, leases: Leases) -> Self {
        Self { client, leases, changes: AtomicU64::new(0) }
    }

    fn run_keys(&self, run: &NodeBoot) -> [String; 2] {
        [self.client.key("run", &format!("{{{run}}}")), self.client.key("rows", &format!("{{{run}}}"))]
    }

    fn interest_key(&self, conversation: &ConversationId) -> String {
        self.client.key("interest", &format!("{{{conversation}}}"))
    }

    fn runs_key(&self) -> String {
        self.client.key("runs", "all")
    }

    async fn states(&self, runs: &[NodeBoot]) -> Result<Vec<RunState>, CallError> {
        let calls = runs.iter().map(|run| Call::script(&RUN_STATE, self.run_keys(run))).collect();
        let states = self.client.all::<(String, u64, String, u64)>(calls).await?;
        let state = |(info, beat, lease, rows): (String, u64, String, u64)| RunState {
            info,
            beat,
            lease: match lease.as_str() {
                "live" => Lease::Live,
                "retired" => Lease::Retired,
                _ => Lease::Lapsed,
            },
            rows,
        };
        Ok(states.into_iter().map(state).collect())
    }

    /// Those of the runs whose leases live at `now` (us), by the clock of a server that was just asked: one command a run,
    /// because this goes with every message of a large group or a room.
    async fn live_at<'a>(&self, now: u64, runs: &'a [NodeBoot]) -> Result<Vec<&'a NodeBoot>, RoutesError> {
        let lease = |run| {
            let [key, _] = self.run_keys(run);
            Call::command(["HMGET", &key, "until", "retired"])
        };
        let leases: Vec<(Option<u64>, Option<String>)> =
            self.client.all(runs.iter().map(lease).collect()).await?;
        let lives = |(until, retired): &(Option<u64>, Option<String>)| {
            retired.is_none() && until.is_some_and(|until| now < until)
        };
        Ok(runs.iter().zip(&leases).filter(|(_, lease)| lives(lease)).map(|(run, _)| run).collect())
    }
}

struct RunState {
    info: String,
    beat: u64,
    lease: Lease,
    rows: u64,
}

impl From<CallError> for RoutesError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Away(why) | CallError::Slow(why) => Self::Unavailable(why),
            CallError::Unknown(why) | CallError::Late(why) => Self::Unknown(why),
        }
    }
}

/// The lease tells a server that is slow from one that is away.
fn of_lease(error: CallError) -> RoutesError {
    match error {
        CallError::Late(why) | CallError::Slow(why) => RoutesError::Late(why),
        error => error.into(),
    }
}

#[async_trait]
impl Routes for RedisRoutes {
    async fn register(&self, wish: Registration) -> Result<Registered, RoutesError> {
        let mut above = wish.above;
        let mut stale = Vec::new();
        for turn in 0..TRIES {
            if turn > 0 {
                tokio::time::sleep(Duration::from_millis(rand::random_range(0..1 << turn))).await;
            }
            let begun = Instant::now();
            let Some(epoch) = self.claim_new(&wish, above).await? else { return Err(RoutesError::LeaseLost) };
            let token = Token { at: wish.at.clone(), epoch };
            let row = Route { user: wish.user.clone(), device: wish.device.clone(), token };
            if begun.elapsed() > CLAIM_FOR {
                // A sweep may have dropped the claim by the time the row would be there.
                stale.push((row, false));
                continue;
            }
            let how = if wish.only_if.is_some() { "only" } else { "new" };
            let outcome = self.client.one(self.set_call(&row, how, wish.only_if.as_ref())).await;
            let outcome = outcome.map_err(|error| match error.into() {
                RoutesError::Unknown(why) => RoutesError::InDoubt { why, token: row.token.clone() },
                error => error,
            })?;
            match rows::outcome(outcome)? {
                rows::Outcome::Set(replaced) => {
                    // With `only_if` the same owner is told even where nothing was there to replace it.
                    let over = replaced.clone().map(|token| (Route { token, ..row.clone() }, true));
                    stale.extend(over);
                    self.tidy(stale).await;
                    return Ok(Registered { token: row.token, replaced });
                }
                rows::Outcome::Behind(seen) => {
                    above = above.max(seen);
                    // Another conn of this run may own exactly this place.
                    if seen != epoch {
                        stale.push((row, true));
                    }
                }
                rows::Outcome::Other(present) => {
                    stale.push((row, true));
                    self.tidy(stale).await;
                    return Err(RoutesError::NotCurrent(present));
                }
            }
        }
        self.tidy(stale).await;
        Err(RoutesError::Unavailable("the epochs of this device rise too fast".to_owned()))
    }

    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let states: Vec<i64> =
            self.client.all(rows.iter().map(|row| self.remove_call(row)).collect()).await?;
        // A place that has just lost its row says that somebody left and was not told of yet; the second call drops it.
        let over = rows.iter().zip(&states).filter(|(_, state)| **state != 1);
        self.tidy(over.map(|(row, state)| (row.clone(), *state >= 0)).collect()).await;
        Ok(states.into_iter().map(|state| state == 1).collect())
    }

    async fn lookup(&self, users: &[UserId]) -> Result<Vec<Vec<(DeviceId, Token)>>, RoutesError> {
        let calls = users.iter().map(|user| Call::command(["HGETALL", &self.route_key(user)])).collect();
        let users: Vec<Vec<(String, String)>> = self.client.all(calls).await?;
        Ok(users.into_iter().map(codec::devices).collect())
    }

    async fn reassert(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        Box::pin(self.reassert_all(rows)).await
    }

    async fn renew(&self, info: &NodeInfo) -> Result<u64, RoutesError> {
        let [key, _] = self.run_keys(&info.boot);
        let call = Call::script(&RUN_RENEW, [key])
            .arg(codec::info_text(info))
            .arg(self.leases.node.as_millis())
            .arg(ROW_TTL.as_millis());
        let beat: i64 = self.client.one(call).await.map_err(of_lease)?;
        let beat = u64::try_from(beat).map_err(|_| RoutesError::LeaseLost)?;
        // After it has announced itself, or somebody who lists the runs would drop it as unknown.
        let listed = Call::command(["SADD", &self.runs_key(), &info.boot.to_string()]);
        let _: i64 = self.client.one(listed).await.map_err(of_lease)?;
        // A replica that was promoted may lack the last second of rows, and have the right beat.
        let changes = self.client.changes();
        if self.changes.swap(changes, Ordering::SeqCst) != changes {
            return Err(RoutesError::Unknown("another server answers than before".to_owned()));
        }
        Ok(beat)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, RoutesError> {
        let names = self.client.one(Call::command(["SMEMBERS", &self.runs_key()]));
        let names: Vec<String> = names.await.map_err(of_lease)?;
        let runs: Vec<NodeBoot> = names.iter().filter_map(|name| codec::run(name)).collect();
        let (mut rows, mut over) = (Vec::new(), Vec::new());
        for (run, state) in runs.iter().zip(self.states(&runs).await.map_err(of_lease)?) {
            match codec::info(run, &state.info) {
                Some(info) if state.lease != Lease::Retired || state.rows > 0 => {
                    rows.push(NodeRow { info, beat: state.beat, lease: state.lease });
                }
                // Announced before a loss and never heard of since, or swept.
                _ => over.push(run.to_string()),
            }
        }
        if !over.is_empty() {
            let forget =
                over.iter().fold(Call::command(["SREM", &self.runs_key()]), |call, run| call.arg(run));
            let _: i64 = self.client.one(forget).await.map_err(of_lease)?;
        }
        rows.sort_by(|a, b| a.info.boot.cmp(&b.info.boot));
        Ok(rows)
    }

    async fn retire(&self, of: &NodeBoot, ground: Retire) -> Result<bool, RoutesError> {
        let [key, _] = self.run_keys(of);
        let ground = match ground {
            Retire::Leaving => "leaving",
            Retire::Lapsed => "lapsed",
        };
        let call = Call::script(&RUN_RETIRE, [key]).arg(ground).arg(RETIRED_TTL.as_millis());
        let retired: i64 = self.client.one(call).await?;
        Ok(retired == 1)
    }

    async fn rows_of(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError> {
        self.page(of, after, limit).await
    }

    async fn declare(&self, by: &NodeBoot, interests: &[(ConversationId, u64)]) -> Result<(), RoutesError> {
        if self.states(std::slice::from_ref(by)).await?.iter().any(|run| run.lease == Lease::Retired) {
            return Err(RoutesError::LeaseLost);
        }
        let put = |(conversation, generation): &(ConversationId, u64)| {
            Call::script(&INTEREST_PUT, [self.interest_key(conversation)])
                .arg(by)
                .arg(generation)
                .arg(self.leases.interest.as_millis())
        };
        let _: Vec<u64> = self.client.all(interests.iter().map(put).collect()).await?;
        Ok(())
    }

    async fn interested(&self, conversations: &[ConversationId]) -> Result<Vec<Vec<Interest>>, RoutesError> {
        let get = |conversation| Call::script(&INTEREST_GET, [self.interest_key(conversation)]);
        let answers: Vec<Vec<String>> = self.client.all(conversations.iter().map(get).collect()).await?;
        let now = answers.iter().filter_map(|answer| answer.first()?.parse().ok()).max().unwrap_or(0);
        let pairs = |answer: &Vec<String>| codec::interests(answer.get(1..).unwrap_or_default());
        let declared: Vec<Vec<Interest>> = answers.iter().map(pairs).collect();
        let mut runs: Vec<NodeBoot> = declared.iter().flatten().map(|it| it.node.clone()).collect();
        runs.sort();
        runs.dedup();
        let live = self.live_at(now, &runs).await?;
        let of_live = |all: Vec<Interest>| -> Vec<Interest> {
            all.into_iter().filter(|it| live.binary_search(&&it.node).is_ok()).collect()
        };
        Ok(declared.into_iter().map(of_live).collect())
    }
}
