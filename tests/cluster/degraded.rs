//! A part is away: what users notice then, which code they hear, what is counted, and that it ends by itself. One row of
//! `docs/OPERATIONS.md` each.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    done,
    events::Listener,
    history,
    rebalance::Until,
    send_until_acked,
    support::{
        Client, Cluster, OwnKafka, OwnPostgres, Said, Stopwatch, Way, ask, eventually, eventually_within,
        free_port, hello, send, text_of,
    },
};

/// Tries to log in: the refusal, or none.
fn refusal(cluster: &Cluster, nth: usize, user: &str) -> Option<pb::Close> {
    let node = cluster.node(nth);
    let mut client = Client::connect(node.address(), Wire::Tcp);
    client.say(ask::hello(hello(&node.token(user), "phone")));
    let answer = |frame: &pb::ServerFrame| matches!(frame.body, Some(Said::Welcome(_) | Said::Close(_)));
    match client.take("a word to the login", answer).body {
        Some(Said::Close(close)) => Some(close),
        _ => None,
    }
}

/// Refused with a code, and a time after which to come again, to another node if possible.
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

/// Says it until it is acked with that seq, and the other one has it.
fn says(from: &mut Client, to: &mut Client, names: (&str, &str), seq: u64) {
    let id = format!("m{seq}");
    assert_eq!(send_until_acked(from, names.1, &id).0, seq);
    let mut pair = [names.0, names.1];
    pair.sort_unstable();
    let conversation = format!("d:{}:{}", pair[0], pair[1]);
    let wanted = |frame: &pb::ServerFrame| matches!(&frame.body, Some(Said::Push(push)) if push.seq == seq);
    match to.take(&id, wanted).body {
        Some(Said::Push(push)) => assert_eq!(text_of(&push), id),
        other => panic!("{other:?}"),
    }
    to.ack(&conversation, seq);
}

#[test]
fn with_redis_away_who_is_there_talks_on_logins_are_refused_with_a_code_and_all_goes_on_when_it_is_back() {
    let way = Way::to_service("redis7");
    let cluster = Cluster::start(2, &[&format!("redis.urls=[redis://{}]", way.address())]);
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::WsText, "bob"));
    says(&mut ann, &mut bob, ("ann", "bob"), 1);
    way.close();
    for nth in 0..2 {
        let node = cluster.node(nth);
        eventually("the lease is not renewed", || (node.metric("lease_failures_total") >= 1.0).then_some(()));
    }
    says(&mut ann, &mut bob, ("ann", "bob"), 2);
    says(&mut bob, &mut ann, ("bob", "ann"), 3);
    for nth in 0..2 {
        is_refused(&cluster, nth, "cat");
    }
    let (status, ready) =
        crate::support::http::ask(cluster.node(0).addresses.admin, "GET", "/readyz?verbose", "");
    let ready: Value = serde_json::from_str(&ready).expect("JSON");
    assert_eq!((status, &ready["routes"]), (200, &Value::from("away")), "of use without it");
    way.open();
    for nth in 0..2 {
        eventually("logins are possible again", || refusal(&cluster, nth, "cat").is_none().then_some(()));
    }
    eventually("ann and bob are found", || {
        ["ann", "bob"].iter().all(|user| online(&cluster, 0, user)).then_some(())
    });
    says(&mut ann, &mut bob, ("ann", "bob"), 4);
}

#[test]
fn a_node_that_comes_while_redis_is_away_is_ready_when_it_can_let_somebody_in_and_stays_so() {
    let way = Way::to_service("redis7");
    let mut cluster = Cluster::start(2, &[&format!("redis.urls=[redis://{}]", way.address())]);
    cluster.all_linked();
    let ready = |cluster: &Cluster| {
        let admin = cluster.node(1).addresses.admin;
        let (status, said) = crate::support::http::ask(admin, "GET", "/readyz", "");
        let said: Value = serde_json::from_str(&said).expect("JSON");
        (status, said["state"].as_str().expect("a word").to_owned())
    };
    assert_eq!(ready(&cluster), (200, "ready".to_owned()));
    assert_eq!(cluster.stop(1), Some(0));
    way.close();
    cluster.restart(1);
    assert_eq!(ready(&cluster), (503, "starting".to_owned()));
    is_refused(&cluster, 1, "cat");
    way.open();
    eventually("it is known", || (ready(&cluster).0 == 200).then_some(()));
    eventually("logins are possible", || refusal(&cluster, 1, "cat").is_none().then_some(()));
    way.close();
    let node = cluster.node(1);
    let before = node.metric("lease_failures_total");
    eventually("its lease is not renewed", || (node.metric("lease_failures_total") > before).then_some(()));
    assert_eq!(ready(&cluster), (200, "ready".to_owned()), "of use to whom it has");
    way.open();
}

