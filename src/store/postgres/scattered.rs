//! Queries of scattered rows: seqs without neighbours, and rows of many conversations, in one statement each.

use tidegate_protocol::id::{ConversationId, UserId};

use super::{
    Core,
    batcher::{BatchedQuery, Batcher},
    codec::{Reader, bound, limit},
    error::{PostgresError, damaged},
    queries::HEAD,
    session::{ReadsOf, Session, call},
};
use crate::store::{ConversationSeq, GroupMembers, Page, StoreError, StoredRow};

/// Groups read in one statement; bounds the users in its reply to this many small groups.
const GROUPS_PER_STATEMENT: usize = 500;

/// Rows at the given seqs up to the byte limit, at least one.
const ROWS_AT: &str = "
SELECT seq, ordinal, own, log_offset, recalled_seq, recalled_time, record, content, edited_seq, edited_time FROM (
    SELECT *, sum(octet_length(content)) OVER way AS bytes, row_number() OVER way AS place FROM (
        SELECT * FROM messages WHERE conversation = $1 AND seq = ANY($2)
    ) p WINDOW way AS (ORDER BY seq)
) p WHERE bytes <= $3 OR place = 1 ORDER BY seq";

/// Rows before each place, newest first, as far as they fit into its byte limit.
const NEWEST: &str = "
SELECT n.place, p.seq, p.ordinal, p.own, p.log_offset, p.recalled_seq, p.recalled_time, p.record, p.content,
    p.edited_seq, p.edited_time
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
    AS n(conversation, below, most, most_bytes, place)
CROSS JOIN LATERAL (
    SELECT *, sum(octet_length(content)) OVER (ORDER BY seq DESC) AS bytes FROM (
        SELECT * FROM messages m WHERE m.conversation = n.conversation AND m.seq < n.below
        ORDER BY seq DESC LIMIT n.most
    ) m
) p WHERE p.bytes <= n.most_bytes ORDER BY n.place, p.seq DESC";

/// Records of rows, without their content.
const RECORDS: &str = "
SELECT n.place, m.record FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS n(conversation, seq, place)
CROSS JOIN LATERAL (
    SELECT record FROM messages m WHERE m.conversation = n.conversation AND m.seq = n.seq LIMIT 1
) m";

const GROUP_MEMBERS: &str = "
SELECT n.place, h.members, h.last_seq, CASE WHEN h.members <= $2 THEN ARRAY(
    SELECT m.user_id FROM members m WHERE m.conversation = n.conversation AND m.left_seq = 0
    ORDER BY m.user_id
) END
FROM unnest($1::text[]) WITH ORDINALITY AS n(conversation, place)
CROSS JOIN LATERAL (SELECT * FROM heads h WHERE h.conversation = n.conversation LIMIT 1) h";

/// Returns the rows at these seqs, with the head.
pub(super) async fn rows_at(
    session: &mut Session,
    conversation: &ConversationId,
    seqs: &[u64],
    max_bytes: usize,
) -> Result<Page, PostgresError> {
    let (id, bytes) = (conversation.as_str(), limit(max_bytes));
    let seqs: Vec<i64> = seqs.iter().map(|seq| bound(*seq)).collect();
    let rows = call(ROWS_AT, &[&id, &seqs, &bytes]);
    let mut found = session.read(&[call(HEAD, &[&id]), rows]).await?.into_iter();
    let heads = found.next().unwrap_or_default();
    let head = heads.first().map(|row| Reader::new(row).head()).transpose()?;
    let rows: Result<_, PostgresError> =
        found.next().unwrap_or_default().iter().map(|row| Reader::new(row).row()).collect();
    Ok(Page { head, rows: rows? })
}

/// Returns the time of each row, in order.
pub(super) async fn times(
    session: &mut Session,
    rows: &[ConversationSeq],
) -> Result<Vec<Option<u64>>, PostgresError> {
    let ids: Vec<&str> = rows.iter().map(|it| it.conversation.as_str()).collect();
    let seqs: Vec<i64> = rows.iter().map(|it| bound(it.seq)).collect();
    let mut times = vec![None; rows.len()];
    for row in session.read(&[call(RECORDS, &[&ids, &seqs])]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        *times.get_mut(index).ok_or_else(damaged)? = Some(reader.record_time()?);
    }
    Ok(times)
}

/// Returns the members of each group, in order.
pub(super) async fn group_members(
    session: &mut Session,
    groups: &[ConversationId],
    listed_max: usize,
) -> Result<Vec<Option<GroupMembers>>, PostgresError> {
    let mut all: Vec<Option<GroupMembers>> = Vec::with_capacity(groups.len());
    let most = limit(listed_max);
    for groups in groups.chunks(GROUPS_PER_STATEMENT) {
        let ids: Vec<&str> = groups.iter().map(ConversationId::as_str).collect();
        let mut found: Vec<Option<GroupMembers>> = groups.iter().map(|_| None).collect();
        for row in session.read(&[call(GROUP_MEMBERS, &[&ids, &most])]).await?.iter().flatten() {
            let mut reader = Reader::new(row);
            let index = reader.index()?;
            let (members, last_seq) = (reader.big()?, reader.big()?);
            let users: Vec<&str> = reader.get::<Option<Vec<&str>>>()?.unwrap_or_default();
            let users: Result<Vec<UserId>, _> = users.into_iter().map(UserId::new).collect();
            let users = users.map_err(|_| damaged())?;
            *found.get_mut(index).ok_or_else(damaged)? = Some(GroupMembers { members, last_seq, users });
        }
        all.append(&mut found);
    }
    Ok(all)
}

/// Query of the newest rows of several conversations.
pub(super) struct NewestQuery {
    pub(super) ends: Vec<ConversationSeq>,
    pub(super) limit: usize,
    pub(super) max_bytes: usize,
}

/// Returns the newest rows of each place of each request, in order.
pub(super) async fn newest(
    session: &mut Session,
    requests: &[&NewestQuery],
) -> Result<Vec<Vec<Vec<StoredRow>>>, PostgresError> {
    let ends: Vec<&ConversationSeq> = requests.iter().flat_map(|it| &it.ends).collect();
    let ids: Vec<&str> = ends.iter().map(|end| end.conversation.as_str()).collect();
    let cursors: Vec<i64> = ends.iter().map(|end| bound(end.seq)).collect();
    let of_each = |number: fn(&NewestQuery) -> usize| -> Vec<i64> {
        requests.iter().flat_map(|it| it.ends.iter().map(move |_| limit(number(it)))).collect()
    };
    let (most, bytes) = (of_each(|it| it.limit), of_each(|it| it.max_bytes));
    let mut rows: Vec<Vec<StoredRow>> = ends.iter().map(|_| Vec::new()).collect();
    for row in session.read(&[call(NEWEST, &[&ids, &cursors, &most, &bytes])]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        rows.get_mut(index).ok_or_else(damaged)?.push(reader.row()?);
    }
    let mut rows = rows.into_iter();
    Ok(requests.iter().map(|it| rows.by_ref().take(it.ends.len()).collect()).collect())
}

impl BatchedQuery for NewestQuery {
    type Reply = Vec<Vec<StoredRow>>;
    const TASKS_MAX: usize = 2;
    /// In places; most users have few conversations.
    const BATCH_SIZE_MAX: usize = 512;

    fn size(&self) -> usize {
        self.ends.len()
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.newest
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<Self::Reply>, StoreError> {
        core.run(move || async move { newest(&mut core.client_reads(ReadsOf::Clients).await?, batch).await })
            .await
    }
}
