//! Events of a cluster on their topic: who came online or went offline, whichever node publishes it and however a node
//! ends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    message::Headers as _,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    send_until_acked,
    support::{Client, ClientBody, Cluster, ServerBody, ask, eventually, send, unique_name},
};

/// Independent consumer of the topic: every event by its id, as often as it arrives.
pub(crate) struct Listener {
    consumer: BaseConsumer,
    events: BTreeMap<String, Vec<Value>>,
    /// Ids in the order in which they arrived first.
    arrivals: Vec<String>,
    partitions: HashMap<String, i32>,
}

impl Listener {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.brokers()).set("group.id", "none");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let mut all = TopicPartitionList::new();
        for partition in 0..8 {
            all.add_partition_offset(cluster.event_topic(), partition, Offset::Beginning)
                .expect("a partition");
        }
        consumer.assign(&all).expect("an assignment");
        Self { consumer, events: BTreeMap::new(), arrivals: Vec::new(), partitions: HashMap::new() }
    }

    /// Receives available events; checks that each is a CloudEvent, that one id has one content, and that a user has
    /// one partition.
    pub(crate) fn take(&mut self, patience: Duration) {
        while let Some(record) = self.consumer.poll(patience) {
            let record = record.expect("a record");
            let header = record.headers().map(|it| it.get(0)).expect("a header");
            assert_eq!(header.key, "content-type");
            assert_eq!(header.value, Some(&b"application/cloudevents+json; charset=UTF-8"[..]));
            let event: Value = serde_json::from_slice(record.payload().expect("a value")).expect("JSON");
            let text =
                |name: &str| event[name].as_str().unwrap_or_else(|| panic!("{name} of {event}")).to_owned();
            assert_eq!(text("specversion"), "1.0");
            assert!(text("source").starts_with("/tidegate/cluster_"), "{event}");
            assert!(text("type").starts_with("tidegate."), "{event}");
            let time = text("time");
            assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{event}");
            assert_eq!(record.key(), Some(text("partitionkey").as_bytes()));
            assert_eq!(text("subject"), text("partitionkey"));
            let partition = self.partitions.entry(text("subject")).or_insert(record.partition());
            assert_eq!(*partition, record.partition(), "{event}");
            let same = self.events.entry(text("id")).or_default();
            if same.is_empty() {
                self.arrivals.push(text("id"));
            }
            assert!(same.iter().all(|it| it["data"] == event["data"] && it["source"] == event["source"]));
            same.push(event);
        }
    }

    /// Returns the events of that kind and user, deduplicated by id.
    fn of(&mut self, kind: &str, user: &str) -> Vec<Value> {
        self.take(Duration::from_millis(50));
        let all = self.events.values().filter_map(|same| same.first());
        all.filter(|it| it["type"] == kind && it["subject"] == user).cloned().collect()
    }

    /// Returns the changes of a group in the order of the topic, each once.
    fn changes(&mut self, group: &str) -> Vec<Value> {
        self.take(Duration::from_millis(50));
        let all = self.arrivals.iter().filter_map(|id| self.events[id].first());
        all.filter(|it| it["subject"] == group).cloned().collect()
    }

    pub(crate) fn online(&mut self, user: &str) -> Value {
        eventually(&format!("{user} came"), || self.of("tidegate.online", user).pop())
    }

    /// Waits for the event that the user's connection of `came` is blocked on that id.
    fn blocked(&mut self, came: &Value, expected: &str) -> Value {
        let of = &came["data"];
        let text = |key: &str| of[key].as_str().expect("text").to_owned();
        let id = format!("order-blocked/{}/{}/{}/{expected}", text("node"), text("boot"), of["epoch"]);
        eventually(&format!("an event says that {id}"), || {
            self.of("tidegate.order-blocked", &text("user")).into_iter().find(|event| event["id"] == id)
        })
    }

    pub(crate) fn offlines(&mut self, user: &str) -> usize {
        self.of("tidegate.offline", user).len()
    }

    /// Returns the users, with one device each, whose newest connection has no offline event.
    pub(crate) fn not_left<'a>(&mut self, users: &'a [String]) -> Vec<&'a String> {
        self.take(Duration::from_millis(50));
        let newest = |kind: &str| {
            let mut epochs: HashMap<&str, u64> = HashMap::new();
            for event in self.events.values().filter_map(|same| same.first()).filter(|it| it["type"] == kind)
            {
                let user = event["subject"].as_str().expect("text");
                let epoch = event["data"]["epoch"].as_u64().expect("a number");
                epochs.entry(user).and_modify(|known| *known = epoch.max(*known)).or_insert(epoch);
            }
            epochs
        };
        let (came, left) = (newest("tidegate.online"), newest("tidegate.offline"));
        let has_left = |user: &str| left.get(user).is_some_and(|left| Some(left) >= came.get(user));
        users.iter().filter(|user| !has_left(user)).collect()
    }

    /// Returns the connections with more than one departure, by their tokens.
    pub(crate) fn departed_twice(&self) -> BTreeSet<String> {
        let (mut once, mut twice) = (BTreeSet::new(), BTreeSet::new());
        let all = self.events.values().filter_map(|same| same.first());
        for event in all.filter(|event| event["type"] == "tidegate.offline") {
            let of = &event["data"];
            let token = format!("{}/{}/{}", of["node"], of["boot"], of["epoch"]);
            if !once.insert(token.clone()) {
                twice.insert(token);
            }
        }
        twice
    }

    /// Waits until each user has left once, within 15 s of `began`, the promised time for presence.
    pub(crate) fn all_left(&mut self, users: &[String], began: Instant) {
        while let Some(user) = users.iter().find(|user| self.offlines(user) != 1) {
            assert!(began.elapsed() < Duration::from_secs(15), "no event says that {user} left");
            self.take(Duration::from_millis(100));
        }
    }
}

