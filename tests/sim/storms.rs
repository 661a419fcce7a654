//! Storm of a group whose owner ends in the middle: one start, one end, and no restriction that stays.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tidegate::{bus::partition_of, cluster::Cluster, events::What, store::Store as _, storms::StormsQuery};
use tidegate_protocol::{
    id::{ConversationId, MsgId, UserId},
    machine::storm::{StormAction, StormRule},
    record::{Body, MemberAction, MemberChange},
};

use super::{
    PARTITIONS, SimNode, World, message,
    owners::{in_one_thread, two_nodes, with},
    pass, seq_of,
};

fn group() -> ConversationId {
    ConversationId::parse("g:tea").expect("a valid value")
}

/// Returns the storms that a node has reported: the id of each, with whether it is over.
fn reported(cluster: &Cluster) -> Vec<(String, bool)> {
    let notice = |what: &What| match what {
        What::Storm(notice) => Some((notice.id.to_string(), notice.profile.is_some())),
        _ => None,
    };
    cluster.events.ring().page(None, 1_000).events.iter().filter_map(|event| notice(&event.what)).collect()
}

async fn post(world: &World) -> Option<String> {
    let summary = world.store.summary(&group(), None).await.expect("memory is there");
    summary.expect("the group exists").head.settings.get("post").cloned()
}

fn creation(owner: &UserId) -> Body {
    Body::Member(MemberChange {
        conversation: group(),
        action: MemberAction::Create,
        users: vec![owner.clone()],
        role: None,
        by: Some(owner.clone()),
        settings: Default::default(),
        request_id: MsgId::new("create").expect("a valid value"),
    })
}

#[test]
fn storm_has_one_start_and_one_end_over_a_take_over() {
    in_one_thread(async {
        let (world, nodes) = two_nodes().await;
        // The clock of all records, too.
        world.store.set_now_ms(1);
        let clusters: [Arc<Cluster>; 2] = [0, 1].map(|nth| with(&nodes, nth, SimNode::cluster));
        for cluster in &clusters {
            let rule = StormRule::new(100, Duration::from_secs(60));
            cluster.storms.set_rule(rule, Some(StormAction::Admins));
        }
        let partition = partition_of(&group(), PARTITIONS as u32);
        let first = usize::from(!with(&nodes, 0, SimNode::owns).contains(&partition));
        let ann = UserId::new("ann").expect("a valid value");
        let way = with(&nodes, 1 - first, SimNode::way);
        assert!(seq_of(&way.append(creation(&ann)).await).is_some());
        let sends = (0..120).map(|n| (message(&ann, &group(), &format!("m{n}"), 0), &way));
        let answers = join_all(sends.map(|(body, way)| way.append(body))).await;
        assert!(answers.iter().all(|answer| seq_of(answer).is_some()));
        pass(3_000).await;
        let started = ("g:tea/102".to_owned(), false);
        assert_eq!(reported(&clusters[first]), [started]);
        assert_eq!(post(&world).await.as_deref(), Some("admins"));
        let killed = nodes.borrow_mut()[first].take().and_then(|node| node.kill(&world));
        pass(3_000).await;
        world.log.evict(killed.expect("the node is a member of the group"));
        pass(5_000).await;
        let query = StormsQuery { group: Some(group()) };
        let page = clusters[1 - first].storms.page(&query);
        assert!(page.storms[0].storm.is_some(), "the successor has the storm: {page:?}");
        pass(180_000).await;
        assert_eq!(reported(&clusters[1 - first]), [("g:tea/102".to_owned(), true)]);
        assert_eq!(post(&world).await, None);
    });
}
