//! `Routes` adapter for Redis: rows and run lists in hashes and sorted sets; every step is a script over one slot.
//!
//! A row is a field of `route:{user}`: device → node/boot/epoch. The state of a run and the list of its rows are in the
//! run's slot: `run:{node/boot}` and `rows:{node/boot}`. Since nothing spans two slots, a registration first claims an
//! entry in the list of its run, which a retired run is refused, and then takes the row. An entry without a row is
//! swept; a row without an entry can't exist (ADR 9; flaws S1-S5, S9).

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
    redis::{Call, CallError, ConnectError, RedisClient, RedisKey, Script},
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

/// Lifetime of an untouched row, which bounds garbage. The row of a longer connection is re-asserted before it expires.
pub const ROW_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Time for which a retired run is remembered.
const RETIRED_RUN_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Time within which a claim must be used for its row; later it is made again.
const CLAIM_USE_MAX: Duration = Duration::from_secs(2);
/// Age at which a sweep drops a claim without a row; more than [`CLAIM_USE_MAX`] and a call.
const CLAIM_DROP_AGE: Duration = Duration::from_secs(5);
/// Time for which a request for a recheck is remembered: a multiple of the time until the run reads it.
const RECHECK_TTL: Duration = Duration::from_secs(3_600);
/// Time for which a deleted row is remembered, so that epochs rise even if the clocks of two servers differ.
const DELETED_ROW_TTL: Duration = Duration::from_secs(60);
/// Most deleted rows of a user that are remembered one by one; with them, the hash of a user is bounded.
const DELETED_ROWS_MAX: usize = 64;
/// Attempts of a registration whose epoch was too low. Before the nth repetition it waits a random time up to 2^n ms;
/// otherwise concurrent registrations of one device would keep overtaking each other.
const REGISTRATION_ATTEMPTS: u32 = 10;

/// Routes of profile `cluster`.
pub struct RedisRoutes {
    client: Arc<RedisClient>,
    leases: Leases,
    /// Value of [`RedisClient::changes`] at the last renewal.
    changes: AtomicU64,
}

impl RedisRoutes {
    /// Creates routes on the configured servers. Connects with the first call, on the runtime of its caller.
    ///
    /// # Errors
    /// The configuration or one of its files is invalid. An unavailable server is an error of each call instead.
    pub fn connect(config: &config::RedisConfig, leases: Leases) -> Result<Self, ConnectError> {
        Ok(Self::over(Arc::new(RedisClient::new(config)?), leases))
    }

    /// Creates routes on a shared client.
    pub(crate) fn over(client: Arc<RedisClient>, leases: Leases) -> Self {
        Self { client, leases, changes: AtomicU64::new(0) }
    }

    fn run_keys(&self, run: &NodeBoot) -> [String; 2] {
        [RedisKey::Run, RedisKey::RunRows].map(|kind| self.client.key(kind, &format!("{{{run}}}")))
    }

    fn interest_key(&self, conversation: &ConversationId) -> String {
        self.client.key(RedisKey::Interest, &format!("{{{conversation}}}"))
    }

    fn recheck_key(&self, run: &NodeBoot) -> String {
        self.client.key(RedisKey::Recheck, &format!("{{{run}}}"))
    }

    fn runs_key(&self) -> String {
        self.client.key(RedisKey::Runs, "all")
    }

    async fn states(&self, runs: &[NodeBoot]) -> Result<Vec<RunState>, CallError> {
        let calls = runs.iter().map(|run| Call::script(&RUN_STATE, self.run_keys(run))).collect();
        let states = self.client.all::<(String, u64, String, u64)>(calls).await?;
        let state = |(info, renewals, lease, rows): (String, u64, String, u64)| RunState {
            info,
            renewals,
            lease: match lease.as_str() {
                "live" => Lease::Live,
                "retired" => Lease::Retired,
                _ => Lease::Lapsed,
            },
            rows,
        };
        Ok(states.into_iter().map(state).collect())
    }

    /// Returns the runs with a live lease at `now` (µs), the time of a server that has just replied. Costs one plain
    /// command per run, because it is done for every message of a large group or a room.
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
    renewals: u64,
    lease: Lease,
    rows: u64,
}

impl From<CallError> for RoutesError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(why) | CallError::Slow(why) => Self::Unavailable(why),
            CallError::Unknown(why) | CallError::Late(why) => Self::Unknown(why),
        }
    }
}

/// Converts an error of a lease call, which distinguishes a slow server from an unavailable one.
fn lease_error(error: CallError) -> RoutesError {
    match error {
        CallError::Late(why) | CallError::Slow(why) => RoutesError::Late(why),
        error => error.into(),
    }
}

