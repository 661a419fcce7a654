//! Lists of groups and members in Postgres: one statement a page, over the connections of reads.

use async_trait::async_trait;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::Role,
};

use super::{
    super::{
        PostgresStore,
        codec::{Reader, limit},
        error::{PostgresError, damaged},
        session::{Session, call},
    },
    conversation_head,
};
use crate::store::{
    ConversationHead, GROUP_PAGE_BYTES_MAX, GroupLists, GroupMember, GroupOfUser, ListPage, MembersRequest,
    StoreError, rows_visited_max,
};

/// Beginning of the keys of groups, which no group has as its key.
const GROUPS: &str = "g:";

/// Builds the statement of a page from the rows that it visits and those of them that are listed, both sorted by `key`. Each
/// row of the result begins with the last key that was visited, and how many rows were visited and are listed; a page
/// without rows has one of them.
macro_rules! page {
    ($key:literal, $visited:literal, $listed:literal, $page:literal, $condition:literal) => {
        concat!(
            "WITH visited AS MATERIALIZED (",
            $visited,
            "), listed AS MATERIALIZED (",
            $listed,
            ") SELECT e.last, e.visited, e.listed, p.",
            $key,
            " IS NOT NULL, p.* FROM (SELECT max(",
            $key,
            ") AS last, count(*) AS visited, (SELECT count(*) FROM listed) AS listed FROM visited) e
            LEFT JOIN (",
            $page,
            ") p ON true WHERE ",
            $condition,
            " ORDER BY p.",
            $key
        )
    };
}

/// Listed groups `$4`, up to `$5` bytes of settings; at least one.
macro_rules! group_page {
    ($visited:literal, $listed:literal) => {
        page!(
            "conversation",
            $visited,
            $listed,
            "SELECT * FROM (
                SELECT *, row_number() OVER way AS place, sum(octet_length(coalesce(settings, ''))) OVER way AS bytes
                FROM listed WINDOW way AS (ORDER BY conversation)
            ) l WHERE place <= $4 AND (bytes <= $5 OR place = 1)",
            "true"
        )
    };
}

/// No character of a key is above `~`.
const GROUP_PAGE: &str = group_page!(
    "SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings, members FROM heads
    WHERE conversation >= $1 AND conversation < $1 || '~' AND conversation > $2 ORDER BY conversation LIMIT $3",
    "SELECT * FROM visited WHERE deleted_seq = 0"
);

const GROUPS_OF: &str = group_page!(
    "SELECT conversation FROM memberships
    WHERE user_id = $1 AND conversation > $2 AND conversation >= 'g:' AND conversation < 'g:~' ORDER BY conversation LIMIT $3",
    "SELECT v.conversation, h.last_seq, h.messages, h.pruned_to, h.deleted_seq, h.settings, h.members,
        m.role, m.muted, m.joined_seq, m.left_seq, m.sent, m.joined_messages, m.left_messages, m.stays
    FROM visited v
    CROSS JOIN LATERAL (SELECT * FROM heads h WHERE h.conversation = v.conversation LIMIT 1) h
    CROSS JOIN LATERAL (
        SELECT * FROM members m WHERE m.conversation = v.conversation AND m.user_id = $1 LIMIT 1
    ) m WHERE m.left_seq = 0 AND h.deleted_seq = 0"
);

const MEMBER_PAGE: &str = page!(
    "user_id",
    "SELECT user_id, role, muted, joined_seq, left_seq, sent, joined_messages, left_messages, stays FROM members
    WHERE conversation = $1 AND user_id > $2 ORDER BY user_id LIMIT $3",
    "SELECT * FROM visited WHERE left_seq = 0 AND ($5::smallint = 0 OR role = $5::smallint)",
    "SELECT * FROM listed ORDER BY user_id LIMIT $4",
    "EXISTS (SELECT FROM heads h WHERE h.conversation = $1 AND h.deleted_seq = 0)"
);

/// Page as a statement returns it: its rows, and what each row of the result says of its end.
struct ReadPage<T, K> {
    rows: Vec<T>,
    last_visited: Option<K>,
    visited: u64,
    listed: u64,
}

