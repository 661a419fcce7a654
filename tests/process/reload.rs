//! Reload of the configuration, by SIGHUP and by the admin API.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::keys::{audit, text};
use crate::support::{Client, Process, ServerBody, ask, command, eventually, fresh_data, hello, http, send};

/// Node with a configuration file.
struct Reloaded {
    file: PathBuf,
    node: Process,
}

impl Reloaded {
    fn start(config: &str, sets: &[&str]) -> Self {
        let data = fresh_data();
        fs::create_dir_all(&data).expect("a folder");
        let file = data.join("tidegate.toml");
        fs::write(&file, config).expect("a file");
        let mut serve = command(&data, sets);
        serve.arg("--config").arg(&file);
        Self { file, node: Process::spawn(&data, serve) }
    }

    fn write(&self, config: &str) {
        fs::write(&self.file, config).expect("a file");
    }

    fn reload(&self) -> (u16, Value) {
        let (status, body) = http::ask(self.node.admin(), "POST", "/v1/reload", "");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// Returns the status of an upgrade by a page of that origin.
    fn upgrade(&self, origin: &str) -> u16 {
        let head = format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: tidegate.v1.json\r\n\
             Origin: {origin}\r\nConnection: upgrade\r\n"
        );
        first_status(&self.node, &head)
    }
}

/// Sends a request to the client port, and returns the status of the response.
fn first_status(node: &Process, head: &str) -> u16 {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(node.address()).expect("a port");
    stream.write_all(format!("{head}\r\n").as_bytes()).expect("it reads");
    let mut line = [0; 12];
    stream.read_exact(&mut line).expect("a response");
    text(&line)[9..].parse().expect("a status")
}

#[test]
fn reload_changes_live_settings_and_names_those_that_need_a_restart() {
    let it = Reloaded::start("[listen]\norigins = [\"https://a.example\"]\n", &["admin.development=no"]);
    assert_eq!((it.upgrade("https://a.example"), it.upgrade("https://b.example")), (101, 403));
    assert_eq!(it.reload(), (200, json!({"changed": [], "needsRestart": []})));
    it.write(
        "[listen]\norigins = [\"https://b.example\"]\n[limits]\nqueries_per_second = 1\n[timing]\nreply_ms = 4000\n",
    );
    let expected = json!({"changed": ["limits.queries_per_second", "listen.origins"], "needsRestart": ["timing.reply_ms"]});
    assert_eq!(it.reload(), (200, expected));
    assert_eq!((it.upgrade("https://a.example"), it.upgrade("https://b.example")), (403, 101));
    let (_, again) = it.reload();
    assert_eq!(again, json!({"changed": [], "needsRestart": ["timing.reply_ms"]}));
    let mut alice = it.node.login(Wire::Tcp, "alice", "phone");
    let limited = (0..3).any(|_| matches!(alice.ask(ask::sync(&[])), ServerBody::Error(error) if error.code == u32::from(Code::RateLimited.number())));
    assert!(limited, "the limit on queries is in force");
    let lines = audit(it.node.data());
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line["route"] == "/v1/reload" && line["status"] == 200), "{lines:?}");
}

#[test]
fn new_limits_count_for_connections_that_begin_afterwards() {
    let it = Reloaded::start("[limits]\ncontent_bytes_max = 1000\n", &["admin.development=no"]);
    let mut before = it.node.login(Wire::Tcp, "alice", "phone");
    let limits = |client: &Client| client.welcome.limits.as_ref().expect("limits").content_bytes_max;
    assert_eq!((before.welcome.heartbeat_ms, limits(&before)), (30_000, 1_000));
    it.write(
        "[limits]\ncontent_bytes_max = 50\nrecall_ms = 0\n[timing]\nheartbeat_ms = 7000\n[drain]\nspread_ms = 2000\ndeadline_ms = 40000\n",
    );
    let (_, changes) = it.reload();
    let expected = [
        "drain.deadline_ms",
        "drain.spread_ms",
        "limits.content_bytes_max",
        "limits.recall_ms",
        "timing.heartbeat_ms",
    ];
    assert_eq!(changes, json!({"changed": expected, "needsRestart": []}));
    let text = "x".repeat(100);
    assert_eq!(before.text("bob", "m1", &text), 1, "it keeps the limits of its start");
    let refused = before.ask(ask::recall("d:alice:bob", 1));
    assert!(
        matches!(&refused, ServerBody::Error(error) if error.code == u32::from(Code::TooLate.number())),
        "recalls have their new limit at once: {refused:?}"
    );
    let mut after = it.node.login(Wire::Tcp, "carol", "phone");
    assert_eq!((after.welcome.heartbeat_ms, limits(&after)), (7_000, 50));
    let refused = after.ask(ask::send(send("bob", "m1", &text)));
    assert!(
        matches!(&refused, ServerBody::Error(error) if error.code == u32::from(Code::ContentTooLarge.number())),
        "{refused:?}"
    );
    let (_, facts) = http::ask(it.node.admin(), "GET", "/v1/console", "");
    let facts: Value = serde_json::from_str(&facts).expect("JSON");
    assert_eq!(facts["drainPlan"]["deadlineMs"], 40_000, "{facts}");
}

