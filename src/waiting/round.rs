//! One round: what the users of its notices have read and acked, and the requests with those that are due.

use std::{
    collections::BTreeMap,
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{self, StreamExt as _};
use serde_json::Value;
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::{
        waiting::{WaitingNotice, WaitingOutcome, WaitingRound},
        webhook::{WebhookEvent, WebhookEventKind, WebhookOutcome},
    },
    settings::Push,
};

use super::{
    WaitingNotices,
    encode::{NoticeFacts, encode, preview_of},
    read_each,
    recipients::Recipients,
    standing::{Standing, StandingQuery, Unread},
};
use crate::{
    clock::wall_ms,
    conversation::{reader::Reader, unread_counts},
    hooks::{WebhookReply, WebhookRequest},
    link::AckQuery,
    log_limit::log_limited,
    store::StoreError,
    webhooks::{
        FoundEntry, WaitingForm, WaitingPlan, WaitingPreview, WaitingUnless, WebhookPermits, WebhookPlan,
        request_body,
    },
};

/// Users whose conversations are read at a time.
const USERS_AT_ONCE: usize = 8;

/// Longest count of all unread messages; without it, a notice has no badge.
const BADGE_TIME_MAX: Duration = Duration::from_secs(1);

/// Round of an endpoint that is being decided.
pub(super) struct RoundTask {
    pub(super) parts: Arc<WaitingNotices>,
    pub(super) plan: Arc<WebhookPlan>,
    pub(super) waiting: WaitingPlan,
    pub(super) permits: Arc<WebhookPermits>,
}

/// Notice that is due, with its place in the round.
struct Due {
    place: usize,
    facts: NoticeFacts,
    /// Highest seq that the user may see.
    max: u64,
    /// Seq up to which a device must have acked for nothing to wait.
    acked: u64,
}

/// User with notices at these places of the round.
struct UserNotices {
    reader: Reader,
    /// Preference for push notices of all conversations.
    push: Option<Push>,
    places: Vec<usize>,
}

/// Result of a round.
pub(super) struct DecidedRound {
    pub(super) ticket: u64,
    /// Outcomes, in the order of the notices.
    pub(super) outcomes: Vec<WaitingOutcome>,
    /// Reason of a failure.
    pub(super) error: Option<String>,
}

impl RoundTask {
    /// Decides the notices of a round, and sends those that are due.
    pub(super) async fn run(self, round: WaitingRound) -> DecidedRound {
        let WaitingRound { ticket, notices } = round;
        let mut outcomes = vec![WaitingOutcome::Undecided; notices.len()];
        let mut due = Vec::new();
        for (place, standing) in self.standings(&notices).await.into_iter().enumerate() {
            match standing {
                Standing::Unknown => {}
                Standing::Settled => outcomes[place] = WaitingOutcome::Settled,
                Standing::Waits(Unread { notice, count, is_mentioned, max, acked }) => {
                    let facts =
                        NoticeFacts { notice, is_mentioned, unread: count, badge: None, devices: None };
                    due.push(Due { place, facts, max, acked });
                }
            }
        }
        for it in self.drop_seen(&mut due).await {
            outcomes[it] = WaitingOutcome::Settled;
        }
        if self.waiting.form.badge {
            self.count_badges(&mut due).await;
        }
        // The requests that follow a failure are left to the next round: a receiver that hangs delays one round by a few.
        let has_failed = AtomicBool::new(false);
        let requests = self.requests(due).into_iter().map(|some| self.send(some, &has_failed));
        let requests: Vec<_> = requests.collect();
        let mut sent = stream::iter(requests).buffer_unordered(self.plan.delivery.parallel.max(1));
        let mut error = None;
        while let Some((places, reply)) = sent.next().await {
            let outcome = outcome(&reply);
            if !matches!(
                outcome,
                WaitingOutcome::Noticed | WaitingOutcome::Refused | WaitingOutcome::Undecided
            ) {
                has_failed.store(true, Ordering::Relaxed);
            }
            places.into_iter().for_each(|place| outcomes[place] = outcome);
            error = error.or(reply.error);
        }
        DecidedRound { ticket, outcomes, error }
    }

