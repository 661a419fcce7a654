//! Entries of bans, allowed networks, suspensions, closed rooms and priorities in the admin API: pages, changes and their form.

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
    store::{GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut},
};

/// Entries of a page, and the most that a request may ask for.
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 1_000;

/// Shortest and longest time of an entry that has an end, unless its kind has others: 1 s, and about 10 years.
pub(in crate::api) const TTLS_MS: RangeInclusive<u64> = 1_000..=315_360_000_000;

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

/// Stores the entry of a ban, an allowed network or a suspension, and puts it in force.
pub(super) async fn put(
    api: &Api,
    caller: &Caller,
    subject: &BanSubject,
    record: RecordToPut,
) -> Result<Json<Value>, Problem> {
    let reason = &record.reason;
    let is_reason = (1..=REASON_BYTES_MAX).contains(&reason.len()) && !reason.contains(char::is_control);
    if !is_reason {
        return Err(bad(format!("reason: 1 to {REASON_BYTES_MAX} bytes without control characters")));
    }
    let (ban, change) = put_record(api, caller, record).await?;
    if let GuardOutcome::Full(_) = change.outcome {
        return Err(Problem(Code::TooManyBans, String::new()));
    }
    Ok(Json(with_change(view(subject, &ban), &change)))
}

/// Record of an entry to store. Callers of [`put_record`] have checked its reason.
pub(in crate::api) struct RecordToPut {
    pub(in crate::api) key: GuardKey,
    pub(in crate::api) reason: String,
    /// Time until it ends; `None` if it does not.
    pub(in crate::api) ttl_ms: Option<u64>,
    /// Times that it may have.
    pub(in crate::api) ttls: RangeInclusive<u64>,
}

/// Stores a record with its author, and puts it in force; returns it with the outcome, by which its kind may be full.
pub(in crate::api) async fn put_record(
    api: &Api,
    caller: &Caller,
    record: RecordToPut,
) -> Result<(Ban, GuardChange), Problem> {
    let RecordToPut { key, reason, ttl_ms, ttls } = record;
    let since_ms = api.cluster.guard.now_ms();
    let until_ms = end_of(ttl_ms, &ttls, since_ms)?;
    let record = BanRecord { reason, by: caller.id().to_owned(), since_ms };
    let change = put_value(api, key, record.encoded().into(), until_ms).await?;
    Ok((Ban { record, until_ms }, change))
}

/// Returns the end of an entry that lasts for `ttl_ms`, which must be in the range; `None` if it does not end.
pub(in crate::api) fn end_of(
    ttl_ms: Option<u64>,
    ttls: &RangeInclusive<u64>,
    since_ms: u64,
) -> Result<Option<u64>, Problem> {
    match ttl_ms {
        Some(ttl) if !ttls.contains(&ttl) => {
            Err(bad(format!("ttlMs: {} to {}; without it, there is no end", ttls.start(), ttls.end())))
        }
        ttl => Ok(ttl.map(|ttl| since_ms.saturating_add(ttl))),
    }
}

/// Stores the value of an entry, and puts it in force; by the outcome, its kind may be full.
pub(in crate::api) async fn put_value(
    api: &Api,
    key: GuardKey,
    value: Bytes,
    until_ms: Option<u64>,
) -> Result<GuardChange, Problem> {
    let entry = GuardEntry::new(key, value, until_ms).map_err(|error| bad(error.to_string()))?;
    let batch = GuardBatch::from(GuardPut { entry, expected: None });
    api.cluster.put_guard(&batch).await.map_err(unavailable)
}

/// Removes the record of a key, if there is one.
pub(in crate::api) async fn remove_record(api: &Api, key: &GuardKey) -> Result<GuardChange, Problem> {
    api.cluster.remove_guard(key, None).await.map_err(unavailable)
}

/// Removes an entry.
pub(super) async fn removed(api: &Api, key: &GuardKey, subject: &BanSubject) -> Result<Json<Value>, Problem> {
    let change = remove_record(api, key).await?;
    let is_removed = matches!(change.outcome, GuardOutcome::Stored(_));
    let body = json!({"subject": subject.to_string(), "removed": is_removed});
    Ok(Json(with_change(body, &change)))
}

/// Adds where the change is in force already.
pub(in crate::api) fn with_change(mut body: Value, change: &GuardChange) -> Value {
    body["inForce"] = json!(change.is_in_force);
    body["pending"] = json!(change.pending);
    body
}

/// Returns the bans that concern a subject, whether or not it is exempt.
pub(in crate::api) fn bans_of(api: &Api, subject: &BanSubject) -> Vec<Value> {
    api.cluster.bans.bans_of(subject).iter().map(|(subject, ban)| view(subject, ban)).collect()
}

/// Returns an entry as the API shows it.
pub(super) fn view(subject: &BanSubject, ban: &Ban) -> Value {
    let mut body = record_view(ban);
    body["subject"] = subject.to_string().into();
    body
}

/// Returns reason, author, time and end of an entry as the API shows them.
pub(in crate::api) fn record_view(Ban { record, until_ms }: &Ban) -> Value {
    json!({
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
pub(in crate::api) fn bad(why: String) -> Problem {
    Problem(Code::BadContent, why)
}

/// Returns the refusal of a wrong subject.
pub(super) fn bad_id(why: String) -> Problem {
    Problem(Code::BadId, why)
}