#[test]
fn reload_lists_all_errors_and_keeps_the_former_settings() {
    let it = Reloaded::start("[listen]\norigins = [\"https://a.example\"]\n", &["admin.development=no"]);
    it.write("[listen]\norigins = [\"https://b.example\"]\n[limits]\nframe_bytes_max = 1\nhello_bytes_max = 1\nin_flight_max = 0\n");
    let (status, body) = it.reload();
    assert_eq!((status, &body["name"]), (400, &"BAD_SETTING".into()), "{body}");
    let fields = body["fields"].as_array().expect("a list");
    let paths: Vec<&str> = fields.iter().filter_map(|field| field["path"].as_str()).collect();
    for path in ["limits.frame_bytes_max", "limits.hello_bytes_max", "limits.in_flight_max"] {
        assert!(paths.contains(&path), "{body}");
    }
    assert!(fields.iter().all(|field| field["reason"].as_str().is_some_and(|it| !it.is_empty())), "{body}");
    assert_eq!((it.upgrade("https://a.example"), it.upgrade("https://b.example")), (101, 403));
    it.write("not a table");
    assert_eq!(it.reload().0, 400);
    let line = audit(it.node.data()).pop().expect("a line");
    assert_eq!((&line["status"], &line["code"]), (&400.into(), &"BAD_SETTING".into()));
}

/// Writes a certificate with its key, and returns both files.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let (_, key) = key_pair(folder, "port");
    let key = key.with_extension("pem");
    let pair = rcgen::KeyPair::from_pem(&fs::read_to_string(&key).expect("a file")).expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let file = folder.join("port.crt");
    fs::write(&file, params.self_signed(&pair).expect("a certificate").pem()).expect("a file");
    (file, key)
}

#[test]
fn reload_lists_problems_of_settings_and_of_files_together() {
    let files = fresh_data();
    fs::create_dir_all(&files).expect("a folder");
    let (certificate, key) = certificate(&files);
    let text = |file: &Path| file.display().to_string();
    let tls = format!("[tls]\ncert_files = [\"{}\"]\nkey_files = [\"{}\"]\n", text(&certificate), text(&key));
    let origins = |name: &str| format!("[listen]\norigins = [\"https://{name}.example\"]\n");
    let it = Reloaded::start(&format!("{}{tls}", origins("a")), &["admin.development=no"]);
    assert_eq!(it.reload(), (200, json!({"changed": [], "needsRestart": []})));
    let authority = files.join("authority.pem");
    fs::copy(&certificate, &authority).expect("a copy");
    it.write(&format!("{}{tls}[webhooks]\nca_file = \"{}\"\n", origins("a"), text(&authority)));
    assert_eq!(it.reload(), (200, json!({"changed": ["webhooks.ca_file"], "needsRestart": []})));
    fs::write(&certificate, "junk").expect("a file");
    let missing = text(&files.join("missing"));
    let named = format!(
        "client_ca = \"{missing}-ca\"\n[limits]\nin_flight_max = 0\nhold_max = \"many\"\n\
         [auth]\nkey_files = [\"one={missing}-1\", \"two={missing}-2\"]\njwks_url = \"https://127.0.0.1:1/keys\"\n\
         jwks_ca_file = \"{missing}-jwks\"\n[webhooks]\nca_file = \"{missing}-ca\"\n[hooks]\nlogin_url = \"http://127.0.0.1:1/login\"\nsecret_file = \"{missing}-hooks\"\n"
    );
    it.write(&format!("{}{tls}{named}", origins("b")));
    let (status, body) = it.reload();
    assert_eq!(status, 400, "{body}");
    let mut paths: Vec<&str> = body["fields"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|field| field["path"].as_str().unwrap_or_default())
        .collect();
    paths.sort_unstable();
    let expected = [
        "auth.jwks_ca_file",
        "auth.key_files",
        "auth.key_files",
        "hooks.secret_file",
        "limits.hold_max",
        "limits.in_flight_max",
        "tls.cert_files",
        "tls.client_ca",
        "webhooks.ca_file",
    ];
    assert_eq!(paths, expected, "{body}");
    assert_eq!((it.upgrade("https://a.example"), it.upgrade("https://b.example")), (101, 403));
    it.write(&format!("{}{tls}", origins("b")));
    it.node.signal(Signal::HUP);
    eventually("SIGHUP reports the bad certificate", || {
        let said = it.node.stderr();
        let line = said.lines().rev().find(|line| line.contains("the former one stays in force"))?;
        (line.contains("tls.cert_files") && !line.contains("auth.key_files")).then_some(())
    });
    assert_eq!((it.upgrade("https://a.example"), it.upgrade("https://b.example")), (101, 403));
    // A file that is no TOML hides its settings, but not the files of those in force.
    it.write("not a table");
    let (_, body) = it.reload();
    assert!(body["fields"][1]["path"] == "tls.cert_files" && body["fields"][0]["path"].is_null(), "{body}");
    fs::remove_dir_all(files).ok();
}

