//! A single node's data moves into a cluster: nothing is renumbered, lost or counted twice, and a partial import is
//! never used.

use std::{fs, path::Path};

use rustix::process::Signal;
use serde_json::json;
use tidegate_protocol::{codec::Wire, pb};

use crate::support::{Client, Cluster, Process, ask, fresh_data, send};

const DIRECT: &str = "d:ann:bob";
const NAMES: [&str; 3] = ["ann", "bob", "cat"];

/// View of one user: the states of all conversations, the total of unread messages, and the histories.
type Seen = (Vec<pb::ConversationState>, u64, Vec<pb::Page>);

fn view_of(client: &mut Client) -> Seen {
    let (mut states, unread) = client.sync_all(&[]);
    states.sort_by(|a, b| a.conversation.cmp(&b.conversation));
    let pages = states.iter().map(|state| client.page(ask::after(&state.conversation, 0, 1_000)));
    let pages = pages.collect();
    (states, unread, pages)
}

/// Sends messages on a single node, in every way that leaves something behind.
fn talk(node: &Process) -> Vec<Seen> {
    let [mut ann, mut bob, mut cat] = NAMES.map(|name| node.login(Wire::Tcp, name, "phone"));
    for n in 1..=10 {
        let (from, to) = if n % 3 == 0 { (&mut bob, "ann") } else { (&mut ann, "bob") };
        assert_eq!(from.text(to, &format!("m{n}"), &format!("text {n}")), n);
    }
    let id = ann.say(ask::recall(DIRECT, 4));
    assert_eq!(ann.expect_ack(id).seq, 11);
    bob.ask(ask::read(DIRECT, 5));
    bob.expect_done(ask::clear(DIRECT, 2));
    bob.expect_done(ask::hide(DIRECT, &[7]));
    let team = node.group("team", &NAMES.map(str::to_owned));
    let ids = (2..=1_500).map(|n| (n, cat.say(ask::send(send(&team, &format!("t{n}"), "to the team")))));
    let ids: Vec<(u64, u64)> = ids.collect();
    for (seq, id) in ids {
        assert_eq!(cat.expect_ack(id).seq, seq);
    }
    node.change_members("team", &json!({"remove": ["bob"]}));
    ann.text(&team, "aside", "without bob");
    node.change_members("team", &json!({"add": ["bob"]}));
    bob.text(&team, "back", "again here");
    ann.ask(ask::read(&team, 1_000));
    for n in 0..30 {
        cat.text(&format!("peer-{n}"), "hello", "to many");
    }
    [ann, bob, cat].iter_mut().map(view_of).collect()
}

/// Returns the export with one line changed.
fn changed(export: &Path, line: usize, change: impl Fn(&str) -> String) -> String {
    let text = fs::read_to_string(export).expect("an export");
    let lines = text.lines().enumerate();
    let lines = lines.map(|(nth, text)| if nth + 1 == line { change(text) } else { text.to_owned() });
    let path = export.with_extension("changed");
    fs::write(&path, lines.map(|line| line + "\n").collect::<String>()).expect("a file");
    path.to_str().expect("a name").to_owned()
}

fn refused(cluster: &Cluster, file: &str, more: &[&str], cure: &str) {
    let words = [&["store", "import", file, "--profile", "cluster"], more].concat();
    let (fine, said) = cluster.tidegate(&words);
    assert!(!fine && said.contains(cure), "{cure:?} is not in: {said}");
}

