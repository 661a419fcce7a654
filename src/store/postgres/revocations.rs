//! Revocations of tokens. Each change locks the newest number, so that numbers become visible in their order.

use async_trait::async_trait;
use tidegate_protocol::id::DeviceId;

use super::{
    PostgresStore,
    codec::{Reader, big, limit},
    error::{PostgresError, damaged},
    session::{Session, call},
};
use crate::{
    revocation::{Revocation, RevokedTokens, add_to},
    store::{RevocationPage, RevocationStore, StoreError},
};

const LOCK_NUMBER: &str = "SELECT number FROM revocation_number FOR UPDATE";

const SELECT_OF_USER: &str = "
SELECT number, user_id, kind, name, before_ms, at_ms, until_ms FROM revocations WHERE user_id = $1";

/// Removes what is over, of all users, and the named ones of one user.
const DELETE_OLD: &str = "
DELETE FROM revocations WHERE until_ms <= $1 OR user_id = $2 AND (kind, name) IN (
    SELECT * FROM unnest($3::smallint[], $4::text[])
)";

const INSERT_NEW: &str = "
INSERT INTO revocations (user_id, kind, name, before_ms, at_ms, until_ms, number) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (user_id, kind, name) DO UPDATE SET
    before_ms = EXCLUDED.before_ms, at_ms = EXCLUDED.at_ms, until_ms = EXCLUDED.until_ms, number = EXCLUDED.number";

const RAISE_NUMBER: &str = "UPDATE revocation_number SET number = $1";

const SELECT_NEWEST: &str = "SELECT number FROM revocation_number";

const SELECT_ABOVE: &str = "
SELECT number, user_id, kind, name, before_ms, at_ms, until_ms FROM revocations WHERE number > $1
ORDER BY number LIMIT $2";

/// Returns the columns `kind, name, before_ms`.
fn columns(tokens: &RevokedTokens) -> (i16, &str, i64) {
    match tokens {
        RevokedTokens::Before(before) => (1, "", big(*before)),
        RevokedTokens::Id(id) => (2, id, 0),
        RevokedTokens::Device(device, before) => (3, device.as_str(), big(*before)),
        RevokedTokens::Cleared => (4, "", 0),
    }
}

fn read(row: &tokio_postgres::Row) -> Result<(u64, Revocation), PostgresError> {
    let mut reader = Reader::new(row);
    let (number, user) = (reader.big()?, reader.user()?);
    let (kind, name) = (reader.get::<i16>()?, reader.get::<&str>()?);
    let before = reader.big()?;
    let tokens = match kind {
        1 => RevokedTokens::Before(before),
        2 => RevokedTokens::Id(name.to_owned()),
        3 => RevokedTokens::Device(DeviceId::new(name).map_err(|_| damaged())?, before),
        4 => RevokedTokens::Cleared,
        _ => return Err(damaged()),
    };
    let (at_ms, until) = (reader.big()?, reader.get::<Option<i64>>()?);
    Ok((number, Revocation { user, tokens, at_ms, until_ms: until.map(i64::cast_unsigned) }))
}

async fn revoke(session: &mut Session, new: &Revocation, now_ms: u64) -> Result<bool, PostgresError> {
    let user = new.user.as_str();
    let found = session.begin("BEGIN", &[call(LOCK_NUMBER, &[]), call(SELECT_OF_USER, &[&user])]).await?;
    let [newest, of_user] = &found[..] else { return Err(damaged()) };
    let number = Reader::new(newest.first().ok_or_else(damaged)?).big()?.saturating_add(1);
    let stored = of_user.iter().map(|row| read(row).map(|(_, it)| it)).collect::<Result<Vec<_>, _>>()?;
    let mut all: Vec<Revocation> = stored.iter().filter(|it| !it.is_over(now_ms)).cloned().collect();
    if !add_to(&mut all, new) {
        session.roll_back().await;
        return Ok(false);
    }
    let is_new = all.last() == Some(new);
    let removed = stored.iter().filter(|old| !all.contains(old)).map(|old| columns(&old.tokens));
    let (kinds, names): (Vec<i16>, Vec<&str>) = removed.map(|(kind, name, _)| (kind, name)).unzip();
    let now = big(now_ms);
    let (kind, name, before) = columns(&new.tokens);
    let (at, until, number) = (big(new.at_ms), new.until_ms.map(big), big(number));
    let mut calls = vec![call(DELETE_OLD, &[&now, &user, &kinds, &names])];
    if is_new {
        calls.push(call(INSERT_NEW, &[&user, &kind, &name, &before, &at, &until, &number]));
        calls.push(call(RAISE_NUMBER, &[&number]));
    }
    session.finish(&calls).await?;
    Ok(true)
}

async fn revocations(
    session: &mut Session,
    above: u64,
    rows_max: usize,
) -> Result<RevocationPage, PostgresError> {
    let (above, rows_max) = (big(above), limit(rows_max));
    let calls = [call(SELECT_NEWEST, &[]), call(SELECT_ABOVE, &[&above, &rows_max])];
    let found = session.read(&calls).await?;
    let [newest, rows] = &found[..] else { return Err(damaged()) };
    let newest = Reader::new(newest.first().ok_or_else(damaged)?).big()?;
    Ok(RevocationPage { newest, rows: rows.iter().map(read).collect::<Result<_, _>>()? })
}

#[async_trait]
impl RevocationStore for PostgresStore {
    async fn revoke(&self, revocation: &Revocation, now_ms: u64) -> Result<bool, StoreError> {
        let core = &*self.core;
        core.run(move || async move { revoke(&mut core.readers().await?, revocation, now_ms).await }).await
    }

    async fn revocations(&self, above: u64, limit: usize) -> Result<RevocationPage, StoreError> {
        let core = &*self.core;
        core.run(move || async move { revocations(&mut core.readers().await?, above, limit).await }).await
    }
}