#[test]
fn sighup_reads_the_configuration_again() {
    let it = Reloaded::start("[log]\nfilter = \"info\"\n", &["admin.development=no"]);
    assert_eq!(it.upgrade("https://a.example"), 403);
    it.write("[listen]\norigins = [\"https://a.example\"]\n[log]\nfilter = \"info,tidegate::shard=debug\"\n");
    it.node.signal(Signal::HUP);
    eventually("the origin is admitted", || (it.upgrade("https://a.example") == 101).then_some(()));
    // The reload is logged once all of it is done.
    let line = "\"listen.origins\", \"log.filter\"";
    let is_logged = |said: String| said.contains("configuration read again") && said.contains(line);
    eventually("the reload is logged", || is_logged(it.node.stderr()).then_some(()));
    drop(it.node.login(Wire::Tcp, "alice", "phone"));
    eventually("the shard logs", || it.node.stderr().contains("DEBUG tidegate::shard").then_some(()));
    it.write("[listen]\norigins = [\"https://b.example\"]\nbacklog = \"many\"\n");
    it.node.signal(Signal::HUP);
    eventually("the error is logged", || {
        it.node.stderr().contains("the former one stays in force").then_some(())
    });
    assert_eq!((it.upgrade("https://a.example"), it.upgrade("https://b.example")), (101, 403));
}

/// Writes a PEM file with the public key of a private one, which it also writes; returns both files.
fn key_pair(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let (private, public) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.pub")));
    fs::write(&private, pair.serialize_pem()).expect("a file");
    fs::write(&public, pair.public_key_pem()).expect("a file");
    for file in [&private, &public] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("a file");
    }
    (private, public)
}

