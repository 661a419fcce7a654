//! Rows of the routes and their entries in the lists of their runs, kept consistent.

use std::collections::BTreeMap;

use tidegate_protocol::id::{DeviceId, UserId};

use super::{
    CLAIM_DROP_AGE, DELETED_ROW_TTL, DELETED_ROWS_MAX, NodeBoot, ROW_TTL, RedisRoutes, Registration, Route,
    RoutesError, Token, codec,
};
use crate::{
    redis::{Call, RedisKey, Script},
    routes::device_policy::EVICTED_MAX,
};

static ROUTE_REMOVE: Script = Script::new(include_str!("../../redis/route_remove.lua"));
static ROUTE_SET: Script = Script::new(include_str!("../../redis/route_set.lua"));
static RUN_CLAIM: Script = Script::new(include_str!("../../redis/run_claim.lua"));
static RUN_DROP: Script = Script::new(include_str!("../../redis/run_drop.lua"));

/// Number of list entries written or dropped per script; bounds its run time, during which the server serves no one
/// else.
const ENTRIES_PER_SCRIPT: usize = 200;

/// Result of `route_set.lua`.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Row now owned by the caller, with its previous owner and the rows of other devices that it replaces.
    Set(Option<Token>, Vec<(DeviceId, Token)>),
    /// Epoch refused: it must be above this one.
    EpochTooLow(u64),
    /// Row refused: it has another owner, or none.
    OtherOwner(Option<Token>),
    /// Row refused: the user has the maximum number of devices.
    TooManyDevices,
}

pub(super) fn outcome(reply: Vec<String>) -> Result<Outcome, RoutesError> {
    let mut parts = reply.into_iter();
    let (state, detail) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match state.as_str() {
        "set" => {
            let evicted: Vec<String> = parts.collect();
            let pair = |pair: &[String]| (pair[0].clone(), pair[1].clone());
            let evicted = codec::devices(evicted.chunks_exact(2).map(pair).collect());
            Ok(Outcome::Set(codec::token(&detail), evicted))
        }
        "other" => Ok(Outcome::OtherOwner(codec::token(&detail))),
        "full" => Ok(Outcome::TooManyDevices),
        "behind" if let Ok(highest) = detail.parse() => Ok(Outcome::EpochTooLow(highest)),
        _ => Err(RoutesError::Unknown(format!("unexpected reply of route_set.lua: {state:?}"))),
    }
}

impl RedisRoutes {
    pub(super) fn route_key(&self, user: &UserId) -> String {
        self.client.key(RedisKey::Route, &format!("{{{user}}}"))
    }

    /// Returns the call that writes a row, by the conditions of the registration, if there is one.
    pub(super) fn set_call(&self, row: &Route, mode: &str, by: Option<&Registration>) -> Call {
        let only_if = by.and_then(|by| by.only_if.as_ref());
        let policy = by.map(|by| by.policy).unwrap_or_default();
        Call::script(&ROUTE_SET, [self.route_key(&row.user)])
            .arg(&row.device)
            .arg(&row.token.at)
            .arg(row.token.epoch)
            .arg(mode)
            .arg(only_if.map(ToString::to_string).unwrap_or_default())
            .arg(ROW_TTL.as_millis())
            .arg(policy.max)
            .arg(policy.one_per.word())
            .arg(if policy.replaces_oldest { "replace" } else { "refuse" })
            .arg(EVICTED_MAX)
    }

    pub(super) fn remove_call(&self, row: &Route) -> Call {
        Call::script(&ROUTE_REMOVE, [self.route_key(&row.user)])
            .arg(&row.device)
            .arg(&row.token)
            .arg(row.token.epoch)
            .arg(DELETED_ROW_TTL.as_millis())
            .arg(DELETED_ROWS_MAX)
    }

