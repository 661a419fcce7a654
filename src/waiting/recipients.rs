//! Recipients of messages: the other side of a direct conversation, members of small groups, and those whom a message in a
//! larger group mentions.

use std::collections::{BTreeSet, HashMap};

use prost::Message as _;
use tidegate_protocol::{
    content::Content,
    id::{ConversationId, ConversationKind, UserId},
    machine::{
        waiting::{WaitingMessage, WaitingRecipient},
        webhook::{WebhookEvent, WebhookEventKind},
    },
    record::{Body, Message, Role, mode},
};

use super::read_all;
use crate::{
    log_limit::log_limited,
    store::{FeedEntry, FeedKind, GroupMembers, ReadClass, Store, StoreError},
    webhooks::{FoundEntry, WebhookFilter},
};

/// Recipients of a page from which on its further entries are left to the next one.
const RECIPIENTS_MAX: usize = 4_096;

/// Largest group in which a mention of all is a notice to each member; in larger ones it is none.
const ALL_MAX: u64 = 10_000;

/// Members that are read at a time.
const MEMBERS_PER_READ: usize = 1_000;

/// Mention of all members.
const ALL: &str = "*";

/// Messages with their recipients, and the last entry that they cover.
pub(super) struct Addressed {
    pub(super) messages: Vec<(WaitingMessage, Vec<WaitingRecipient>)>,
    pub(super) end: u64,
}

/// Finder of recipients.
pub(super) struct Recipients<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) filter: &'a WebhookFilter,
    pub(super) small_group_max: usize,
}

