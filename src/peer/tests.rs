//! Mail that the shards of a node get when its peers call.

use tidegate_protocol::{
    id::{DeviceId, NodeId},
    machine::{ledger::Outcome, session},
};

use super::*;
use crate::{
    link::SentBy,
    mail::{ConnKey, Item, Mailbox, mailbox},
    metrics,
};

fn me() -> NodeBoot {
    NodeBoot { node: NodeId::new("n1").unwrap(), boot: 3 }
}

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

/// Node with one shard, whose mailbox only the test reads.
fn peer() -> (Peer, Mailbox) {
    let (handle, mailbox) = mailbox(std::task::Waker::noop().clone(), 1 << 20);
    let shards = ShardHandles::default();
    assert!(shards.set(vec![handle]).is_ok());
    (Peer::new(me(), Arc::default(), shards, Arc::default(), metrics::install().0), mailbox)
}

fn session(name: &str, epoch: u64) -> RoutedSession {
    RoutedSession { user: user(name), device: DeviceId::new("d").unwrap(), epoch }
}

fn delivery(push: &pb::Push, to: Vec<Target>) -> PeerPush {
    PeerPush {
        push: push.encode_to_vec().into(),
        to,
        tracked: true,
        sent_by: None,
        traceparent: String::new(),
    }
}

#[tokio::test]
async fn answer_reaches_the_connection_that_its_origin_names() {
    let (peer, mut mailbox) = peer();
    let key = ConnKey { shard: 0, slot: 5, generation: 9 };
    let outcome = Outcome::Accepted { seq: 4, ordinal: 4, time: 77 };
    let answer = Answer { conn: key.pack(), request: 12, outcome, traceparent: String::new() };
    peer.answers(&me(), vec![answer.clone()]).await.unwrap();
    let Some(Mail::Answers(answers)) = mailbox.take() else { panic!("answers") };
    assert_eq!(answers, [(key, 12, session::SubmitAnswer::Accepted { seq: 4, time: 77 })]);
    // S1: nothing is for an earlier run of the node.
    let other = NodeBoot { boot: 2, ..me() };
    assert_eq!(peer.answers(&other, vec![answer]).await, Err(LinkError::NotHere));
    assert!(mailbox.take().is_none());
}

#[tokio::test]
async fn push_reaches_named_sessions_and_reports_missing_users() {
    let (peer, mut mailbox) = peer();
    peer.directory.add_user(&user("ann"), 0);
    let push =
        pb::Push { conversation: "d:ann:bob".into(), seq: 8, sender: "bob".into(), ..Default::default() };
    let to = vec![Target::Conn(session("ann", 4)), Target::Conn(session("bob", 1))];
    let landings = peer.deliver(&me(), vec![delivery(&push, to)]).await.unwrap();
    assert_eq!(landings, [[Landing::Delivered, Landing::NotHere]]);
    let Some(Mail::Deliver(items)) = mailbox.take() else { panic!("a delivery") };
    let [Item::Push(found)] = &items[..] else { panic!("one push") };
    assert_eq!((found.seq, found.tracked, found.origin), (8, true, None));
    assert_eq!(found.audience, Audience::Sessions([session("ann", 4), session("bob", 1)].into()));
    assert_eq!(found.frame.push().unwrap(), push.encode_to_vec());
}

#[tokio::test]
async fn sending_connection_gets_no_push_addressed_to_its_user() {
    let (peer, mut mailbox) = peer();
    peer.directory.add_user(&user("ann"), 0);
    let key = ConnKey { shard: 0, slot: 5, generation: 9 };
    let push = pb::Push { conversation: "d:ann:bob".into(), seq: 8, ..Default::default() };
    let later = NodeBoot { boot: me().boot + 1, ..me() };
    let other = NodeBoot { node: NodeId::new("n2").unwrap(), ..me() };
    for (at, origin) in [(me(), Some(key)), (later, None), (other, None)] {
        let sent_by = Some(SentBy { at, conn: key.pack() });
        let to = vec![Target::Anywhere(user("ann"))];
        peer.deliver(&me(), vec![PeerPush { sent_by, ..delivery(&push, to) }]).await.unwrap();
        let Some(Mail::Deliver(items)) = mailbox.take() else { panic!("a delivery") };
        let [Item::Push(found)] = &items[..] else { panic!("one push") };
        assert_eq!((&found.audience, found.origin), (&Audience::Users([user("ann")].into()), origin));
    }
}

