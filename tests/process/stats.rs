//! Stream of a node's figures: its events, and the bounds that hold for its readers; and the flows.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire};

use crate::support::{Client, Process, StatsFollower, Stopwatch, WAIT_MAX, ask, eventually, hello, http};

const PATH: &str = StatsFollower::PATH;

/// Returns the status of a request for a stream, without reading it.
fn status(node: &Process, method: &str) -> u16 {
    let mut stream = TcpStream::connect(node.admin()).expect("an admin port");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
    let request = format!("{method} {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the admin port reads");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("a status");
    std::str::from_utf8(&head[9..]).expect("text").parse().expect("a status")
}

#[test]
fn stream_begins_with_the_past_and_goes_on_each_second() {
    let node = Process::start(&[]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut follower = StatsFollower::open(&node);
    let start = follower.expect("start");
    assert_eq!((&start["everyMs"], &start["keepMs"]), (&1_000.into(), &900_000.into()));
    let fields: Vec<String> = serde_json::from_value(start["fields"].clone()).expect("names");
    let of = |row: &Value, name: &str| {
        let row: Vec<u64> = serde_json::from_value(row.clone()).expect("numbers");
        assert_eq!(row.len(), fields.len() + 1);
        row[1 + fields.iter().position(|field| field == name).expect("a field")]
    };
    assert_eq!(follower.expect("past")["node"], "n1");
    assert_eq!(follower.expect_codes()["rows"], json!([]));
    for n in 0..20 {
        alice.text("bob", &format!("m{n}"), "hello");
    }
    let mut accepted = 0;
    let row = loop {
        let now = follower.expect("now");
        accepted += of(&now["row"], "accepted");
        if of(&now["row"], "ackP99Us") > 0 {
            break now["row"].clone();
        }
    };
    assert_eq!((of(&row, "clients"), of(&row, "users"), of(&row, "nodesLive")), (1, 1, 1));
    let median = of(&row, "ackP50Us");
    assert!(median > 0 && median <= of(&row, "ackP99Us"), "{row}");
    while accepted < 20 {
        accepted += of(&follower.expect("now")["row"], "accepted");
    }
    assert_eq!(accepted, 20, "each send is counted once");
    let mut later = StatsFollower::open(&node);
    later.expect("start");
    let past = later.expect("past");
    let rows = past["rows"].as_array().expect("rows").clone();
    assert_eq!(rows.iter().map(|row| of(row, "accepted")).sum::<u64>(), 20);
    let times: Vec<u64> = rows.iter().map(|row| row[0].as_u64().expect("a time")).collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn ninth_stream_is_refused_until_another_ends() {
    let node = Process::start(&[]);
    for method in ["HEAD", "GET"].iter().cycle().take(20) {
        assert_eq!(status(&node, method), 200, "an ended stream holds no place");
    }
    let mut open: Vec<StatsFollower> = Vec::new();
    eventually("all places are free", || {
        while open.len() < 8 {
            let mut follower = StatsFollower::open(&node);
            if follower.status() != 200 {
                return None;
            }
            follower.expect("start");
            open.push(follower);
        }
        Some(())
    });
    let (refused, body) = http::ask(node.admin(), "GET", PATH, "");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((refused, &body["name"]), (503, &"OVERLOADED".into()), "{body}");
    assert!(body["cure"].as_str().is_some_and(|cure| !cure.is_empty()), "{body}");
    assert_eq!(http::ask(node.admin(), "GET", "/healthz", "").0, 200, "other requests are served");
    open.pop();
    eventually("a place is free", || (status(&node, "GET") == 200).then_some(()));
}

#[test]
fn stop_of_the_node_ends_its_streams() {
    let mut node = Process::start(&[]);
    let mut follower = StatsFollower::open(&node);
    follower.expect("start");
    let began = Stopwatch::start();
    node.signal(Signal::TERM);
    assert_eq!(node.exit().code(), Some(0), "{}", node.stderr());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    while follower.next().is_some() {}
}

#[test]
fn pages_of_other_origins_get_no_stream() {
    let node = Process::start(&[]);
    for fields in ["Host: evil.example\r\n", "Host: localhost\r\nOrigin: https://evil.example\r\n"] {
        let (status, _) = http::ask_by(node.admin(), &format!("GET {PATH} HTTP/1.1\r\n{fields}"), "");
        assert!([403, 421].contains(&status), "{fields}: {status}");
    }
}

#[test]
fn codes_given_to_clients_are_counted_by_period() {
    let node = Process::start(&[]);
    let mut follower = StatsFollower::open(&node);
    follower.expect("start");
    let codes = follower.expect_codes();
    assert_eq!(
        (&codes["node"], &codes["everyMs"], &codes["rows"]),
        (&json!("n1"), &json!(10_000), &json!([]))
    );
    let mut alice = node.login(Wire::JsonLine, "alice", "phone");
    for _ in 0..2 {
        assert_eq!(alice.refused(ask::after("g:none", 0, 1)), Code::NotAMember);
    }
    let mut stranger = Client::connect(node.address(), Wire::WsText);
    assert_eq!(stranger.refused(ask::hello(hello("no token", "d"))), Code::TokenInvalid);
    assert_eq!(stranger.expect_close(), Code::TokenInvalid);
    let _newer = node.login(Wire::Tcp, "alice", "phone");
    assert_eq!(alice.expect_close(), Code::Replaced);
    // The period may end in between.
    let mut counted = std::collections::BTreeMap::new();
    while counted.values().sum::<u64>() < 4 {
        let codes = follower.expect_codes();
        for row in codes["rows"].as_array().expect("rows") {
            assert_eq!(row[0].as_u64().expect("a time") % 10_000, 0, "{row}");
            for count in row[1].as_array().expect("counts") {
                *counted.entry(count[0].as_u64().expect("a code")).or_default() +=
                    count[1].as_u64().expect("a count");
            }
        }
    }
    // The refusal of a login and the close after it count once.
    assert_eq!(counted, [(2_001, 1), (2_004, 2), (3_500, 1)].into());
    let mut later = StatsFollower::open(&node);
    assert_ne!(later.expect_codes()["rows"], json!([]), "a later stream begins with them");
}

#[test]
fn flows_show_who_came_and_who_left() {
    let node = Process::start(&[]);
    let flows = |since: u64| -> Value {
        let (status, body) = http::ask(node.admin(), "GET", &format!("/v1/flows?since={since}"), "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    };
    let none = flows(0);
    assert_eq!((&none["rows"], &none["silent"], &none["everyMs"]), (&json!([]), &json!([]), &json!(1_000)));
    let alice = node.login(Wire::Tcp, "alice", "phone");
    let came = eventually("a complete second", || {
        flows(0)["rows"].as_array().filter(|rows| !rows.is_empty()).cloned()
    });
    assert_eq!(came[0][1], json!([["", "n1", 1]]));
    let at = came[0][0].as_u64().expect("a time");
    assert_eq!(at % 1_000, 0);
    assert_eq!(flows(at)["rows"], json!([]));
    drop(alice);
    let left =
        eventually("another", || flows(at)["rows"].as_array().filter(|rows| !rows.is_empty()).cloned());
    assert_eq!(left[0][1], json!([["n1", "", 1]]));
    for wrong in ["since=x", "since=-1", "from=1"] {
        assert_eq!(http::ask(node.admin(), "GET", &format!("/v1/flows?{wrong}"), "").0, 400, "{wrong}");
    }
}
