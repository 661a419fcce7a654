//! A service is unavailable: what users notice, which code they get, what is counted, and that it ends by itself. One
//! row of `docs/OPERATIONS.md` each.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    events::Listener,
    history,
    rebalance::Until,
    send_until_acked,
    support::{
        Client, Cluster, OwnKafka, OwnPostgres, ServerBody, ServiceProxy, Stopwatch, ask, eventually,
        eventually_within, free_port, hello, send, text_of,
    },
};

/// Tries to log in; returns the refusal, if there is one.
fn refusal(cluster: &Cluster, nth: usize, user: &str) -> Option<pb::Close> {
    let node = cluster.node(nth);
    let mut client = Client::connect(node.address(), Wire::Tcp);
    client.say(ask::hello(hello(&node.token(user), "phone")));
    let answer =
        |frame: &pb::ServerFrame| matches!(frame.body, Some(ServerBody::Welcome(_) | ServerBody::Close(_)));
    match client.take("a word to the login", answer).body {
        Some(ServerBody::Close(close)) => Some(close),
        _ => None,
    }
}

/// Asserts that a login is refused with a code and a time after which to retry, at another node if possible.
fn is_refused(cluster: &Cluster, nth: usize, user: &str) {
    let close = refusal(cluster, nth, user).expect("a refusal");
    assert_eq!((close.code, close.name.as_str()), (Code::Overloaded.number().into(), "OVERLOADED"));
    assert_eq!(close.reconnect, pb::Reconnect::After as i32);
    assert!(close.after_ms > 0, "{close:?}");
}

fn online(cluster: &Cluster, nth: usize, user: &str) -> bool {
    let said = cluster.node(nth).http("GET", &format!("/v1/users/{user}/presence"), "");
    serde_json::from_str::<Value>(&said).is_ok_and(|said| said["online"] == true)
}

/// Sends until the ack with that seq, and expects the push.
pub(crate) fn send_and_expect(from: &mut Client, to: &mut Client, names: (&str, &str), seq: u64) {
    let id = format!("m{seq}");
    assert_eq!(send_until_acked(from, names.1, &id).0, seq);
    let mut pair = [names.0, names.1];
    pair.sort_unstable();
    let conversation = format!("d:{}:{}", pair[0], pair[1]);
    let wanted =
        |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::Push(push)) if push.seq == seq);
    match to.take(&id, wanted).body {
        Some(ServerBody::Push(push)) => assert_eq!(text_of(&push), id),
        other => panic!("{other:?}"),
    }
    to.ack(&conversation, seq);
}

/// K3, S55.
#[test]
fn k3_node_that_alone_lost_redis_sends_its_clients_to_others() {
    let proxy = ServiceProxy::to_service("redis7");
    let mut cluster = Cluster::prepare(3, &[]);
    cluster.set_for(2, &[&format!("redis.urls=[redis://{}]", proxy.address())]);
    cluster.start_nodes(0..3);
    cluster.all_shared();
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(2, Wire::WsText, "bob"));
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 1);
    proxy.close();
    // Its lease of 10 s, 6 s until it counts as dead, then the next renewal.
    eventually_within(Duration::from_secs(40), "the client is sent away", || {
        bob.listen(Duration::from_millis(100));
        bob.has_ended().then_some(())
    });
    assert_eq!(bob.expect_close(), Code::LeaseLost);
    assert_eq!(cluster.exit(2), Some(1));
    let mut bob = cluster.login(1, Wire::Tcp, "bob");
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 2);
    // Started again, it waits for Redis, and then serves.
    let begun = cluster.begin(2);
    proxy.open();
    cluster.has(2, begun.serves());
    cluster.all_linked();
}

