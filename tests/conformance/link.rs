//! The suite of `Link`: what arrives, in which order, and which result the caller gets.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
    time::Duration,
};

use futures_util::future::join_all;
use tidegate::{
    fault::{FaultPlan, Faulty},
    figures::FiguresQuery,
    link::{
        Answer, AnswerStatus, ArchiveStatus, Ask, AskKey, BestEffortMessage, GrpcLink, Landing, Link,
        LinkError, Listener, LocalLink, MemoryLink, PeerPush, PublishedMark, RoutedSession, Secret, Settings,
        Target,
    },
    metrics,
    routes::NodeBoot,
    storms::StormsQuery,
    trace::TraceFilter,
};
use tidegate_protocol::{Code, id::ConversationId, machine::ledger::Outcome};

use super::{at_once, device, group, node, user};

#[path = "link/connections.rs"]
mod connections;
#[path = "link/end.rs"]
mod end;
#[path = "link/rooms.rs"]
mod rooms;

use connections::calls_about_connections_arrive_unchanged;
use end::{End, HERE, OWNED};
use rooms::{removals_from_rooms_arrive_unchanged, rooms_and_members_arrive_as_found};

/// Returns the caller.
fn here() -> NodeBoot {
    node("here", 1)
}

/// A calling node and a called one.
struct World {
    link: Arc<dyn Link>,
    there: NodeBoot,
    end: Arc<End>,
    /// The listener, if there is one; dropping it removes the called node.
    _kept: Option<Listener>,
}