    /// Claims an entry in the list of the run and returns its epoch; `None` if the run is retired.
    pub(super) async fn claim_new(
        &self,
        registration: &Registration,
        above: u64,
    ) -> Result<Option<u64>, RoutesError> {
        let call = Call::script(&RUN_CLAIM, self.run_keys(&registration.at))
            .arg(ROW_TTL.as_millis())
            .arg(above)
            .arg(codec::entry_prefix(&registration.user, &registration.device));
        let epoch: String = self.client.one(call).await?;
        match epoch.parse() {
            Ok(epoch) => Ok(Some(epoch)),
            Err(_) if epoch == "retired" => Ok(None),
            Err(_) => Err(RoutesError::Unknown(format!("unexpected reply of run_claim.lua: {epoch:?}"))),
        }
    }

    pub(super) async fn reassert_all(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let Some(at) = rows.first().map(|row| &row.token.at) else { return Ok(Vec::new()) };
        let mut in_force = Vec::with_capacity(rows.len());
        for rows in rows.chunks(ENTRIES_PER_SCRIPT) {
            let claim = Call::script(&RUN_CLAIM, self.run_keys(at)).arg(ROW_TTL.as_millis()).arg("");
            let claim = rows.iter().fold(claim, |call, row| call.arg(codec::entry(row)));
            if self.client.one::<String>(claim).await? == "retired" {
                return Err(RoutesError::LeaseLost);
            }
            let calls = rows.iter().map(|row| self.set_call(row, "again", None)).collect();
            let replies: Vec<Vec<String>> = self.client.all(calls).await?;
            let mut stale = Vec::new();
            for (row, reply) in rows.iter().zip(replies) {
                let outcome = outcome(reply)?;
                match &outcome {
                    Outcome::Set(Some(older), _) => {
                        stale.push((Route { token: older.clone(), ..row.clone() }, true))
                    }
                    Outcome::Set(None, _) => {}
                    Outcome::EpochTooLow(_) | Outcome::OtherOwner(_) | Outcome::TooManyDevices => {
                        stale.push((row.clone(), true))
                    }
                }
                in_force.push(matches!(outcome, Outcome::Set(..)));
            }
            self.tidy(stale).await;
        }
        Ok(in_force)
    }

    /// Drops the list entries of rows. With `true`, no call can still use the entry; with `false`, only an old entry is
    /// dropped. Errors are ignored: the sweep of the run drops the rest.
    pub(super) async fn tidy(&self, rows: Vec<(Route, bool)>) {
        let mut of_runs: BTreeMap<NodeBoot, Vec<(String, bool)>> = BTreeMap::new();
        for (row, is_unused) in rows {
            let entry = codec::entry(&row);
            of_runs.entry(row.token.at).or_default().push((entry, is_unused));
        }
        let mut calls = Vec::new();
        for (run, entries) in &of_runs {
            let [_, key] = self.run_keys(run);
            for part in entries.chunks(ENTRIES_PER_SCRIPT) {
                let call = Call::script(&RUN_DROP, [key.clone()]).arg(CLAIM_DROP_AGE.as_micros());
                let pair = |call: Call, (entry, is_unused): &(String, bool)| {
                    call.arg(entry).arg(if *is_unused { "over" } else { "maybe" })
                };
                calls.push(part.iter().fold(call, pair));
            }
        }
        if calls.is_empty() {
            return;
        }
        if let Err(error) = Box::pin(self.client.all::<u64>(calls)).await {
            tracing::debug!(?error, "failed to drop list entries of routes; left to the sweep of their run");
        }
    }

    pub(super) async fn page(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError> {
        let [_, key] = self.run_keys(of);
        // `~` sorts above the digits, so the page starts after all epochs of that device.
        let from = after.map_or_else(
            || "-".to_owned(),
            |(user, device)| format!("({}!~", codec::entry_prefix(&user, &device)),
        );
        let call = Call::command(["ZRANGEBYLEX", &key, &from, "+", "LIMIT", "0"]).arg(limit);
        let entries: Vec<String> = self.client.one(call).await?;
        Ok(entries.iter().filter_map(|entry| codec::row(of, entry)).collect())
    }
}
