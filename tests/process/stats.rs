//! Stream of a node's figures: its events, and the bounds that hold for its readers.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use tidegate_protocol::codec::Wire;

use crate::support::{Process, Stopwatch, WAIT_MAX, eventually, http};

const PATH: &str = "/v1/stats/stream";

/// Open stream.
struct Follower(BufReader<TcpStream>);

impl Follower {
    fn open(node: &Process) -> Self {
        let mut stream = TcpStream::connect(node.admin()).expect("an admin port");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("a socket takes options");
        stream
            .write_all(format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
            .expect("the admin port reads");
        Self(BufReader::new(stream))
    }

    /// Returns the next event with its data; `None` at the end of the stream.
    fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("the node sends in time") == 0 {
                return None;
            }
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.trim().to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).expect("JSON")));
            }
        }
    }

    fn expect(&mut self, name: &str) -> Value {
        let (event, data) = self.next().expect("the stream goes on");
        assert_eq!(event, name, "{data}");
        data
    }
}

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
    let mut follower = Follower::open(&node);
    let start = follower.expect("start");
    assert_eq!((&start["everyMs"], &start["keepMs"]), (&1_000.into(), &900_000.into()));
    let fields: Vec<String> = serde_json::from_value(start["fields"].clone()).expect("names");
    let of = |row: &Value, name: &str| {
        let row: Vec<u64> = serde_json::from_value(row.clone()).expect("numbers");
        assert_eq!(row.len(), fields.len() + 1);
        row[1 + fields.iter().position(|field| field == name).expect("a field")]
    };
    assert_eq!(follower.expect("past")["node"], "n1");
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
    let mut later = Follower::open(&node);
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
    let mut open: Vec<Follower> = Vec::new();
    eventually("all places are free", || {
        while open.len() < 8 {
            let mut follower = Follower::open(&node);
            let mut line = String::new();
            follower.0.read_line(&mut line).expect("a status");
            if !line.contains(" 200 ") {
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
    let mut follower = Follower::open(&node);
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
