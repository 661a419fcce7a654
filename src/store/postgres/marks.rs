//! Marks and settings of users, and their removal. Rows are locked in the order of their names, which prevents deadlocks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::{Push, Retention, Search, Unread, UserSettings, Visibility},
};

use super::{
    Core, PostgresStore,
    batcher::{BatchedQuery, Batcher, send},
    codec::{self, Reader, big},
    error::{PostgresError, damaged},
    session::{Session, call},
};
use crate::store::{Personal, PersonalErasure, StoreError, UserState};

/// Begin of a transaction that is as durable as an archive: with less, chaos tests lost acked marks in a server crash.
const BEGIN: &str = "BEGIN";

const INSERT_MARKS: &str = "
INSERT INTO marks (user_id, conversation) SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING";

const LOCK_MARKS: &str = "
SELECT n.place, k.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n(user_id, conversation, place)
CROSS JOIN LATERAL (
    SELECT seq, messages, own, cleared_seq, cleared_messages, cleared_own, hidden, push, bound_seq, bound_messages, bound_own
    FROM marks k WHERE k.user_id = n.user_id AND k.conversation = n.conversation LIMIT 1 FOR UPDATE
) k";

const PUT_MARKS: &str = "
INSERT INTO marks SELECT * FROM unnest(
    $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bytea[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[]
) ON CONFLICT (user_id, conversation) DO UPDATE SET
    seq = EXCLUDED.seq, messages = EXCLUDED.messages, own = EXCLUDED.own, cleared_seq = EXCLUDED.cleared_seq,
    cleared_messages = EXCLUDED.cleared_messages, cleared_own = EXCLUDED.cleared_own, hidden = EXCLUDED.hidden,
    push = EXCLUDED.push, bound_seq = EXCLUDED.bound_seq, bound_messages = EXCLUDED.bound_messages,
    bound_own = EXCLUDED.bound_own";

const SELECT_SETTINGS: &str = "
SELECT n.place, w.* FROM unnest($1::text[]) WITH ORDINALITY AS n(user_id, place)
CROSS JOIN LATERAL (
    SELECT ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search, push, presence
    FROM wishes w WHERE w.user_id = n.user_id LIMIT 1
) w";

const INSERT_SETTINGS: &str = "
INSERT INTO wishes (user_id) SELECT * FROM unnest($1::text[]) ON CONFLICT DO NOTHING";

const LOCK_SETTINGS: &str = "
SELECT n.place, w.* FROM unnest($1::text[]) WITH ORDINALITY AS n(user_id, place)
CROSS JOIN LATERAL (
    SELECT ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search, push, presence
    FROM wishes w WHERE w.user_id = n.user_id LIMIT 1 FOR UPDATE
) w";

const PUT_SETTINGS: &str = "
INSERT INTO wishes (user_id, ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search, push, presence)
SELECT * FROM unnest(
    $1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[]
) ON CONFLICT (user_id) DO UPDATE SET
    ack_timeout_ms = EXCLUDED.ack_timeout_ms, ack_tries = EXCLUDED.ack_tries, heartbeat_ms = EXCLUDED.heartbeat_ms,
    unread = EXCLUDED.unread, retention = EXCLUDED.retention, search = EXCLUDED.search, push = EXCLUDED.push,
    presence = EXCLUDED.presence";

const DELETE_MARKS: &str = "DELETE FROM marks WHERE user_id = $1 AND conversation = ANY($2::text[])";

const DELETE_SETTINGS: &str = "DELETE FROM wishes WHERE user_id = $1";

/// Change of one user's state in one conversation.
type Change = (UserId, ConversationId, Personal);

/// Columns of marks.
#[derive(Default)]
struct MarkColumns<'a> {
    user: Vec<&'a str>,
    conversation: Vec<&'a str>,
    /// Those of the read mark, the cleared mark and the bound.
    numbers: [Vec<i64>; 9],
    hidden: Vec<Vec<u8>>,
    push: Vec<Option<&'static str>>,
}

impl<'a> MarkColumns<'a> {
    fn push(&mut self, user: &'a str, conversation: &'a str, state: &UserState) {
        let UserState { mark, cleared, hidden, push, bound } = state;
        self.user.push(user);
        self.conversation.push(conversation);
        let marks = [*mark, *cleared, bound.unwrap_or_default()];
        let numbers = marks.iter().flat_map(|it| [it.seq, it.messages, it.own]);
        for (column, number) in self.numbers.iter_mut().zip(numbers) {
            column.push(big(number));
        }
        self.hidden.push(codec::put_hidden(hidden));
        self.push.push(push.map(Push::word));
    }
}