impl Recipients<'_> {
    /// Finds the recipients of the messages among entries of the feed, which are not empty. Those of a page that has enough
    /// are left out, from some entry on. `None` if the store lacks an entry: it fell back to an older state.
    pub(super) async fn of(&self, entries: &[FeedEntry]) -> Result<Option<Addressed>, StoreError> {
        let wanted = |it: &&FeedEntry| {
            it.kind == FeedKind::Message && self.filter.wants_conversation(&it.conversation)
        };
        let wanted: Vec<&FeedEntry> = entries.iter().filter(wanted).collect();
        let Some(found) = self.rows(&wanted).await? else { return Ok(None) };
        let noticed = found.iter().zip(&wanted).filter_map(|(found, entry)| {
            let message = noticed(found)?;
            Some((*entry, message))
        });
        let noticed: Vec<(&FeedEntry, &Message)> = noticed.collect();
        let groups = self.groups(&noticed).await?;
        let mut addressed = Addressed { messages: Vec::new(), end: entries.last().map_or(0, |it| it.number) };
        let mut count = 0;
        for (entry, message) in noticed {
            if count >= RECIPIENTS_MAX {
                addressed.end = entry.number - 1;
                break;
            }
            let mut recipients = match message.conversation.kind() {
                ConversationKind::Direct(one, other) => direct(message, [one, other]),
                _ => self.of_group(message, groups.get(&message.conversation)).await?,
            };
            recipients.retain(|it| {
                it.user != message.sender && self.filter.wants_notice(&it.user, &message.sender)
            });
            count += recipients.len();
            let waiting = WaitingMessage {
                number: entry.number,
                conversation: message.conversation.clone(),
                seq: entry.seq,
                time: entry.time,
                sender: message.sender.clone(),
            };
            addressed.messages.push((waiting, recipients));
        }
        Ok(Some(addressed))
    }

    /// Reads the rows of entries.
    async fn rows(&self, entries: &[&FeedEntry]) -> Result<Option<Vec<FoundEntry>>, StoreError> {
        let event = |it: &&FeedEntry| WebhookEvent {
            conversation: it.conversation.clone(),
            seq: it.seq,
            kind: WebhookEventKind::Message,
        };
        let events: Vec<WebhookEvent> = entries.iter().map(event).collect();
        read_all(self.store, &events).await
    }

    /// Reads the groups of messages, with the members of small ones.
    async fn groups(
        &self,
        messages: &[(&FeedEntry, &Message)],
    ) -> Result<HashMap<ConversationId, GroupMembers>, StoreError> {
        let groups = messages.iter().map(|(_, message)| &message.conversation);
        let groups: BTreeSet<&ConversationId> =
            groups.filter(|it| matches!(it.kind(), ConversationKind::Group(_))).collect();
        let groups: Vec<ConversationId> = groups.into_iter().cloned().collect();
        if groups.is_empty() {
            return Ok(HashMap::new());
        }
        let members = self.store.group_members(&groups, self.small_group_max, ReadClass::Client).await?;
        Ok(groups.into_iter().zip(members).filter_map(|(group, members)| Some((group, members?))).collect())
    }

    async fn of_group(
        &self,
        message: &Message,
        group: Option<&GroupMembers>,
    ) -> Result<Vec<WaitingRecipient>, StoreError> {
        let Some(group) = group else { return Ok(Vec::new()) };
        let content = Content::decode(message.content.clone()).unwrap_or_default();
        let mentions: BTreeSet<&str> = content.mentions.iter().map(String::as_str).collect();
        let is_small = group.members <= self.small_group_max as u64;
        let mentions_all = mentions.contains(ALL) && self.may_mention_all(message).await?;
        if is_small {
            let recipient = |user: &UserId| WaitingRecipient {
                user: user.clone(),
                is_mentioned: mentions_all || mentions.contains(user.as_str()),
            };
            return Ok(group.users.iter().map(recipient).collect());
        }
        if mentions_all && group.members <= ALL_MAX {
            return self.all_members(&message.conversation).await;
        }
        if mentions_all {
            let group = message.conversation.as_str();
            log_limited!(warn, group, "mention of all in a large group is a notice to no member");
        }
        // Whether they are members is read when a notice may be due.
        let users = mentions.into_iter().filter_map(|name| UserId::new(name).ok());
        Ok(users.map(|user| WaitingRecipient { user, is_mentioned: true }).collect())
    }

    /// Returns whether the sender may mention all members: the operator, admins and owners.
    async fn may_mention_all(&self, message: &Message) -> Result<bool, StoreError> {
        if message.mode.is_operator {
            return Ok(true);
        }
        let summary = self.store.summary(&message.conversation, Some(&message.sender)).await?;
        let member = summary.and_then(|it| it.member_view).map(|view| view.member);
        Ok(member.is_some_and(|member| member.is_in() && member.role >= Role::Admin))
    }

    async fn all_members(&self, group: &ConversationId) -> Result<Vec<WaitingRecipient>, StoreError> {
        let mut all: Vec<WaitingRecipient> = Vec::new();
        while (all.len() as u64) < ALL_MAX {
            let after = all.last().map(|it| it.user.clone());
            let page = self.store.members(group, after.as_ref(), MEMBERS_PER_READ).await?;
            if page.is_empty() {
                break;
            }
            all.extend(page.into_iter().map(|(user, _)| WaitingRecipient { user, is_mentioned: true }));
        }
        Ok(all)
    }
}

/// Returns the message of a row, if it may be a notice.
fn noticed(found: &FoundEntry) -> Option<&Message> {
    let FoundEntry::Row(row, _) = found else { return None };
    match &row.row.body {
        Body::Message(message) if row.recalled.is_none() => {
            (message.counts() && message.flags & mode::NO_PUSH == 0).then_some(message)
        }
        _ => None,
    }
}

/// Returns the users of a direct conversation; the sender is left out later, and may be neither of them.
fn direct(message: &Message, users: [&str; 2]) -> Vec<WaitingRecipient> {
    let users: BTreeSet<&str> = users.into_iter().collect();
    let users = users.into_iter().filter(|user| *user != message.sender.as_str());
    let users = users.filter_map(|user| UserId::new(user).ok());
    users.map(|user| WaitingRecipient { user, is_mentioned: false }).collect()
}