/// `tidegate tail --events` of one node.
struct Tail {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Tail {
    fn start(cluster: &Cluster, nth: usize) -> Self {
        let admin = cluster.node(nth).addresses.admin.to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["tail", "--events", "--json", "--kept", "--admin", &admin])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let (said, mut out) = (Arc::new(Mutex::new(String::new())), child.stdout.take().expect("a pipe"));
        let received = Arc::clone(&said);
        thread::spawn(move || {
            let mut buffer = [0; 4_096];
            while let Ok(count @ 1..) = std::io::Read::read(&mut out, &mut buffer) {
                received
                    .lock()
                    .expect("no thread panicked")
                    .push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { child, said }
    }

    fn expect(&self, what: &str) {
        eventually(&format!("tail prints {what}"), || {
            self.said.lock().expect("no thread panicked").contains(what).then_some(())
        });
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Creates the group `tea` and changes it until the topic has a change of it: a node publishes what comes after its start.
fn group_on_the_topic(cluster: &Cluster, listener: &mut Listener) {
    cluster.node(1).group("tea", &["gil", "hal"].map(str::to_owned));
    let mut count = 0;
    eventually("the topic has changes of the group", || {
        count += 1;
        cluster.node(1).change_members("tea", &json!({"add": [format!("new-{count}")]}));
        listener.changes("g:tea").pop()
    });
}

/// Adds a member to the group and removes another one; checks that the topic has both changes behind every earlier one.
fn members_are_on_the_topic(cluster: &Cluster, listener: &mut Listener, added: &str, removed: &str) {
    let joined = cluster.node(1).change_members("tea", &json!({"add": [added]}));
    let kicked = cluster.node(1).change_members("tea", &json!({"remove": [removed]}));
    let changes = eventually("the topic has both changes", || {
        let changes = listener.changes("g:tea");
        changes.iter().any(|it| it["data"]["seq"] == kicked).then_some(changes)
    });
    let seqs: Vec<u64> = changes.iter().filter_map(|it| it["data"]["seq"].as_u64()).collect();
    assert_eq!(seqs, (seqs[0]..=kicked).collect::<Vec<_>>(), "in order, without a hole");
    let found = [joined, kicked].map(|seq| {
        let change = changes.iter().find(|it| it["data"]["seq"] == seq).expect("it is there");
        assert_eq!(change["id"], format!("g:tea/{seq}"));
        json!([change["type"], change["data"]["users"]])
    });
    let expected = [("joined", added), ("kicked", removed)];
    assert_eq!(found, expected.map(|(kind, user)| json!([format!("tidegate.member.{kind}"), [user]])));
}

/// Checks that survivors have reported the end of n1's run, once each, and that each node reports its own start.
fn nodes_are_on_the_topic(listener: &mut Listener, boot: &str) {
    eventually("the end of n1 is reported", || listener.of("tidegate.node.lapsed", "n1").pop());
    listener.take(Duration::from_secs(1));
    let mut by = BTreeSet::new();
    for lapsed in listener.of("tidegate.node.lapsed", "n1") {
        assert_eq!((&lapsed["data"]["node"], &lapsed["data"]["boot"]), (&json!("n1"), &json!(boot)));
        assert!(by.insert(lapsed["data"]["by"].to_string()), "{lapsed} is the second one of its node");
    }
    assert!(!by.contains("\"n1\""), "{by:?}");
    for node in ["n1", "n2", "n3"] {
        let joined = listener.of("tidegate.node.joined", node);
        assert_eq!(joined.len(), 1, "{joined:?}");
        assert_eq!(joined[0]["data"]["by"], node);
    }
    let moved: Vec<Value> = ["n2", "n3"]
        .into_iter()
        .flat_map(|node| listener.of("tidegate.partition.moved", node))
        .filter(|it| it["data"]["from"] == json!({"node": "n1", "boot": boot}))
        .collect();
    assert!(!moved.is_empty(), "n1 owned a partition that another node has taken over");
}

#[test]
fn killed_node_publishes_one_departure_per_remaining_user() {
    let mut cluster = Cluster::start(3, &["kafka.event_changes=true"]);
    let mut listener = Listener::start(&cluster);
    let tail = Tail::start(&cluster, 1);
    let mut users: Vec<Client> =
        (0..30).map(|n| cluster.login(0, Wire::ALL[n % 4], &format!("user-{n}"))).collect();
    let mut bob = cluster.login(1, Wire::Tcp, "bob");
    let came = listener.online("user-7");
    let boot = came["data"]["boot"].as_str().expect("text").to_owned();
    assert_eq!((&came["data"]["node"], &came["data"]["device"]), (&json!("n1"), &json!("phone")));
    // A read mark is published as well, by a surviving node.
    users[7].text("bob", "m1", "a secret");
    bob.expect_push();
    // An unacked push would end his connection after 20 s.
    bob.ack("d:bob:user-7", 1);
    assert!(matches!(bob.ask(ask::read("d:bob:user-7", 1)), ServerBody::Done(_)));
    tail.expect("read/d:bob:user-7/bob/1");
    eventually("the mark is on the topic", || listener.of("tidegate.read", "bob").pop());
    // She moves before the crash, he after it.
    let _moved = cluster.login(2, Wire::Tcp, "user-3");
    // He left and his row was deleted, but n1 dies before the event is published.
    let earlier = came["data"]["epoch"].as_u64().expect("a number") - 1_000_000;
    let place = format!("zed!phone!{earlier}");
    let rows = format!("{{}}:rows:{{n1/{boot}}}");
    let _: i64 = cluster.redis(&["ZADD", &rows, "0", &place]);
    group_on_the_topic(&cluster, &mut listener);
    members_are_on_the_topic(&cluster, &mut listener, "cid", "hal");
    let began = Instant::now();
    cluster.kill(0);
    let _again = cluster.login(1, Wire::Tcp, "user-4");
    let stayed = ["user-3", "user-4"];
    let left: Vec<String> =
        (0..30).map(|n| format!("user-{n}")).filter(|user| !stayed.contains(&user.as_str())).collect();
    listener.all_left(&left, began);
    eventually("the unpublished departure of n1 is published", || {
        (listener.offlines("zed") == 1).then_some(())
    });
    eventually("nothing is left of n1", || {
        let left: i64 = cluster.redis(&["ZCARD", &rows]);
        (left == 0).then_some(())
    });
    cluster.all_owned();
    members_are_on_the_topic(&cluster, &mut listener, "dan", "cid");
    nodes_are_on_the_topic(&mut listener, &boot);
    for user in stayed.into_iter().chain(["bob"]) {
        assert_eq!(listener.offlines(user), 0, "{user} is there");
    }
    assert_eq!(listener.offlines("user-7"), 1);
    let all = format!("{:?}", listener.events);
    assert!(!all.contains("secret"), "no event has message content");
}

#[test]
fn drain_publishes_departures_except_of_moved_users() {
    let mut cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    let mut listener = Listener::start(&cluster);
    let mut clients: Vec<(String, Client)> =
        ["ann", "bob", "cat"].map(|user| (user.to_owned(), cluster.login(0, Wire::Tcp, user))).into();
    for (user, _) in &clients {
        listener.online(user);
    }
    cluster.node(0).signal(Signal::TERM);
    for (_, client) in &mut clients {
        assert_eq!(client.expect_close(), Code::Draining);
    }
    let _moved: Vec<Client> = ["ann", "bob"].map(|user| cluster.login(1, Wire::Tcp, user)).into();
    clients.clear();
    assert_eq!(cluster.exit(0), Some(0));
    eventually("cat left", || (listener.offlines("cat") == 1).then_some(()));
    listener.take(Duration::from_secs(1));
    assert_eq!(["ann", "bob", "cat"].map(|user| listener.offlines(user)), [0, 0, 1]);
    eventually("nothing is left of n1", || {
        let left: Vec<String> = cluster.redis(&["KEYS", "{}:rows:*n1*"]);
        left.is_empty().then_some(())
    });
}

#[test]
fn frozen_and_swept_node_ends_and_repeats_no_departure() {
    let mut cluster = Cluster::start(2, &[]);
    let mut listener = Listener::start(&cluster);
    let _ann = cluster.login(0, Wire::Tcp, "ann");
    let _bob = cluster.login(0, Wire::Tcp, "bob");
    listener.online("bob");
    let began = Instant::now();
    cluster.node(0).signal(Signal::STOP);
    listener.all_left(&["ann".to_owned()], began);
    let _back = cluster.login(1, Wire::Tcp, "bob");
    cluster.node(0).signal(Signal::CONT);
    assert!(cluster.exit(0) != Some(0), "its run has ended");
    let _later = cluster.login(1, Wire::Tcp, "ann");
    eventually("ann is online again", || (listener.of("tidegate.online", "ann").len() == 2).then_some(()));
    listener.take(Duration::from_secs(1));
    // Bob's route was swept, or he moved before, depending on timing.
    assert!((listener.offlines("ann"), listener.offlines("bob") <= 1) == (1, true), "{:?}", listener.events);
}

/// Builds a message to bob in the chain of the sender's device.
fn link(msg_id: &str, next_id: &str) -> ClientBody {
    ask::send(pb::Send { next_id: next_id.into(), ..send("bob", msg_id, "a secret") })
}

#[test]
fn each_long_wait_of_a_chain_is_an_event_with_its_own_id() {
    let wait = Duration::from_secs(1);
    let cluster = Cluster::start(2, &[&format!("timing.order_timeout_ms={}", wait.as_millis())]);
    let mut listener = Listener::start(&cluster);
    let tail = Tail::start(&cluster, 1);
    // A message that arrives early, with its predecessor in time, causes no event.
    let mut cat = cluster.node(1).login_chained(Wire::WsText, "cat", "phone", "a");
    let early = cat.say(link("b", "c"));
    assert!(matches!(cat.ask(link("a", "b")), ServerBody::SendAck(_)));
    cat.expect_ack(early);

    let mut ann = cluster.node(0).login_chained(Wire::Tcp, "ann", "phone", "a");
    let came = listener.online("ann");
    let since = Instant::now();
    let held = ann.say(link("b", "c"));
    let first = listener.blocked(&came, "a");
    assert!(since.elapsed() >= wait, "the hole was reported before {:?}", since.elapsed());
    let mut data = came["data"].clone();
    data["expected"] = json!("a");
    assert_eq!(first["data"], data, "the event names device, conversation and id");
    // After the same time again the hole is skipped; the next hole of the same connection is another wait.
    assert_eq!(ann.expect_ack(held).seq, 1);
    assert!(since.elapsed() >= 2 * wait, "the hole was skipped after {:?}", since.elapsed());
    ann.say(link("d", "e"));
    listener.blocked(&came, "c");
    // A connection on another node reports a wait of its own, for the same hole or the next one.
    let mut ann = cluster.node(1).login_chained(Wire::Tcp, "ann", "phone", "c");
    let expected = ann.welcome.next_id.clone();
    let again = eventually("ann is online on n2", || {
        let all = listener.of("tidegate.online", "ann");
        all.into_iter().find(|event| event["data"]["node"] == "n2")
    });
    let held = ann.say(link("y", "z"));
    tail.expect(listener.blocked(&again, &expected)["id"].as_str().expect("text"));
    ann.expect_ack(held);
    listener.take(Duration::from_secs(1));
    assert_eq!(["ann", "cat"].map(|user| listener.of("tidegate.order-blocked", user).len()), [3, 0]);
    assert!(!format!("{:?}", listener.events).contains("secret"), "no event has message content");
}

/// Reads a topic of messages from its beginning until each of the conversations has its seqs up to `last`; returns all events
/// in the order of their partitions.
fn read_messages(cluster: &Cluster, topic: &str, conversations: usize, last: u64) -> Vec<Value> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.brokers()).set("group.id", "none");
    let consumer: BaseConsumer = config.create().expect("a consumer");
    let mut all = TopicPartitionList::new();
    for partition in 0..4 {
        all.add_partition_offset(topic, partition, Offset::Beginning).expect("a partition");
    }
    consumer.assign(&all).expect("an assignment");
    let (mut events, mut up_to) = (Vec::new(), BTreeMap::<String, u64>::new());
    eventually("the topic has all messages", || {
        while let Some(record) = consumer.poll(Duration::from_millis(20)) {
            let record = record.expect("a record");
            let event: Value = serde_json::from_slice(record.payload().expect("a value")).expect("JSON");
            let subject = event["subject"].as_str().expect("text").to_owned();
            assert_eq!(record.key(), Some(subject.as_bytes()));
            let seq = event["data"]["seq"].as_u64().expect("a number");
            let highest = up_to.entry(subject).or_default();
            assert!(seq <= *highest + 1, "{event} comes before {}", *highest + 1);
            *highest = seq.max(*highest);
            events.push(event);
        }
        let is_complete = up_to.len() == conversations && up_to.values().all(|seq| *seq == last);
        is_complete.then_some(())
    });
    events
}

#[test]
fn topic_of_messages_has_all_in_order_after_an_owner_left() {
    let topic = format!("messages_{}", unique_name());
    let mut cluster = Cluster::start(2, &[&format!("kafka.message_topic={topic}")]);
    let mut clients: Vec<Client> =
        (0..6).map(|n| cluster.login(1, Wire::Tcp, &format!("user-{n}"))).collect();
    let mut write = |range: std::ops::RangeInclusive<u64>| {
        for nth in range {
            for (n, client) in clients.iter_mut().enumerate() {
                assert_eq!(send_until_acked(client, &format!("peer-{n}"), &format!("m{nth}")).0, nth);
            }
        }
    };
    write(1..=3);
    assert_eq!(cluster.stop(0), Some(0));
    write(4..=6);
    let events = read_messages(&cluster, &topic, 6, 6);
    let sixth = events.iter().find(|it| it["id"] == "d:peer-3:user-3/6").expect("it is there");
    assert_eq!(sixth["type"], "tidegate.message.accepted");
    assert_eq!(
        (&sixth["data"]["content"]["text"], &sixth["data"]["sender"]),
        (&json!("m6"), &json!("user-3"))
    );
    let source = sixth["source"].as_str().expect("text");
    assert!(source.starts_with("/tidegate/cluster_"), "{source}");
    cluster.node(1).metric_becomes("message_topic_behind", 0.0);
    assert!(cluster.node(1).metric("message_topic_events_total") >= 18.0);
}