async fn save_all(session: &mut Session, updates: &[&MarksUpdate]) -> Result<(), PostgresError> {
    let mut of_pair: BTreeMap<(&str, &str), Vec<&Personal>> = BTreeMap::new();
    for (user, conversation, _) in updates.iter().flat_map(|it| &it.changes) {
        of_pair.entry((user.as_str(), conversation.as_str())).or_default();
    }
    let (users, conversations): (Vec<&str>, Vec<&str>) = of_pair.keys().copied().unzip();
    let new = call(INSERT_MARKS, &[&users, &conversations]);
    let locked = call(LOCK_MARKS, &[&users, &conversations]);
    let found = session.begin(BEGIN, &[new, locked]).await?;
    let mut states = vec![None; of_pair.len()];
    for row in found.last().into_iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        *states.get_mut(index).ok_or_else(damaged)? = Some(reader.user_state()?);
    }
    // Later changes wait for the locks. So a change is made before those that begin after its caller has left, or not at all.
    for (user, conversation, change) in updates.iter().filter(|it| it.has_caller()).flat_map(|it| &it.changes)
    {
        of_pair.entry((user.as_str(), conversation.as_str())).or_default().push(change);
    }
    let mut marks = MarkColumns::default();
    for (((user, conversation), changes), state) in of_pair.iter().zip(states) {
        let mut state =
            state.ok_or_else(|| PostgresError::Retriable("a mark was removed concurrently".to_owned()))?;
        let mut changed = false;
        for change in changes {
            changed |= state.apply(change);
        }
        if changed {
            marks.push(user, conversation, &state);
        }
    }
    if !marks.user.is_empty() {
        let MarkColumns { user, conversation, numbers: [a, b, c, d, e, f, g, h, i], hidden, push } = &marks;
        let put = call(PUT_MARKS, &[user, conversation, a, b, c, d, e, f, hidden, push, g, h, i]);
        return session.finish(&[put]).await;
    }
    session.commit().await
}

/// Returns the stored settings of each user, in order.
pub(super) async fn settings(
    session: &mut Session,
    users: &[UserId],
) -> Result<Vec<UserSettings>, PostgresError> {
    let users: Vec<&str> = users.iter().map(UserId::as_str).collect();
    let mut all = vec![UserSettings::default(); users.len()];
    for row in session.read(&[call(SELECT_SETTINGS, &[&users])]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        *all.get_mut(index).ok_or_else(damaged)? = reader.user_settings()?;
    }
    Ok(all)
}

/// Columns of settings.
#[derive(Default)]
struct SettingsColumns<'a> {
    user: Vec<&'a str>,
    /// Those of the ack timeout, the ack tries and the heartbeat.
    numbers: [Vec<i64>; 3],
    /// Those of `unread`, `retention`, `search`, `push` and `presence`.
    words: [Vec<Option<&'static str>>; 5],
}

impl<'a> SettingsColumns<'a> {
    fn push(&mut self, user: &'a str, settings: &UserSettings) {
        self.user.push(user);
        let numbers = [settings.ack_timeout_ms, settings.ack_tries, settings.heartbeat_ms];
        for (column, number) in self.numbers.iter_mut().zip(numbers) {
            column.push(i64::from(number));
        }
        let words = [
            settings.unread.map(Unread::word),
            settings.retention.map(Retention::word),
            settings.search.map(Search::word),
            settings.push.map(Push::word),
            settings.presence.map(Visibility::word),
        ];
        for (column, word) in self.words.iter_mut().zip(words) {
            column.push(word);
        }
    }
}

/// Merges each update over the stored settings of its user, in order, and returns the result for each.
async fn merge_all(
    session: &mut Session,
    updates: &[&SettingsUpdate],
) -> Result<Vec<UserSettings>, PostgresError> {
    let users: BTreeSet<&str> = updates.iter().map(|it| it.user.as_str()).collect();
    let users: Vec<&str> = users.into_iter().collect();
    let new = call(INSERT_SETTINGS, &[&users]);
    let locked = call(LOCK_SETTINGS, &[&users]);
    let found = session.begin(BEGIN, &[new, locked]).await?;
    let mut of_user: BTreeMap<&str, UserSettings> = BTreeMap::new();
    for row in found.last().into_iter().flatten() {
        let mut reader = Reader::new(row);
        let user = users.get(reader.index()?).copied().ok_or_else(damaged)?;
        of_user.insert(user, reader.user_settings()?);
    }
    let mut changed: BTreeSet<&str> = BTreeSet::new();
    let mut merged = Vec::with_capacity(updates.len());
    for update in updates {
        let user = update.user.as_str();
        let settings = of_user.get_mut(user).ok_or_else(|| {
            PostgresError::Retriable("settings of a user were removed concurrently".to_owned())
        })?;
        let now = update.now.over(*settings);
        // Later changes wait for the lock, as those of marks.
        if now != *settings && update.has_caller() {
            *settings = now;
            changed.insert(user);
        }
        merged.push(*settings);
    }
    let mut settings = SettingsColumns::default();
    for user in changed {
        if let Some(now) = of_user.get(user) {
            settings.push(user, now);
        }
    }
    if settings.user.is_empty() {
        // Nothing needs a flush, and a row that was inserted for its lock goes.
        session.roll_back().await;
        return Ok(merged);
    }
    let SettingsColumns { user, numbers: [timeout, tries, heartbeat], words } = &settings;
    let [unread, retention, search, push, presence] = words;
    let put =
        call(PUT_SETTINGS, &[user, timeout, tries, heartbeat, unread, retention, search, push, presence]);
    session.finish(&[put]).await?;
    Ok(merged)
}