#[test]
fn what_redis_had_is_put_back_by_the_nodes_and_nobody_is_missed_meanwhile() {
    let cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    says(&mut ann, &mut bob, ("ann", "bob"), 1);
    let empty =
        "for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do redis.call('DEL', key) end return 1";
    let _: i64 = cluster.redis(&["EVAL", empty, "0", "{}"]);
    for nth in 0..2 {
        let node = cluster.node(nth);
        eventually("the loss is noticed", || (node.metric("routes_lost_total") >= 1.0).then_some(()));
        eventually("its route is put back", || (node.metric("routes_reasserted_total") >= 1.0).then_some(()));
    }
    says(&mut ann, &mut bob, ("ann", "bob"), 2);
    for user in ["ann", "bob"] {
        eventually("presence is right", || online(&cluster, 0, user).then_some(()));
    }
}

#[test]
fn with_kafka_away_sends_are_unknown_then_refused_history_and_rooms_go_on_and_nothing_is_lost_or_doubled() {
    let kafka = OwnKafka::start();
    let cluster = Cluster::start(2, &[&format!("kafka.brokers=[{}]", kafka.address())]);
    cluster.all_linked();
    let mut listener = Listener::start(&cluster);
    let gone = cluster.login(1, Wire::Tcp, "gone");
    listener.online("gone");
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    for client in [&mut ann, &mut bob] {
        done(client, ask::join("hall"));
    }
    says(&mut ann, &mut bob, ("ann", "bob"), 1);
    kafka.stand_still(true);
    drop(gone);
    assert_eq!(ann.refused(ask::send(send("bob", "m2", "m2"))), Code::Unknown);
    let began = Stopwatch::start();
    assert_eq!(ann.refused(ask::send(send("bob", "m3", "m3"))), Code::BusUnavailable);
    assert!(began.elapsed() < Duration::from_secs(2), "at once: {:?}", began.elapsed());
    assert!(cluster.node(0).metric("kafka_appends_unknown_total") >= 1.0);
    assert_eq!(history(&mut bob, "d:ann:bob"), [(1, "m1".to_owned())]);
    let number = ann.text("r:hall", "w1", "still here");
    let heard = bob.take("what is said in the room", |frame| matches!(frame.body, Some(Said::Push(_))));
    assert!(matches!(heard.body, Some(Said::Push(push)) if push.seq == number));
    assert!(refusal(&cluster, 1, "cat").is_none(), "logins need no Kafka");
    kafka.stand_still(false);
    says(&mut ann, &mut bob, ("ann", "bob"), 2);
    says(&mut ann, &mut bob, ("ann", "bob"), 3);
    assert_eq!(history(&mut bob, "d:ann:bob").len(), 3);
    eventually("who left meanwhile is told of", || (listener.offlines("gone") >= 1).then_some(()));
    listener.take(Duration::from_secs(1));
    assert_eq!(["gone", "ann", "bob"].map(|user| listener.offlines(user)), [1, 0, 0]);
}

#[test]
fn with_postgres_away_history_and_logins_are_refused_with_codes_rooms_go_on_and_all_is_decided_when_it_is_back()
 {
    let postgres = OwnPostgres::start();
    let way = Way::to(postgres.address());
    let cluster =
        Cluster::start(2, &[&format!("postgres.url=postgres://tidegate@{}/postgres", way.address())]);
    cluster.all_linked();
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    for client in [&mut ann, &mut bob] {
        done(client, ask::join("hall"));
    }
    says(&mut ann, &mut bob, ("ann", "bob"), 1);
    ann.text("r:hall", "w1", "hello");
    way.hang();
    let number = ann.text("r:hall", "w2", "still here");
    bob.take(
        "what is said in the room",
        |frame| matches!(&frame.body, Some(Said::Push(push)) if push.seq == number),
    );
    ann.say(ask::send(send("bob", "m2", "m2")));
    assert_eq!(bob.refused(ask::after("d:ann:bob", 0, 9)), Code::StoreUnavailable);
    is_refused(&cluster, 1, "cat");
    eventually("a record waits for the archive", || {
        let waits = |nth| cluster.node(nth).metric("archive_lag_seconds") > 1.0;
        (waits(0) || waits(1)).then_some(())
    });
    way.open();
    eventually("logins are possible again", || refusal(&cluster, 1, "cat").is_none().then_some(()));
    assert_eq!(send_until_acked(&mut ann, "bob", "m2").0, 2);
    let texts = |client: &mut Client| {
        let page = client.try_page(ask::after("d:ann:bob", 0, 9))?;
        Some(page.messages.iter().map(|push| text_of(push).to_owned()).collect::<Vec<_>>())
    };
    eventually("history is there", || (texts(&mut bob)? == ["m1", "m2"]).then_some(()));
}

