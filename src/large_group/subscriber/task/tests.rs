//! Effect of rounds on the state of a group, with one shard whose mailbox only the test reads.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_protocol::{
    id::{MsgId, NodeId},
    machine::ledger::Ledger,
    record::{Body, MemberAction, MemberChange, Origin, Position, Record},
};

use super::{maintenance::INTEREST_RENEW_INTERVAL, *};
use crate::{
    bus::TopicId,
    fault::{Fault, FaultPlan, Faulty},
    link::LocalLink,
    mail::{Item, Mail, Mailbox, ShardHandles, mailbox},
    metrics,
    ports::Ports,
    routes::NodeBoot,
    store::{Fence, Store},
};

fn group() -> ConversationId {
    ConversationId::parse("g:big").unwrap()
}

fn cluster() -> Arc<Cluster> {
    cluster_with(Ports::in_memory(Arc::new(LocalLink)))
}

fn cluster_with(ports: Ports) -> Arc<Cluster> {
    Arc::new(Cluster::new(NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 }, ports))
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

/// Archives the creation of a group and the changes after it, at the seqs from 1 on.
async fn archive(store: &dyn Store, changes: &[(MemberAction, &str)]) {
    let taken = store.take_over(0, Fence(1), TopicId(1)).await.unwrap();
    let mut ledger = Ledger::resume(taken.position, taken.rules, 1);
    for ((action, users), offset) in changes.iter().zip(0..) {
        let change = MemberChange {
            conversation: group(),
            action: *action,
            users: users.split(' ').map(|user| UserId::new(user).unwrap()).collect(),
            role: None,
            by: None,
            settings: BTreeMap::new(),
            request_id: MsgId::new(&format!("change-{offset}")).unwrap(),
        };
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 0, request: 0 };
        let record = Record { origin, received_at: 1, body: Body::Member(change), trace: None };
        let mut needs = BTreeSet::new();
        ledger.needs(&record, &mut needs);
        let rows = store.load(0, Fence(1), &needs.into_iter().collect::<Vec<_>>()).await.unwrap();
        ledger.load(rows.position, rows.rows).unwrap();
        ledger.apply(offset, &record).unwrap();
        let to = Position::behind(offset, &record.encode());
        store.archive(0, Fence(1), &ledger.take_delta(to).unwrap()).await.unwrap();
        ledger.archived(to).unwrap();
    }
}

/// Task whose node had one member of the group, ann, until seq 2; another user left at 3, and ann joined again at 4.
/// The store fails when the record of the join arrives.
async fn task_with_failed_join() -> (SubscriberTask, Mailbox, Arc<FaultPlan>) {
    let (handle, mailbox) = mailbox(std::task::Waker::noop().clone(), 1 << 20);
    let (plan, memory) = (FaultPlan::none(), Ports::in_memory(Arc::new(LocalLink)));
    let all = "ann bob cid dan eve fay";
    let kick = MemberAction::Kick;
    let changes = [(MemberAction::Create, all), (kick, "ann"), (kick, "bob"), (MemberAction::Join, "ann")];
    archive(&*memory.store, &changes).await;
    let store = Arc::new(Faulty::<dyn Store>::new(Arc::clone(&memory.store), Arc::clone(&plan)));
    let (cluster, shards) = (cluster_with(Ports { store, ..memory }), ShardHandles::default());
    assert!(shards.set(vec![handle]).is_ok());
    let directory = Arc::new(Directory::default());
    directory.add_user(&UserId::new("ann").unwrap(), 0);
    let out = LocalDispatcher::new(cluster.me.clone(), Arc::clone(&directory), shards, Arc::default());
    let mut task = SubscriberTask::new(cluster, directory, Arc::default(), 3, out, metrics::install().0);
    let state = GroupState { index: Index::new(2, 2), declared: true, ..GroupState::default() };
    task.groups.insert(group(), state);
    plan.plan("page", Fault::Fail);
    task.on_record(record(4, 3, Some("ann")), RecordSource::Peer).await;
    assert_eq!(plan.calls("page"), 1, "precondition: the record needs the change before it");
    assert!(task.directory.conversation(&group()).is_empty(), "precondition: ann is not indexed");
    (task, mailbox, plan)
}

/// Encodes a record: the join of a user, or a message.
fn record(seq: u64, member_seq: u64, joined: Option<&str>) -> Bytes {
    let event = joined.map(|user| pb::MemberEvent {
        change: pb::MemberChange::Joined.into(),
        users: vec![user.to_owned()],
        ..Default::default()
    });
    let push = pb::Push { conversation: group().to_string(), seq, event, ..Default::default() };
    let (push, conversation) = (push.encode_to_vec().into(), group().to_string());
    let change = joined.is_some();
    pb::FanOut { conversation, seq, push, member_seq, change, ..Default::default() }.encode_to_vec().into()
}

/// Returns what the shard got: joins, pushes and hints.
async fn posted(task: &mut SubscriberTask, mailbox: &mut Mailbox) -> Vec<String> {
    task.out.flush().await;
    let Some(Mail::Deliver(items)) = mailbox.take() else { return Vec::new() };
    let text = |item: Item| match item {
        Item::Join(_, users) => format!("join of {}", users[0]),
        Item::Part(_, users) => format!("leave of {}", users[0]),
        Item::Push(delivery) => format!("push {}", delivery.seq),
        Item::Behind(lag) => format!("behind {}", lag.max_seq),
        _ => "another".to_owned(),
    };
    items.into_iter().map(text).collect()
}