#[test]
fn redis_outage_refuses_logins_and_keeps_online_users_talking() {
    let proxy = ServiceProxy::to_service("redis7");
    let cluster = Cluster::start(2, &[&format!("redis.urls=[redis://{}]", proxy.address())]);
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::WsText, "bob"));
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 1);
    proxy.close();
    for nth in 0..2 {
        let node = cluster.node(nth);
        eventually("the lease is not renewed", || (node.metric("lease_failures_total") >= 1.0).then_some(()));
    }
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 2);
    send_and_expect(&mut bob, &mut ann, ("bob", "ann"), 3);
    for nth in 0..2 {
        is_refused(&cluster, nth, "cat");
    }
    let (status, ready) =
        crate::support::http::ask(cluster.node(0).addresses.admin, "GET", "/readyz?verbose", "");
    let ready: Value = serde_json::from_str(&ready).expect("JSON");
    assert_eq!(
        (status, &ready["routes"]),
        (200, &Value::from("away")),
        "the node is ready without the routes"
    );
    proxy.open();
    for nth in 0..2 {
        eventually("logins are possible again", || refusal(&cluster, nth, "cat").is_none().then_some(()));
    }
    eventually("ann and bob are online", || {
        ["ann", "bob"].iter().all(|user| online(&cluster, 0, user)).then_some(())
    });
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 4);
}

#[test]
fn node_started_in_a_redis_outage_is_ready_once_logins_work() {
    let proxy = ServiceProxy::to_service("redis7");
    let mut cluster = Cluster::start(2, &[&format!("redis.urls=[redis://{}]", proxy.address())]);
    cluster.all_linked();
    let ready = |cluster: &Cluster| {
        let admin = cluster.node(1).addresses.admin;
        let (status, said) = crate::support::http::ask(admin, "GET", "/readyz", "");
        let said: Value = serde_json::from_str(&said).expect("JSON");
        (status, said["state"].as_str().expect("a word").to_owned())
    };
    assert_eq!(ready(&cluster), (200, "ready".to_owned()));
    assert_eq!(cluster.stop(1), Some(0));
    proxy.close();
    cluster.restart(1);
    assert_eq!(ready(&cluster), (503, "starting".to_owned()));
    is_refused(&cluster, 1, "cat");
    proxy.open();
    eventually("the node is ready", || (ready(&cluster).0 == 200).then_some(()));
    eventually("logins are possible", || refusal(&cluster, 1, "cat").is_none().then_some(()));
    proxy.close();
    let node = cluster.node(1);
    let before = node.metric("lease_failures_total");
    eventually("its lease is not renewed", || (node.metric("lease_failures_total") > before).then_some(()));
    assert_eq!(ready(&cluster), (200, "ready".to_owned()), "the node is ready for its own clients");
    proxy.open();
}

#[test]
fn emptied_redis_is_refilled_by_the_nodes() {
    let cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 1);
    let empty =
        "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do redis.call('DEL', key) end return 1";
    let _: i64 = cluster.redis(&["EVAL", empty, "0", "{}"]);
    for nth in 0..2 {
        let node = cluster.node(nth);
        eventually("the loss is noticed", || (node.metric("routes_lost_total") >= 1.0).then_some(()));
        eventually("its route is re-asserted", || {
            (node.metric("routes_reasserted_total") >= 1.0).then_some(())
        });
    }
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 2);
    for user in ["ann", "bob"] {
        eventually("presence is right", || online(&cluster, 0, user).then_some(()));
    }
}

#[test]
fn kafka_outage_refuses_sends_and_loses_nothing() {
    let kafka = OwnKafka::start();
    let cluster = Cluster::start(2, &[&format!("kafka.brokers=[{}]", kafka.address())]);
    cluster.all_linked();
    let mut listener = Listener::start(&cluster);
    let gone = cluster.login(1, Wire::Tcp, "gone");
    listener.online("gone");
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    for client in [&mut ann, &mut bob] {
        client.expect_done(ask::join("hall"));
    }
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 1);
    kafka.freeze(true);
    drop(gone);
    assert_eq!(ann.refused(ask::send(send("bob", "m2", "m2"))), Code::Unknown);
    let began = Stopwatch::start();
    assert_eq!(ann.refused(ask::send(send("bob", "m3", "m3"))), Code::BusUnavailable);
    assert!(began.elapsed() < Duration::from_secs(2), "at once: {:?}", began.elapsed());
    assert!(cluster.node(0).metric("kafka_appends_unknown_total") >= 1.0);
    assert_eq!(history(&mut bob, "d:ann:bob"), [(1, "m1".to_owned())]);
    let number = ann.text("r:hall", "w1", "still here");
    let received = bob.take("a room message", |frame| matches!(frame.body, Some(ServerBody::Push(_))));
    assert!(matches!(received.body, Some(ServerBody::Push(push)) if push.seq == number));
    assert!(refusal(&cluster, 1, "cat").is_none(), "logins need no Kafka");
    kafka.freeze(false);
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 2);
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 3);
    assert_eq!(history(&mut bob, "d:ann:bob").len(), 3);
    eventually("the missed departure is published", || (listener.offlines("gone") >= 1).then_some(()));
    listener.take(Duration::from_secs(1));
    assert_eq!(["gone", "ann", "bob"].map(|user| listener.offlines(user)), [1, 0, 0]);
}