fn tidegate(words: &[&str]) -> (bool, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = program.args(words).env_remove("TIDEGATE_CONFIG").output().expect("the binary runs");
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn reload_replaces_the_keys_of_tokens_and_connections_stay() {
    let keys = fresh_data();
    fs::create_dir_all(&keys).expect("a folder");
    let ((old, old_public), (new, new_public)) = (key_pair(&keys, "old"), key_pair(&keys, "new"));
    let mint = |file: &Path, kid: &str| {
        let (done, token, said) =
            tidegate(&["token", "mint", "alice", "--key", &file.display().to_string(), "--kid", kid]);
        assert!(done, "{said}");
        token.trim().to_owned()
    };
    let config = |kid: &str, file: &Path| format!("[auth]\nkey_files = [\"{kid}={}\"]\n", file.display());
    let it = Reloaded::start(&config("old", &old_public), &[]);
    let hello_with = |token: &str| {
        let mut client = Client::connect(it.node.address(), Wire::Tcp);
        let answer = client.ask(ask::hello(hello(token, "phone")));
        (client, answer)
    };
    let (mut alice, welcome) = hello_with(&mint(&old, "old"));
    assert!(matches!(welcome, ServerBody::Welcome(_)), "{welcome:?}");
    it.write(&config("new", &new_public));
    assert_eq!(it.reload(), (200, json!({"changed": ["auth.key_files"], "needsRestart": []})));
    assert_eq!(alice.text("alice", "m1", "still here"), 1);
    let (_, refused) = hello_with(&mint(&old, "old"));
    assert!(!matches!(refused, ServerBody::Welcome(_)), "{refused:?}");
    let (_, welcome) = hello_with(&mint(&new, "new"));
    assert!(matches!(welcome, ServerBody::Welcome(_)), "{welcome:?}");
    it.write(&config("none", &keys.join("missing")));
    let (status, body) = it.reload();
    assert_eq!((status, &body["fields"][0]["path"]), (400, &"auth.key_files".into()), "{body}");
    assert!(body["fields"][0]["reason"].as_str().expect("a text").contains("missing"), "{body}");
    assert!(
        matches!(hello_with(&mint(&new, "new")).1, ServerBody::Welcome(_)),
        "the former key stays in force"
    );
    // A token of the data directory would be refused, so none is printed.
    let (done, _, said) = tidegate(&["token", "alice", "--data", &it.node.data().display().to_string()]);
    assert!(!done && said.contains("tidegate token mint"), "{said}");
    fs::remove_dir_all(keys).ok();
}

#[test]
fn lines_are_json_where_stderr_is_no_terminal() {
    let data = fresh_data();
    let sets = ["log.format=auto", "log.filter=info,tidegate=debug", "limits.hold_max=1"];
    let mut serve = command(&data, &sets);
    serve.arg("--admin").arg("127.0.0.1:0");
    let mut node = Process::spawn(&data, serve);
    let mut alice = node.login_chained(Wire::Tcp, "alice", "phone", "missing");
    for (id, next) in [("early-1", "early-2"), ("early-2", "late")] {
        alice.say(ask::send(pb::Send { next_id: next.into(), ..send("bob", id, "x") }));
    }
    assert_eq!(alice.expect_notice().kind(), pb::NoticeKind::OrderWindowFull);
    let (_, listed) = http::ask(node.admin(), "GET", "/v1/users/alice/connections", "");
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let id = listed["connections"][0]["id"].as_str().expect("an id");
    drop(alice);
    eventually("the end of the connection is logged", || {
        node.stderr().contains("login timings").then_some(())
    });
    node.signal(Signal::TERM);
    assert!(node.exit().success());
    let said = node.stderr();
    let lines: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    for line in &lines {
        for key in ["time", "level", "target", "message", "node"] {
            assert!(line[key].is_string(), "{key} is missing in {line}");
        }
    }
    let login = lines.iter().find(|line| line["message"] == "login timings").expect("a login");
    assert_eq!((&login["device"], &login["node"]), (&"phone".into(), &"n1".into()), "{login}");
    assert_eq!(login["user"].as_str().map(str::len), Some(16), "a hash stands for the user: {login}");
    let alarm = lines.iter().find(|line| line["message"] == "chain hold full; reading paused");
    let alarm = alarm.expect("the alarm of the chain");
    assert_eq!((&alarm["user"], &alarm["msgId"]), (&login["user"], &"missing".into()), "{alarm}");
    let connection = alarm["connection"].as_str().expect("a connection");
    assert!(id.ends_with(&format!(".{connection}")), "{id} is listed: {alarm}");
    assert_eq!(login["connection"], connection, "{login}");
}

#[test]
fn reload_reads_rules_again_and_unchanged_ones_go_on() {
    let rules = fresh_data();
    fs::create_dir_all(&rules).expect("a folder");
    let file = rules.join("limits.toml");
    let rule = |id: &str, limit: u32| {
        format!(
            "[[rule]]\nid = \"{id}\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1h\"\nlimit = {limit}\n"
        )
    };
    fs::write(&file, rule("kept", 2) + &rule("raised", 1)).expect("a file");
    let config = format!("[limits]\nrules_file = \"{}\"\n", file.display());
    let it = Reloaded::start(&config, &[]);
    let mut ann = it.node.login(Wire::Tcp, "ann", "phone");
    ann.text("bob", "m1", "hi");
    let second = || ask::send(send("bob", "m2", "hi"));
    assert_eq!(ann.refused(second()), Code::RateLimited);
    fs::write(&file, rule("kept", 0) + &rule("raised", 5) + "speed = 1\n").expect("a file");
    let (status, body) = it.reload();
    let fields = body["fields"].as_array().expect("a list");
    assert_eq!((status, fields.len()), (400, 2), "{body}");
    assert!(fields.iter().all(|field| field["path"] == "limits.rules_file"), "{body}");
    assert_eq!(ann.refused(second()), Code::RateLimited, "the former rules stay");
    fs::write(&file, rule("kept", 2) + &rule("raised", 5)).expect("a file");
    assert_eq!(it.reload(), (200, json!({"changed": [], "needsRestart": []})));
    ann.text("bob", "m2", "hi");
    assert_eq!(ann.refused(ask::send(send("bob", "m3", "hi"))), Code::RateLimited, "two in the kept windows");
    let row = |words: &[&str]| {
        let admin = it.node.admin().to_string();
        let (done, listed, said) = tidegate(&[&["limits"], words, &["--admin", &admin]].concat());
        assert!(done && listed.starts_with("RULE "), "{listed}{said}");
        let row = listed.lines().find(|line| line.starts_with("kept ")).expect("the rule is listed");
        row.split_whitespace().map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(row(&[])[2..6], ["user", "1h", "2", "limits"]);
    assert_eq!(row(&["user:ann"])[1..5], ["1h", "2", "limits", "2"], "both are used");
    it.write("");
    assert_eq!(it.reload(), (200, json!({"changed": ["limits.rules_file"], "needsRestart": []})));
    ann.text("bob", "m3", "hi");
}
