//! Recipients of messages: the other side of a direct conversation, members of small groups, and those whom a message in a
//! larger group mentions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::Mutex;
use prost::Message as _;
use tidegate_protocol::{
    content::Content,
    id::{ConversationId, ConversationKind, UserId},
    machine::{
        waiting::{WaitingMessage, WaitingRecipient},
        webhook::{WebhookEvent, WebhookEventKind},
    },
    record::{Body, Role, mode},
    settings::Push,
};

use super::read_each;
use crate::{
    conversation::unread::View,
    log_limit::log_limited,
    store::{FeedEntry, FeedKind, GroupMembers, ReadClass, Store, StoreError, StoredRow},
    webhooks::{FoundEntry, WebhookFilter},
};

/// Recipients of a page from which on its further entries are left to the next one.
const RECIPIENTS_MAX: usize = 4_096;

/// Largest group in which a mention of all is a notice to each member; in larger ones it is none.
const ALL_MAX: u64 = 10_000;

/// Members that are read at a time.
const MEMBERS_PER_READ: usize = 1_000;

/// Senders whose right to mention all members is kept.
const RIGHTS_MAX: usize = 4_096;

/// Mention of all members.
const ALL: &str = "*";

/// What notices need of a message; its content is not kept.
pub(super) struct NoticedMessage {
    pub(super) sender: UserId,
    is_operator: bool,
    mentions: Vec<String>,
}

/// Messages with their recipients, and the last entry that they cover.
pub(super) struct Addressed {
    pub(super) messages: Vec<(WaitingMessage, Vec<WaitingRecipient>)>,
    pub(super) end: u64,
}

/// Finder of recipients, for one page or one round: it keeps what it has read of senders.
pub(super) struct Recipients<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) filter: &'a WebhookFilter,
    small_group_max: usize,
    /// Whether senders may mention all members of a group.
    rights: Mutex<HashMap<(ConversationId, UserId), bool>>,
}

