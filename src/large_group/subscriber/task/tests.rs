//! What rounds make of where groups stand, with a shard whose mailbox nobody reads but the test.

use tidegate_protocol::{Time, id::NodeId};

use super::*;
use crate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    link::LocalLink,
    mail::{Mail, ShardHandles, mailbox},
    metrics,
    routes::{Leases, MemoryRoutes, NodeBoot},
    scratch::MemoryScratch,
    store::MemoryStore,
};

fn group() -> ConversationId {
    ConversationId::parse("g:big").unwrap()
}

fn ports() -> Arc<Ports> {
    let log = LocalBusConfig {
        partitions: 1,
        topic: TopicId(1),
        max_records: 1,
        max_bytes: 1,
        node_max_records: 1,
        node_max_bytes: 1,
    };
    Arc::new(Ports {
        me: NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 },
        bus: Arc::new(LocalBus::new(log)),
        store: Arc::new(MemoryStore::default()),
        routes: Arc::new(MemoryRoutes::new(1, Leases::default(), || Time::from_millis(1))),
        scratch: Arc::new(MemoryScratch::new(1, || Time::from_millis(1))),
        link: Arc::new(LocalLink),
        owned: Arc::default(),
        peers: Arc::default(),
        trace: Arc::default(),
        events: Arc::default(),
    })
}

fn head(seq: u64, is_large: bool) -> Vec<Head> {
    vec![Head { group: group(), seq, is_large }]
}

#[tokio::test]
async fn a_group_that_shrank_is_let_go_and_its_members_are_told_of_nothing_that_they_have() {
    let poll = mio::Poll::new().unwrap();
    let (handle, mut mailbox) = mailbox(mio::Waker::new(poll.registry(), mio::Token(0)).unwrap(), 1 << 20);
    let (ports, shards, directory) = (ports(), ShardHandles::default(), Arc::new(Directory::default()));
    assert!(shards.set(vec![handle]).is_ok());
    directory.hold_conversation(&group(), 0);
    let out = Outbound::new(ports.me.clone(), Arc::clone(&directory), shards, Arc::default());
    let shared = Arc::new(Shared::default());
    shared.declared.insert(group());
    let mut keeper = Keeper::new(ports, directory, Arc::clone(&shared), 4, out, metrics::install().0);
    keeper.groups.insert(group(), State { index: Index::new(7, 7), declared: true, ..State::default() });
    let mut rounds = async |heads: &[(u64, bool)]| {
        for (seq, is_large) in heads {
            keeper.stand(head(*seq, *is_large), false);
            keeper.tick().await;
            keeper.out.flush().await;
        }
        let told = matches!(mailbox.take(), Some(Mail::Deliver(_)));
        (keeper.groups.contains_key(&group()), told)
    };
    // What comes by name is not told here.
    assert_eq!(rounds(&[(9, false)]).await, (true, false));
    assert_eq!(rounds(&[(9, true), (9, false), (12, true)]).await, (true, false), "it grew again meanwhile");
    assert_eq!(rounds(&[(13, true)]).await, (true, true), "12 was there a round ago, and was not told");
    assert_eq!(rounds(&[(14, false), (15, false)]).await, (false, false));
    assert!(!shared.declared.contains(&group()), "who logs in declares it anew");
}
