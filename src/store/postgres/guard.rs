//! Entries of the guard. Each change locks the newest version, so that versions become visible in their order.

use std::collections::HashMap;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    PostgresStore,
    codec::{Reader, big, bound, limit},
    error::{PostgresError, damaged},
    session::{Session, call},
};
use crate::store::{
    GUARD_PAGE_MAX, GuardBatch, GuardKey, GuardKind, GuardOutcome, GuardPage, GuardRow, GuardStore,
    StoreError,
    guard::{ENDED_AT_ONCE, FoundGuard, GuardCounts, GuardEdit, check_edits},
};

const LOCK_VERSION: &str = "SELECT version FROM guard_version FOR UPDATE";

/// Clock of the server, read after the lock is held.
const SELECT_NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Removes some of the rows of each kind that have ended, and counts them.
const DELETE_ENDED: &str = "
WITH ended AS (
    SELECT it.kind, it.name FROM guard_counts c CROSS JOIN LATERAL (
        SELECT g.kind, g.name FROM guard g
        WHERE g.kind = c.kind AND g.until_ms <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
        ORDER BY g.until_ms LIMIT $1
    ) it
), removed AS (
    DELETE FROM guard g USING ended WHERE g.kind = ended.kind AND g.name = ended.name RETURNING g.kind
), removed_of AS (
    SELECT kind, count(*) AS entries FROM removed GROUP BY kind
)
UPDATE guard_counts c SET entries = c.entries - r.entries FROM removed_of r WHERE c.kind = r.kind";

const SELECT_FOUND: &str = "
SELECT kind, name, version, value IS NOT NULL, until_ms FROM guard
WHERE (kind, name) IN (SELECT * FROM unnest($1::smallint[], $2::text[]))";

const SELECT_COUNTS: &str = "SELECT kind, entries FROM guard_counts";

const UPSERT: &str = "
INSERT INTO guard (kind, name, value, until_ms, version)
SELECT * FROM unnest($1::smallint[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[])
ON CONFLICT (kind, name) DO UPDATE SET
    value = EXCLUDED.value, until_ms = EXCLUDED.until_ms, version = EXCLUDED.version";

const PUT_COUNTS: &str = "
INSERT INTO guard_counts (kind, entries) SELECT * FROM unnest($1::smallint[], $2::bigint[])
ON CONFLICT (kind) DO UPDATE SET entries = EXCLUDED.entries";

const PUT_VERSION: &str = "UPDATE guard_version SET version = $1";

const SELECT_NEWEST: &str =
    "SELECT version, (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM guard_version";

const SELECT_ABOVE: &str = "
SELECT version, kind, name, value, until_ms FROM guard WHERE version > $1 ORDER BY version LIMIT $2";

const SELECT_ONE: &str = "
SELECT version, kind, name, value, until_ms FROM guard
WHERE kind = $1 AND name = $2 AND value IS NOT NULL
    AND (until_ms IS NULL OR until_ms > (extract(epoch FROM clock_timestamp()) * 1000)::bigint)";

/// Reads `version, kind, name, value, until_ms`: the version, and the row unless its kind is unknown.
fn read(row: &tokio_postgres::Row) -> Result<(u64, Option<GuardRow>), PostgresError> {
    let mut reader = Reader::new(row);
    let (version, kind) = (reader.big()?, reader.get::<i16>()?);
    let Some(kind) = u8::try_from(kind).ok().and_then(GuardKind::from_number) else {
        return Ok((version, None));
    };
    let key = GuardKey::new(kind, reader.get::<&str>()?).map_err(|_| damaged())?;
    let value = reader.get::<Option<&[u8]>>()?.map(Bytes::copy_from_slice);
    let until_ms = reader.get::<Option<i64>>()?.map(i64::cast_unsigned);
    Ok((version, Some(GuardRow { version, key, value, until_ms })))
}

fn found_rows(
    rows: &[tokio_postgres::Row],
    edits: &[GuardEdit],
    now_ms: u64,
) -> Result<Vec<Option<FoundGuard>>, PostgresError> {
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        let mut reader = Reader::new(row);
        let key = (reader.get::<i16>()?, reader.get::<&str>()?);
        let (version, has_value) = (reader.big()?, reader.get::<bool>()?);
        let until = reader.get::<Option<i64>>()?.map(i64::cast_unsigned);
        let is_live = has_value && until.is_none_or(|until| until > now_ms);
        found.insert(key, FoundGuard { version, is_live });
    }
    let of = |edit: &GuardEdit| found.get(&(edit.key.kind().number().into(), edit.key.name())).copied();
    Ok(edits.iter().map(of).collect())
}