#[test]
fn while_the_topic_of_events_is_gone_users_notice_nothing_and_each_departure_is_told_once_later() {
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
    says(&mut ann, &mut bob, ("ann", "bob"), 1);
    assert!(refusal(&cluster, 1, "new").is_none());
    // A node dies, and who was on it is owed a word as well.
    cluster.kill(0);
    drop(crashed);
    says(&mut ann, &mut bob, ("ann", "bob"), 2);
    assert!(cluster.node(1).metric("events_waiting_bytes") >= 1.0);
    cluster.make_topic("events");
    let mut listener = Listener::start(&cluster);
    for user in ["gone", "crashed"] {
        // A lease that lapses, and a sweep: as long as after any crash.
        let deadline = Instant::now() + Duration::from_secs(25);
        while listener.offlines(user) == 0 {
            assert!(Instant::now() < deadline, "nobody says that {user} left");
            listener.take(Duration::from_millis(100));
        }
    }
    cluster.node(1).metric_becomes("events_waiting_bytes", 0.0);
    listener.take(Duration::from_secs(1));
    assert_eq!(["gone", "crashed", "ann", "bob"].map(|user| listener.offlines(user)), [1, 1, 0, 0]);
    assert_eq!(cluster.node(1).metric("events_lost_total"), 0.0);
}

#[test]
fn with_the_way_to_a_node_hanging_its_users_get_by_pulls_what_is_pushed_again_afterwards() {
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let way = Way::to(listen);
    let mut cluster = Cluster::prepare(2, &[]);
    cluster.set_for(1, &[&format!("link.listen={listen}"), &format!("link.advertise={}", way.address())]);
    cluster.start_nodes(0..2);
    cluster.all_shared();
    cluster.all_linked();
    let names: Vec<[String; 2]> = (0..8).map(|n| [format!("from-{n}"), format!("to-{n}")]).collect();
    let mut pairs: Vec<[Client; 2]> = names
        .iter()
        .map(|[from, to]| [cluster.login(0, Wire::Tcp, from), cluster.login(1, Wire::Tcp, to)])
        .collect();
    for ([from, to], names) in pairs.iter_mut().zip(&names) {
        says(from, to, (&names[0], &names[1]), 1);
    }
    way.hang();
    for ([from, to], names) in pairs.iter_mut().zip(&names) {
        assert_eq!(send_until_acked(from, &names[1], "m2").0, 2);
        let all = [(1, "m1".to_owned()), (2, "m2".to_owned())];
        assert_eq!(history(to, &format!("d:{}:{}", names[0], names[1])), all, "by a pull");
    }
    let node = cluster.node(0);
    eventually("what does not arrive is counted", || {
        let of = |name| node.metric(name);
        (of("link_timeouts_total") + of("link_failures_total") >= 1.0).then_some(())
    });
    way.open();
    for (nth, ([from, to], names)) in pairs.iter_mut().zip(&names).enumerate() {
        let mut seq = 2;
        eventually("it is pushed again", || {
            seq += 1;
            assert_eq!(send_until_acked(from, &names[1], &format!("m{seq}")).0, seq, "pair {nth}");
            to.listen(Duration::from_millis(200));
            to.inbox
                .iter()
                .any(|frame| matches!(&frame.body, Some(Said::Push(push)) if push.seq == seq))
                .then_some(())
        });
    }
}

#[test]
fn a_node_that_alone_can_not_reach_postgres_leaves_its_partitions_to_others_and_gets_some_again() {
    let way = Way::to_service("postgres");
    let mut cluster = Cluster::prepare(2, &[]);
    let by_way = cluster.postgres_by(way.address());
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
        way.hang();
        let of = |nth: usize, name: &str| cluster.node(nth).metric(name);
        let takes_long = Duration::from_secs(30);
        eventually_within(takes_long, "it gives up what it can't archive", || {
            (of(1, "partitions_given_up_total") >= 1.0).then_some(())
        });
        cluster.node(0).metric_becomes("partitions_owned", 4.0);
        way.open();
        eventually_within(takes_long, "it gets some again", || {
            (of(1, "partitions_owned") >= 1.0).then_some(())
        });
        drop(until);
        talking.into_iter().map(|talk| talk.join().expect("they are content")).collect()
    });
    for (n, (client, last)) in people.iter_mut().zip(said).enumerate() {
        assert_eq!(client.state(&format!("d:from-{n}:to-{n}")).max_seq, last, "from-{n}");
    }
}
