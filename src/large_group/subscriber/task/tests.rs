//! Effect of rounds on the state of a group, with one shard whose mailbox only the test reads.

use tidegate_protocol::id::NodeId;

use super::*;
use crate::{
    link::LocalLink,
    mail::{Mail, ShardHandles, mailbox},
    metrics,
    ports::Ports,
    routes::NodeBoot,
};

fn group() -> ConversationId {
    ConversationId::parse("g:big").unwrap()
}

fn cluster() -> Arc<Cluster> {
    Arc::new(Cluster::new(
        NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 },
        Ports::in_memory(Arc::new(LocalLink)),
    ))
}

fn head(seq: u64, is_large: bool) -> Vec<GroupHead> {
    vec![GroupHead { group: group(), seq, is_large }]
}

#[tokio::test]
async fn group_that_shrank_is_dropped_without_needless_hints() {
    let (handle, mut mailbox) = mailbox(std::task::Waker::noop().clone(), 1 << 20);
    let (cluster, shards, directory) = (cluster(), ShardHandles::default(), Arc::new(Directory::default()));
    assert!(shards.set(vec![handle]).is_ok());
    directory.hold_conversation(&group(), 0);
    let out = LocalDispatcher::new(cluster.me.clone(), Arc::clone(&directory), shards, Arc::default());
    let shared = Arc::new(Shared::default());
    shared.declared.insert(group());
    let mut task = SubscriberTask::new(cluster, directory, Arc::clone(&shared), 4, out, metrics::install().0);
    task.groups
        .insert(group(), GroupState { index: Index::new(7, 7), declared: true, ..GroupState::default() });
    let mut rounds = async |heads: &[(u64, bool)]| {
        for (seq, is_large) in heads {
            task.on_heads(head(*seq, *is_large), false);
            task.on_tick().await;
            task.out.flush().await;
        }
        let is_hinted = matches!(mailbox.take(), Some(Mail::Deliver(_)));
        (task.groups.contains_key(&group()), is_hinted)
    };
    // Pushes of a small group name their users: no hint is needed.
    assert_eq!(rounds(&[(9, false)]).await, (true, false));
    assert_eq!(rounds(&[(9, true), (9, false), (12, true)]).await, (true, false), "it grew in between");
    assert_eq!(rounds(&[(13, true)]).await, (true, true), "12 existed a round ago, and was not pushed");
    assert_eq!(rounds(&[(14, false), (15, false)]).await, (false, false));
    assert!(!shared.declared.contains(&group()), "the next login declares it again");
}