fn counts(rows: &[tokio_postgres::Row]) -> Result<GuardCounts, PostgresError> {
    let count = |row| {
        let mut reader = Reader::new(row);
        Ok((u8::try_from(reader.get::<i16>()?).map_err(|_| damaged())?, reader.big()?))
    };
    rows.iter().map(count).collect()
}

async fn change(session: &mut Session, edits: &[GuardEdit]) -> Result<GuardOutcome, PostgresError> {
    let kinds: Vec<i16> = edits.iter().map(|it| it.key.kind().number().into()).collect();
    let names: Vec<&str> = edits.iter().map(|it| it.key.name()).collect();
    let ended_max = limit(ENDED_AT_ONCE);
    let calls = [
        call(LOCK_VERSION, &[]),
        call(SELECT_NOW, &[]),
        call(DELETE_ENDED, &[&ended_max]),
        call(SELECT_FOUND, &[&kinds, &names]),
        call(SELECT_COUNTS, &[]),
    ];
    let answers = session.begin("BEGIN", &calls).await?;
    let [newest, now, _, found, counted] = &answers[..] else { return Err(damaged()) };
    let mut newest = Reader::new(newest.first().ok_or_else(damaged)?).big()?;
    let now_ms = Reader::new(now.first().ok_or_else(damaged)?).big()?;
    let changed = match check_edits(edits, &found_rows(found, edits, now_ms)?, &counts(counted)?) {
        Ok(changed) => changed,
        Err(refused) => {
            // The removal of ended rows stays.
            session.commit().await?;
            return Ok(refused);
        }
    };
    let values: Vec<Option<&[u8]>> = edits.iter().map(|it| it.value.as_deref()).collect();
    let ends: Vec<Option<i64>> = edits.iter().map(|it| it.until_ms(now_ms).map(bound)).collect();
    let next = || {
        newest += 1;
        big(newest)
    };
    let versions: Vec<i64> = std::iter::repeat_with(next).take(edits.len()).collect();
    let (count_kinds, entries): (Vec<i16>, Vec<i64>) =
        changed.into_iter().map(|(kind, count)| (i16::from(kind), big(count))).unzip();
    let last = big(newest);
    let calls = [
        call(UPSERT, &[&kinds, &names, &values, &ends, &versions]),
        call(PUT_COUNTS, &[&count_kinds, &entries]),
        call(PUT_VERSION, &[&last]),
    ];
    session.finish(&calls).await?;
    Ok(GuardOutcome::Stored(newest))
}

async fn since(session: &mut Session, after: u64, rows_max: usize) -> Result<GuardPage, PostgresError> {
    let rows_max = rows_max.clamp(1, GUARD_PAGE_MAX);
    let (after, rows_limit) = (bound(after), limit(rows_max));
    let calls = [call(SELECT_NEWEST, &[]), call(SELECT_ABOVE, &[&after, &rows_limit])];
    let answers = session.read(&calls).await?;
    let [newest, found] = &answers[..] else { return Err(damaged()) };
    let mut reader = Reader::new(newest.first().ok_or_else(damaged)?);
    let (newest, now_ms) = (reader.big()?, reader.big()?);
    let mut page = GuardPage { newest, read_to: newest, now_ms, rows: Vec::new() };
    for row in found {
        let (version, row) = read(row)?;
        if found.len() == rows_max {
            page.read_to = version;
        }
        page.rows.extend(row.filter(|it| !it.has_ended(now_ms)));
    }
    Ok(page)
}

async fn one(session: &mut Session, key: &GuardKey) -> Result<Option<GuardRow>, PostgresError> {
    let (kind, name) = (i16::from(key.kind().number()), key.name());
    let found = session.read(&[call(SELECT_ONE, &[&kind, &name])]).await?;
    found.iter().flatten().next().map_or(Ok(None), |row| Ok(read(row)?.1))
}

#[async_trait]
impl GuardStore for PostgresStore {
    async fn put_guard(&self, batch: &GuardBatch) -> Result<GuardOutcome, StoreError> {
        let core = &*self.core;
        core.run(move || async move { change(&mut core.readers().await?, batch.edits()).await }).await
    }

    async fn remove_guard(&self, key: &GuardKey, expected: Option<u64>) -> Result<GuardOutcome, StoreError> {
        let (core, edits) = (&*self.core, &[GuardEdit::removal(key, expected)]);
        core.run(move || async move { change(&mut core.readers().await?, edits).await }).await
    }

    async fn guard_since(&self, after: u64, limit: usize) -> Result<GuardPage, StoreError> {
        let core = &*self.core;
        core.run(move || async move { since(&mut core.readers().await?, after, limit).await }).await
    }

    async fn guard_get(&self, key: &GuardKey) -> Result<Option<GuardRow>, StoreError> {
        let core = &*self.core;
        core.run(move || async move { one(&mut core.readers().await?, key).await }).await
    }
}
