//! Keys of the admin port, over real sockets and through the commands.

#[path = "keys/erasure.rs"]
mod erasure;
#[path = "keys/stream.rs"]
mod stream;
#[path = "keys/table.rs"]
mod table;

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;
use tidegate::{
    api::{access::RouteNeed, routes::ROUTES},
    keys::{Scope, SecretKey, load_keys},
};

use super::fails;
use crate::support::{
    Process, StatsFollower, eventually, eventually_within, fresh_data,
    http::{Reply, exchange},
};

/// Time within which a change of the keys is in force on a running node.
pub(crate) const RELOAD_MAX: Duration = Duration::from_secs(2);

/// Routes whose responses have no end. They have tests of their own.
const STREAMS: [&str; 2] = ["/v1/stats/stream", "/v1/events/stream"];

/// Data directory with a file of keys.
pub(crate) struct Keys {
    pub(crate) data: PathBuf,
    pub(crate) file: PathBuf,
}

impl Keys {
    pub(crate) fn new() -> Self {
        let data = fresh_data();
        fs::create_dir_all(&data).expect("a folder");
        let file = data.join("admin.keys");
        Self { data, file }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut key = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        key.arg("key").args(words).arg("--file").arg(&self.file).env_remove("TIDEGATE_CONFIG");
        key.output().expect("the binary runs")
    }