#[test]
fn import_into_a_cluster_renumbers_nothing() {
    let mut cluster = Cluster::prepare(2, &[]);
    let data = fresh_data();
    fs::create_dir_all(&data).expect("the folder is created");
    fs::copy(cluster.token_key(), data.join("token.key")).expect("a key");
    let mut single = Process::start_on(&data, &[]);
    let before = talk(&single);
    single.signal(Signal::TERM);
    assert_eq!(single.exit().code(), Some(0));
    let export = data.join("export.jsonl");
    let file = export.to_str().expect("a name");
    let data_name = data.to_str().expect("a name");
    let exported = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["store", "export", "--data", data_name, "--output", file])
        .output()
        .expect("the binary runs");
    assert!(exported.status.success(), "{exported:?}");

    let broken = changed(&export, 900, |_| "{\"row\":1}".to_owned());
    refused(&cluster, &broken, &[], "nothing was imported: line 900: not a line of an export");
    let newer = changed(&export, 1, |line| line.replace("\"version\":1", "\"version\":2"));
    refused(&cluster, &newer, &["--dry-run"], "import it with the tidegate that wrote it");
    refused(&cluster, file, &["--set", "kafka.partitions=8"], "kafka.partitions");
    // The state after an interrupted import.
    cluster.execute("INSERT INTO import DEFAULT VALUES; INSERT INTO wishes (user_id) VALUES ('half')");
    let started = cluster.tidegate(&[
        "serve",
        "--data",
        data_name,
        "--set",
        "listen.client=127.0.0.1:0",
        "--set",
        "listen.admin=127.0.0.1:0",
    ]);
    assert!(!started.0 && started.1.contains("an import fills these tables"), "{}", started.1);
    let (fine, said) = cluster.tidegate(&["store", "import", file, "--profile", "cluster"]);
    assert!(fine && said.contains("into the 4 partitions of"), "{said}");
    refused(&cluster, file, &[], "has records, so a cluster has used it");

    cluster.start_nodes(0..2);
    cluster.all_owned();
    refused(&cluster, file, &[], "nodes of this cluster run (n1, n2)");
    let mut clients: Vec<Client> =
        NAMES.iter().enumerate().map(|(n, name)| cluster.login(n % 2, Wire::Tcp, name)).collect();
    for (client, before) in clients.iter_mut().zip(&before) {
        assert_eq!(&view_of(client), before);
    }
    let [ann, bob, cat] = clients.get_disjoint_mut([0, 1, 2]).expect("three people");
    assert_continuity(ann, bob, cat);
    drop(clients);
    k8_store_older_than_the_import_is_refused(&mut cluster);
}

/// A store without the import would number its conversations from 1 again.
fn k8_store_older_than_the_import_is_refused(cluster: &mut Cluster) {
    (0..2).for_each(|nth| assert_eq!(cluster.stop(nth), Some(0)));
    cluster
        .execute("TRUNCATE partitions, heads, messages, members, stays, devices, memberships, marks, keys");
    let data = fresh_data();
    let listen = ["--set", "listen.client=127.0.0.1:0", "--set", "listen.admin=127.0.0.1:0"];
    let words = [&["serve", "--data", data.to_str().expect("a name")][..], &listen].concat();
    let (fine, said) = cluster.tidegate(&words);
    assert!(!fine && said.contains("STORE_BEFORE_IMPORT") && said.contains("restore a backup"), "{said}");
}

/// Asserts that a retry of an earlier id finds its seq, another content under it is a conflict, and a new message gets
/// the next seq.
fn assert_continuity(ann: &mut Client, bob: &mut Client, cat: &mut Client) {
    let again = ann.send(pb::Send { attempt: 1, ..send("bob", "m8", "text 8") });
    assert_eq!((again.seq, again.duplicate), (8, true));
    let again = cat.send(pb::Send { attempt: 2, ..send("g:team", "t700", "to the team") });
    assert_eq!((again.seq, again.duplicate), (700, true));
    let other = ask::send(pb::Send { attempt: 1, ..send("bob", "m8", "something else") });
    assert_eq!(ann.refused(other), tidegate_protocol::Code::Conflict);
    assert_eq!(ann.text("bob", "new", "from here on"), 12);
    assert_eq!(bob.text("g:team", "new", "from here on"), 1_505);
    assert_eq!(cat.text("peer-3", "new", "from here on"), 2);
    assert_eq!(bob.state(DIRECT).unread, 3, "8, 10 and 12: 7 is hidden, 6 and 9 are his own");
}