#[test]
fn postgres_outage_refuses_history_and_logins_but_not_rooms() {
    let postgres = OwnPostgres::start();
    let proxy = ServiceProxy::to(postgres.address());
    let cluster =
        Cluster::start(2, &[&format!("postgres.url=postgres://tidegate@{}/postgres", proxy.address())]);
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    for client in [&mut ann, &mut bob] {
        client.expect_done(ask::join("hall"));
    }
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 1);
    ann.text("r:hall", "w1", "hello");
    proxy.hang();
    let number = ann.text("r:hall", "w2", "still here");
    bob.take(
        "a room message",
        |frame| matches!(&frame.body, Some(ServerBody::Push(push)) if push.seq == number),
    );
    ann.say(ask::send(send("bob", "m2", "m2")));
    assert_eq!(bob.refused(ask::after("d:ann:bob", 0, 9)), Code::StoreUnavailable);
    is_refused(&cluster, 1, "cat");
    eventually("a record waits for the archive", || {
        let waits = |nth| cluster.node(nth).metric("archive_lag_seconds") > 1.0;
        (waits(0) || waits(1)).then_some(())
    });
    proxy.open();
    eventually("logins are possible again", || refusal(&cluster, 1, "cat").is_none().then_some(()));
    assert_eq!(send_until_acked(&mut ann, "bob", "m2").0, 2);
    let texts = |client: &mut Client| {
        let page = client.try_page(ask::after("d:ann:bob", 0, 9))?;
        Some(page.messages.iter().map(|push| text_of(push).to_owned()).collect::<Vec<_>>())
    };
    eventually("the history is complete", || (texts(&mut bob)? == ["m1", "m2"]).then_some(()));
}

#[test]
fn lost_event_topic_delays_departures_and_disturbs_no_user() {
    let mut cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    let mut listener = Listener::start(&cluster);
    let (mut ann, mut bob) = (cluster.login(1, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    let (gone, crashed) = (cluster.login(1, Wire::Tcp, "gone"), cluster.login(0, Wire::Tcp, "crashed"));
    for user in ["ann", "bob", "gone", "crashed"] {
        listener.online(user);
    }
    drop(listener);
    cluster.delete_topic("events");
    drop(gone);
    let node = cluster.node(1);
    eventually("its departure waits", || (node.metric("events_waiting_bytes") >= 1.0).then_some(()));
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 1);
    assert!(refusal(&cluster, 1, "new").is_none());
    // A node dies, and its users' departures are unpublished as well.
    cluster.kill(0);
    drop(crashed);
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), 2);
    assert!(cluster.node(1).metric("events_waiting_bytes") >= 1.0);
    cluster.create_topic("events");
    let mut listener = Listener::start(&cluster);
    for user in ["gone", "crashed"] {
        // An expired lease and a sweep: the time after any crash.
        let deadline = Instant::now() + Duration::from_secs(25);
        while listener.offlines(user) == 0 {
            assert!(Instant::now() < deadline, "no event says that {user} left");
            listener.take(Duration::from_millis(100));
        }
    }
    cluster.node(1).metric_becomes("events_waiting_bytes", 0.0);
    listener.take(Duration::from_secs(1));
    assert_eq!(["gone", "crashed", "ann", "bob"].map(|user| listener.offlines(user)), [1, 1, 0, 0]);
    assert_eq!(cluster.node(1).metric("events_lost_total"), 0.0);
}