    /// Creates a key with further options, and returns it.
    pub(crate) fn add(&self, name: &str, scope: &str, words: &[&str]) -> String {
        let output = self.run(&[&["add", name, "--scope", scope], words].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    }

    pub(crate) fn revoke(&self, key: &str) {
        let output = self.run(&["revoke", key]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    pub(crate) fn set(&self) -> String {
        format!("admin.keys_file={}", self.file.display())
    }

    pub(crate) fn start(&self, sets: &[&str]) -> Process {
        Process::start_on(&self.data, &[&[self.set().as_str()], sets].concat())
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a request with this key, if there is one, and a JSON body.
pub(crate) fn ask(port: SocketAddr, method: &str, path: &str, key: Option<&str>, body: &str) -> Reply {
    let key = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{key}");
    exchange(port, &head, body)
}

pub(crate) fn nodes(node: &Process, key: &str) -> Reply {
    ask(node.admin(), "GET", "/v1/nodes", Some(key), "")
}

/// Returns the name and the message of a refusal, which has a cure.
pub(crate) fn refusal(reply: &Reply) -> (String, String) {
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{}", text(&reply.body)));
    assert!(body["cure"].as_str().is_some_and(|cure| !cure.is_empty()), "{body}");
    let of = |key: &str| body[key].as_str().expect("a text").to_owned();
    (of("name"), of("message"))
}

/// Returns the lines of the audit file.
pub(crate) fn audit(data: &Path) -> Vec<Value> {
    let lines = fs::read_to_string(data.join("audit.jsonl")).unwrap_or_default();
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_route_except_probes_and_facts_needs_a_key_with_its_scope() {
    let keys = Keys::new();
    let (evidence, all) = (
        keys.add("edge", "evidence", &[]),
        keys.add("root", "content,messages,groups,users,operate,evidence", &[]),
    );
    let node = keys.start(&[]);
    let (mut keyless, mut scopeless) = (0.0, 0.0);
    for route in ROUTES {
        let path = route.path.replace("{user}", "bob").replace("{id}", "team").replace("{code}", "4005");
        let method = route.method.to_uppercase();
        let named = format!("{method} {path}");
        let ask = |key: Option<&str>| ask(node.admin(), &method, &path, key, "[]");
        let without = ask(None);
        if route.need == RouteNeed::Open {
            assert_eq!(without.status, 200, "{named}");
            continue;
        }
        assert_eq!(
            (without.status, without.field("www-authenticate")),
            (401, Some("Bearer realm=\"tidegate\"")),
            "{named}"
        );
        assert_eq!(refusal(&without).0, "KEY_INVALID", "{named}");
        keyless += 1.0;
        let scoped = (!STREAMS.contains(&route.path)).then(|| ask(Some(&evidence)));
        match (route.need, scoped) {
            (RouteNeed::Scope(Scope::Evidence), Some(scoped)) => assert_eq!(scoped.status, 200, "{named}"),
            (RouteNeed::Scope(scope), Some(scoped)) => {
                let (name, message) = refusal(&scoped);
                assert_eq!((scoped.status, name.as_str()), (403, "SCOPE_MISSING"), "{named}");
                assert!(message.contains(&format!("`{scope}`")), "{named}: {message}");
                scopeless += 1.0;
            }
            (_, Some(scoped)) => assert_ne!(scoped.status, 401, "{named}"),
            _ => {}
        }
        // Drains and crashes, too, have tests of their own.
        if !["/v1/drain", "/v1/dev/abort"].iter().chain(&STREAMS).any(|path| *path == route.path) {
            let served = ask(Some(&all));
            assert!(
                ![401, 429].contains(&served.status) && served.field("x-request-id").is_some(),
                "{named}"
            );
            assert!(served.status != 403, "{named}: {}", text(&served.body));
        }
    }
    let counted = ["admin_keys_missing_total", "admin_scopes_missing_total"].map(|name| node.metric(name));
    assert_eq!(counted, [keyless, scopeless]);
    assert_eq!(ask(node.admin(), "GET", "/try", None, "").status, 200, "the page asks for the key");
    let facts: Value =
        serde_json::from_slice(&ask(node.admin(), "GET", "/v1/console", None, "").body).expect("JSON");
    assert_eq!(facts["keys"], true);
    let own: Value =
        serde_json::from_slice(&ask(node.admin(), "GET", "/v1/key", Some(&all), "").body).expect("JSON");
    assert_eq!(
        (&own["name"], &own["scopes"]),
        (
            &"root".into(),
            &serde_json::json!(["content", "messages", "groups", "users", "operate", "evidence"])
        )
    );
}

#[test]
fn malformed_expired_foreign_and_revoked_keys_are_refused() {
    let keys = Keys::new();
    let reader = keys.add("reader", "read", &[]);
    let foreign = keys.add("foreign", "read", &["--network", "192.0.2.0/24,2001:db8::/32"]);
    let home = keys.add("home", "read", &["--network", "127.0.0.0/8"]);
    let short = keys.add("short", "read", &["--ttl", "1s"]);
    let node = keys.start(&[]);
    for key in [&reader, &home] {
        assert_eq!(nodes(&node, key).status, 200);
    }
    let message = |key: &str| {
        let reply = nodes(&node, key);
        assert_eq!((reply.status, refusal(&reply).0.as_str()), (401, "KEY_INVALID"));
        refusal(&reply).1
    };
    assert!(message(SecretKey::random().text()).contains("not one of this node"));
    assert!(message(&reader[..62]).contains("not one of this node"));
    assert!(message(&foreign).contains("address"));
    eventually("the key expires", || (nodes(&node, &short).status == 401).then_some(()));
    let mut follower = StatsFollower::open_with(&node, Some(&reader));
    follower.expect("start");
    keys.revoke("reader");
    eventually_within(RELOAD_MAX, "the key is refused", || {
        (nodes(&node, &reader).status == 401).then_some(())
    });
    let refused = node.metric("admin_keys_refused_total");
    assert!(message(&reader).contains("revoked"));
    assert_eq!(node.metric("admin_keys_refused_total"), refused + 1.0);
    follower.expect_end();
    let late = keys.add("late", "read", &[]);
    eventually_within(RELOAD_MAX, "the new key is accepted", || {
        (nodes(&node, &late).status == 200).then_some(())
    });
    let lines = audit(&keys.data);
    for (reason, name) in [("revoked", "reader"), ("network", "foreign"), ("expired", "short")] {
        let found = lines
            .iter()
            .any(|line| line["reason"] == reason && line["name"] == name && line["code"] == "KEY_INVALID");
        assert!(found, "no line of {reason} in {lines:?}");
    }
    for reason in ["unknown", "malformed"] {
        assert!(lines.iter().any(|line| line["reason"] == reason && line["name"].is_null()), "{lines:?}");
    }
}

#[test]
fn key_is_revoked_by_a_request_and_lists_have_no_hashes() {
    let keys = Keys::new();
    let (operator, crm) = (keys.add("operator", "operate", &[]), keys.add("crm", "read", &["--ttl", "90d"]));
    let node = keys.start(&[]);
    let ask = |method: &str, path: &str, key: &str| ask(node.admin(), method, path, Some(key), "");
    let json = |reply: &Reply| serde_json::from_slice::<Value>(&reply.body).expect("JSON");
    assert_eq!(ask("GET", "/v1/keys", &crm).status, 403);
    assert_eq!(ask("DELETE", &format!("/v1/keys/{}", &operator[4..12]), &crm).status, 403);
    let list = json(&ask("GET", "/v1/keys", &operator));
    let of = |list: &Value, at: usize, field: &str| list["keys"][at][field].clone();
    assert_eq!((of(&list, 0, "name"), of(&list, 0, "own")), ("operator".into(), true.into()), "{list}");
    assert_eq!((of(&list, 1, "state"), of(&list, 1, "own")), ("in force".into(), false.into()), "{list}");
    for line in fs::read_to_string(&keys.file).expect("the file of keys").lines() {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        assert!(!list.to_string().contains(entry["sha256"].as_str().expect("a hash")), "{list}");
    }
    assert_eq!(ask("DELETE", "/v1/keys/00000000", &operator).status, 404);
    let path = format!("/v1/keys/{}", &crm[4..12]);
    let revoked = json(&ask("DELETE", &path, &operator));
    assert_eq!((&revoked["changed"], &revoked["own"]), (&true.into(), &false.into()), "{revoked}");
    assert_eq!(nodes(&node, &crm).status, 401, "this node refuses it at once");
    let again = json(&ask("DELETE", &path, &operator));
    assert_eq!((&again["changed"], &again["revokedMs"]), (&false.into(), &revoked["revokedMs"]), "{again}");
    assert!(
        load_keys(&keys.file).expect("keys").iter().any(|it| it.name == "crm" && it.revoked_ms.is_some())
    );

    let held = fs::File::open(&keys.file).expect("the file of keys");
    held.lock().expect("a lock");
    // Escapes hide no id from the audit log.
    let own = format!("/v1/keys/%{:x}{}", operator.as_bytes()[4], &operator[5..12]);
    assert_eq!(refusal(&ask("DELETE", &own, &operator)).0, "BUSY");
    drop(held);
    fs::create_dir(keys.data.join("admin.keys.new")).expect("a folder in the way of the new file");
    let (name, message) = refusal(&ask("DELETE", &own, &operator));
    assert!(name == "STORE_UNAVAILABLE" && message.contains("not revoked"), "{name}: {message}");
    assert_eq!(nodes(&node, &operator).status, 200);
    fs::remove_dir(keys.data.join("admin.keys.new")).expect("the folder");
    let gone = json(&ask("DELETE", &own, &operator));
    assert_eq!((&gone["changed"], &gone["own"]), (&true.into(), &true.into()), "{gone}");
    assert_eq!(nodes(&node, &operator).status, 401);
    let lines = audit(&keys.data);
    let line = lines.iter().rfind(|line| line["route"] == "/v1/keys/{id}").expect("a line");
    assert_eq!(
        (&line["targets"]["id"][0], &line["name"], &line["status"]),
        (&operator[4..12].into(), &"operator".into(), &200.into()),
        "{line}"
    );
}

#[test]
fn eleventh_refused_key_within_a_minute_has_to_wait_and_a_valid_one_passes() {
    let keys = Keys::new();
    let reader = keys.add("reader", "read", &[]);
    let node = keys.start(&[]);
    for _ in 0..20 {
        assert_eq!(ask(node.admin(), "GET", "/v1/nodes", None, "").status, 401, "no key is no try");
    }
    let wrong = SecretKey::random();
    for nth in 1..=10 {
        assert_eq!(nodes(&node, wrong.text()).status, 401, "{nth}");
    }
    let reply = nodes(&node, wrong.text());
    assert_eq!((reply.status, refusal(&reply).0.as_str()), (429, "RATE_LIMITED"));
    let wait: u64 = reply.field("retry-after").expect("a time").parse().expect("seconds");
    assert!((30..=65).contains(&wait), "{wait}");
    assert_eq!(nodes(&node, &reader).status, 200);
    assert_eq!(node.metric("admin_keys_refused_total"), 11.0);
    assert_eq!(node.metric("admin_keys_missing_total"), 20.0);
}

#[test]
fn damaged_missing_or_open_file_keeps_the_keys_in_force() {
    let keys = Keys::new();
    let (reader, operator) = (keys.add("reader", "read", &[]), keys.add("operator", "operate", &[]));
    let node = keys.start(&[]);
    let good = fs::read(&keys.file).expect("the file of keys");
    let broken = |value: f64| node.metric_becomes("admin_keys_broken", value);
    let repair = || {
        fs::write(&keys.file, &good).expect("the file of keys");
        fs::set_permissions(&keys.file, Permissions::from_mode(0o600)).expect("a mode");
    };
    for damage in ["damaged", "missing", "open"] {
        match damage {
            "damaged" => fs::write(&keys.file, [&good[..], b"{\"id\":"].concat()).expect("the file of keys"),
            "missing" => fs::remove_file(&keys.file).expect("the file of keys"),
            _ => fs::set_permissions(&keys.file, Permissions::from_mode(0o644)).expect("a mode"),
        }
        broken(1.0);
        assert_eq!(nodes(&node, &reader).status, 200, "{damage}");
        let reload = ask(node.admin(), "POST", "/v1/reload", Some(&operator), "");
        let body: Value = serde_json::from_slice(&reload.body).expect("JSON");
        let path = &body["fields"][0]["path"];
        assert_eq!((reload.status, path), (400, &"admin.keys_file".into()), "{damage}: {body}");
        repair();
        broken(0.0);
        assert_eq!(nodes(&node, &reader).status, 200, "{damage}");
    }
    let log = node.stderr();
    assert_eq!(log.matches("keys of the admin port can't be read").count(), 3, "{log}");
    assert!(log.contains("line 3") && log.contains("chmod 600"), "{log}");
}

#[test]
fn start_is_refused_with_a_cure_if_keys_are_missing_or_damaged() {
    for (sets, cure) in [
        (vec!["listen.admin=0.0.0.0:0"], "tidegate key add"),
        (vec!["listen.admin=0.0.0.0:0", "admin.allow_plaintext=true"], "admin.keys_file"),
        (vec!["listen.admin=0.0.0.0:0", "admin.keys_file=none"], "admin.allow_plaintext=true"),
        (vec!["admin.keys_file=/dev/null/none"], "admin.keys_file"),
        (vec!["admin.audit_file=/dev/null/none"], "admin.audit_file"),
    ] {
        let (output, said) = fails(&sets);
        assert!(!output.status.success() && said.contains(cure), "{sets:?}: {said}");
    }
    let keys = Keys::new();
    fs::write(&keys.file, "{}\n").expect("a file");
    fs::set_permissions(&keys.file, Permissions::from_mode(0o600)).expect("a mode");
    let (_, said) = fails(&[&keys.set()]);
    assert!(said.contains("line 1") && said.contains("tidegate key add"), "{said}");
    fs::remove_dir_all(&keys.data).ok();
}

#[test]
fn port_on_all_addresses_serves_holders_of_keys_by_any_name() {
    let keys = Keys::new();
    let reader = keys.add("reader", "read", &[]);
    let node = keys.start(&["listen.admin=0.0.0.0:0", "admin.allow_plaintext=true"]);
    let port = SocketAddr::from(([127, 0, 0, 1], node.admin().port()));
    let head =
        format!("GET /v1/nodes HTTP/1.1\r\nHost: tidegate-admin:7801\r\nAuthorization: bearer {reader}\r\n");
    assert_eq!(exchange(port, &head, "").status, 200);
    let page = exchange(port, &format!("{head}Origin: https://evil.example\r\n"), "");
    assert_eq!(page.status, 403);
    let twice = exchange(port, &format!("{head}Authorization: Bearer {reader}\r\n"), "");
    assert_eq!(twice.status, 401, "two keys are none");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["nodes", "--data"])
        .arg(node.data())
        .env("TIDEGATE_KEY", &reader)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn commands_take_a_key_by_file_or_variable_and_name_the_cure_without_one() {
    let keys = Keys::new();
    let out = keys.data.join("operator.key");
    let path = out.to_str().expect("text");
    assert_eq!(keys.add("operator", "operate", &["--out", path]), "", "a key in a file is not printed");
    let reader = keys.add("reader", "read", &[]);
    let node = keys.start(&["admin.development=no"]);
    let run = |words: &[&str], variable: Option<&str>| {
        let mut tidegate = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        tidegate.args(words).arg("--data").arg(node.data());
        tidegate.env_remove("TIDEGATE_KEY_FILE").env_remove("TIDEGATE_KEY");
        tidegate.envs(variable.map(|key| ("TIDEGATE_KEY", key)));
        let output = tidegate.output().expect("the binary runs");
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    for words in [&["nodes"][..], &["owners"], &["where", "bob"], &["trace", "m1"]] {
        let (ok, said) = run(words, None);
        assert!(!ok && said.contains("KEY_INVALID") && said.contains("--key-file"), "{words:?}: {said}");
        let (ok, said) = run(&[words, &["--key-file", path]].concat(), None);
        assert!(ok, "{words:?}: {said}");
        let (ok, said) = run(words, Some(&reader));
        assert_eq!(ok, words[0] != "trace", "{words:?}: {said}");
        assert!(ok || said.contains("SCOPE_MISSING"), "{words:?}: {said}");
    }
    let (ok, said) = run(&["drain"], Some(&reader));
    assert!(!ok && said.contains("SCOPE_MISSING") && said.contains("operate"), "{said}");
    let (ok, said) = run(&["nodes"], Some(&reader[..62]));
    assert!(!ok && said.contains("TIDEGATE_KEY") && !said.contains(&reader[13..50]), "{said}");
    fs::set_permissions(&out, Permissions::from_mode(0o644)).expect("a mode");
    let (ok, said) = run(&["nodes", "--key-file", path], None);
    assert!(!ok && said.contains("chmod 600"), "{said}");
    fs::set_permissions(&out, Permissions::from_mode(0o600)).expect("a mode");
    let (ok, said) = run(&["drain", "--key-file", path], None);
    assert!(ok, "{said}");
}

#[test]
fn key_commands_list_without_secrets_and_refuse_mistakes() {
    let keys = Keys::new();
    let crm = keys.add("crm", "groups,read,groups", &["--ttl", "90d", "--network", "10.0.0.0/8"]);
    let list = |words: &[&str]| text(&keys.run(&[&["list"], words].concat()).stdout);
    assert!(list(&[]).contains("crm   read,groups  in force"), "{}", list(&[]));
    assert!(!list(&[]).contains(&crm[13..50]) && !list(&["--json"]).contains(&crm[13..50]));
    let fails = |words: &[&str]| {
        let output = keys.run(words);
        assert!(!output.status.success(), "{words:?}");
        text(&output.stderr)
    };
    assert!(fails(&["add", "crm", "--scope", "read"]).contains("in force"));
    assert!(fails(&["add", "a b", "--scope", "read"]).contains("name"));
    assert!(fails(&["add", "x", "--scope", "admin"]).contains("operate"));
    assert!(fails(&["add", "x"]).contains("--scope"));
    assert!(fails(&["revoke", "none"]).contains("tidegate key list"));
    assert!(
        fails(&["add", "x", "--scope", "read", "--out", keys.file.to_str().expect("text")]).contains("--out")
    );
    assert_eq!(load_keys(&keys.file).expect("keys").len(), 1, "a key that nobody has is not in the file");
    keys.revoke(&crm[4..12]);
    assert!(fails(&["revoke", "crm"]).contains("revoked already"));
    assert!(list(&[]).contains("revoked"));
    let again = keys.add("crm", "read", &[]);
    assert_ne!(again, crm);
    let output =
        Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["key", "list"]).output().expect("the binary runs");
    assert!(text(&output.stderr).contains("--file"), "{}", text(&output.stderr));
    fs::remove_dir_all(&keys.data).ok();
}

#[test]
fn key_over_its_rule_gets_429_with_the_time_and_other_keys_pass() {
    let keys = Keys::new();
    let (crm, shop) = (keys.add("crm", "groups,users", &[]), keys.add("shop", "groups,users", &[]));
    let rules = keys.data.join("limits.toml");
    let rule = |id: &str, calls: &str, limit: u32| {
        format!(
            "[[rule]]\nid = \"{id}\"\nlevel = \"key\"\ncalls = [\"{calls}\"]\nwindow = \"1h\"\nlimit = {limit}\n"
        )
    };
    fs::write(&rules, rule("posts", "api:post", 2) + &rule("all", "api:*", 4)).expect("a file");
    let node = keys.start(&[&format!("limits.rules_file={}", rules.display())]);
    let post = |key: &str, group: &str| {
        let body = format!("{{\"id\":\"{group}\",\"members\":[\"ann\"]}}");
        ask(node.admin(), "POST", "/v1/groups", Some(key), &body)
    };
    let is_limited = |reply: Reply| {
        assert_eq!((reply.status, refusal(&reply).0.as_str()), (429, "RATE_LIMITED"));
        let wait: u64 = reply.field("retry-after").expect("a time").parse().expect("seconds");
        assert!((3_590..=3_601).contains(&wait), "{wait}");
    };
    assert_eq!([post(&crm, "g1").status, post(&crm, "g2").status], [201, 201]);
    is_limited(post(&crm, "g3"));
    assert_eq!([nodes(&node, &crm).status, nodes(&node, &crm).status], [200, 200], "another method");
    is_limited(nodes(&node, &crm));
    assert_eq!(post(&shop, "g4").status, 201, "another key");
    assert_eq!(nodes(&node, &shop).status, 200);
    assert_eq!(ask(node.admin(), "GET", "/v1/groups/g3", Some(&shop), "").status, 404, "not carried out");
    let of_g3: Vec<Value> =
        audit(&keys.data).into_iter().filter(|line| line["targets"]["id"][0] == "g3").collect();
    assert!(of_g3.len() == 1 && of_g3[0]["status"] == 429 && of_g3[0]["reason"] == "limit", "{of_g3:?}");
    let state = ask(node.admin(), "GET", &format!("/v1/limits/key:{}", &crm[4..12]), Some(&shop), "");
    let state: Value = serde_json::from_slice(&state.body).expect("JSON");
    let used: Vec<&Value> = ["posts", "all"]
        .iter()
        .map(|id| &state["rules"].as_array().expect("rules").iter().find(|it| it["id"] == *id).expect("it")["used"])
        .collect();
    assert_eq!(used, [&Value::from(2), &Value::from(4)], "{state}");
}
