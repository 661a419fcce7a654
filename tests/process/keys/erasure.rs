//! Keys of the export and the erasure of a user, by requests and by commands.

use std::process::Command;

use tidegate::keys::SecretKey;

use super::{Keys, ask, audit, refusal, text};
use crate::support::Process;

/// Checks that an erasure, which recalls messages and changes groups, needs the rights of these.
#[test]
fn export_and_erasure_need_the_scopes_of_all_that_they_do() {
    let keys = Keys::new();
    let [users, more, all, reader, content] = [
        ("u", "users"),
        ("m", "users,messages"),
        ("a", "users,messages,groups"),
        ("r", "read,users"),
        ("c", "content"),
    ]
    .map(|(name, scopes)| keys.add(name, scopes, &[]));
    let node = keys.start(&[]);
    let erase = |key: &str| ask(node.admin(), "DELETE", "/v1/users/ann/data", Some(key), "");
    for (key, missing) in [(&users, "`messages`"), (&more, "`groups`")] {
        let reply = erase(key);
        let (name, message) = refusal(&reply);
        assert_eq!((reply.status, name.as_str()), (403, "SCOPE_MISSING"));
        assert!(message.contains(missing), "{message}");
    }
    assert_eq!(erase(&all).status, 200);
    let export = ask(node.admin(), "GET", "/v1/users/ann/export", Some(&reader), "");
    assert_eq!((export.status, refusal(&export).0.as_str()), (403, "SCOPE_MISSING"));
    assert_eq!(ask(node.admin(), "GET", "/v1/users/ann/export", Some(&content), "").status, 200);
    let lines = audit(&keys.data);
    for (route, name) in [("/v1/users/{user}/data", "a"), ("/v1/users/{user}/export", "c")] {
        let line = lines.iter().find(|it| it["route"] == route && it["name"] == name);
        assert_eq!(line.map(|it| &it["targets"]["user"]), Some(&serde_json::json!(["ann"])), "{route}");
    }
    commands_need_the_same_keys(&node, &[(&reader, &users), (&content, &all)]);
}

/// Exports and erases by commands: without a key, with one that the node lacks, with keys that lack a scope, and with the
/// right ones.
fn commands_need_the_same_keys(node: &Process, keys: &[(&String, &String); 2]) {
    let run = |words: &[&str], key: Option<&str>| {
        let mut tidegate = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        tidegate.arg("user").args(words).arg("--data").arg(node.data());
        tidegate.env_remove("TIDEGATE_KEY_FILE").env_remove("TIDEGATE_KEY");
        tidegate.envs(key.map(|key| ("TIDEGATE_KEY", key)));
        let output = tidegate.output().expect("the binary runs");
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let [(reader, users), (content, all)] = keys;
    let foreign = SecretKey::random();
    for (words, lesser, right) in
        [(&["export", "ann"][..], reader, content), (&["erase", "ann", "--yes"], users, all)]
    {
        for (key, why) in [
            (None, "KEY_INVALID"),
            (Some(foreign.text()), "KEY_INVALID"),
            (Some(lesser.as_str()), "SCOPE_MISSING"),
        ] {
            let (code, said) = run(words, key);
            assert!(code == Some(1) && said.contains(why), "{words:?}: {code:?}: {said}");
        }
        let (code, said) = run(words, Some(right));
        assert!(code == Some(0) && !said.is_empty(), "{words:?}: {code:?}: {said}");
    }
}
