//! Way of a signal: to the other nodes, and to the shards of this node that have its recipients.

use super::best_effort::BestEffortSender;
use crate::{
    directory::{Directory, ShardSet},
    mail::{Audience, Volatile},
};

/// Sends a signal to the other nodes, and returns the shards of this node that have its recipients. What the queue to the
/// other nodes has no room for is dropped.
pub fn route_signal(
    signal: &Volatile,
    directory: &Directory,
    best_effort: Option<&BestEffortSender>,
) -> ShardSet {
    let Volatile { conversation, audience, only, frame, .. } = signal;
    match (best_effort, audience, only) {
        (Some(others), Audience::Users(users), _) => others.signal_to_users(conversation, users, frame),
        (Some(others), _, Some(members)) => others.signal_to_group(conversation, members, frame),
        _ => {}
    }
    let mut shards = ShardSet::default();
    match audience {
        Audience::Members => shards = directory.conversation(conversation),
        Audience::Users(users) => users.iter().for_each(|user| shards.extend(directory.user(user))),
        Audience::Sessions(sessions) => {
            sessions.iter().for_each(|it| shards.extend(directory.user(&it.user)));
        }
    }
    shards
}