#[tokio::test]
async fn membership_changes_in_pushes_update_indexes_in_order() {
    let (peer, mut mailbox) = peer();
    peer.directory.add_user(&user("ann"), 0);
    let event = |change: pb::MemberChange| pb::Push {
        conversation: "g:x".into(),
        seq: 1,
        event: Some(pb::MemberEvent {
            change: change as i32,
            users: vec!["ann".into()],
            ..Default::default()
        }),
        ..Default::default()
    };
    let to = || vec![Target::Conn(session("ann", 1))];
    let pushes = [pb::MemberChange::Joined, pb::MemberChange::Kicked].map(|it| delivery(&event(it), to()));
    peer.deliver(&me(), pushes.into()).await.unwrap();
    let Some(Mail::Deliver(items)) = mailbox.take() else { panic!("a delivery") };
    let kinds: Vec<&str> = items
        .iter()
        .map(|item| match item {
            Item::Join(..) => "join",
            Item::Push(_) => "push",
            Item::Part(..) => "part",
            Item::Keep(..) => "keep",
            Item::Behind(_) => "behind",
        })
        .collect();
    assert_eq!(kinds, ["join", "push", "push", "part"]);
}

#[tokio::test]
async fn undecodable_push_is_skipped_and_others_are_delivered() {
    let (peer, mut mailbox) = peer();
    peer.directory.add_user(&user("ann"), 0);
    let bad = PeerPush {
        push: "\u{1}nonsense".into(),
        ..delivery(&pb::Push::default(), vec![Target::Anywhere(user("ann"))])
    };
    let good = pb::Push { conversation: "d:ann:bob".into(), seq: 1, ..Default::default() };
    let good = delivery(&good, vec![Target::Anywhere(user("ann"))]);
    assert!(peer.deliver(&me(), vec![bad, good]).await.is_ok());
    let Some(Mail::Deliver(items)) = mailbox.take() else { panic!("a delivery") };
    assert_eq!(items.len(), 1);
}

#[tokio::test]
async fn moved_session_is_stopped_by_its_shard_up_to_its_epoch() {
    let (peer, mut mailbox) = peer();
    peer.directory.add_user(&user("ann"), 0);
    let asked =
        tokio::spawn(
            async move { peer.stop_sessions(&me(), vec![session("ann", 6), session("eve", 1)]).await },
        );
    let mail = loop {
        match mailbox.take() {
            Some(mail) => break mail,
            None => tokio::task::yield_now().await,
        }
    };
    let Mail::Replaced(who, _, epoch, Some(reply)) = mail else { panic!("a replacement") };
    assert_eq!((who, epoch), (user("ann"), 7));
    reply.send(true).unwrap();
    assert_eq!(asked.await.unwrap(), Ok(vec![true, false]));
}

/// Frame as a peer encodes it.
fn server_frame(body: pb::server_frame::Body) -> bytes::Bytes {
    pb::ServerFrame { id: 0, body: Some(body) }.encode_to_vec().into()
}

fn talk(room: &str, conversation: &str) -> BestEffortMessage {
    let push = pb::Push { conversation: conversation.into(), seq: 5, ..Default::default() };
    BestEffortMessage::RoomMessage {
        room: ConversationId::parse(room).unwrap(),
        push: push.encode_to_vec().into(),
        class: 0,
        left_out: 0,
    }
}

