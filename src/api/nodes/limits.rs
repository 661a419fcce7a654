//! Admin API of limits: what the rules of this node admitted and refused, in all and for one subject.

use axum::{Json, extract::State};
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    machine::{
        permit::LimitSource,
        threshold::{LoadPressure, Threshold},
    },
};

use crate::{
    api::{Api, Problem, extract::IdPath},
    limits::{
        LimitLevel, LimitRule, LimitScope, PermitView, RuleTotals, RuleUse, SubjectRefusals, SubjectState,
    },
};

/// Subjects that the list names.
const BUSIEST_MAX: usize = 20;

/// Returns the rules in force on this node with what they did, and the subjects that they refused most within the last
/// minute.
pub(in crate::api) async fn list(State(api): State<Api>) -> Json<Value> {
    let (uses, source) = (api.rules.uses(api.rules.now()), api.rules.poll_source());
    let rules: Vec<Value> = uses
        .iter()
        .map(|it| {
            let mut shown = limit(&it.rule, it.threshold.as_ref());
            shown["total"] = totals(&it.totals);
            if let Some(source) = source.filter(|_| it.rule.scope == LimitScope::Cluster) {
                shown["permits"] = json!({"source": source_name(source)});
            }
            shown
        })
        .collect();
    let node = api.cluster.me.node.as_str();
    Json(json!({"node": node, "rules": rules, "busiest": busiest(&uses)}))
}

fn busiest(uses: &[RuleUse]) -> Vec<Value> {
    let mut all: Vec<(&LimitRule, &SubjectRefusals)> =
        uses.iter().flat_map(|it| it.refused.iter().map(|refused| (&*it.rule, refused))).collect();
    all.sort_by_key(|(_, it)| std::cmp::Reverse((it.last_minute, it.total)));
    let shown = all.into_iter().take(BUSIEST_MAX).map(|(rule, it)| {
        let level = rule.level.name();
        let key = if it.name.is_empty() { level.to_owned() } else { format!("{level}:{}", it.name) };
        json!({"key": key, "rule": &*rule.id, "refused": it.total, "refusedLastMinute": it.last_minute})
    });
    shown.collect()
}

/// Returns the states of the rules of the subject's level on this node. The key is the name of the level, a colon and the
/// name of the subject, or `node` alone.
pub(in crate::api) async fn show(
    State(api): State<Api>,
    IdPath(key): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let (level, name) = key.split_once(':').unwrap_or((&key, ""));
    // With a text, this would tell whether anybody wrote it.
    let is_text = |level: &LimitLevel| *level == LimitLevel::Content && !name.starts_with('#');
    let level = LimitLevel::named(level).filter(|level| !is_text(level));
    let states = level.and_then(|level| api.rules.states(level, name, api.rules.now()));
    let states = states.ok_or_else(|| {
        let form = "write a level and a subject: node, org:acme, channel:app, user:ann, device:ann:phone, \
                    conversation:g:team, address:192.0.2.1, key:ID, or content:#KEY from the list of limits";
        Problem(Code::BadId, form.to_owned())
    })?;
    let rules: Vec<Value> = states.iter().map(state).collect();
    Ok(Json(json!({"key": key, "node": api.cluster.me.node.as_str(), "rules": rules})))
}

fn limit(rule: &LimitRule, threshold: Option<&Threshold>) -> Value {
    let mut shown = json!({
        "id": &*rule.id,
        "source": rule.source.name(),
        "level": rule.level.name(),
        "scope": rule.scope.name(),
        "windowMs": u64::try_from(rule.limit.window().as_millis()).unwrap_or(u64::MAX),
        "limit": threshold.map_or_else(|| rule.limit.count(), |it| it.limit),
        "dryRun": rule.is_dry_run,
    });
    if let Some(threshold) = threshold {
        shown["dynamic"] = dynamic(threshold);
        shown["why"] = json!(threshold.to_string());
    }
    shown
}

fn dynamic(threshold: &Threshold) -> Value {
    json!({
        "base": threshold.base,
        "load": f64::from(threshold.load_hundredths) / 100.0,
        "history": f64::from(threshold.history_hundredths) / 100.0,
        "min": threshold.min,
        "max": threshold.max,
        "pressure": threshold.pressure.as_ref().map(pressure),
    })
}

fn pressure(pressure: &LoadPressure) -> Value {
    let hundredths = |number: f64| (number * 100.0).round() / 100.0;
    json!({
        "signal": pressure.signal.to_string(),
        "shard": pressure.shard,
        "value": hundredths(pressure.value),
        "target": hundredths(pressure.target),
    })
}

const fn source_name(source: LimitSource) -> &'static str {
    match source {
        LimitSource::Permits => "redis",
        LimitSource::Shares => "share",
    }
}

fn totals(totals: &RuleTotals) -> Value {
    json!({
        "admitted": totals.admitted,
        "refused": totals.refused,
        "delayed": totals.delayed,
        "dryRefused": totals.dry_refused,
        "refusedLastMinute": totals.refused_last_minute,
    })
}

fn state(state: &SubjectState) -> Value {
    let wait = state.wait.map_or(0, |wait| wait.as_millis());
    let mut shown = limit(&state.rule, state.threshold.as_ref());
    shown["excepted"] = json!(state.is_excepted);
    shown["used"] = json!(state.used);
    shown["retryAfterMs"] = json!(u64::try_from(wait).unwrap_or(u64::MAX));
    let SubjectRefusals { total, last_minute, .. } = state.refusals;
    shown["refused"] = json!({"total": total, "lastMinute": last_minute});
    shown["total"] = totals(&state.totals);
    if let Some(PermitView { source, share }) = state.permits {
        shown["permits"] = json!({"source": source_name(source), "share": share});
    }
    shown
}
