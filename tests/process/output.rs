//! Output of commands, also where nobody reads it to its end.

#[path = "output/commands.rs"]
mod commands;
#[path = "output/privacy.rs"]
mod privacy;

use std::process::{Command, Stdio};

use tidegate_protocol::codec::Wire;

use crate::support::Process;

#[test]
fn a_command_ends_without_a_word_when_nobody_reads_its_output() {
    let node = Process::start(&[]);
    let mut nodes = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    nodes.args(["nodes", "--data"]).arg(node.data()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = nodes.spawn().expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(141), &b""[..]));
}

/// Runs a command against the admin port of a node, and returns its output and whether it succeeded.
fn command(node: &Process, words: &[&str]) -> (bool, String) {
    let admin = node.addresses.admin.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.args(words).args(["--admin", &admin]).output().expect("the binary runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs a command that succeeds, and returns its output.
fn fine(node: &Process, words: &[&str]) -> String {
    let (is_fine, text) = command(node, words);
    assert!(is_fine, "{words:?}: {text}");
    text
}

/// Runs a command that fails, and checks that its output has this part.
fn fails(node: &Process, words: &[&str], why: &str) {
    let (is_fine, text) = command(node, words);
    assert!(!is_fine && text.contains(why), "{words:?}: {text}");
}

#[test]
fn groups_histories_and_users_are_managed_by_commands() {
    let node = Process::start(&[]);
    let fine = |words: &[&str]| {
        let (is_fine, text) = command(&node, words);
        assert!(is_fine, "{words:?}: {text}");
        text
    };
    let create = [
        "group",
        "create",
        "team",
        "alice",
        "--owner",
        "alice",
        "--set",
        "history=all",
        "--request-id",
        "r1",
    ];
    assert_eq!(fine(&create), "g:team changed at seq 1\n");
    assert_eq!(fine(&create), "g:team changed at seq 1, by an earlier request\n");
    fine(&["group", "add", "team", "bob", "carol"]);
    fine(&["group", "role", "team", "admin", "carol"]);
    fine(&["group", "mute", "team", "bob", "--by", "alice"]);
    let shown = fine(&["group", "show", "team"]);
    assert!(
        shown.starts_with("g:team, 3 members, history=all\n") && shown.contains("carol  admin"),
        "{shown}"
    );
    assert!(fine(&["group", "list", "--prefix", "te"]).contains("team   3"), "the group is listed");
    let sent = json_of(&node.http(
        "POST",
        "/v1/messages",
        r#"{"to":"g:team","from":"alice","content":{"text":"a\u001b[2Jb"}}"#,
    ));
    assert_eq!(sent["seq"], 5);
    let history = fine(&["history", "g:team", "-n", "2"]);
    let lines: Vec<&str> = history.lines().collect();
    assert!(
        lines[0].contains("alice  * muted bob") && lines[1].ends_with("alice  a\\u{1b}[2Jb"),
        "{history}"
    );
    let older = lines[2].rsplit_once("--cursor ").expect("there are older entries").1;
    assert!(fine(&["history", "g:team", "--cursor", older]).contains("* created alice history=all"));
    let _phone = node.login(Wire::Tcp, "bob", "phone");
    let user = fine(&["user", "bob"]);
    assert!(user.starts_with("bob: 1 connection, 1 unread\n") && user.contains("g:team        1"), "{user}");
    assert_eq!(fine(&["kick", "bob", "--reason", "spam"]), "closed 1\n");
    members_and_settings_change_back(&node);
    assert!(!command(&node, &["group", "delete", "team"]).0, "a deletion has to be confirmed");
    fine(&["group", "delete", "team", "--yes"]);
    let (is_fine, text) = command(&node, &["group", "add", "team", "dan"]);
    assert!(!is_fine && text.contains("NOT_FOUND"), "{text}");
}

/// Undoes changes of the group, and looks for a storm in it.
fn members_and_settings_change_back(node: &Process) {
    for (words, seq) in [
        (["unmute", "team", "bob"], 6),
        (["set", "team", "post=admins"], 7),
        (["remove", "team", "carol"], 8),
    ] {
        let changed = fine(node, &[&["group"], &words[..]].concat());
        assert_eq!(changed, format!("g:team changed at seq {seq}\n"), "{words:?}");
    }
    assert_eq!(
        fine(node, &["group", "show", "team"]),
        "g:team, 2 members, history=all post=admins\nUSER   ROLE    MUTED\nalice  owner   -\nbob    member  -\n"
    );
    fine(node, &["group", "set", "team", "post="]);
    assert!(fine(node, &["group", "show", "team"]).starts_with("g:team, 2 members, history=all\n"));
    assert_eq!(fine(node, &["storms"]), "no storms\n");
    let counted = fine(node, &["storms", "team"]);
    let row: Vec<&str> = counted.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!((row[0], &row[4..]), ("g:team", &["100", "60000", "ms", "-", "-"][..]), "{counted}");
}

#[test]
fn events_are_lines_for_people_or_for_programs() {
    let node = Process::start(&[]);
    node.group("team", &["alice".to_owned(), "bob".to_owned()]);
    node.http("POST", "/v1/messages", r#"{"to":"g:team","from":"alice","content":{"text":"a\u001b[2Jb"}}"#);
    let (is_fine, printed) = command(&node, &["event", "--oldest", "--conversation", "g:*", "--count", "2"]);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(is_fine && lines.len() == 2, "{printed}");
    assert!(lines[0].contains("  tidegate.group.created  g:team  {"), "{printed}");
    assert!(lines[1].contains("  tidegate.message.accepted  g:team  {"), "{printed}");
    let messages =
        ["events", "--oldest", "--type", "tidegate.message.*", "--content", "--json", "--count", "1"];
    let event = json_of(&command(&node, &messages).1);
    assert_eq!(
        (&event["id"], &event["data"]["content"]["text"]),
        (&"g:team/2".into(), &"a\u{1b}[2Jb".into())
    );
    let (is_fine, refused) = command(&node, &["event", "--type", "tidegate.online"]);
    assert!(!is_fine && refused.contains("BAD_CONTENT: types: "), "{refused}");
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn saved_server_is_found_by_its_name() {
    let node = Process::start(&[]);
    let file = node.data().join("contexts.toml");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(words).env("TIDEGATE_CONTEXTS", &file).output().expect("the binary runs");
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let admin = node.addresses.admin.to_string();
    assert!(run(&["context", "set", "here", "--admin", &admin]).0);
    assert_eq!(run(&["context", "list"]), (true, format!("here  {admin}\n")));
    for words in [&["nodes"][..], &["owners"], &["group", "list"], &["trace", "bob"]] {
        let (is_fine, text) = run(&[words, &["--context", "here"]].concat());
        assert!(is_fine, "{words:?}: {text}");
        // A server is named once, or a command could change another one than it seems to.
        for other in [["--data", "nowhere"], ["--admin", "127.0.0.1:1"], ["--key-file", "nowhere"]] {
            let (is_fine, text) = run(&[words, &["--context", "here"], &other].concat());
            assert!(!is_fine && text.contains("--context"), "{words:?} {other:?}: {text}");
        }
        let (is_fine, text) = run(&[words, &["--context", "there"]].concat());
        assert!(!is_fine && text.contains("there is no context"), "{words:?}: {text}");
    }
    assert!(run(&["context", "remove", "here"]).0 && !run(&["context", "remove", "here"]).0);
}

#[test]
fn durations_of_logins_sends_and_pushes_are_in_the_metrics() {
    let node = Process::start(&[]);
    let unused = ["hook_login", "hook_allow", "hook_before", "webhook", "webhook_lag"];
    for name in ["login", "send", "push_ack"].iter().chain(&unused) {
        assert_eq!(node.metric(&format!("{name}_seconds_count")), 0.0, "{name}");
    }
    let (mut ann, mut bob) = (node.login(Wire::Tcp, "ann", "d"), node.login(Wire::WsText, "bob", "d"));
    ann.text("bob", "m1", "hello");
    bob.expect_push();
    bob.ack("d:ann:bob", 1);
    for (name, count) in [("login", 2.0), ("send", 1.0), ("push_ack", 1.0)] {
        node.metric_becomes(&format!("{name}_seconds_count"), count);
        assert_eq!(node.metric(&format!("{name}_seconds_bucket{{le=\"+Inf\"}}")), count, "{name}");
        assert!(node.metric(&format!("{name}_seconds_sum")) < 10.0, "{name}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let page = node.http("GET", "/metrics", "");
    let line =
        page.lines().find(|line| line.starts_with("tidegate_build_info{")).expect("the version is there");
    assert!(line.contains(&format!("version=\"{version}\"")) && line.ends_with("} 1"), "{line}");
}
