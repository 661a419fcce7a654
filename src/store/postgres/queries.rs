//! Queries that any node may run: conversations of a user, members, summaries, pages of history.

mod feed;

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::ledger::Member,
};

use super::{
    Core, PostgresStore,
    batcher::{BatchedQuery, Batcher},
    codec::{Reader, bound, limit},
    error::{PostgresError, damaged},
    session::{ReadsOf, Session, call},
};
use crate::store::{Direction, Membership, MembershipsRequest, Page, PageQuery, StoreError, Summary};

/// Columns of a member `m` of a conversation, the earlier stays in one array, and the user state `k`.
macro_rules! member_view {
    () => {
        "m.role, m.muted, m.joined_seq, m.left_seq, m.sent, m.joined_messages, m.left_messages, m.stays,
         CASE WHEN m.stays > 0 THEN ARRAY(
            SELECT unnest(ARRAY[s.joined_seq, s.left_seq, s.joined_messages, s.left_messages]) FROM (
                SELECT * FROM stays s WHERE s.conversation = m.conversation AND s.user_id = m.user_id ORDER BY left_seq
            ) s
         ) END,
         k.seq, k.messages, k.own, k.cleared_seq, k.cleared_messages, k.cleared_own, k.hidden, k.push,
         k.bound_seq, k.bound_messages, k.bound_own"
    };
}

/// Pages of users' conversations. A single request has plain parameters: the server then opens one table of 16.
macro_rules! pages {
    ($requests:literal) => {
        concat!(
            "SELECT n.place, p.* FROM ",
            $requests,
            " CROSS JOIN LATERAL (
                SELECT u.conversation, h.last_seq, h.messages, h.pruned_to, h.deleted_seq, h.settings, h.members, ",
            member_view!(),
            " FROM memberships u
                CROSS JOIN LATERAL (SELECT * FROM heads h WHERE h.conversation = u.conversation LIMIT 1) h
                CROSS JOIN LATERAL (
                    SELECT * FROM members m WHERE m.conversation = u.conversation AND m.user_id = n.user_id LIMIT 1
                ) m
                LEFT JOIN LATERAL (
                    SELECT * FROM marks k WHERE k.user_id = n.user_id AND k.conversation = u.conversation LIMIT 1
                ) k ON true
                WHERE u.user_id = n.user_id AND u.conversation > n.after ORDER BY u.conversation LIMIT n.most
            ) p ORDER BY n.place, p.conversation"
        )
    };
}

const MEMBERSHIP_PAGES: &str =
    pages!("unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS n(user_id, after, most, place)");
const MEMBERSHIP_PAGE: &str =
    pages!("(SELECT $1::text AS user_id, $2::text AS after, $3::bigint AS most, 1::bigint AS place) n");

macro_rules! summaries {
    ($requests:literal) => {
        concat!(
            "SELECT n.place, h.last_seq, h.messages, h.pruned_to, h.deleted_seq, h.settings, h.members,
             m.user_id IS NOT NULL, (SELECT p.log_offset FROM partitions p WHERE p.partition = h.partition), ",
            member_view!(),
            " FROM ",
            $requests,
            " CROSS JOIN LATERAL (SELECT * FROM heads h WHERE h.conversation = n.conversation LIMIT 1) h
            LEFT JOIN LATERAL (
                SELECT * FROM members m WHERE m.conversation = n.conversation AND m.user_id = n.user_id LIMIT 1
            ) m ON true
            LEFT JOIN LATERAL (
                SELECT * FROM marks k WHERE k.user_id = n.user_id AND k.conversation = n.conversation LIMIT 1
            ) k ON true"
        )
    };
}

const SUMMARIES: &str =
    summaries!("unnest($1::text[], $2::text[]) WITH ORDINALITY AS n(conversation, user_id, place)");
const SUMMARY: &str =
    summaries!("(SELECT $1::text AS conversation, $2::text AS user_id, 1::bigint AS place) n");

/// Position of a partition, from the statement that finds no head.
const ARCHIVED_WITHOUT: &str = "
SELECT coalesce((SELECT p.log_offset FROM partitions p WHERE p.partition = $1), 0)
WHERE NOT EXISTS (SELECT FROM heads h WHERE h.conversation = $2)";

const MEMBERS: &str = "
SELECT user_id, role, muted, joined_seq, left_seq, sent, joined_messages, left_messages, stays FROM members
WHERE conversation = $1 AND user_id > $2 AND left_seq = 0 ORDER BY user_id LIMIT $3";

pub(super) const HEAD: &str = "
SELECT last_seq, messages, pruned_to, deleted_seq, settings FROM heads WHERE conversation = $1";

/// Rows of history up to the byte limit, at least one. The server applies the limit, so that no excess rows are sent.
macro_rules! page {
    ($beyond:literal, $order:literal) => {
        concat!(
            "SELECT seq, ordinal, own, log_offset, recalled_seq, recalled_time, record, content, edited_seq, edited_time FROM (
                SELECT *, sum(octet_length(content)) OVER way AS bytes, row_number() OVER way AS place FROM (
                    SELECT * FROM messages WHERE conversation = $1 AND seq ",
            $beyond,
            " $2 ORDER BY seq ",
            $order,
            " LIMIT $3
                ) p WINDOW way AS (ORDER BY seq ",
            $order,
            ")
            ) p WHERE bytes <= $4 OR place = 1 ORDER BY seq ",
            $order
        )
    };
}

const PAGE_FORWARD: &str = page!(">", "ASC");
const PAGE_BACKWARD: &str = page!("<", "DESC");