#[test]
fn hanging_link_leaves_pulls_and_pushes_resume_afterwards() {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let proxy = ServiceProxy::to(listen);
    let mut cluster = Cluster::prepare(2, &[]);
    cluster.set_for(1, &[&format!("link.listen={listen}"), &format!("link.advertise={}", proxy.address())]);
    cluster.start_nodes(0..2);
    cluster.all_shared();
    cluster.all_linked();
    let names: Vec<[String; 2]> = (0..8).map(|n| [format!("from-{n}"), format!("to-{n}")]).collect();
    let mut pairs: Vec<[Client; 2]> = names
        .iter()
        .map(|[from, to]| [cluster.login(0, Wire::Tcp, from), cluster.login(1, Wire::Tcp, to)])
        .collect();
    for ([from, to], names) in pairs.iter_mut().zip(&names) {
        send_and_expect(from, to, (&names[0], &names[1]), 1);
    }
    proxy.hang();
    for ([from, to], names) in pairs.iter_mut().zip(&names) {
        assert_eq!(send_until_acked(from, &names[1], "m2").0, 2);
        let all = [(1, "m1".to_owned()), (2, "m2".to_owned())];
        assert_eq!(history(to, &format!("d:{}:{}", names[0], names[1])), all, "a pull returns all messages");
    }
    let node = cluster.node(0);
    eventually("lost messages are counted", || {
        let of = |name| node.metric(name);
        (of("link_timeouts_total") + of("link_failures_total") >= 1.0).then_some(())
    });
    proxy.open();
    for (nth, ([from, to], names)) in pairs.iter_mut().zip(&names).enumerate() {
        let mut seq = 2;
        eventually("the message is pushed again", || {
            seq += 1;
            assert_eq!(send_until_acked(from, &names[1], &format!("m{seq}")).0, seq, "pair {nth}");
            to.listen(Duration::from_millis(200));
            to.inbox
                .iter()
                .any(|frame| matches!(&frame.body, Some(ServerBody::Push(push)) if push.seq == seq))
                .then_some(())
        });
    }
}

#[test]
fn node_without_postgres_releases_partitions_until_it_is_back() {
    let proxy = ServiceProxy::to_service("postgres");
    let mut cluster = Cluster::prepare(2, &[]);
    let by_way = cluster.postgres_by(proxy.address());
    cluster.set_for(1, &[&by_way]);
    cluster.start_nodes(0..2);
    cluster.all_shared();
    cluster.all_linked();
    let mut people: Vec<Client> =
        (0..8).map(|n| cluster.login(0, Wire::ALL[n % 4], &format!("from-{n}"))).collect();
    for (n, client) in people.iter_mut().enumerate() {
        assert_eq!(send_until_acked(client, &format!("to-{n}"), "m1").0, 1);
    }
    let goes_on = AtomicBool::new(true);
    let said: Vec<u64> = thread::scope(|scope| {
        let talk = |(n, client): (usize, &mut Client)| {
            let mut seq = 1;
            while goes_on.load(Ordering::SeqCst) {
                seq += 1;
                assert_eq!(send_until_acked(client, &format!("to-{n}"), &format!("m{seq}")).0, seq);
                client.listen(Duration::from_millis(50));
            }
            seq
        };
        let talking: Vec<_> = people.iter_mut().enumerate().map(|it| scope.spawn(move || talk(it))).collect();
        let until = Until(&goes_on);
        proxy.hang();
        let of = |nth: usize, name: &str| cluster.node(nth).metric(name);
        let takes_long = Duration::from_secs(30);
        eventually_within(takes_long, "the node releases its partitions", || {
            (of(1, "partitions_given_up_total") >= 1.0).then_some(())
        });
        cluster.node(0).metric_becomes("partitions_owned", 4.0);
        proxy.open();
        eventually_within(takes_long, "the node owns partitions again", || {
            (of(1, "partitions_owned") >= 1.0).then_some(())
        });
        drop(until);
        talking.into_iter().map(|talk| talk.join().expect("the talk succeeds")).collect()
    });
    for (n, (client, last)) in people.iter_mut().zip(said).enumerate() {
        assert_eq!(client.state(&format!("d:from-{n}:to-{n}")).max_seq, last, "from-{n}");
    }
}
