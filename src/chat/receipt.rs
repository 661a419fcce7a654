//! Read: moves a user's mark forward, and tells the user's other devices (DESIGN 6.6, 6.8).

use std::sync::Arc;

use tidegate_protocol::{
    Code,
    codec::PushFrame,
    id::{ConversationId, UserId},
    pb::{self, server_frame::Body as Said},
    record::Body,
};

use super::{
    history::{Refusal, away},
    unread::View,
};
use crate::{
    directory::Directory,
    mail::{Audience, ConnKey, Delivery, Item, Mail, ShardHandle},
    store::{Direction, Mark, PageQuery, Store, StoredRow},
};

/// Rows looked at in a turn while own messages are counted.
const STEP: usize = 64;
const STEP_BYTES: usize = 1 << 20;

/// Marks everything up to `seq` as read, as far as there is something and the user may see it. Gives the new mark if
/// it moved.
///
/// # Errors
/// `NOT_A_MEMBER` for who was never in; `NOT_YET` where nothing was said yet.
pub async fn read(
    store: &dyn Store,
    user: &UserId,
    conversation: &ConversationId,
    seq: u64,
) -> Result<Option<Mark>, Refusal> {
    let summary = store.summary(conversation, Some(user)).await.map_err(away)?;
    let direct = conversation.is_direct_of(user);
    let Some(summary) = summary else {
        return Err(if direct {
            (Code::NotYet, "nothing was said here yet")
        } else {
            (Code::NotAMember, "")
        });
    };
    let standing = summary.standing.ok_or((Code::NotAMember, ""))?;
    let view = View::new(conversation, &summary.head, &standing);
    // Below what retention took nothing can be counted, and nothing can be read.
    let seq = seq.max(view.pruned_to).min(view.max());
    if seq <= view.mark().seq {
        return Ok(None);
    }
    let counting = Counting { store, user, conversation, view: &view };
    let messages = counting.messages(seq, summary.head.messages).await?;
    let own = counting.own(seq).await?;
    let mark = Mark { seq, messages, own };
    store.save_marks(&[(user.clone(), conversation.clone(), mark)]).await.map_err(away)?;
    Ok(Some(mark))
}

struct Counting<'a> {
    store: &'a dyn Store,
    user: &'a UserId,
    conversation: &'a ConversationId,
    view: &'a View,
}

impl Counting<'_> {
    /// How many messages the conversation has up to `seq`; `all` if nothing follows it.
    async fn messages(&self, seq: u64, all: u64) -> Result<u64, Refusal> {
        let rows = self.rows(seq, Direction::Forward, 1).await?;
        // The ordinal of the next row, less itself.
        Ok(rows.first().map_or(all, |row| row.row.ordinal - u64::from(is_message(row))))
    }

    /// How many of them are the user's own: found at the next own message to either side, or at the mark. So marks
    /// that follow each other look at no row twice, and most look at none.
    async fn own(&self, seq: u64) -> Result<u64, Refusal> {
        let (mark, sent) = (self.view.mark(), self.view.sent());
        if mark.own == sent || seq >= self.view.max() {
            return Ok(sent);
        }
        let (mut up, mut down) = (seq, seq + 1);
        loop {
            let above = self.rows(up, Direction::Forward, STEP).await?;
            if let Some(own) = above.iter().find_map(|row| self.own_of(row)) {
                return Ok(own - 1);
            }
            let below = self.rows(down, Direction::Backward, STEP).await?;
            let unread = below.iter().take_while(|row| row.row.seq > mark.seq);
            if let Some(own) = unread.clone().find_map(|row| self.own_of(row)) {
                return Ok(own);
            }
            match above.last() {
                Some(row) => up = row.row.seq,
                None => return Ok(sent),
            }
            // All rows down to the mark were looked at. With retention in between, the search goes on above.
            match below.last() {
                Some(row) if unread.count() == below.len() => down = row.row.seq,
                Some(_) => return Ok(mark.own),
                None if self.view.pruned_to <= mark.seq => return Ok(mark.own),
                None => {}
            }
        }
    }

    async fn rows(&self, cursor: u64, direction: Direction, limit: usize) -> Result<Vec<StoredRow>, Refusal> {
        let query = PageQuery { cursor, direction, limit, max_bytes: STEP_BYTES };
        Ok(self.store.page(self.conversation, query).await.map_err(away)?.rows)
    }

    /// The user's count of own messages, if the row is one.
    fn own_of(&self, row: &StoredRow) -> Option<u64> {
        match &row.row.body {
            Body::Message(message) if message.sender == *self.user => Some(row.row.own),
            _ => None,
        }
    }
}

fn is_message(row: &StoredRow) -> bool {
    matches!(row.row.body, Body::Message(_))
}

/// Tells the user's connections other than `reader` where the mark is now. One that misses it, because its shard has
/// no room for mail, learns it at its next Sync.
pub fn tell(
    directory: &Directory,
    shards: &[ShardHandle],
    user: &UserId,
    conversation: &ConversationId,
    mark: Mark,
    reader: ConnKey,
) {
    let receipt =
        pb::Receipt { conversation: conversation.to_string(), user: user.to_string(), seq: mark.seq };
    let frame = PushFrame::new(&pb::ServerFrame { id: 0, body: Some(Said::Receipt(receipt)) });
    let delivery = Delivery {
        conversation: conversation.clone(),
        seq: mark.seq,
        audience: Audience::Users([user.clone()].into()),
        frame: Arc::new(frame),
        origin: Some(reader),
        tracked: false,
    };
    for shard in directory.user(user).iter() {
        if let Some(handle) = shards.get(shard) {
            handle.try_post(Mail::Deliver(vec![Item::Push(delivery.clone())]));
        }
    }
}