    /// Returns what the users have of the conversations, in order.
    async fn standings(&self, notices: &[WaitingNotice]) -> Vec<Standing> {
        let mut by_user = BTreeMap::<&UserId, Vec<usize>>::new();
        for (place, notice) in notices.iter().enumerate() {
            by_user.entry(&notice.user).or_default().push(place);
        }
        let mut all: Vec<Standing> = notices.iter().map(|_| Standing::Unknown).collect();
        let users: Vec<UserId> = by_user.keys().map(|user| (*user).clone()).collect();
        let settings = match self.parts.store.settings_of(&users).await {
            Ok(settings) => settings,
            Err(error) => {
                unread(&error);
                return all;
            }
        };
        let small_group_max = self.parts.small_group_max;
        let recipients = Recipients::new(&*self.parts.store, &self.plan.filter, small_group_max);
        let mut reads = Vec::with_capacity(users.len());
        for ((user, places), settings) in by_user.into_iter().zip(settings) {
            let reader = Reader::with_settings(user.clone(), &settings, wall_ms());
            let of = UserNotices { reader, push: settings.push, places };
            reads.push(self.standings_of(&recipients, notices, of));
        }
        let mut read = stream::iter(reads).buffer_unordered(USERS_AT_ONCE);
        while let Some(found) = read.next().await {
            found.into_iter().for_each(|(place, standing)| all[place] = standing);
        }
        all
    }

    /// Returns what one user has of the conversations, as far as they could be read, each with its place in the round.
    async fn standings_of(
        &self,
        recipients: &Recipients<'_>,
        notices: &[WaitingNotice],
        of: UserNotices,
    ) -> Vec<(usize, Standing)> {
        let UserNotices { reader, push, places } = of;
        let keys: Vec<ConversationId> =
            places.iter().map(|place| notices[*place].newest.conversation.clone()).collect();
        let summaries = match self.parts.store.summaries(&keys, &reader.user).await {
            Ok(summaries) => summaries,
            Err(error) => {
                unread(&error);
                return Vec::new();
            }
        };
        let mut found = Vec::with_capacity(places.len());
        for (place, summary) in places.into_iter().zip(summaries) {
            let notice = &notices[place];
            let query = StandingQuery { recipients, reader: &reader, push, notice };
            match query.run(summary).await {
                Ok(standing) => found.push((place, standing)),
                Err(error) => unread(&error),
            }
        }
        found
    }

    /// Removes the notices of users who have a device that has acked the message, or that is connected, and returns their
    /// places.
    async fn drop_seen(&self, due: &mut Vec<Due>) -> Vec<usize> {
        let WaitingForm { unless, .. } = self.waiting.form;
        if unless == WaitingUnless::Read || due.is_empty() {
            return Vec::new();
        }
        let query = |it: &Due| AckQuery {
            user: it.facts.notice.user.clone(),
            conversation: it.facts.notice.newest.conversation.clone(),
            seq: it.acked,
        };
        let queries: Vec<AckQuery> = due.iter().map(query).collect();
        let devices = self.parts.connections.acks(&queries).await;
        let mut seen = Vec::new();
        let all = std::mem::take(due).into_iter().zip(devices);
        for (mut it, devices) in all {
            if devices.has_acked() || unless == WaitingUnless::Online && devices.is_online() {
                seen.push(it.place);
                continue;
            }
            it.facts.devices = Some(devices);
            due.push(it);
        }
        seen
    }

    /// Counts the unread messages of each user, as far as there is time.
    async fn count_badges(&self, due: &mut [Due]) {
        let mut users: Vec<UserId> = due.iter().map(|it| it.facts.notice.user.clone()).collect();
        users.sort();
        users.dedup();
        let store = &*self.parts.store;
        let Ok(counts) = unread_counts::count(store, &users, None, wall_ms(), BADGE_TIME_MAX).await else {
            return;
        };
        for it in due {
            let place = users.binary_search(&it.facts.notice.user).ok();
            let count = place.and_then(|place| counts.get(place).copied().flatten());
            it.facts.badge = count.filter(|count| !count.is_partial).map(|count| count.unread);
        }
    }