#[async_trait]
impl Routes for RedisRoutes {
    async fn register(&self, registration: Registration) -> Result<Registered, RoutesError> {
        let mut above = registration.above;
        let mut stale = Vec::new();
        for attempt in 0..REGISTRATION_ATTEMPTS {
            if attempt > 0 {
                tokio::time::sleep(Duration::from_millis(rand::random_range(0..1 << attempt))).await;
            }
            let begun = Instant::now();
            let claimed = self.claim_new(&registration, above).await?;
            let Some(epoch) = claimed else { return Err(RoutesError::LeaseLost) };
            let token = Token { at: registration.at.clone(), epoch };
            let row = Route { user: registration.user.clone(), device: registration.device.clone(), token };
            if begun.elapsed() > CLAIM_USE_MAX {
                // A sweep could drop the claim before the row is written.
                stale.push((row, false));
                continue;
            }
            let mode = if registration.only_if.is_some() { "only" } else { "new" };
            let outcome = self.client.one(self.set_call(&row, mode, Some(&registration))).await;
            let outcome = outcome.map_err(|error| match error.into() {
                RoutesError::Unknown(why) => RoutesError::InDoubt { why, token: row.token.clone() },
                error => error,
            })?;
            match rows::outcome(outcome)? {
                rows::Outcome::Set(replaced, evicted) => {
                    let replaced_row = replaced.clone().map(|token| (Route { token, ..row.clone() }, true));
                    stale.extend(replaced_row);
                    self.tidy(stale).await;
                    return Ok(Registered { token: row.token, replaced, evicted });
                }
                rows::Outcome::EpochTooLow(highest) => {
                    above = above.max(highest);
                    // With an equal epoch, the entry may be that of another connection of this run.
                    if highest != epoch {
                        stale.push((row, true));
                    }
                }
                rows::Outcome::TooManyDevices => {
                    stale.push((row, true));
                    self.tidy(stale).await;
                    return Err(RoutesError::TooManyDevices);
                }
                rows::Outcome::OtherOwner(present) => {
                    stale.push((row, true));
                    self.tidy(stale).await;
                    return Err(RoutesError::NotCurrent(present));
                }
            }
        }
        self.tidy(stale).await;
        Err(RoutesError::Unavailable("too many concurrent registrations of this device".to_owned()))
    }

    async fn remove(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let states: Vec<i64> =
            self.client.all(rows.iter().map(|row| self.remove_call(row)).collect()).await?;
        // The entry of a row deleted now marks an unpublished departure; the second call drops it (ADR 14).
        let absent = rows.iter().zip(&states).filter(|(_, state)| **state != 1);
        self.tidy(absent.map(|(row, state)| (row.clone(), *state >= 0)).collect()).await;
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
        let renewals: i64 = self.client.one(call).await.map_err(lease_error)?;
        let renewals = u64::try_from(renewals).map_err(|_| RoutesError::LeaseLost)?;
        // Listed only after the announcement: a node that lists the runs drops unannounced ones.
        let listed = Call::command(["SADD", &self.runs_key(), &info.boot.to_string()]);
        let _: i64 = self.client.one(listed).await.map_err(lease_error)?;
        // A promoted replica may have the right counter and still lack the latest rows.
        let changes = self.client.changes();
        if self.changes.swap(changes, Ordering::SeqCst) != changes {
            return Err(RoutesError::Unknown("reply from another server than before".to_owned()));
        }
        Ok(renewals)
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, RoutesError> {
        let names = self.client.one(Call::command(["SMEMBERS", &self.runs_key()]));
        let names: Vec<String> = names.await.map_err(lease_error)?;
        let runs: Vec<NodeBoot> = names.iter().filter_map(|name| codec::run(name)).collect();
        let (mut rows, mut ended) = (Vec::new(), Vec::new());
        for (run, state) in runs.iter().zip(self.states(&runs).await.map_err(lease_error)?) {
            match codec::info(run, &state.info) {
                Some(info) if state.lease != Lease::Retired || state.rows > 0 => {
                    rows.push(NodeRow { info, renewals: state.renewals, lease: state.lease });
                }
                // Swept, or announced before a loss of the routes and not renewed since.
                _ => ended.push(run.to_string()),
            }
        }
        if !ended.is_empty() {
            let unlist =
                ended.iter().fold(Call::command(["SREM", &self.runs_key()]), |call, run| call.arg(run));
            let _: i64 = self.client.one(unlist).await.map_err(lease_error)?;
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
        let call = Call::script(&RUN_RETIRE, [key]).arg(ground).arg(RETIRED_RUN_TTL.as_millis());
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

    async fn request_recheck(&self, of: &NodeBoot) -> Result<(), RoutesError> {
        // Random, so that a request after the end of an earlier one differs from it.
        let number = rand::random::<u64>();
        let call =
            Call::command(["SET", &self.recheck_key(of)]).arg(number).arg("PX").arg(RECHECK_TTL.as_millis());
        let _: String = self.client.one(call).await?;
        Ok(())
    }

    async fn recheck_requested(&self, of: &NodeBoot) -> Result<Option<u64>, RoutesError> {
        Ok(self.client.one(Call::command(["GET", &self.recheck_key(of)])).await?)
    }

    async fn declare(
        &self,
        by: &NodeBoot,
        interests: &[(ConversationId, u64)],
    ) -> Result<Vec<bool>, RoutesError> {
        if self.states(std::slice::from_ref(by)).await?.iter().any(|run| run.lease == Lease::Retired) {
            return Err(RoutesError::LeaseLost);
        }
        let put = |(conversation, generation): &(ConversationId, u64)| {
            Call::script(&INTEREST_PUT, [self.interest_key(conversation)])
                .arg(by)
                .arg(generation)
                .arg(self.leases.interest.as_millis())
        };
        let were_in_force: Vec<u64> = self.client.all(interests.iter().map(put).collect()).await?;
        Ok(were_in_force.into_iter().map(|it| it == 1).collect())
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