/// Polls a call once; it must not be ready.
fn begin<T>(call: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>) {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Returns another run of the called node, which has ended.
fn ended_run() -> NodeBoot {
    node("there", 1)
}

fn memory() -> World {
    let (link, end, there) = (MemoryLink::default(), Arc::new(End::default()), node("there", 2));
    link.add(there.clone(), end.clone());
    World { link: Arc::new(link), there, end, _kept: None }
}

/// Over real sockets on the loopback device.
fn grpc() -> World {
    let (end, there) = (Arc::new(End::default()), node("there", 2));
    let settings = || Settings {
        secret: Some(Secret::new(b"known to these two only").unwrap()),
        tls: None,
        queue_bytes: 1 << 20,
        timeout: Duration::from_secs(15),
        handshake: Duration::from_secs(15),
    };
    let (metrics, _) = metrics::install();
    let at = ([127, 0, 0, 1], 0).into();
    let listener = Listener::bind(at, there.clone(), end.clone(), settings(), metrics.clone()).unwrap();
    let link = GrpcLink::new(here(), settings(), 5, metrics);
    let address = listener.address().to_string();
    link.set_peers(vec![(there.clone(), address.clone()), (ended_run(), address)]);
    World { link: Arc::new(link), there, end, _kept: Some(listener) }
}

fn faultless(world: World) -> World {
    let link = Arc::new(Faulty::new(Arc::clone(&world.link), FaultPlan::none()));
    World { link, ..world }
}

suite! {
    {
        memory => super::memory();
        faultless => super::faultless(super::memory());
        grpc => super::grpc();
        faultless_grpc => super::faultless(super::grpc());
    }
    {
        answers_arrive_unchanged
        answers_and_deliveries_are_sequential_and_in_order
        each_target_is_delivered_or_not_here
        replaced_sessions_are_stopped_or_already_closed
        archive_query_returns_when_the_end_replies
        missing_answers_can_be_queried_again
        trace_steps_arrive_as_recorded
        figures_arrive_as_kept
        storms_arrive_as_found
        calls_about_connections_arrive_unchanged
        rooms_and_members_arrive_as_found
        removals_from_rooms_arrive_unchanged
        query_does_not_wait_for_deliveries
        best_effort_messages_arrive_unchanged_and_in_order
        best_effort_messages_and_deliveries_are_independent
        caller_gets_the_error_of_the_end
        dropped_call_cancels_no_other
        empty_batch_does_nothing
        s5_ended_run_accepts_nothing
    }
}

fn answer(request: u64, outcome: Outcome) -> Answer {
    Answer { conn: u64::MAX - 1, request, outcome, traceparent: String::new() }
}

fn session(epoch: u64) -> RoutedSession {
    RoutedSession { user: user("ann"), device: device("phone"), epoch }
}

fn delivery(push: &str, to: Vec<Target>) -> PeerPush {
    PeerPush { push: push.to_owned().into(), to, tracked: false, sent_by: None, traceparent: String::new() }
}

async fn answers_arrive_unchanged(world: &World) {
    let outcomes = [
        Outcome::Accepted { seq: 1, ordinal: 2, time: 3 },
        Outcome::Duplicate { seq: u64::MAX, time: 0 },
        Outcome::Refused { code: Code::Conflict },
        Outcome::RefusedBefore { code: Code::OrderSkipped },
        Outcome::Void { newest: 9 },
        Outcome::Noted,
    ];
    let mut answers: Vec<Answer> = (0..).zip(outcomes).map(|(n, outcome)| answer(n, outcome)).collect();
    answers[0].traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned();
    assert_eq!(world.link.answers(&world.there, answers.clone()).await, Ok(()));
    assert_eq!(*world.end.answers.lock().unwrap(), answers);
}

async fn answers_and_deliveries_are_sequential_and_in_order(world: &World) {
    // More calls than a task may make before it yields, so that the order is not chance.
    let calls = (0..600_u64).map(|n| async move {
        if n % 3 == 0 {
            let push = delivery(&n.to_string(), vec![Target::Conn(session(HERE))]);
            world.link.deliver(&world.there, vec![push]).await.map(drop)
        } else {
            world.link.answers(&world.there, vec![answer(n, Outcome::Noted)]).await
        }
    });
    assert_eq!(join_all(calls).await, vec![Ok(()); 600]);
    let answers: Vec<u64> = world.end.answers.lock().unwrap().iter().map(|answer| answer.request).collect();
    assert_eq!(answers, (0..600).filter(|n| n % 3 != 0).collect::<Vec<u64>>());
    let pushes: Vec<_> = world.end.deliveries.lock().unwrap().iter().map(|it| it.push.clone()).collect();
    assert_eq!(pushes, (0..600).step_by(3).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(world.end.at_once.load(Ordering::SeqCst), 1);
}

async fn each_target_is_delivered_or_not_here(world: &World) {
    let mixed = vec![
        Target::Conn(session(HERE)),
        Target::Conn(session(HERE - 1)),
        Target::Anywhere(user("ann")),
        Target::Anywhere(user("bob")),
    ];
    let mut first = delivery("first", mixed);
    (first.tracked, first.traceparent) =
        (true, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00".to_owned());
    let deliveries =
        vec![first, delivery("nobody", Vec::new()), delivery("last", vec![Target::Conn(session(HERE))])];
    let landings = world.link.deliver(&world.there, deliveries.clone()).await.unwrap();
    let (here, not) = (Landing::Delivered, Landing::NotHere);
    assert_eq!(landings, [vec![here, not, here, not], vec![], vec![here]]);
    assert_eq!(*world.end.deliveries.lock().unwrap(), deliveries);
}

async fn replaced_sessions_are_stopped_or_already_closed(world: &World) {
    let sessions = vec![session(HERE), session(HERE + 1), session(HERE)];
    let stopped = world.link.stop_sessions(&world.there, sessions.clone()).await;
    assert_eq!(stopped, Ok(vec![true, false, true]));
    assert_eq!(*world.end.stops.lock().unwrap(), sessions);
}

async fn archive_query_returns_when_the_end_replies(world: &World) {
    let level = Ok(ArchiveStatus::ArchivedUpTo(end::level()));
    assert_eq!(world.link.archive_status(&world.there, Vec::new(), Duration::ZERO).await, level);
    let marks = vec![PublishedMark { owner: 1, to: u64::MAX }, PublishedMark { owner: u64::MAX, to: 0 }];
    assert_eq!(
        world.link.archive_status(&world.there, marks.clone(), Duration::ZERO).await,
        Ok(ArchiveStatus::NotYet(marks))
    );
    let gate = world.end.hold();
    let link = Arc::clone(&world.link);
    let there = world.there.clone();
    let asked = tokio::spawn(async move { link.archive_status(&there, Vec::new(), Duration::ZERO).await });
    while world.end.settles.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    assert!(!asked.is_finished());
    gate.close();
    assert_eq!(asked.await.unwrap(), level);
}

async fn missing_answers_can_be_queried_again(world: &World) {
    let ask = |offset: u64| {
        let key = offset.is_multiple_of(2).then_some(AskKey { hash: [offset as u8; 16], body_hash: [9; 16] });
        Ask { partition: OWNED, offset, conn: 1, request: offset, key }
    };
    let asks: Vec<Ask> = (0..8).map(ask).collect();
    let words = world.link.answers_again(&here(), &world.there, asks.clone()).await;
    assert_eq!(words, Ok((0..8).map(end::status_of).collect::<Vec<AnswerStatus>>()));
    // S1: connections and requests are numbers of one run of one node, so the end learns which run asks.
    assert_eq!(*world.end.asks.lock().unwrap(), [(here(), asks)]);
}

async fn trace_steps_arrive_as_recorded(world: &World) {
    let queries = [
        TraceFilter {
            msg: Some("m1".to_owned()),
            user: Some("ann".to_owned()),
            traces: Vec::new(),
            is_passive: true,
        },
        TraceFilter { traces: vec![1, u128::MAX], ..TraceFilter::default() },
    ];
    for query in &queries {
        assert_eq!(world.link.traces(&world.there, query.clone()).await, Ok(end::steps()));
    }
    assert_eq!(*world.end.looks.lock().unwrap(), queries);
}

async fn figures_arrive_as_kept(world: &World) {
    let queries = [
        FiguresQuery { stats_from: Some(0), codes_from: Some(u64::MAX), flows_after_ms: None },
        FiguresQuery { flows_after_ms: Some(7), ..FiguresQuery::default() },
    ];
    for query in queries {
        assert_eq!(world.link.figures(&world.there, query).await, Ok(end::figures()));
    }
    assert_eq!(*world.end.figures_queries.lock().unwrap(), queries);
}

async fn storms_arrive_as_found(world: &World) {
    let queries = [StormsQuery::default(), StormsQuery { group: Some(group("a")) }];
    for query in &queries {
        assert_eq!(world.link.storms(&world.there, query.clone()).await, Ok(end::storms()));
    }
    assert_eq!(*world.end.storms_queries.lock().unwrap(), queries);
}

async fn query_does_not_wait_for_deliveries(world: &World) {
    let gate = world.end.hold();
    let mut held = world.link.deliver(&world.there, vec![delivery("held", Vec::new())]);
    while world.end.begun.load(Ordering::SeqCst) == 0 {
        begin(&mut held);
        tokio::task::yield_now().await;
    }
    let stopped = world.link.stop_sessions(&world.there, vec![session(HERE)]).await;
    assert_eq!(stopped, Ok(vec![true]));
    begin(&mut held);
    gate.close();
    assert_eq!(held.await, Ok(vec![vec![]]));
}

fn best_effort_message(n: u64) -> BestEffortMessage {
    let (room, conversation) = (ConversationId::parse("r:hall").unwrap(), group("a"));
    let frame = || n.to_string().into();
    match n % 8 {
        0 => BestEffortMessage::RoomMessage { room, push: frame(), class: (n % 4) as u8, left_out: n },
        1 => BestEffortMessage::RoomLoss { room, count: n },
        2 => {
            BestEffortMessage::Signal { conversation, users: vec![user("ann"), user("bob")], frame: frame() }
        }
        3 => BestEffortMessage::FanOut { group: conversation, record: frame() },
        4 => BestEffortMessage::BlocksChanged {
            conversation: ConversationId::direct(&user("ann"), &user("bob")),
        },
        5 => BestEffortMessage::GuardChanged,
        6 => BestEffortMessage::Notice { conversation, users: vec![user("ann")], frame: frame() },
        _ => BestEffortMessage::Mark { conversation, user: user("ann"), seq: n, frame: frame() },
    }
}

async fn best_effort_messages_arrive_unchanged_and_in_order(world: &World) {
    let calls = (0..200).map(|n| {
        world
            .link
            .send_best_effort(&world.there, vec![best_effort_message(2 * n), best_effort_message(2 * n + 1)])
    });
    assert_eq!(join_all(calls).await, vec![Ok(()); 200]);
    assert_eq!(*world.end.best_effort.lock().unwrap(), (0..400).map(best_effort_message).collect::<Vec<_>>());
}

async fn best_effort_messages_and_deliveries_are_independent(world: &World) {
    let gate = world.end.hold();
    let mut held = world.link.deliver(&world.there, vec![delivery("held", Vec::new())]);
    while world.end.begun.load(Ordering::SeqCst) == 0 {
        begin(&mut held);
        tokio::task::yield_now().await;
    }
    assert_eq!(world.link.send_best_effort(&world.there, vec![best_effort_message(0)]).await, Ok(()));
    begin(&mut held);
    gate.close();
    assert_eq!(held.await, Ok(vec![vec![]]));
}

async fn caller_gets_the_error_of_the_end(world: &World) {
    for failure in [LinkError::Unavailable("it leaves".into()), LinkError::Unknown("its shard died".into())] {
        world.end.fails.lock().unwrap().push(failure.clone());
        let reply = world.link.deliver(&world.there, vec![delivery("x", Vec::new())]).await;
        assert_eq!(reply, Err(failure));
    }
    assert!(world.link.deliver(&world.there, vec![delivery("x", Vec::new())]).await.is_ok());
}

async fn dropped_call_cancels_no_other(world: &World) {
    let gate = world.end.hold();
    let deliver = |n: u64| world.link.deliver(&world.there, vec![delivery(&n.to_string(), Vec::new())]);
    let mut calls: Vec<_> = (0..20).map(deliver).collect();
    calls.iter_mut().for_each(begin);
    let kept: Vec<_> = calls.into_iter().enumerate().filter(|(n, _)| n % 2 == 0).map(|(_, it)| it).collect();
    gate.close();
    assert_eq!(join_all(kept).await, vec![Ok(vec![vec![]]); 10]);
    let came = world.end.deliveries.lock().unwrap();
    let came: Vec<u64> = came.iter().map(|it| str::from_utf8(&it.push).unwrap().parse().unwrap()).collect();
    assert!(came.is_sorted() && (0..20).step_by(2).all(|n| came.contains(&n)), "{came:?}");
}

async fn empty_batch_does_nothing(world: &World) {
    for to in [&world.there, &ended_run()] {
        assert_eq!(world.link.answers(to, Vec::new()).await, Ok(()));
        assert_eq!(world.link.deliver(to, Vec::new()).await, Ok(Vec::new()));
        assert_eq!(world.link.stop_sessions(to, Vec::new()).await, Ok(Vec::new()));
        assert_eq!(world.link.answers_again(&here(), to, Vec::new()).await, Ok(Vec::new()));
        assert_eq!(world.link.send_best_effort(to, Vec::new()).await, Ok(()));
    }
    assert_eq!(world.end.begun.load(Ordering::SeqCst), 0);
}

async fn s5_ended_run_accepts_nothing(world: &World) {
    assert_unreachable(&*world.link).await;
    assert!(world.end.answers.lock().unwrap().is_empty());
    assert!(world.end.stops.lock().unwrap().is_empty());
    assert!(world.end.best_effort.lock().unwrap().is_empty());
    assert!(world.end.looks.lock().unwrap().is_empty());
    assert!(world.end.figures_queries.lock().unwrap().is_empty());
}

async fn assert_unreachable(link: &dyn Link) {
    let gone = ended_run();
    assert_eq!(link.answers(&gone, vec![answer(1, Outcome::Noted)]).await, Err(LinkError::NotHere));
    let push = delivery("push", vec![Target::Conn(session(HERE))]);
    assert_eq!(link.deliver(&gone, vec![push]).await, Err(LinkError::NotHere));
    assert_eq!(link.stop_sessions(&gone, vec![session(HERE)]).await, Err(LinkError::NotHere));
    assert_eq!(link.archive_status(&gone, Vec::new(), Duration::ZERO).await, Err(LinkError::NotHere));
    let ask = Ask { partition: OWNED, offset: 1, conn: 1, request: 1, key: None };
    assert_eq!(link.answers_again(&here(), &gone, vec![ask]).await, Err(LinkError::NotHere));
    assert_eq!(link.send_best_effort(&gone, vec![best_effort_message(0)]).await, Err(LinkError::NotHere));
    assert_eq!(link.traces(&gone, TraceFilter::default()).await, Err(LinkError::NotHere));
    assert_eq!(link.figures(&gone, FiguresQuery::default()).await, Err(LinkError::NotHere));
    assert_eq!(link.storms(&gone, StormsQuery::default()).await, Err(LinkError::NotHere));
}

#[tokio::test]
async fn link_without_peers_reaches_no_node() {
    assert_unreachable(&LocalLink).await;
    let link: Arc<dyn Link> = Arc::new(LocalLink);
    assert_eq!(at_once(link.answers(&ended_run(), vec![answer(1, Outcome::Noted)])), Err(LinkError::NotHere));
}
