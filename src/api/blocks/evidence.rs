//! Admin API of evidence of abuse: scores, and what they follow from.

use axum::{Json, extract::State};
use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::entries::{bad_id, key, put_value};
use crate::{
    api::{Api, Problem, extract::IdPath},
    bans::BanSubject,
    cluster::GuardChange,
    evidence::erasable,
    store::{GuardKind, GuardOutcome, TOMBSTONE_MS},
};

/// Most scores of the list of evidence.
const SCORES_MAX: usize = 50;

/// Most rows of evidence in the description of a subject.
const ROWS_MAX: usize = 50;

/// Returns the networks and users with the highest scores on this node.
pub(in crate::api) async fn list(State(api): State<Api>) -> Json<Value> {
    let evidence = &api.cluster.evidence;
    let top = evidence.top(SCORES_MAX);
    let row = |(subject, score): &(BanSubject, u32)| {
        let counts: Vec<Value> = counts_of(&api, subject);
        json!({"subject": subject.to_string(), "score": score, "evidence": counts})
    };
    let scores: Vec<Value> = top.iter().map(row).collect();
    Json(json!({"node": api.cluster.me.node.as_str(), "bans": evidence.bans(), "scores": scores}))
}

/// Erases the evidence of a subject on all nodes; of an IPv6 address that of its /64.
pub(in crate::api) async fn erase(
    State(api): State<Api>,
    IdPath(subject): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let subject = erasable(subject.parse::<BanSubject>().map_err(bad_id)?);
    let change = erase_of(&api, &subject).await?;
    Ok(Json(json!({
        "subject": subject.to_string(),
        "inForce": change.is_in_force,
        "pending": change.pending,
    })))
}

/// Erases the evidence of a subject that is [`erasable`].
pub(in crate::api) async fn erase_of(api: &Api, subject: &BanSubject) -> Result<GuardChange, Problem> {
    // Nodes that can't read the store for longer have lost their scores, or keep them.
    let until_ms = api.cluster.guard.now_ms().saturating_add(TOMBSTONE_MS);
    let key = key(GuardKind::Erasure, subject)?;
    let change = put_value(api, key, Bytes::from_static(b"{}"), Some(until_ms)).await?;
    if let GuardOutcome::Full(_) = change.outcome {
        let why = "too many erasures at a time; repeat it in ten minutes";
        return Err(Problem(Code::Overloaded, why.to_owned()));
    }
    Ok(change)
}

/// Returns the score of a subject on this node, what it follows from, and why a network is spared.
pub(super) fn evidence_of(api: &Api, subject: &BanSubject) -> Value {
    let evidence = &api.cluster.evidence;
    let score = evidence.score_of(subject);
    let rows: Vec<Value> = evidence.recent(subject, ROWS_MAX).iter().map(|row| json!(row.view())).collect();
    let spared = score.spared.map(|it| {
        json!(format!(
            "{} users behind it did nothing wrong, and {} caused evidence: a ban takes 5 of the latter, and at least as many as of the former",
            it.healthy, it.offenders
        ))
    });
    json!({
        "node": api.cluster.me.node.as_str(),
        "score": score.score,
        "formerBans": score.former,
        "spared": spared,
        "counts": counts_of(api, subject),
        "recent": rows,
    })
}

fn counts_of(api: &Api, subject: &BanSubject) -> Vec<Value> {
    let counts = api.cluster.evidence.recent_counts(subject);
    counts.iter().map(|(kind, count)| json!({"kind": kind.name(), "count": count})).collect()
}
