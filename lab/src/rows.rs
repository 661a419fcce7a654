//! The log at the end, read through the store's port without a node.

use std::collections::BTreeSet;

use anyhow::Context as _;
use prost::Message as _;
use tidegate::store::{Direction, PageQuery, Store};
use tidegate_protocol::{
    content::{Content, ContentBody},
    id::{ConversationId, UserId},
    machine::ledger::Row,
    record::{Body, MemberAction},
};

use crate::{
    checker::{Change, History, HistoryEvent},
    person::text_hash,
};

/// Rows or conversations of one read.
const PAGE: usize = 1_000;

/// Adds all stored rows of these users to the history.
///
/// # Errors
/// The store does not answer, or has an entry that no client asked for.
pub async fn read(store: &dyn Store, users: &BTreeSet<&str>, history: &mut History) -> anyhow::Result<()> {
    let at = history.events.last().map_or(0, |event| event.at);
    for conversation in conversations(store, users, history).await? {
        let mut cursor = 0;
        loop {
            let query =
                PageQuery { cursor, direction: Direction::Forward, limit: PAGE, max_bytes: usize::MAX };
            let page = store.page(&conversation, query).await?;
            if let Some(head) = page.head.filter(|head| cursor == 0 && head.pruned_to > 0) {
                let conv = conversation.as_str();
                history.push(at, HistoryEvent::LogGap { conv, first: 1, last: head.pruned_to });
            }
            let Some(last) = page.rows.last() else { break };
            cursor = last.row.seq;
            for stored in &page.rows {
                add(history, at, conversation.as_str(), &stored.row).context(cursor)?;
            }
        }
    }
    Ok(())
}

/// Returns the conversations of the users, and adds their read marks to the history.
async fn conversations(
    store: &dyn Store,
    users: &BTreeSet<&str>,
    history: &mut History,
) -> anyhow::Result<BTreeSet<ConversationId>> {
    let mut found = BTreeSet::new();
    let at = history.events.last().map_or(0, |event| event.at);
    for user in users {
        let user = UserId::new(user)?;
        let mut after: Option<ConversationId> = None;
        loop {
            let page = store.memberships(&user, after.as_ref(), PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.conversation.clone());
            for row in &page {
                let (conv, seq) = (row.conversation.as_str(), row.member_view.level.mark.seq);
                history.push(at, HistoryEvent::LogRead { user: user.as_str(), conv, seq });
            }
            found.extend(page.into_iter().map(|row| row.conversation));
        }
    }
    Ok(found)
}

fn add(history: &mut History, at: u64, conv: &str, row: &Row) -> anyhow::Result<()> {
    let seq = row.seq;
    match &row.body {
        Body::Message(message) => {
            let content = Content::decode(message.content.clone())?;
            let body = match &content.body {
                Some(ContentBody::Text(text)) => text_hash(text),
                _ => 0,
            };
            let (sender, device) = (message.sender.as_str(), message.device.as_str());
            let cid = message.msg_id.as_str();
            history.push(at, HistoryEvent::LogMessage { conv, seq, sender, device, cid, body });
        }
        Body::Member(change) => {
            let what = match change.action {
                MemberAction::Create | MemberAction::Join => Change::Join,
                MemberAction::Leave => Change::Leave,
                MemberAction::Kick => Change::Kick,
                action => anyhow::bail!("{action:?} was never asked for"),
            };
            for user in &change.users {
                history.push(at, HistoryEvent::LogMember { conv, seq, user: user.as_str(), change: what });
            }
        }
        Body::Edit(edit) => {
            let (of, cid) = (edit.seq, edit.msg_id.as_str());
            history.push(at, HistoryEvent::LogEdit { conv, seq, of, cid });
        }
        other => anyhow::bail!("never asked for: {other:?}"),
    }
    Ok(())
}