    /// Distributes notices to requests. Those that have failed before are last, so that they do not delay the others.
    fn requests(&self, due: Vec<Due>) -> Vec<Vec<Due>> {
        let (alone, together): (Vec<Due>, Vec<Due>) =
            due.into_iter().partition(|it| it.facts.notice.is_alone);
        let mut requests = Vec::new();
        let mut together = together.into_iter().peekable();
        while together.peek().is_some() {
            requests.push(together.by_ref().take(self.plan.delivery.batch_max.max(1)).collect());
        }
        requests.extend(alone.into_iter().map(|it| vec![it]));
        requests
    }

    /// Sends notices in one request, unless an earlier one has failed.
    async fn send(&self, due: Vec<Due>, has_failed: &AtomicBool) -> (Vec<usize>, WebhookReply) {
        let places = due.iter().map(|it| it.place).collect();
        let unsent = |error: String| WebhookReply {
            outcome: WebhookOutcome::Unsent,
            status: None,
            error: Some(error),
        };
        // Before contents are read, whose memory the permits bound.
        let _permit = self.permits.acquire(&self.waiting.consumer, self.plan.delivery.parallel).await;
        if has_failed.load(Ordering::Relaxed) {
            return (places, WebhookReply { error: None, ..unsent(String::new()) });
        }
        let preview = self.waiting.form.preview;
        let mut shown = Vec::new();
        if preview == WaitingPreview::Content {
            match self.previews(&due).await {
                Ok(Some(previews)) => shown = previews,
                Ok(None) => return (places, unsent("the store lacks a message; it fell back".into())),
                Err(error) => return (places, unsent(error.to_string())),
            }
        }
        let source = &self.plan.source;
        let shown = shown.into_iter().chain(iter::repeat(None));
        let events = due.iter().zip(shown).map(|(it, shown)| encode(source, preview, &it.facts, shown));
        let attempt = if due.iter().any(|it| it.facts.notice.has_failed) { 2 } else { 1 };
        let Some(body) = request_body(&self.plan, events.collect()) else {
            return (places, unsent("no notice".into()));
        };
        (places, self.plan.receiver.send(&WebhookRequest { body, attempt, is_resent: false }).await)
    }

    /// Reads the previews of the newest messages of notices; `None` of those that the user may not have.
    async fn previews(&self, due: &[Due]) -> Result<Option<Vec<Option<Value>>>, StoreError> {
        let event = |it: &Due| WebhookEvent {
            conversation: it.facts.notice.newest.conversation.clone(),
            seq: it.facts.notice.newest.seq,
            kind: WebhookEventKind::Message,
        };
        let events: Vec<WebhookEvent> = due.iter().map(event).collect();
        let preview = |n: usize, found| may_show(&found, due[n].max).then(|| preview_of(&found));
        read_each(&*self.parts.store, &events, preview).await
    }
}

fn unread(error: &StoreError) {
    log_limited!(warn, %error, "store not read for notices that messages wait; retrying");
}

/// Returns whether a user may have the content that the message has now, who may see seqs up to `max`. The message is read
/// later than the membership, which may have ended before an edit in between.
pub(super) fn may_show(found: &FoundEntry, max: u64) -> bool {
    match found {
        FoundEntry::Row(row, _) => row.edited.is_none_or(|(seq, _)| seq <= max),
        FoundEntry::Pruned => true,
    }
}

const fn outcome(reply: &WebhookReply) -> WaitingOutcome {
    match reply.outcome {
        WebhookOutcome::Taken | WebhookOutcome::Passed => WaitingOutcome::Noticed,
        WebhookOutcome::Refused(_) => WaitingOutcome::Refused,
        WebhookOutcome::Busy(wait) => WaitingOutcome::Busy(wait),
        WebhookOutcome::Gone => WaitingOutcome::Gone,
        WebhookOutcome::Failed(_) => WaitingOutcome::Failed,
        WebhookOutcome::Unsent => WaitingOutcome::Undecided,
    }
}
