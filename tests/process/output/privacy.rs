//! Export and erasure of a user by commands: what they print, what they leave, and how they end.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire};

use super::{fails, fine, json_of};
use crate::{
    run_command,
    support::{Client, Process, ask, eventually},
};

/// Leaves a message to a user and its answer, marks, a block and a connection of ann, and the same of others. Ann has also
/// written to the group `tea`, in an earlier part of the test.
fn leave_data(node: &Process) -> Client {
    let (mut ann, mut eve) =
        (node.login(Wire::Tcp, "ann", "phone"), node.login(Wire::WsText, "eve", "phone"));
    ann.text("eve", "m1", "private note");
    eve.text("ann", "m1", "by another");
    eve.text("bob", "m2", "between others");
    eventually("the answer is archived", || {
        let history = node.http("GET", "/v1/conversations/d:ann:eve/messages", "");
        history.contains("by another").then_some(())
    });
    ann.expect_done(ask::read("d:ann:eve", 2));
    ann.expect_done(ask::hide("d:ann:eve", &[1]));
    for (user, other) in [("ann", "mallory"), ("bob", "trudy")] {
        let answer = node.http("PUT", &format!("/v1/users/{user}/blocks/{other}"), "{}");
        assert!(answer.contains("\"changed\":true"), "{answer}");
    }
    ann
}

/// Returns the pages of an export as one.
fn exported(node: &Process, user: &str) -> Value {
    let text = fine(node, &["user", "export", user]);
    let mut all = json!({"blocks": [], "conversations": [], "messages": []});
    for page in text.lines().map(json_of) {
        assert_eq!(page["user"], user, "{text}");
        for (name, value) in page.as_object().expect("an object") {
            match (all[name.as_str()].as_array_mut(), value.as_array()) {
                (Some(list), Some(more)) => list.extend(more.iter().cloned()),
                _ => all[name.as_str()] = value.clone(),
            }
        }
        assert_eq!(page["next"].is_null(), page["remains"].is_array(), "{text}");
    }
    assert!(all["remains"].is_array(), "the last page names what an erasure leaves: {text}");
    all
}

/// Returns a field of all entries of a list.
fn fields(all: &Value, list: &str, name: &str) -> Vec<Value> {
    all[list].as_array().expect("a list").iter().map(|it| it[name].clone()).collect()
}

fn conversation<'a>(all: &'a Value, key: &str) -> &'a Value {
    let mut listed = all["conversations"].as_array().expect("a list").iter();
    listed.find(|it| it["conversation"] == key).unwrap_or_else(|| panic!("{key}: {all}"))
}

fn check_export(all: &Value) {
    assert_eq!(fields(all, "devices", "device"), ["phone"]);
    assert_eq!(fields(all, "devices", "online"), [true]);
    assert_eq!(fields(all, "blocks", "user"), ["mallory"], "the block list of another user is not in it");
    assert_eq!(fields(all, "conversations", "conversation"), ["d:ann:eve", "g:tea"]);
    let (direct, group) = (conversation(all, "d:ann:eve"), conversation(all, "g:tea"));
    assert_eq!(
        (&direct["peer"], &direct["readSeq"], &direct["hidden"]),
        (&json!("eve"), &json!(2), &json!([1]))
    );
    assert_eq!((&group["role"], &group["member"]), (&json!("member"), &json!(true)));
    let sent: Value = all["messages"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| json!([it["conversation"], it["seq"], it["sender"], it["content"]["text"]]))
        .collect();
    assert_eq!(sent, json!([["d:ann:eve", 1, "ann", "private note"], ["g:tea", 2, "ann", "secret plan"]]));
    let text = all.to_string();
    for others in ["by another", "between others", "trudy"] {
        assert!(!text.contains(others), "{others}: {text}");
    }
}

/// Returns the sums of what the lines of an erasure name: groups left, messages recalled, blocks ended.
fn sums(erased: &str) -> [u64; 3] {
    let lines = erased.lines().filter(|line| line.starts_with("left "));
    lines.fold([0; 3], |sums, line| {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [left, recalled, ended] = numbers[..] else { panic!("{line}") };
        [sums[0] + left, sums[1] + recalled, sums[2] + ended]
    })
}