impl<T, K> ReadPage<T, K> {
    /// Reads a page; `None` if the result is empty.
    fn read(
        found: &[tokio_postgres::Row],
        parse: impl Fn(&str) -> Option<K>,
        row_of: impl Fn(&mut Reader<'_>) -> Result<T, PostgresError>,
    ) -> Result<Option<Self>, PostgresError> {
        let mut page: Option<Self> = None;
        for row in found {
            let mut reader = Reader::new(row);
            let last: Option<&str> = reader.get()?;
            let last_visited = last.map(|last| parse(last).ok_or_else(damaged)).transpose()?;
            let (visited, listed) = (reader.big()?, reader.big()?);
            let page = page.get_or_insert(Self { rows: Vec::new(), last_visited, visited, listed });
            if reader.get()? {
                page.rows.push(row_of(&mut reader)?);
            }
        }
        Ok(page)
    }

    /// Returns the page with the key to go on after.
    fn finish(self, visited_max: usize, key: impl Fn(&T) -> K) -> ListPage<T, K> {
        let Self { rows, last_visited, visited, listed } = self;
        let next = if (rows.len() as u64) < listed {
            rows.last().map(key)
        } else {
            last_visited.filter(|_| visited >= visited_max as u64)
        };
        ListPage { rows, next }
    }
}

/// Page of groups as a statement returns it.
async fn groups<T>(
    session: &mut Session,
    sql: &'static str,
    parameters: GroupsParameters<'_>,
    row_of: impl Fn(&mut Reader<'_>) -> Result<T, PostgresError>,
    key: impl Fn(&T) -> ConversationId,
) -> Result<ListPage<T, ConversationId>, PostgresError> {
    let GroupsParameters { of, after, most } = parameters;
    let visited_max = rows_visited_max(most);
    let (after, visited, most, bytes) = (after, limit(visited_max), limit(most), limit(GROUP_PAGE_BYTES_MAX));
    let found = session.read(&[call(sql, &[&of, &after, &visited, &most, &bytes])]).await?;
    let rows: Vec<_> = found.into_iter().flatten().collect();
    let page = ReadPage::read(&rows, |text| ConversationId::parse(text).ok(), row_of)?;
    Ok(page.ok_or_else(damaged)?.finish(visited_max, key))
}

/// Parameters of a page of groups: a prefix or a user, the last key before it, and the most groups.
struct GroupsParameters<'a> {
    of: &'a str,
    after: &'a str,
    most: usize,
}

async fn member_page(
    session: &mut Session,
    request: &MembersRequest,
) -> Result<Option<ListPage<GroupMember, UserId>>, PostgresError> {
    let role: i16 = match request.role {
        None => 0,
        Some(Role::Member) => 1,
        Some(Role::Admin) => 2,
        Some(Role::Owner) => 3,
    };
    let after = request.after.as_ref().map_or("", UserId::as_str);
    let (group, visited, most) = (request.group.as_str(), limit(request.visited_max()), limit(request.limit));
    let found = session.read(&[call(MEMBER_PAGE, &[&group, &after, &visited, &most, &role])]).await?;
    let rows: Vec<_> = found.into_iter().flatten().collect();
    let member = |reader: &mut Reader<'_>| Ok(GroupMember { user: reader.user()?, member: reader.member()? });
    let page = ReadPage::read(&rows, |text| UserId::new(text).ok(), member)?;
    Ok(page.map(|page| page.finish(request.visited_max(), |it| it.user.clone())))
}

#[async_trait]
impl GroupLists for PostgresStore {
    async fn group_page(
        &self,
        prefix: &str,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<ConversationHead, ConversationId>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        let after = after.map_or("", ConversationId::as_str);
        core.run(move || async move {
            let parameters = GroupsParameters { of: prefix, after, most: limit };
            let session = &mut core.client_reads(reads).await?;
            groups(session, GROUP_PAGE, parameters, conversation_head, |it| it.conversation.clone()).await
        })
        .await
    }

    async fn member_page(
        &self,
        request: &MembersRequest,
    ) -> Result<Option<ListPage<GroupMember, UserId>>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        core.run(move || async move { member_page(&mut core.client_reads(reads).await?, request).await })
            .await
    }

    async fn groups_of(
        &self,
        user: &UserId,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<ListPage<GroupOfUser, ConversationId>, StoreError> {
        let (core, reads) = (&*self.core, self.reads);
        let after = after.map_or(GROUPS, ConversationId::as_str);
        let row_of = |reader: &mut Reader<'_>| {
            let group = conversation_head(reader)?;
            Ok(GroupOfUser { group, member: reader.member()? })
        };
        core.run(move || async move {
            let parameters = GroupsParameters { of: user.as_str(), after, most: limit };
            let session = &mut core.client_reads(reads).await?;
            groups(session, GROUPS_OF, parameters, row_of, |it: &GroupOfUser| it.group.conversation.clone())
                .await
        })
        .await
    }
}
