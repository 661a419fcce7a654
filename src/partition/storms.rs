//! Past of the groups that a new owner watches for storms, read from the archive in the background.
//!
//! Most groups are quiet, so a few of the newest messages are read first, and more only of groups whose messages all are
//! recent. A read that fails leaves counts that are lower bounds: storms are found late then, and no other one is found.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    id::ConversationId,
    machine::storm::{PastMessage, RECEIVE_SKEW_MS, StormRule},
};
use tokio::time::{sleep, timeout};

use super::{exit::PORT_RETRY_INTERVAL, storm_actions};
use crate::{
    cluster::Cluster,
    log_limit::log_limited,
    store::{ConversationSeq, Store, StoreError},
    storms::{GroupPast, StormRules, StormTable},
};

/// Most groups that are read at once.
const GROUPS_MAX: usize = 256;

/// Messages of each group that are read first.
const FIRST_ROWS: usize = 16;

/// Messages of a group that are read, as a multiple of those that make a storm, so that the first of them is found.
const ROWS_PER_STORM: usize = 4;

/// Most messages of a group that are read, unless a storm needs more.
const ROWS_MAX: usize = 4_096;

/// Most messages that one call reads.
const ROWS_PER_CALL_MAX: usize = 65_536;

/// Time for the reads of one set of groups.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads what the table's watches lack, for as long as the table has an owner.
pub(super) async fn read_past(table: Arc<StormTable>, cluster: Arc<Cluster>, wall_ms: fn() -> u64) {
    // The storms that the former owner left in force continue.
    storm_actions::read_entries(&cluster).await;
    let store = &cluster.ports.store;
    loop {
        let groups = table.next_unread(GROUPS_MAX).await;
        let rule = widest(&table.rules(), &groups);
        let read_once = async || {
            let now_ms = store.now_ms().await?.unwrap_or_else(wall_ms);
            Ok::<_, StoreError>((now_ms, read_groups(&**store, &groups, &rule, now_ms).await?))
        };
        let read = async {
            loop {
                match read_once().await {
                    // Such as while the store fails over.
                    Err(StoreError::Unavailable(_) | StoreError::NoConnection(_)) => {
                        sleep(PORT_RETRY_INTERVAL).await;
                    }
                    other => return other,
                }
            }
        };
        let late = |_| Err(StoreError::Unavailable("no reply in time".to_owned()));
        let (now_ms, mut past) = match timeout(READ_TIMEOUT, read).await.unwrap_or_else(late) {
            Ok(read) => read,
            Err(error) => {
                log_limited!(warn, %error, "past of groups not read; their storms may be found late");
                (wall_ms(), Vec::new())
            }
        };
        past.resize(groups.len(), Vec::new());
        for ((group, end), mut messages) in groups.iter().zip(past) {
            messages.reverse();
            table.restore(group, GroupPast { end: *end, messages: &messages, store_now_ms: now_ms });
        }
    }
}

/// Returns a rule for which what is read suffices for the rules of all these groups.
fn widest(rules: &StormRules, groups: &[(ConversationId, u64)]) -> StormRule {
    let of_groups = groups.iter().map(|(group, _)| rules.of(group));
    of_groups.fold(rules.default, |widest, rule| {
        StormRule::new(widest.threshold().max(rule.threshold()), widest.window().max(rule.window()))
    })
}

/// Returns the messages of each group before its seq, newest first, as far as they matter.
async fn read_groups(
    store: &dyn Store,
    groups: &[(ConversationId, u64)],
    rule: &StormRule,
    now_ms: u64,
) -> Result<Vec<Vec<PastMessage>>, StoreError> {
    let end =
        |(group, seq): &(ConversationId, u64)| ConversationSeq { conversation: group.clone(), seq: *seq };
    let ends: Vec<ConversationSeq> = groups.iter().map(end).collect();
    let mut past = store.message_times(&ends, FIRST_ROWS).await?;
    let storm = (rule.threshold() as usize).saturating_add(1);
    let rows = storm.saturating_mul(ROWS_PER_STORM).min(ROWS_MAX.max(storm));
    let span = u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX).saturating_mul(2);
    let since = now_ms.saturating_sub(span).saturating_sub(RECEIVE_SKEW_MS);
    let mut known = FIRST_ROWS;
    for rows in [rows, ROWS_MAX.max(storm)] {
        let has_more = |past: &Vec<PastMessage>| {
            past.len() >= known && past.last().is_some_and(|oldest| oldest.received_ms >= since)
        };
        let busy: Vec<usize> =
            past.iter().enumerate().filter(|(_, past)| has_more(past)).map(|(at, _)| at).collect();
        for part in busy.chunks((ROWS_PER_CALL_MAX / rows).max(1)) {
            let ends: Vec<ConversationSeq> = part.iter().filter_map(|at| ends.get(*at).cloned()).collect();
            for (at, more) in part.iter().zip(store.message_times(&ends, rows).await?) {
                if let Some(past) = past.get_mut(*at) {
                    *past = more;
                }
            }
        }
        known = rows;
    }
    Ok(past)
}