#[tokio::test]
async fn s83_join_whose_record_failed_comes_with_the_next_record() {
    let (mut task, mut mailbox, _) = task_with_failed_join().await;
    task.on_record(record(5, 4, None), RecordSource::Peer).await;
    assert_eq!(posted(&mut task, &mut mailbox).await, ["join of ann", "push 5", "behind 4"]);
}

#[tokio::test(start_paused = true)]
async fn s83_join_whose_record_failed_needs_no_other_record() {
    let (mut task, mut mailbox, plan) = task_with_failed_join().await;
    plan.plan("page", Fault::Fail);
    time::advance(INTEREST_RENEW_INTERVAL).await;
    task.on_tick().await;
    assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0], "the store fails again");
    task.on_tick().await;
    assert_eq!(posted(&mut task, &mut mailbox).await, ["join of ann", "behind 4"]);
    task.on_tick().await;
    assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0]);
    assert_eq!(plan.calls("page"), 3);
}

#[tokio::test(start_paused = true)]
async fn s83_group_outlives_a_round_while_its_members_are_read() {
    for is_read in [true, false] {
        let (mut task, mut mailbox, plan) = task_with_failed_join().await;
        let reading = Some(MembersRead { to: 4, logged_in: Vec::new() });
        task.groups.get_mut(&group()).unwrap().reading = reading;
        time::advance(INTEREST_RENEW_INTERVAL).await;
        task.on_tick().await;
        assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0], "the read has not ended");
        let page = task.cluster.ports.store.members(&group(), None, 10).await.unwrap();
        let here = page.into_iter().filter(|(user, _)| user.as_str() == "ann").collect();
        let failed = StoreError::Unavailable("planned".to_owned());
        task.on_members(&group(), if is_read { Ok(here) } else { Err(failed) });
        task.on_tick().await;
        assert_eq!(posted(&mut task, &mut mailbox).await, ["join of ann", "behind 4"]);
        assert_eq!(plan.calls("page"), if is_read { 1 } else { 2 });
    }
}

#[tokio::test]
async fn s83_group_that_cannot_be_read_delays_no_other() {
    let (mut task, mut mailbox, plan) = task_with_failed_join().await;
    let state = GroupState { index: Index::new(2, 2), declared: true, hint_to: 4, ..GroupState::default() };
    task.groups.insert(ConversationId::parse("g:a").unwrap(), state);
    plan.plan("page", Fault::Fail);
    task.on_tick().await;
    assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0]);
    plan.plan("page", Fault::None);
    plan.plan("page", Fault::Fail);
    task.on_tick().await;
    assert_eq!(posted(&mut task, &mut mailbox).await, ["join of ann", "behind 4"]);
}

#[tokio::test]
async fn s84_member_who_left_in_a_hole_gets_behind() {
    let (mut task, mut mailbox, _) = task_with_failed_join().await;
    let state = GroupState { index: Index::new(1, 1), declared: true, ..GroupState::default() };
    task.groups.insert(group(), state);
    task.on_record(record(4, 3, Some("ann")), RecordSource::Peer).await;
    let expected = ["leave of ann", "behind 2", "join of ann", "push 4", "behind 3"];
    assert_eq!(posted(&mut task, &mut mailbox).await, expected);
}

#[tokio::test]
async fn s84_member_who_left_before_the_record_of_its_join_gets_behind() {
    let (mut task, mut mailbox, plan) = task_with_failed_join().await;
    task.directory.add_user(&UserId::new("bob").unwrap(), 0);
    let state = GroupState { index: Index::new(1, 1), created_as_of: 1, ..GroupState::default() };
    task.groups.insert(group(), state);
    plan.plan("summary", Fault::Fail);
    let join = pb::FanOut::decode(record(1, 0, Some("bob"))).unwrap();
    assert!(task.dispatch(&group(), &join, RecordSource::Peer).await.is_err());
    assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0], "the store fails");
    task.on_tick().await;
    assert_eq!(posted(&mut task, &mut mailbox).await, ["behind 3"]);
    task.on_tick().await;
    assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0]);
}

#[tokio::test]
async fn s88_store_that_fell_back_adds_no_removed_member() {
    let (mut task, mut mailbox, plan) = task_with_failed_join().await;
    task.on_record(record(5, 4, None), RecordSource::Peer).await;
    posted(&mut task, &mut mailbox).await;
    // The store is at 4, where ann is a member; the log has her removal at 6 and another change at 7.
    let kick = pb::FanOut::decode(record(6, 4, Some("ann"))).unwrap();
    let mut push = pb::Push::decode(kick.push.clone()).unwrap();
    push.event.as_mut().unwrap().change = pb::MemberChange::Kicked.into();
    let kick = pb::FanOut { push: push.encode_to_vec().into(), ..kick };
    task.on_record(kick.encode_to_vec().into(), RecordSource::Peer).await;
    assert_eq!(posted(&mut task, &mut mailbox).await, ["push 6", "leave of ann"]);
    let reads = plan.calls("members");
    task.on_record(record(8, 7, None), RecordSource::Peer).await;
    assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0], "7 is not in the store");
    assert_eq!(plan.calls("members"), reads, "the changes show it already");
    task.groups.remove(&group());
    task.on_record(record(9, 7, None), RecordSource::Peer).await;
    assert_eq!(posted(&mut task, &mut mailbox).await, [""; 0], "neither may all members be read there");
}