/// Merges the settings in `now` over those of a user, and returns the result. If the call is dropped, the change is made
/// before all changes of calls that begin later, or not at all.
pub(super) async fn merge_settings(
    core: &Arc<Core>,
    user: &UserId,
    now: UserSettings,
) -> Result<UserSettings, StoreError> {
    // Most logins change nothing, and only read. A read does not see a change that is being committed, which would undo one
    // that seems to be made already: so what others rely on is compared under the lock.
    if now.push.is_none() && now.presence.is_none() {
        let before = send(core, SettingsQuery(user.clone())).await?;
        if now.over(before) == before {
            return Ok(before);
        }
    }
    let caller = Arc::new(());
    send(core, SettingsUpdate { user: user.clone(), now, caller: Arc::downgrade(&caller) }).await
}

/// Makes changes of marks. If the call is dropped, each is made before all changes of calls that begin later, or not at all.
pub(super) async fn save_marks(core: &Arc<Core>, changes: &[Change]) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let caller = Arc::new(());
    send(core, MarksUpdate { changes: changes.to_vec(), caller: Arc::downgrade(&caller) }).await
}

/// Changes of marks, in one transaction. One batch at a time, so that the changes of a user keep their order.
pub(super) struct MarksUpdate {
    changes: Vec<Change>,
    /// Upgradable while the caller waits.
    caller: Weak<()>,
}

impl MarksUpdate {
    fn has_caller(&self) -> bool {
        self.caller.strong_count() > 0
    }
}

impl BatchedQuery for MarksUpdate {
    type Reply = ();
    const TASKS_MAX: usize = 1;
    const BATCH_SIZE_MAX: usize = 500;

    fn size(&self) -> usize {
        self.changes.len()
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.mark_updates
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<()>, StoreError> {
        core.run(move || async move { save_all(&mut core.readers().await?, batch).await }).await?;
        Ok(vec![(); batch.len()])
    }
}

/// Change of a user's settings. Its batch keeps the session until the server has replied: a caller that leaves does not
/// leave a session behind that waits for a lock, while the pool opens another.
pub(super) struct SettingsUpdate {
    user: UserId,
    now: UserSettings,
    /// Upgradable while the caller waits.
    caller: Weak<()>,
}

impl SettingsUpdate {
    fn has_caller(&self) -> bool {
        self.caller.strong_count() > 0
    }
}

impl BatchedQuery for SettingsUpdate {
    type Reply = UserSettings;
    const TASKS_MAX: usize = 2;
    const BATCH_SIZE_MAX: usize = 200;

    fn size(&self) -> usize {
        1
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.settings_updates
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<UserSettings>, StoreError> {
        core.run(move || async move { merge_all(&mut core.readers().await?, batch).await }).await
    }
}

/// Query of a user's stored settings.
pub(super) struct SettingsQuery(pub(super) UserId);

impl BatchedQuery for SettingsQuery {
    type Reply = tidegate_protocol::settings::UserSettings;
    const TASKS_MAX: usize = 2;
    const BATCH_SIZE_MAX: usize = 200;

    fn size(&self) -> usize {
        1
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.settings
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<Self::Reply>, StoreError> {
        let users = &batch.iter().map(|it| it.0.clone()).collect::<Vec<_>>()[..];
        core.run(move || async move { settings(&mut core.readers().await?, users).await }).await
    }
}

async fn forget_marks(
    session: &mut Session,
    user: &UserId,
    conversations: &[ConversationId],
) -> Result<(), PostgresError> {
    let mut conversations: Vec<&str> = conversations.iter().map(ConversationId::as_str).collect();
    conversations.sort_unstable();
    let (user, users) = (user.as_str(), vec![user.as_str(); conversations.len()]);
    session.begin(BEGIN, &[call(LOCK_MARKS, &[&users, &conversations])]).await?;
    session.finish(&[call(DELETE_MARKS, &[&user, &conversations])]).await
}

async fn forget_settings(session: &mut Session, user: &UserId) -> Result<(), PostgresError> {
    let (user, users) = (user.as_str(), vec![user.as_str()]);
    session.begin(BEGIN, &[call(LOCK_SETTINGS, &[&users])]).await?;
    session.finish(&[call(DELETE_SETTINGS, &[&user])]).await
}

#[async_trait]
impl PersonalErasure for PostgresStore {
    async fn forget_marks(&self, user: &UserId, conversations: &[ConversationId]) -> Result<(), StoreError> {
        let core = &*self.core;
        core.run(move || async move { forget_marks(&mut core.readers().await?, user, conversations).await })
            .await
    }

    async fn forget_settings(&self, user: &UserId) -> Result<(), StoreError> {
        let core = &*self.core;
        core.run(move || async move { forget_settings(&mut core.readers().await?, user).await }).await
    }
}