/// Returns a page for each request, in order.
pub(super) async fn memberships(
    session: &mut Session,
    requests: &[&MembershipsRequest],
) -> Result<Vec<Vec<Membership>>, PostgresError> {
    let users: Vec<&str> = requests.iter().map(|it| it.user.as_str()).collect();
    let after: Vec<&str> = requests.iter().map(|it| it.after.as_ref().map_or("", |id| id.as_str())).collect();
    let most: Vec<i64> = requests.iter().map(|it| limit(it.limit)).collect();
    let mut pages = vec![Vec::new(); requests.len()];
    let call = match (&users[..], &after[..], &most[..]) {
        ([user], [after], [most]) => call(MEMBERSHIP_PAGE, &[user, after, most]),
        _ => call(MEMBERSHIP_PAGES, &[&users, &after, &most]),
    };
    for row in session.read(&[call]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        let (conversation, head, members) = (reader.conversation()?, reader.head()?, reader.big()?);
        let membership = Membership { conversation, member_view: reader.member_view()?, head, members };
        pages.get_mut(index).ok_or_else(damaged)?.push(membership);
    }
    Ok(pages)
}

pub(super) async fn members(
    session: &mut Session,
    conversation: &ConversationId,
    after: Option<&UserId>,
    most: usize,
) -> Result<Vec<(UserId, Member)>, PostgresError> {
    let (id, after, most) = (conversation.as_str(), after.map_or("", UserId::as_str), limit(most));
    let found = session.read(&[call(MEMBERS, &[&id, &after, &most])]).await?;
    let rows = found.iter().flatten().map(|row| {
        let mut reader = Reader::new(row);
        Ok((reader.user()?, reader.member()?))
    });
    rows.collect()
}

/// Returns the summary of each request, in order.
pub(super) async fn summaries(
    session: &mut Session,
    requests: &[&SummaryQuery],
) -> Result<Vec<Option<Summary>>, PostgresError> {
    let ids: Vec<&str> = requests.iter().map(|it| it.conversation.as_str()).collect();
    let users: Vec<&str> = requests.iter().map(|it| it.of.as_ref().map_or("", UserId::as_str)).collect();
    let call = match (&ids[..], &users[..]) {
        ([id], [user]) => call(SUMMARY, &[id, user]),
        _ => call(SUMMARIES, &[&ids, &users]),
    };
    let mut found: Vec<Option<Summary>> = requests.iter().map(|_| None).collect();
    for row in session.read(&[call]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        let (head, members, was_member) = (reader.head()?, reader.big()?, reader.get()?);
        let archived: Option<i64> = reader.get()?;
        let archived = archived.map(u64::try_from).transpose().map_err(|_| damaged())?;
        let member_view = if was_member { Some(reader.member_view()?) } else { None };
        *found.get_mut(index).ok_or_else(damaged)? = Some(Summary { head, members, member_view, archived });
    }
    Ok(found)
}

pub(super) async fn archived_without(
    session: &mut Session,
    partition: i32,
    conversation: &ConversationId,
) -> Result<Option<u64>, PostgresError> {
    let found = session.read(&[call(ARCHIVED_WITHOUT, &[&partition, &conversation.as_str()])]).await?;
    let row = found.iter().flatten().next();
    let offset = row.map(|row| Reader::new(row).big()).transpose()?;
    Ok(offset)
}

pub(super) async fn page(
    session: &mut Session,
    conversation: &ConversationId,
    query: PageQuery,
) -> Result<Page, PostgresError> {
    let sql = match query.direction {
        Direction::Forward => PAGE_FORWARD,
        Direction::Backward => PAGE_BACKWARD,
    };
    let id = conversation.as_str();
    let (cursor, most, bytes) = (bound(query.cursor), limit(query.limit), limit(query.max_bytes));
    let rows = call(sql, &[&id, &cursor, &most, &bytes]);
    let mut found = session.read(&[call(HEAD, &[&id]), rows]).await?.into_iter();
    let heads = found.next().unwrap_or_default();
    let head = heads.first().map(|row| Reader::new(row).head()).transpose()?;
    let rows: Result<_, PostgresError> =
        found.next().unwrap_or_default().iter().map(|row| Reader::new(row).row()).collect();
    Ok(Page { head, rows: rows? })
}

/// Query of one page of a user's conversations.
pub(super) struct MembershipsQuery(pub(super) MembershipsRequest);

impl BatchedQuery for MembershipsQuery {
    type Reply = Vec<Membership>;
    const TASKS_MAX: usize = 2;
    /// In rows, by the limits of the pages; most users have few conversations.
    const BATCH_SIZE_MAX: usize = 32_000;

    fn size(&self) -> usize {
        self.0.limit
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.memberships
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<Self::Reply>, StoreError> {
        let requests = &batch.iter().map(|it| &it.0).collect::<Vec<_>>()[..];
        core.run(move || async move { memberships(&mut core.readers().await?, requests).await }).await
    }
}

/// Query of a conversation's summary, with or without the state of one user.
pub(super) struct SummaryQuery {
    pub(super) conversation: ConversationId,
    pub(super) of: Option<UserId>,
}

impl BatchedQuery for SummaryQuery {
    type Reply = Option<Summary>;
    const TASKS_MAX: usize = 2;
    const BATCH_SIZE_MAX: usize = 500;

    fn size(&self) -> usize {
        1
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.summaries
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<Self::Reply>, StoreError> {
        core.run(
            move || async move { summaries(&mut core.client_reads(ReadsOf::Clients).await?, batch).await },
        )
        .await
    }
}

impl PostgresStore {
    /// Returns the summary of each request, in order, in a statement of its own.
    pub(super) async fn summaries_of(
        &self,
        queries: &[&SummaryQuery],
    ) -> Result<Vec<Option<Summary>>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        core.run(move || async move { summaries(&mut core.client_reads(reads).await?, queries).await }).await
    }
}