pub(super) fn data_of_a_user_is_exported_and_erased(node: &Process) {
    let mut ann = leave_data(node);
    let before = exported(node, "ann");
    check_export(&before);
    fails(node, &["user", "erase", "ann"], "confirm with --yes");
    assert_eq!(exported(node, "ann")["messages"], before["messages"], "nothing is erased without it");
    let erased = fine(node, &["user", "erase", "ann", "--yes"]);
    assert_eq!(ann.expect_close(), Code::Kicked);
    assert_eq!(sums(&erased), [1, 2, 1], "{erased}");
    // In hours by the default settings; a dash stands for what no setting ends.
    for (what, time) in [("log", "-"), ("keys", "192 h"), ("feed", "168 h"), ("audit", "-")] {
        let line = erased.lines().find(|line| line.split(' ').next() == Some(what));
        let line = line.unwrap_or_else(|| panic!("{what}: {erased}"));
        assert!(line[what.len()..].trim_start().starts_with(&format!("{time} ")), "{line}");
    }
    let left = eventually("the device is gone", || {
        let left = exported(node, "ann");
        (left["devices"] == json!([])).then_some(left)
    });
    let none = [&left["blocks"], &left["settings"], &left["prio"], &left["revocations"]];
    assert_eq!(none, [&json!([]), &json!({}), &Value::Null, &json!([])], "{left}");
    let entries = left["messages"].as_array().expect("a list");
    assert!(entries.len() == 2 && entries.iter().all(|it| it["recalled"].is_object()), "{left}");
    assert!(entries.iter().all(|it| it.get("content").is_none()), "{left}");
    for key in ["d:ann:eve", "g:tea"] {
        let marks = ["readSeq", "clearedSeq", "hidden"].map(|name| conversation(&left, key)[name].clone());
        assert_eq!(marks, [json!(0), json!(0), json!([])], "{key}");
    }
    assert_eq!(conversation(&left, "g:tea")["member"], false);
    let history = fine(node, &["history", "d:ann:eve"]);
    assert!(history.contains("by another") && !history.contains("private note"), "{history}");
    let again = json_of(&fine(node, &["user", "erase", "ann", "--yes", "--json"]));
    let counts = ["closed", "left", "recalled", "unblocked"].map(|name| again[name].clone());
    assert_eq!((&again["done"], counts), (&json!(true), [0; 4].map(|count| json!(count))), "{again}");
    let log = again["remains"].as_array().expect("a list").iter().find(|it| it["what"] == "log");
    assert!(log.is_some_and(|it| it["note"].is_string() && it.get("forMs").is_none()), "{again}");
}

pub(super) fn privacy_commands_end_with_their_codes(node: &Process) {
    let admin = node.addresses.admin.to_string();
    let ends = |words: &[&str], admin: &str, expected: (i32, &str)| {
        let (code, text) = run_command(&[&["user"], words, &["--admin", admin]].concat());
        assert!(code == Some(expected.0) && text.contains(expected.1), "{words:?}: {code:?}: {text}");
    };
    // There is no registry: any id is a user.
    ends(&["export", "nobody"], &admin, (0, r#""messages":[]"#));
    ends(
        &["erase", "nobody", "--yes"],
        &admin,
        (0, "left 0 groups, recalled 0 messages, ended 0 blocks\n\nREMAINS "),
    );
    for words in [&["export", "a b"][..], &["erase", "a b", "--yes"]] {
        ends(words, &admin, (1, r#"user "a b""#));
    }
    ends(&["erase", "system", "--yes"], &admin, (1, "FORBIDDEN"));
    for words in [&["export", "ann"][..], &["erase", "ann", "--yes"]] {
        ends(
            &[words, &["--cursor", "x1"]].concat(),
            &admin,
            (1, "continue with --cursor x1: CURSOR_INVALID"),
        );
        ends(words, "127.0.0.1:1", (1, "admin port 127.0.0.1:1"));
        ends(&words[..1], &admin, (2, "<USER>"));
    }
}