#[tokio::test]
async fn best_effort_messages_reach_only_their_recipients() {
    let (peer, mut mailbox) = peer();
    let (hall, tea) = (ConversationId::parse("r:hall").unwrap(), ConversationId::parse("g:tea").unwrap());
    peer.directory.hold_conversation(&hall, 0);
    peer.directory.hold_conversation(&tea, 0);
    peer.directory.add_user(&user("ann"), 0);
    let receipt = || server_frame(pb::server_frame::Body::Receipt(pb::Receipt::default()));
    let signal = || server_frame(pb::server_frame::Body::Signal(pb::Signal::default()));
    let mark = |whose, frame| BestEffortMessage::Mark {
        conversation: tea.clone(),
        user: user(whose),
        seq: 2,
        frame,
    };
    let signalled =
        |frame| BestEffortMessage::Signal { conversation: tea.clone(), users: vec![user("ann")], frame };
    let messages = vec![
        talk("r:hall", "r:hall"),
        talk("r:elsewhere", "r:elsewhere"),
        talk("r:hall", "d:ann:bob"),
        talk("g:tea", "g:tea"),
        mark("ann", receipt()),
        mark("bob", receipt()),
        mark("ann", signal()),
        signalled(signal()),
        signalled(receipt()),
        BestEffortMessage::RoomLoss { room: hall.clone(), count: 3 },
        BestEffortMessage::RoomLoss { room: tea.clone(), count: 3 },
    ];
    peer.send_best_effort(&me(), messages).await.unwrap();
    let Some(Mail::Signal(found)) = mailbox.take() else { panic!("a signal") };
    assert_eq!((found.audience, found.origin), (Audience::Members, None));
    assert_eq!(found.only.as_deref(), Some(&[user("ann")].into()));
    let Some(Mail::Deliver(items)) = mailbox.take() else { panic!("a delivery") };
    let [Item::Push(mark)] = &items[..] else { panic!("one push") };
    let anns = Audience::Users([user("ann")].into());
    assert_eq!((&mark.conversation, mark.seq, &mark.audience), (&tea, 2, &anns));
    let Some(Mail::RoomFrames(frames)) = mailbox.take_room_frames() else { panic!("a frame") };
    let [frame] = &frames[..] else { panic!("one frame") };
    assert_eq!((&frame.conversation, frame.seq, &frame.audience), (&hall, 5, &Audience::Members));
    let Some(Mail::RoomLoss(room, 3)) = mailbox.take_room_frames() else { panic!("no report of the loss") };
    assert_eq!(room, hall);
    assert!(mailbox.take().is_none() && mailbox.take_room_frames().is_none());
}

#[tokio::test]
async fn full_shard_delays_no_message_and_room_losses_are_reported() {
    let (peer, mut mailbox) = peer();
    let tea = ConversationId::parse("r:tea").unwrap();
    peer.directory.hold_conversation(&ConversationId::parse("r:hall").unwrap(), 0);
    while peer.shards.get().unwrap()[0].try_post(Mail::RoomLoss(tea.clone(), 1)) {}
    for _ in 0..2 {
        peer.send_best_effort(&me(), vec![talk("r:hall", "r:hall"); 2]).await.unwrap();
    }
    // Only a number to report, without a message.
    let room = ConversationId::parse("r:hall").unwrap();
    let report = BestEffortMessage::RoomMessage { room, push: bytes::Bytes::new(), class: 0, left_out: 9 };
    peer.send_best_effort(&me(), vec![report]).await.unwrap();
    while let Some(mail) = mailbox.take_room_frames() {
        assert!(matches!(mail, Mail::RoomLoss(room, _) if room == tea));
    }
    // A loss of unknown size is reported separately.
    peer.report_possible_loss(vec![ConversationId::parse("r:hall").unwrap()]);
    let delivered = [(); 3].map(|()| match mailbox.take_room_frames() {
        Some(Mail::RoomLoss(_, count)) => (count, 0),
        Some(Mail::RoomFrames(reports)) => (0, reports[0].left_out_count()),
        _ => panic!("a report of losses"),
    });
    assert_eq!(delivered, [(4, 0), (0, 9), (0, 0)]);
    peer.send_best_effort(&me(), vec![talk("r:hall", "r:hall")]).await.unwrap();
    assert!(matches!(mailbox.take_room_frames(), Some(Mail::RoomFrames(frames)) if frames.len() == 1));
}
