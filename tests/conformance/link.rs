//! The suite of `Link`: what arrives, in which order, and what the caller is told of what does not.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
    time::Duration,
};

use futures_util::future::join_all;
use tidegate::{
    fault::{FaultPlan, Faulty},
    link::{
        Answer, AnswerStatus, ArchiveStatus, Ask, AskKey, BestEffortMessage, GrpcLink, Landing, Link,
        LinkError, Listener, LocalLink, MemoryLink, PeerPush, PublishedMark, RoutedSession, Secret, Settings,
        Target,
    },
    metrics,
    routes::NodeBoot,
    trace::TraceFilter,
};
use tidegate_protocol::{Code, id::ConversationId, machine::ledger::Outcome};

use super::{at_once, device, group, node, user};

#[path = "link/end.rs"]
mod end;

use end::{End, HERE, OWNED};

/// Who calls.
fn here() -> NodeBoot {
    node("here", 1)
}

/// A node that calls, and one that is called.
struct World {
    link: Arc<dyn Link>,
    there: NodeBoot,
    end: Arc<End>,
    /// The listener, where there is one: dropped, nobody is there.
    _kept: Option<Listener>,
}

/// Polls a call once; it must not be ready.
fn begin<T>(call: &mut Pin<Box<dyn Future<Output = T> + Send + '_>>) {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Another run of the node that is called, over and done with.
fn gone() -> NodeBoot {
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
    link.set_peers(vec![(there.clone(), address.clone()), (gone(), address)]);
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
        answers_arrive_as_they_were_given
        answers_and_deliveries_keep_their_order_and_come_one_after_the_other
        each_target_is_told_delivered_or_not_here
        replaced_sessions_are_stopped_or_were_gone
        who_asks_whether_all_is_archived_hears_it_when_the_end_says_so
        what_was_not_answered_may_be_asked_again
        the_steps_of_a_trace_come_as_they_were_noted
        a_question_does_not_wait_behind_deliveries
        strays_arrive_as_they_were_given_in_order
        strays_and_deliveries_do_not_wait_for_each_other
        what_the_end_says_of_a_failure_is_what_the_caller_hears
        a_call_that_was_dropped_takes_no_other_with_it
        an_empty_batch_does_nothing
        s5_a_run_that_is_over_takes_nothing
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

async fn answers_arrive_as_they_were_given(world: &World) {
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

async fn answers_and_deliveries_keep_their_order_and_come_one_after_the_other(world: &World) {
    // More than a task may do before it has to give way, so that order is not luck.
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

async fn each_target_is_told_delivered_or_not_here(world: &World) {
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

async fn replaced_sessions_are_stopped_or_were_gone(world: &World) {
    let sessions = vec![session(HERE), session(HERE + 1), session(HERE)];
    let stopped = world.link.stop_sessions(&world.there, sessions.clone()).await;
    assert_eq!(stopped, Ok(vec![true, false, true]));
    assert_eq!(*world.end.stops.lock().unwrap(), sessions);
}

async fn who_asks_whether_all_is_archived_hears_it_when_the_end_says_so(world: &World) {
    let level = Ok(ArchiveStatus::ArchivedUpTo(end::level()));
    assert_eq!(world.link.archive_status(&world.there, Vec::new(), Duration::ZERO).await, level);
    let told = vec![PublishedMark { owner: 1, to: u64::MAX }, PublishedMark { owner: u64::MAX, to: 0 }];
    assert_eq!(
        world.link.archive_status(&world.there, told.clone(), Duration::ZERO).await,
        Ok(ArchiveStatus::NotYet(told))
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

async fn what_was_not_answered_may_be_asked_again(world: &World) {
    let ask = |offset: u64| {
        let key = offset.is_multiple_of(2).then_some(AskKey { hash: [offset as u8; 16], body_hash: [9; 16] });
        Ask { partition: OWNED, offset, conn: 1, request: offset, key }
    };
    let asks: Vec<Ask> = (0..8).map(ask).collect();
    let words = world.link.answers_again(&here(), &world.there, asks.clone()).await;
    assert_eq!(words, Ok((0..8).map(end::word).collect::<Vec<AnswerStatus>>()));
    // S1: conns and requests are numbers of one run of one node, so its end is told which one asks.
    assert_eq!(*world.end.asks.lock().unwrap(), [(here(), asks)]);
}

async fn the_steps_of_a_trace_come_as_they_were_noted(world: &World) {
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

async fn a_question_does_not_wait_behind_deliveries(world: &World) {
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

fn stray(n: u64) -> BestEffortMessage {
    let (room, conversation) = (ConversationId::parse("r:hall").unwrap(), group("a"));
    let frame = || n.to_string().into();
    match n % 5 {
        0 => BestEffortMessage::RoomMessage { room, push: frame() },
        1 => BestEffortMessage::RoomLoss { room, count: n },
        2 => {
            BestEffortMessage::Signal { conversation, users: vec![user("ann"), user("bob")], frame: frame() }
        }
        3 => BestEffortMessage::FanOut { group: conversation, record: frame() },
        _ => BestEffortMessage::Mark { conversation, user: user("ann"), seq: n, frame: frame() },
    }
}

async fn strays_arrive_as_they_were_given_in_order(world: &World) {
    let calls =
        (0..200).map(|n| world.link.send_best_effort(&world.there, vec![stray(2 * n), stray(2 * n + 1)]));
    assert_eq!(join_all(calls).await, vec![Ok(()); 200]);
    assert_eq!(*world.end.strays.lock().unwrap(), (0..400).map(stray).collect::<Vec<_>>());
}

async fn strays_and_deliveries_do_not_wait_for_each_other(world: &World) {
    let gate = world.end.hold();
    let mut held = world.link.deliver(&world.there, vec![delivery("held", Vec::new())]);
    while world.end.begun.load(Ordering::SeqCst) == 0 {
        begin(&mut held);
        tokio::task::yield_now().await;
    }
    assert_eq!(world.link.send_best_effort(&world.there, vec![stray(0)]).await, Ok(()));
    begin(&mut held);
    gate.close();
    assert_eq!(held.await, Ok(vec![vec![]]));
}

async fn what_the_end_says_of_a_failure_is_what_the_caller_hears(world: &World) {
    for failure in [LinkError::Unavailable("it leaves".into()), LinkError::Unknown("its shard died".into())] {
        world.end.fails.lock().unwrap().push(failure.clone());
        let heard = world.link.deliver(&world.there, vec![delivery("x", Vec::new())]).await;
        assert_eq!(heard, Err(failure));
    }
    assert!(world.link.deliver(&world.there, vec![delivery("x", Vec::new())]).await.is_ok());
}

async fn a_call_that_was_dropped_takes_no_other_with_it(world: &World) {
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

async fn an_empty_batch_does_nothing(world: &World) {
    for to in [&world.there, &gone()] {
        assert_eq!(world.link.answers(to, Vec::new()).await, Ok(()));
        assert_eq!(world.link.deliver(to, Vec::new()).await, Ok(Vec::new()));
        assert_eq!(world.link.stop_sessions(to, Vec::new()).await, Ok(Vec::new()));
        assert_eq!(world.link.answers_again(&here(), to, Vec::new()).await, Ok(Vec::new()));
        assert_eq!(world.link.send_best_effort(to, Vec::new()).await, Ok(()));
    }
    assert_eq!(world.end.begun.load(Ordering::SeqCst), 0);
}

async fn s5_a_run_that_is_over_takes_nothing(world: &World) {
    takes_nothing(&*world.link).await;
    assert!(world.end.answers.lock().unwrap().is_empty());
    assert!(world.end.stops.lock().unwrap().is_empty());
    assert!(world.end.strays.lock().unwrap().is_empty());
    assert!(world.end.looks.lock().unwrap().is_empty());
}

async fn takes_nothing(link: &dyn Link) {
    let gone = gone();
    assert_eq!(link.answers(&gone, vec![answer(1, Outcome::Noted)]).await, Err(LinkError::NotHere));
    let push = delivery("push", vec![Target::Conn(session(HERE))]);
    assert_eq!(link.deliver(&gone, vec![push]).await, Err(LinkError::NotHere));
    assert_eq!(link.stop_sessions(&gone, vec![session(HERE)]).await, Err(LinkError::NotHere));
    assert_eq!(link.archive_status(&gone, Vec::new(), Duration::ZERO).await, Err(LinkError::NotHere));
    let ask = Ask { partition: OWNED, offset: 1, conn: 1, request: 1, key: None };
    assert_eq!(link.answers_again(&here(), &gone, vec![ask]).await, Err(LinkError::NotHere));
    assert_eq!(link.send_best_effort(&gone, vec![stray(0)]).await, Err(LinkError::NotHere));
    assert_eq!(link.traces(&gone, TraceFilter::default()).await, Err(LinkError::NotHere));
}

#[tokio::test]
async fn without_peers_nobody_is_there() {
    takes_nothing(&LocalLink).await;
    let link: Arc<dyn Link> = Arc::new(LocalLink);
    assert_eq!(at_once(link.answers(&gone(), vec![answer(1, Outcome::Noted)])), Err(LinkError::NotHere));
}
