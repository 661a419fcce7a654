//! What users keep and wish. Rows are locked in the order of their names, so that nobody waits in a circle.

use std::collections::BTreeMap;

use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::{Retention, Search, Unread, UserSettings},
};

use super::{
    batcher::Wishes,
    codec::{self, Reader, big},
    error::{Trouble, damaged},
    session::{Session, call},
};
use crate::store::{Level, Personal};

/// As durable as what is archived: a mark that was acked and fell with a crash of the server was seen under chaos.
const BEGIN: &str = "BEGIN";

const NEW_MARKS: &str = "
INSERT INTO marks (user_id, conversation) SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING";

const MARKS: &str = "
SELECT n.place, k.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n(user_id, conversation, place)
CROSS JOIN LATERAL (
    SELECT seq, messages, own, cleared_seq, cleared_messages, cleared_own, hidden
    FROM marks k WHERE k.user_id = n.user_id AND k.conversation = n.conversation LIMIT 1 FOR UPDATE
) k";

const PUT_MARKS: &str = "
INSERT INTO marks SELECT * FROM unnest(
    $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bytea[]
) ON CONFLICT (user_id, conversation) DO UPDATE SET
    seq = EXCLUDED.seq, messages = EXCLUDED.messages, own = EXCLUDED.own, cleared_seq = EXCLUDED.cleared_seq,
    cleared_messages = EXCLUDED.cleared_messages, cleared_own = EXCLUDED.cleared_own, hidden = EXCLUDED.hidden";

const WISHES: &str = "
SELECT n.place, w.* FROM unnest($1::text[]) WITH ORDINALITY AS n(user_id, place)
CROSS JOIN LATERAL (
    SELECT ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search
    FROM wishes w WHERE w.user_id = n.user_id LIMIT 1
) w";

const NEW_WISHES: &str = "INSERT INTO wishes (user_id) VALUES ($1) ON CONFLICT DO NOTHING";

const LOCKED_WISHES: &str = "
SELECT ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search FROM wishes WHERE user_id = $1 FOR UPDATE";

const PUT_WISHES: &str = "
UPDATE wishes SET ack_timeout_ms = $2, ack_tries = $3, heartbeat_ms = $4, unread = $5, retention = $6, search = $7
WHERE user_id = $1";

/// What a user marks.
pub(super) type Change = (UserId, ConversationId, Personal);

/// Columns of marks.
#[derive(Default)]
struct Marks<'a> {
    user: Vec<&'a str>,
    conversation: Vec<&'a str>,
    numbers: [Vec<i64>; 6],
    hidden: Vec<Vec<u8>>,
}

impl<'a> Marks<'a> {
    fn push(&mut self, user: &'a str, conversation: &'a str, level: &Level) {
        let Level { mark, cleared, hidden } = level;
        self.user.push(user);
        self.conversation.push(conversation);
        let numbers = [mark.seq, mark.messages, mark.own, cleared.seq, cleared.messages, cleared.own];
        for (column, number) in self.numbers.iter_mut().zip(numbers) {
            column.push(big(number));
        }
        self.hidden.push(codec::put_hidden(hidden));
    }
}

pub(super) async fn save_marks(session: &mut Session, changes: &[Change]) -> Result<(), Trouble> {
    let mut of_pair: BTreeMap<(&str, &str), Vec<&Personal>> = BTreeMap::new();
    for (user, conversation, change) in changes {
        of_pair.entry((user.as_str(), conversation.as_str())).or_default().push(change);
    }
    let (users, conversations): (Vec<&str>, Vec<&str>) = of_pair.keys().copied().unzip();
    let new = call(NEW_MARKS, &[&users, &conversations]);
    let locked = call(MARKS, &[&users, &conversations]);
    let found = session.begin(BEGIN, &[new, locked]).await?;
    let mut levels = vec![None; of_pair.len()];
    for row in found.last().into_iter().flatten() {
        let mut reader = Reader::new(row);
        let place = reader.place()?;
        *levels.get_mut(place).ok_or_else(damaged)? = Some(reader.level()?);
    }
    let mut marks = Marks::default();
    for (((user, conversation), changes), level) in of_pair.iter().zip(levels) {
        let mut level = level.ok_or_else(|| Trouble::Again("a mark was taken away meanwhile".to_owned()))?;
        let mut changed = false;
        for change in changes {
            changed |= level.apply(change);
        }
        if changed {
            marks.push(user, conversation, &level);
        }
    }
    if !marks.user.is_empty() {
        let Marks { user, conversation, numbers: [a, b, c, d, e, f], hidden } = &marks;
        let put = call(PUT_MARKS, &[user, conversation, a, b, c, d, e, f, hidden]);
        return session.finish(&[put]).await;
    }
    session.commit().await
}

/// What each of them wished before, in order.
pub(super) async fn wishes(session: &mut Session, of: &[&Wishes]) -> Result<Vec<UserSettings>, Trouble> {
    let users: Vec<&str> = of.iter().map(|it| it.0.as_str()).collect();
    let mut all = vec![UserSettings::default(); of.len()];
    for row in session.read(&[call(WISHES, &[&users])]).await?.iter().flatten() {
        let mut reader = Reader::new(row);
        let place = reader.place()?;
        *all.get_mut(place).ok_or_else(damaged)? = reader.wishes()?;
    }
    Ok(all)
}

/// Puts what a user wishes now over what it wished before; all of it.
pub(super) async fn wish(
    session: &mut Session,
    user: &UserId,
    now: UserSettings,
) -> Result<UserSettings, Trouble> {
    let id = user.as_str();
    let found = session.begin(BEGIN, &[call(NEW_WISHES, &[&id]), call(LOCKED_WISHES, &[&id])]).await?;
    let row = found.last().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| Trouble::Again("a wish was taken away meanwhile".to_owned()))?;
    let wishes = now.over(Reader::new(row).wishes()?);
    let [timeout, tries, heartbeat] =
        [wishes.ack_timeout_ms, wishes.ack_tries, wishes.heartbeat_ms].map(i64::from);
    let (unread, retention) = (wishes.unread.map(Unread::word), wishes.retention.map(Retention::word));
    let search = wishes.search.map(Search::word);
    let put = call(PUT_WISHES, &[&id, &timeout, &tries, &heartbeat, &unread, &retention, &search]);
    session.finish(&[put]).await?;
    Ok(wishes)
}
