//! Commands of webhooks, bans, users and settings, played in turn.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use tidegate_protocol::Code;

use super::{
    fails, fine, json_of,
    privacy::{data_of_a_user_is_exported_and_erased, privacy_commands_end_with_their_codes},
};
use crate::{
    run_command,
    support::{Process, WebhookReceiver, eventually, fresh_data},
};

#[test]
fn endpoints_bans_and_data_of_users_are_managed_by_commands() {
    let (node, receiver) = (Process::start(&[]), WebhookReceiver::start());
    endpoint_is_made_and_tested(&node, &receiver);
    endpoint_is_paused_and_replays(&node, &receiver);
    endpoint_is_removed(&node);
    subjects_are_banned(&node);
    data_of_a_user_is_exported_and_erased(&node);
    privacy_commands_end_with_their_codes(&node);
}

fn endpoint_is_made_and_tested(node: &Process, receiver: &WebhookReceiver) {
    assert!(fine(node, &["webhook", "list"]).starts_with("no webhooks; create one: "));
    let (url, messages) = (receiver.url(), "tidegate.message.*");
    let only = ["--conversation", "g:*", "--header", "authorization=Bearer hidden"];
    let made = fine(node, &[&["webhook", "set", "crm", &url, "--type", messages], &only[..]].concat());
    let lines = format!(", {url}\ntypes    {messages}\nonly     g:*\nbehind   0 events, 0 ms\n");
    assert!(made.starts_with("crm: ") && made.contains(&lines), "{made}");
    let secret = made.lines().find_map(|line| line.strip_prefix("secret   s1 ")).expect("it is shown");
    receiver.trust(secret.split(' ').next().expect("a secret"));
    assert_eq!(fine(node, &["webhook", "test", "crm"]), "taken with status 204\n");
    assert_eq!(receiver.header("authorization").as_deref(), Some("Bearer hidden"));
    receiver.answer(|_| 500);
    fails(node, &["webhook", "test", "crm"], "not taken with status 500");
    receiver.answer(|_| 204);
    eventually("it is active", || {
        fine(node, &["webhook", "list"]).contains(&format!("crm      active  {url}")).then_some(())
    });
    assert_eq!(json_of(&fine(node, &["webhook", "list", "--json"]))["webhooks"][0]["id"], "crm");
    // The former secret signs for a day, in addition to the new one.
    let second = fine(node, &["webhook", "secret", "crm"]);
    assert!(second.starts_with("whsec_") && second.lines().count() == 1, "{second}");
    fails(node, &["webhook", "secret", "crm"], "CONFLICT");
    let shown = fine(node, &["webhook", "show", "crm"]);
    assert!(shown.contains("\nsecret   s1, signs until ") && shown.contains("\nsecret   s2\n"), "{shown}");
    assert!(!shown.contains("whsec_") && !shown.contains("hidden"), "{shown}");
}

