//! Admin API of conversations: histories, lists, marks and unread counts, as the store has them.
//!
//! Reads see everything that was acked before (ADR 16). They are bounded in number, in bytes and in time, and use no
//! connection of owners to the store.

use std::{sync::Arc, time::Duration};

use axum::extract::{Query, rejection::QueryRejection};
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, UserId},
};

pub(super) mod cursor;
mod entries;
pub(super) mod history;
pub(super) mod lists;
pub(super) mod marks;
pub(super) mod newest;
pub(super) mod of_user;
pub(super) mod privacy;
pub(super) mod prune;
pub(super) mod turns;
pub(super) mod unread;

pub use self::privacy::KeptTimes;
use super::{Api, Problem, access::Caller};
use crate::{
    conversation::{
        consistent::ConsistentReads, mark_read::Devices, read_budget::ReadBudget, read_position::NO_MESSAGES,
    },
    mail::Refusal,
    store::Store,
};

/// Reads of the admin API that run at once, those of one key, and those of one key that run or wait: a quarter of the
/// connections of the port. Over Postgres they wait for a small part of the connections of reads of clients.
const RUNNING_MAX: usize = 8;
const KEY_RUNNING_MAX: usize = 4;
const KEY_READS_MAX: usize = 16;

/// Time after which the store counts as unavailable for a read that has its turn.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Entries of a page without a limit of its own, and the most of any.
const LIMIT_DEFAULT: usize = 50;
const LIMIT_MAX: usize = 200;

/// Approximate limit on the bytes of the entries in one response; the first one is returned whatever its size.
const ENTRIES_BYTES_MAX: usize = 1 << 20;

/// Most users or conversations that one request names.
const NAMES_MAX: usize = 1_000;

/// Largest number that JSON represents exactly.
const NUMBER_MAX: u64 = (1 << 53) - 1;

/// What reads and changes of the admin API need beyond the ports.
pub struct ApiReads {
    /// Notifier of the devices of users whose marks change, and of the recipients of signals.
    pub(super) devices: Devices,
    /// Bound on the reads, by the id of the key.
    budget: Arc<ReadBudget<Arc<str>>>,
    /// Store, with a bound of its own on the connections of these reads.
    store: Arc<dyn Store>,
    /// Times for which nodes and services keep what no request removes.
    kept: KeptTimes,
}

impl ApiReads {
    /// Creates the reads of a node.
    pub fn new(devices: Devices, store: &Arc<dyn Store>, kept: KeptTimes) -> Self {
        let budget = Arc::new(ReadBudget::of_callers(RUNNING_MAX, KEY_RUNNING_MAX, KEY_READS_MAX));
        let store = store.for_back_ends().unwrap_or_else(|| Arc::clone(store));
        Self { devices, budget, store, kept }
    }
}

/// Caller of a read.
struct ReadCaller(Arc<str>);

impl ReadCaller {
    fn new(caller: &Caller) -> Self {
        Self(caller.id().into())
    }

    fn reads<'a>(&'a self, api: &'a Api) -> ConsistentReads<'a, Arc<str>> {
        ConsistentReads::new(&api.cluster, &api.reads.budget, &self.0).over(&*api.reads.store)
    }
}

pub(super) type Parameters<T> = Result<Query<T>, QueryRejection>;

/// Returns the parameters of a query, or the refusal of bad ones.
pub(super) fn checked<T>(query: Parameters<T>) -> Result<T, Problem> {
    query.map(|Query(query)| query).map_err(|rejection| bad(rejection.body_text()))
}

pub(super) fn bad(why: impl Into<String>) -> Problem {
    Problem(Code::BadContent, why.into())
}

/// Returns the limit of a page.
fn limit(requested: Option<usize>) -> Result<usize, Problem> {
    limit_up_to(requested, LIMIT_MAX)
}

/// Returns the limit of a page of at most `max` entries.
pub(super) fn limit_up_to(requested: Option<usize>, max: usize) -> Result<usize, Problem> {
    let limit = requested.unwrap_or(LIMIT_DEFAULT);
    let is_valid = (1..=max).contains(&limit);
    if is_valid { Ok(limit) } else { Err(bad(format!("limit: between 1 and {max}"))) }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        // A client may wait for the first message of a direct conversation; here it does not exist.
        let (code, words) = if refusal == NO_MESSAGES { (Code::NotFound, "") } else { refusal };
        Self(code, words.to_owned())
    }
}

fn user(text: &str) -> Result<UserId, Problem> {
    UserId::addressable(text).map_err(|error| Problem(Code::BadId, format!("user: {error}")))
}

/// Returns the conversation of a key, in which the users of a direct one may be in any order. Rooms have no history.
fn conversation(text: &str) -> Result<ConversationId, Problem> {
    let refused = |why: String| Problem(Code::BadId, format!("conversation: {why}"));
    let parsed = ConversationId::addressable(text).map_err(|error| refused(error.to_string()))?;
    match parsed.kind() {
        ConversationKind::Room(_) => Err(refused("nothing is stored of a live room".to_owned())),
        ConversationKind::Direct(..) | ConversationKind::Group(_) => Ok(parsed),
    }
}

/// Returns the conversations that a request names.
fn conversations(texts: &[String]) -> Result<Vec<ConversationId>, Problem> {
    if texts.len() > NAMES_MAX {
        return Err(bad(format!("conversations: at most {NAMES_MAX} in one request")));
    }
    texts.iter().map(|text| conversation(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_conversation_is_found_in_either_order_and_a_room_is_refused() {
        for text in ["d:bob:alice", "d:alice:bob"] {
            let Ok(found) = conversation(text) else { panic!("{text}") };
            assert_eq!(found.as_str(), "d:alice:bob");
        }
        assert!(conversation("g:team").is_ok());
        for text in ["r:hall", "d:alice", "d:a:b:c", "team", "", "g:", "d:a b:c", "g:..", "d:.:bob"] {
            assert!(matches!(conversation(text), Err(Problem(Code::BadId, _))), "{text:?}");
        }
    }
}
