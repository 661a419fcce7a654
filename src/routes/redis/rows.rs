//! Rows and the places of rows in the list of their run, kept in step.

use std::collections::BTreeMap;

use tidegate_protocol::id::{DeviceId, UserId};

use super::{
    CLAIM_OVER, GONE_TTL, NodeBoot, ROW_TTL, RedisRoutes, Registration, Route, RoutesError, Token, codec,
};
use crate::redis::{Call, Script};

static ROUTE_REMOVE: Script = Script::new(include_str!("../../redis/route_remove.lua"));
static ROUTE_SET: Script = Script::new(include_str!("../../redis/route_set.lua"));
static RUN_CLAIM: Script = Script::new(include_str!("../../redis/run_claim.lua"));
static RUN_DROP: Script = Script::new(include_str!("../../redis/run_drop.lua"));

/// Places written or dropped by one script: short enough to delay nobody.
const PLACES_MAX: usize = 200;

/// What `route_set.lua` says.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The row is the caller's now; it was this owner's.
    Set(Option<Token>),
    /// Not above this epoch.
    Behind(u64),
    /// The row is another's.
    Other(Option<Token>),
}

pub(super) fn outcome((word, detail): (String, String)) -> Result<Outcome, RoutesError> {
    match word.as_str() {
        "set" => Ok(Outcome::Set(codec::token(&detail))),
        "other" => Ok(Outcome::Other(codec::token(&detail))),
        "behind" if let Ok(seen) = detail.parse() => Ok(Outcome::Behind(seen)),
        _ => Err(RoutesError::Unknown(format!("route_set.lua said {word:?}"))),
    }
}

impl RedisRoutes {
    pub(super) fn route_key(&self, user: &UserId) -> String {
        self.client.key("route", &format!("{{{user}}}"))
    }

    pub(super) fn set_call(&self, row: &Route, how: &str, only_if: Option<&Token>) -> Call {
        Call::script(&ROUTE_SET, [self.route_key(&row.user)])
            .arg(&row.device)
            .arg(&row.token.at)
            .arg(row.token.epoch)
            .arg(how)
            .arg(only_if.map(ToString::to_string).unwrap_or_default())
            .arg(ROW_TTL.as_millis())
    }

    pub(super) fn remove_call(&self, row: &Route) -> Call {
        Call::script(&ROUTE_REMOVE, [self.route_key(&row.user)])
            .arg(&row.device)
            .arg(&row.token)
            .arg(row.token.epoch)
            .arg(GONE_TTL.as_millis())
    }

    /// A place in the list of the run, and with it an epoch; none for a run that is retired.
    pub(super) async fn claim_new(
        &self,
        wish: &Registration,
        above: u64,
    ) -> Result<Option<u64>, RoutesError> {
        let call = Call::script(&RUN_CLAIM, self.run_keys(&wish.at))
            .arg(ROW_TTL.as_millis())
            .arg(above)
            .arg(codec::place(&wish.user, &wish.device));
        let epoch: String = self.client.one(call).await?;
        match epoch.parse() {
            Ok(epoch) => Ok(Some(epoch)),
            Err(_) if epoch == "retired" => Ok(None),
            Err(_) => Err(RoutesError::Unknown(format!("run_claim.lua said {epoch:?}"))),
        }
    }

    pub(super) async fn reassert_all(&self, rows: &[Route]) -> Result<Vec<bool>, RoutesError> {
        let Some(at) = rows.first().map(|row| &row.token.at) else { return Ok(Vec::new()) };
        let mut stands = Vec::with_capacity(rows.len());
        for rows in rows.chunks(PLACES_MAX) {
            let claim = Call::script(&RUN_CLAIM, self.run_keys(at)).arg(ROW_TTL.as_millis()).arg("");
            let claim = rows.iter().fold(claim, |call, row| call.arg(codec::listed(row)));
            if self.client.one::<String>(claim).await? == "retired" {
                return Err(RoutesError::LeaseLost);
            }
            let calls = rows.iter().map(|row| self.set_call(row, "again", None)).collect();
            let answers: Vec<(String, String)> = self.client.all(calls).await?;
            let mut over = Vec::new();
            for (row, answer) in rows.iter().zip(answers) {
                let outcome = outcome(answer)?;
                match &outcome {
                    Outcome::Set(Some(older)) => {
                        over.push((Route { token: older.clone(), ..row.clone() }, true))
                    }
                    Outcome::Set(None) => {}
                    Outcome::Behind(_) | Outcome::Other(_) => over.push((row.clone(), true)),
                }
                stands.push(matches!(outcome, Outcome::Set(_)));
            }
            self.tidy(over).await;
        }
        Ok(stands)
    }

    /// Drops places, after the work is done; `true`: nobody can use it any more, `false`: unless it is young. What
    /// can't be dropped now, the sweep of that run drops.
    pub(super) async fn tidy(&self, places: Vec<(Route, bool)>) {
        let mut of_runs: BTreeMap<NodeBoot, Vec<(String, bool)>> = BTreeMap::new();
        for (row, over) in places {
            let place = codec::listed(&row);
            of_runs.entry(row.token.at).or_default().push((place, over));
        }
        let mut calls = Vec::new();
        for (run, places) in &of_runs {
            let [_, key] = self.run_keys(run);
            for part in places.chunks(PLACES_MAX) {
                let call = Call::script(&RUN_DROP, [key.clone()]).arg(CLAIM_OVER.as_micros());
                let pair = |call: Call, (place, over): &(String, bool)| {
                    call.arg(place).arg(if *over { "over" } else { "maybe" })
                };
                calls.push(part.iter().fold(call, pair));
            }
        }
        if calls.is_empty() {
            return;
        }
        if let Err(error) = Box::pin(self.client.all::<u64>(calls)).await {
            tracing::debug!(?error, "places of rows that are over stay until their run is swept");
        }
    }

    pub(super) async fn page(
        &self,
        of: &NodeBoot,
        after: Option<(UserId, DeviceId)>,
        limit: usize,
    ) -> Result<Vec<Route>, RoutesError> {
        let [_, key] = self.run_keys(of);
        // After all epochs of that device: `~` is above the digits.
        let from = after
            .map_or_else(|| "-".to_owned(), |(user, device)| format!("({}!~", codec::place(&user, &device)));
        let call = Call::command(["ZRANGEBYLEX", &key, &from, "+", "LIMIT", "0"]).arg(limit);
        let places: Vec<String> = self.client.one(call).await?;
        Ok(places.iter().filter_map(|place| codec::row(of, place)).collect())
    }
}
