//! Entries of bans, allowed networks and suspensions in the admin API: pages, changes and their form.

use std::ops::RangeInclusive;

use axum::{
    Json,
    extract::{Query, rejection::QueryRejection},
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::unavailable;
use crate::{
    api::{Api, Problem, access::Caller},
    bans::{Ban, BanRecord, BanSubject, REASON_BYTES_MAX},
    cluster::GuardChange,
    store::{GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut, InvalidGuard},
};

/// Entries of a page, and the most that a request may ask for.
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 1_000;

/// Part of a list that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct BanListQuery {
    cursor: Option<String>,
    limit: Option<usize>,
}

/// Returns the subject after which a page begins, and the most entries of it.
pub(super) fn page_request(
    query: Result<Query<BanListQuery>, QueryRejection>,
) -> Result<(Option<BanSubject>, usize), Problem> {
    let Query(BanListQuery { cursor, limit }) = query.map_err(|error| bad(error.body_text()))?;
    let limit = limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(bad(format!("limit: 1 to {LIMIT_MAX}")));
    }
    let after = cursor.map(|cursor| cursor.parse::<BanSubject>()).transpose();
    Ok((after.map_err(|_| bad("cursor: take it from the last page".to_owned()))?, limit))
}

/// Returns a page of entries, of which one more than `limit` were asked for.
pub(super) fn page_of(name: &str, mut found: Vec<(BanSubject, Ban)>, limit: usize) -> Value {
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|(subject, _)| subject.to_string());
    let rows: Vec<Value> = found.iter().map(|(subject, ban)| view(subject, ban)).collect();
    match next {
        Some(next) => json!({name: rows, "next": next}),
        None => json!({name: rows}),
    }
}

/// Entry of a ban, an allowed network or a suspension.
pub(super) struct EntryToPut {
    pub(super) kind: GuardKind,
    pub(super) subject: BanSubject,
    pub(super) reason: String,
    /// Time until it ends; `None` if it does not.
    pub(super) ttl_ms: Option<u64>,
    /// Times that it may have.
    pub(super) ttls: RangeInclusive<u64>,
}

/// Stores an entry, and puts it in force.
pub(super) async fn put(api: &Api, caller: &Caller, entry: EntryToPut) -> Result<Json<Value>, Problem> {
    let EntryToPut { kind, subject, reason, ttl_ms, ttls } = entry;
    if ttl_ms.is_some_and(|ttl| !ttls.contains(&ttl)) {
        return Err(bad(format!("ttlMs: {} to {}; without it, there is no end", ttls.start(), ttls.end())));
    }
    let is_reason = (1..=REASON_BYTES_MAX).contains(&reason.len()) && !reason.contains(char::is_control);
    if !is_reason {
        return Err(bad(format!("reason: 1 to {REASON_BYTES_MAX} bytes without control characters")));
    }
    let since_ms = api.cluster.guard.now_ms();
    let until_ms = ttl_ms.map(|ttl| since_ms.saturating_add(ttl));
    let record = BanRecord { reason, by: caller.id().to_owned(), since_ms };
    let invalid = |error: InvalidGuard| bad(error.to_string());
    let entry = GuardEntry::new(key(kind, &subject)?, Bytes::from(record.encoded()), until_ms);
    let batch = GuardBatch::new(vec![GuardPut { entry: entry.map_err(invalid)?, expected: None }]);
    let change = api.cluster.put_guard(&batch.map_err(invalid)?).await.map_err(unavailable)?;
    if let GuardOutcome::Full(_) = change.outcome {
        return Err(Problem(Code::TooManyBans, String::new()));
    }
    Ok(Json(with_change(view(&subject, &Ban { record, until_ms }), &change)))
}

/// Removes an entry.
pub(super) async fn removed(api: &Api, key: &GuardKey, subject: &BanSubject) -> Result<Json<Value>, Problem> {
    let change = api.cluster.remove_guard(key, None).await.map_err(unavailable)?;
    let is_removed = matches!(change.outcome, GuardOutcome::Stored(_));
    let body = json!({"subject": subject.to_string(), "removed": is_removed});
    Ok(Json(with_change(body, &change)))
}

/// Adds where the change is in force already.
fn with_change(mut body: Value, change: &GuardChange) -> Value {
    body["inForce"] = json!(change.is_in_force);
    body["pending"] = json!(change.pending);
    body
}

/// Returns an entry as the API shows it.
pub(in crate::api) fn view(subject: &BanSubject, ban: &Ban) -> Value {
    let Ban { record, until_ms } = ban;
    json!({
        "subject": subject.to_string(),
        "reason": record.reason,
        "by": record.by,
        "sinceMs": record.since_ms,
        "untilMs": until_ms,
    })
}

/// Returns the key of the entry of a subject.
pub(super) fn key(kind: GuardKind, subject: &BanSubject) -> Result<GuardKey, Problem> {
    GuardKey::new(kind, subject.to_string()).map_err(|error| bad(error.to_string()))
}

/// Returns the refusal of a wrong value.
pub(super) fn bad(why: String) -> Problem {
    Problem(Code::BadContent, why)
}

/// Returns the refusal of a wrong subject.
pub(super) fn bad_id(why: String) -> Problem {
    Problem(Code::BadId, why)
}