impl<'a> Recipients<'a> {
    /// Creates a finder that has read nothing.
    pub(super) fn new(store: &'a dyn Store, filter: &'a WebhookFilter, small_group_max: usize) -> Self {
        Self { store, filter, small_group_max, rights: Mutex::default() }
    }
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
        let noticed = found.into_iter().zip(&wanted).filter_map(|(found, entry)| Some((*entry, found?)));
        let noticed: Vec<(&FeedEntry, NoticedMessage)> = noticed.collect();
        let groups = self.groups(&noticed).await?;
        let mut addressed = Addressed { messages: Vec::new(), end: entries.last().map_or(0, |it| it.number) };
        let mut count = 0;
        for (entry, message) in noticed {
            if count >= RECIPIENTS_MAX {
                addressed.end = entry.number - 1;
                break;
            }
            let mut recipients = match entry.conversation.kind() {
                ConversationKind::Direct(one, other) => direct(&message, [one, other]),
                _ => self.of_group(&entry.conversation, &message, groups.get(&entry.conversation)).await?,
            };
            recipients.retain(|it| {
                it.user != message.sender && self.filter.wants_notice(&it.user, &message.sender)
            });
            count += recipients.len();
            let waiting = WaitingMessage {
                number: entry.number,
                conversation: entry.conversation.clone(),
                seq: entry.seq,
                time: entry.time,
                sender: message.sender,
            };
            addressed.messages.push((waiting, recipients));
        }
        Ok(Some(addressed))
    }

    /// Reads what notices need of the rows of entries; `None` of those that may be no notice.
    async fn rows(&self, entries: &[&FeedEntry]) -> Result<Option<Vec<Option<NoticedMessage>>>, StoreError> {
        let event = |it: &&FeedEntry| WebhookEvent {
            conversation: it.conversation.clone(),
            seq: it.seq,
            kind: WebhookEventKind::Message,
        };
        let events: Vec<WebhookEvent> = entries.iter().map(event).collect();
        let take = |_, found| match found {
            FoundEntry::Row(row, _) => noticed(&row),
            FoundEntry::Pruned => None,
        };
        read_each(self.store, &events, take).await
    }

    /// Reads the groups of messages, with the members of small ones.
    async fn groups(
        &self,
        messages: &[(&FeedEntry, NoticedMessage)],
    ) -> Result<HashMap<ConversationId, GroupMembers>, StoreError> {
        let groups = messages.iter().map(|(entry, _)| &entry.conversation);
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
        conversation: &ConversationId,
        message: &NoticedMessage,
        group: Option<&GroupMembers>,
    ) -> Result<Vec<WaitingRecipient>, StoreError> {
        let Some(group) = group else { return Ok(Vec::new()) };
        let mentions: BTreeSet<&str> = message.mentions.iter().map(String::as_str).collect();
        let mentions_all = mentions.contains(ALL) && self.may_mention_all(conversation, message).await?;
        if self.is_small(group.members) {
            let recipient = |user: &UserId| WaitingRecipient {
                user: user.clone(),
                is_mentioned: mentions_all || mentions.contains(user.as_str()),
            };
            return Ok(group.users.iter().map(recipient).collect());
        }
        if mentions_all && group.members <= ALL_MAX {
            return self.all_members(conversation).await;
        }
        if mentions_all {
            let group = conversation.as_str();
            log_limited!(warn, group, "mention of all in a large group is a notice to no member");
        }
        // Whether they are members is read when a notice may be due.
        let users = mentions.into_iter().filter_map(|name| UserId::new(name).ok());
        Ok(users.map(|user| WaitingRecipient { user, is_mentioned: true }).collect())
    }

    fn is_small(&self, members: u64) -> bool {
        members <= self.small_group_max as u64
    }

    /// Returns whether each message of a conversation with so many members is for all of them.
    pub(super) fn reaches_all(&self, conversation: &ConversationId, members: u64) -> bool {
        matches!(conversation.kind(), ConversationKind::Direct(..)) || self.is_small(members)
    }

    /// Returns whether a message mentions a user, who is one of so many members of its conversation.
    pub(super) async fn mentions(
        &self,
        conversation: &ConversationId,
        message: &NoticedMessage,
        user: &UserId,
        members: u64,
    ) -> Result<bool, StoreError> {
        let names = |name: &str| message.mentions.iter().any(|it| it == name);
        if names(user.as_str()) || !names(ALL) {
            return Ok(names(user.as_str()));
        }
        if matches!(conversation.kind(), ConversationKind::Direct(..)) {
            return Ok(true);
        }
        let is_noticed = self.is_small(members) || members <= ALL_MAX;
        Ok(is_noticed && self.may_mention_all(conversation, message).await?)
    }

    /// Returns whether the sender may mention all members: the operator, admins and owners. The store is read once for each
    /// sender, who may have sent many messages.
    async fn may_mention_all(
        &self,
        conversation: &ConversationId,
        message: &NoticedMessage,
    ) -> Result<bool, StoreError> {
        if message.is_operator {
            return Ok(true);
        }
        let key = (conversation.clone(), message.sender.clone());
        let known = self.rights.lock().get(&key).copied();
        if let Some(may) = known {
            return Ok(may);
        }
        let summary = self.store.summary(conversation, Some(&message.sender)).await?;
        let member = summary.and_then(|it| it.member_view).map(|view| view.member);
        let may = member.is_some_and(|member| member.is_in() && member.role >= Role::Admin);
        let mut rights = self.rights.lock();
        if rights.len() < RIGHTS_MAX {
            rights.insert(key, may);
        }
        Ok(may)
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

/// Returns which messages of a conversation with these settings make notices for a user: by the user's preference there, by
/// the setting of the group, or by the user's preference for all conversations.
pub(super) fn push_preference(
    view: &View,
    settings: &BTreeMap<String, String>,
    for_all: Option<Push>,
) -> Push {
    let of_group = || Push::of_group(settings);
    view.user_state().push.or_else(of_group).or(for_all).unwrap_or_default()
}

/// Returns the message of a row, if it may be a notice.
pub(super) fn noticed(row: &StoredRow) -> Option<NoticedMessage> {
    let Body::Message(message) = &row.row.body else { return None };
    let may_be = row.recalled.is_none() && message.counts() && message.flags & mode::NO_PUSH == 0;
    may_be.then(|| NoticedMessage {
        sender: message.sender.clone(),
        is_operator: message.mode.is_operator,
        mentions: Content::decode(message.content.clone()).unwrap_or_default().mentions,
    })
}

/// Returns the users of a direct conversation; the sender is left out later, and may be neither of them. A mention of all
/// means the other one: neither needs a role for it.
fn direct(message: &NoticedMessage, users: [&str; 2]) -> Vec<WaitingRecipient> {
    let users: BTreeSet<&str> = users.into_iter().collect();
    let users = users.into_iter().filter(|user| *user != message.sender.as_str());
    let users = users.filter_map(|user| UserId::new(user).ok());
    let is_mentioned = |user: &UserId| message.mentions.iter().any(|it| it == ALL || it == user.as_str());
    users.map(|user| WaitingRecipient { is_mentioned: is_mentioned(&user), user }).collect()
}