fn endpoint_is_paused_and_replays(node: &Process, receiver: &WebhookReceiver) {
    assert!(fine(node, &["webhook", "pause", "crm"]).starts_with("crm: paused, "));
    fine(node, &["group", "create", "tea", "ann", "bob"]);
    node.http("POST", "/v1/messages", r#"{"to":"g:tea","from":"ann","content":{"text":"secret plan"}}"#);
    receiver.take();
    // Also before the deliverer has learned of it.
    assert!(!fine(node, &["webhook", "resume", "crm"]).contains("paused"));
    let arrives = |what: &str| eventually(what, || (receiver.ids() == ["g:tea/2"]).then_some(()));
    arrives("what waited is delivered");
    receiver.take();
    assert!(fine(node, &["webhook", "replay", "crm", "--from", "oldest"]).starts_with("crm: "));
    arrives("it is delivered again");
    fails(node, &["webhook", "replay", "crm", "--from", "start"], "oldest, or a time in ms");
}

fn endpoint_is_removed(node: &Process) {
    assert_eq!(fine(node, &["webhook", "aside", "crm"]), "EVENT  TRIES\n");
    for action in ["resend", "drop"] {
        fails(node, &["webhook", action, "crm", "g:tea/2"], "g:tea/2 is not set aside");
        fails(node, &["webhook", action, "crm", "g:tea"], "CONVERSATION/SEQ, as in g:team/18");
    }
    fails(node, &["webhook", "remove", "crm"], "--yes");
    assert_eq!(fine(node, &["webhook", "remove", "crm", "--yes"]), "crm removed\n");
    fails(node, &["webhook", "show", "crm"], "NOT_FOUND");
}

fn subjects_are_banned(node: &Process) {
    let ban = ["ban", "user:mallory", "--reason", "spam"];
    assert_eq!(fine(node, &ban), "user:mallory is banned without end\n");
    assert!(
        fine(node, &[&ban[..], &["--ttl", "3600"]].concat()).starts_with("user:mallory is banned until 2")
    );
    let listed = fine(node, &["bans"]);
    assert!(listed.lines().nth(1).is_some_and(|row| row.starts_with("user:mallory  until ")), "{listed}");
    assert_eq!(fine(node, &["unban", "user:mallory"]), "user:mallory is no longer banned\n");
    assert_eq!(fine(node, &["unban", "user:mallory"]), "user:mallory was not banned\n");
    fails(node, &["ban", "mallory", "--reason", "spam"], "user:<id> or device:<user>/<device>");
    fails(node, &["ban", "user:mallory"], "--reason");
    // The options of the list do the same.
    assert!(fine(node, &["bans", "--add", "device:bob/tv", "--reason", "lost"]).ends_with("without end\n"));
    assert!(fine(node, &["bans", "--lift", "device:bob/tv"]).ends_with("is no longer banned\n"));
}

#[test]
fn settings_completions_and_codes_need_no_node() {
    let folder = fresh_data();
    fs::create_dir_all(&folder).expect("the folder is created");
    let file = folder.join("tidegate.toml").display().to_string();
    let (code, text) = run_command(&["config", "init", &file]);
    assert!(code == Some(0) && text.contains("every setting with its default"), "{text}");
    let (code, text) = run_command(&["config", "init", &file]);
    assert!(code == Some(1) && text.contains("exists: name another file"), "{text}");
    let (code, text) = run_command(&["config", "show", "--config", &file]);
    assert_eq!((code, text.as_str()), (Some(0), "# All settings have their defaults.\n"));
    fs::remove_dir_all(&folder).ok();
    let (code, text) = run_command(&["errors", "4005"]);
    assert!(code == Some(0) && text.starts_with("4005 NOT_FOUND\n\n"), "{text}");
    assert!(text.contains(Code::NotFound.cure()), "{text}");
    assert_eq!(run_command(&["errors", "not_a_code"]).0, Some(1));
    let (code, listed) = run_command(&["errors"]);
    assert_eq!((code, listed.lines().count()), (Some(0), Code::ALL.len() + 1), "{listed}");
    let (code, objects) = run_command(&["errors", "--json"]);
    let names: Vec<_> = objects.lines().map(|line| json_of(line)["name"].clone()).collect();
    assert_eq!(code, Some(0), "{objects}");
    assert!(names.iter().eq(Code::ALL.iter().map(|code| code.name())), "{names:?}");
    let (code, script) = run_command(&["completions", "bash"]);
    assert_eq!(code, Some(0));
    assert!(in_bash(&script, "complete -p tidegate").contains("-F _tidegate"));
    let words =
        "COMP_WORDS=(tidegate unb) COMP_CWORD=1; _tidegate tidegate unb tidegate; echo \"${COMPREPLY[*]}\"";
    assert_eq!(in_bash(&script, words), "unban\n");
}

#[test]
fn minted_token_is_checked_without_a_node() {
    let folder = fresh_data();
    fs::create_dir_all(&folder).expect("the folder is created");
    let file = folder.join("token.key");
    tidegate::auth::create_key(&file).expect("a key");
    let file = file.display().to_string();
    let (code, token) = run_command(&["token", "mint", "--key", &file, "ann"]);
    assert_eq!(code, Some(0), "{token}");
    let set = format!("auth.key_file={file}");
    let check = |token: &str| run_command(&["token", "check", token, "--set", &set]);
    let (code, text) = check(token.trim());
    assert!(code == Some(0) && text.starts_with("accepted: user ann, any device\n"), "{text}");
    let (code, text) = check("no-token");
    assert!(code == Some(1) && text.contains("refused with ") && text.contains("cure: "), "{text}");
    fs::remove_dir_all(&folder).ok();
}

/// Runs a line in bash after a script, and returns its output.
fn in_bash(script: &str, line: &str) -> String {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bash = bash.spawn().expect("bash runs");
    let mut input = bash.stdin.take().expect("a pipe");
    input.write_all(format!("{script}\n{line}\n").as_bytes()).expect("bash reads");
    drop(input);
    let output = bash.wait_with_output().expect("bash ends");
    String::from_utf8(output.stdout).expect("text")
}
