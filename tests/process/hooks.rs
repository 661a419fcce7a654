//! Hooks, over real sockets: a node asks a server of the test, or the receivers of docs/hooks.md.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, KeyPair};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tidegate::auth;
use tidegate_protocol::{Code, codec::Wire};

use super::hook_server::{App, Behaviour, SECRET, now_ms};
use crate::support::{
    Client, Process, ServerBody, ask, code, eventually, fresh_data, hello, let_time_pass, send,
};

/// Node with hooks, and its folder of files.
pub(super) struct Hooked {
    pub(super) node: Process,
    files: PathBuf,
}

impl Hooked {
    pub(super) fn start(app: SocketAddr, sets: &[&str]) -> Self {
        let files = fresh_data();
        fs::create_dir_all(&files).expect("a folder");
        let secret = secret_file(&files);
        let urls = [
            format!("hooks.login_url=http://{app}/login"),
            format!("hooks.allow_url=http://{app}/allow"),
            format!("hooks.secret_file={}", secret.display()),
        ];
        let urls: Vec<&str> = urls.iter().map(String::as_str).chain(sets.iter().copied()).collect();
        Self { node: Process::start(&urls), files }
    }

    /// Logs in with a credential; returns the code of a refusal.
    pub(super) fn try_login(&self, credential: &str) -> Result<Client, Code> {
        let mut client = Client::connect(self.node.address(), Wire::Tcp);
        match client.ask(ask::hello(hello(credential, "phone"))) {
            ServerBody::Welcome(_) => Ok(client),
            ServerBody::Error(error) => Err(code(error.code)),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn refusal(&self, credential: &str) -> Code {
        self.try_login(credential).err().unwrap_or_else(|| panic!("{credential} is accepted"))
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.files).ok();
    }
}

/// Writes the secret that signs requests of hooks to a file of the folder.
pub(super) fn secret_file(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let file = folder.join("hooks.secret");
    fs::write(&file, format!("whsec_{}\n", STANDARD.encode(SECRET))).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a file");
    file
}

/// Returns a response that breaks each rule, with a name for it.
pub(super) fn wrong_answers() -> Vec<(&'static str, Behaviour)> {
    let status = |line: &str| {
        Behaviour::Raw(format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\nlocation: /other\r\n\r\n"))
    };
    vec![
        ("timeout", Behaviour::Hang),
        ("status 500", status("500 Internal Server Error")),
        ("redirect", status("302 Found")),
        ("no content", status("204 No Content")),
        ("rubbish", Behaviour::Json(json!("rubbish"))),
        ("no JSON", Behaviour::Raw("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n<p>".into())),
        ("no HTTP", Behaviour::Raw("SSH-2.0-x\r\n".into())),
        ("closed", Behaviour::Raw(String::new())),
        (
            "huge",
            Behaviour::Json(
                json!({"user": "ann", "expiresAt": now_ms() + 60_000, "allow": true, "x": "x".repeat(70_000)}),
            ),
        ),
    ]
}

#[test]
fn login_hook_identifies_credentials_that_are_no_tokens() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=closed", "hooks.allow_actions=[join]"]);
    let mut ann = it.try_login("ticket-of-ann").expect("a ticket");
    let asked = app.asked();
    assert_eq!((asked.len(), &*asked[0].path, asked[0].is_signed), (1, "/login", true), "{asked:?}");
    let body =
        json!({"credential": "ticket-of-ann", "device": "phone", "address": "127.0.0.1", "origin": null});
    assert_eq!(asked[0].body, body);
    assert_eq!(ann.text("bob", "m1", "claims of the answer apply"), 1);
    assert_eq!(ann.refused(ask::send(send("emil", "m2", "x"))), Code::Forbidden);
    // Cached, on another connection; the second question takes the first one's connection.
    drop(it.try_login("ticket-of-ann").expect("a cached ticket"));
    assert_eq!(it.refusal("ticket of nobody"), Code::TokenInvalid);
    assert_eq!(it.refusal("ticket of nobody"), Code::TokenInvalid);
    let more = app.asked();
    assert_eq!((more.len(), more[0].connection), (1, asked[0].connection), "{more:?}");
    // Tokens of the node need no question, and neither do those of its key that are refused.
    drop(it.try_login(&it.node.token("bob")).expect("a token"));
    let key = auth::load_or_create_key(it.node.data()).expect("a key");
    assert_eq!(it.refusal(&auth::sign_until(&key, "bob", None, 1_000)), Code::TokenExpired);
    assert_eq!(app.asked().len(), 0);
    // A token of another issuer is a credential.
    let foreign = auth::sign(b"another key", "bob", None, Duration::from_secs(60));
    assert_eq!(it.refusal(&foreign), Code::TokenInvalid);
    assert_eq!(app.asked().len(), 1);
    assert_eq!(
        (it.node.metric("hook_login_calls_total"), it.node.metric("hook_login_denials_total")),
        (3.0, 2.0)
    );
    assert_eq!(it.node.metric("hook_login_cached_denials_total"), 1.0, "the second ticket of nobody");
}

#[test]
fn login_hook_without_a_valid_answer_refuses_temporarily_and_connections_stay() {
    let app = App::start();
    let sets = ["hooks.allow_fail=open", "hooks.login_timeout_ms=300", "hooks.allow_actions=[join]"];
    let it = Hooked::start(app.address, &sets);
    let mut ann = it.try_login("ticket-of-ann").expect("a ticket");
    let mut wrong = wrong_answers();
    let json = |name: &'static str, answer: Value| (name, Behaviour::Json(answer));
    wrong.push(json("ended", json!({"user": "ann", "expiresAt": 1})));
    wrong.push(json("bad id", json!({"user": "no id", "expiresAt": now_ms() + 60_000})));
    for (n, (name, behaviour)) in wrong.iter().enumerate() {
        app.behave(behaviour.clone());
        // An answer of the server is about the credential, whatever it is.
        let is_down = ["timeout", "status 500", "no HTTP", "closed"].contains(name);
        let expected = if is_down { Code::HookUnavailable } else { Code::TokenInvalid };
        assert_eq!(it.refusal(&format!("ticket-of-x{n}")), expected, "{name}");
        // The breaker stays closed.
        app.behave(Behaviour::Usual);
        for m in 0..2 {
            drop(
                it.try_login(&format!("ticket-of-y{n}-{m}"))
                    .unwrap_or_else(|code| panic!("after {name}: {code:?}")),
            );
        }
    }
    assert_eq!(it.node.metric("hook_login_failures_total"), wrong.len() as f64);
    assert_eq!(ann.text("bob", "m1", "still here"), 1);
}

#[test]
fn request_on_a_kept_connection_that_ends_is_repeated_once_under_its_id() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=closed"]);
    app.behave(Behaviour::EndsKept);
    drop(it.try_login("ticket-of-ann").expect("a ticket"));
    drop(it.try_login("ticket-of-bob").expect("a ticket, over a new connection"));
    let asked = app.asked();
    let on: Vec<_> = asked.iter().map(|it| it.connection).collect();
    assert_eq!((&on[..], &asked[1].id), (&[1, 1, 2][..], &asked[2].id), "{asked:?}");
}

#[test]
fn bad_credentials_do_not_open_the_breaker() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=closed"]);
    let statuses = ["400 Bad Request", "401 Unauthorized", "302 Found"];
    for (n, status) in statuses.iter().cycle().take(12).enumerate() {
        app.behave(Behaviour::Raw(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")));
        assert_eq!(it.refusal(&format!("bad-{n}")), Code::TokenInvalid, "{status}");
    }
    app.behave(Behaviour::Json(json!({"user": "no id", "expiresAt": 1})));
    for n in 0..6 {
        assert_eq!(it.refusal(&format!("worse-{n}")), Code::TokenInvalid);
    }
    assert_eq!(app.asked().len(), 18);
    app.behave(Behaviour::Usual);
    drop(it.try_login("ticket-of-ann").expect("the breaker is closed"));
}

#[test]
fn identity_of_the_login_hook_is_of_one_device_and_ends_by_the_longest_lifetime() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=closed", "auth.max_lifetime_s=4"]);
    drop(it.try_login("ticket-of-ann").expect("a ticket"));
    drop(it.try_login("ticket-of-ann").expect("a cached ticket"));
    assert_eq!(app.asked().len(), 1);
    let mut desk = Client::connect(it.node.address(), Wire::Tcp);
    desk.login(hello("ticket-of-ann", "desk"));
    let asked = app.asked();
    assert_eq!((asked.len(), &asked[0].body["device"]), (1, &json!("desk")), "{asked:?}");
    let_time_pass("the identity ends", Duration::from_millis(4_100));
    drop(it.try_login("ticket-of-ann").expect("a ticket"));
    assert_eq!(app.asked().len(), 1);
}

#[test]
fn login_that_waits_too_long_for_the_hook_is_refused() {
    let app = App::start();
    let sets = ["hooks.allow_fail=closed", "timing.handshake_ms=9000", "hooks.login_timeout_ms=8000"];
    let it = Hooked::start(app.address, &sets);
    app.behave(Behaviour::Held);
    let mut client = Client::connect(it.node.address(), Wire::Tcp);
    let id = client.say(ask::hello(hello("ticket-of-ann", "phone")));
    eventually("the hook is asked", || (app.state.lock().asked.len() == 1).then_some(()));
    let_time_pass("the login gets too old", Duration::from_millis(5_100));
    app.behave(Behaviour::Usual);
    assert_eq!(client.expect_error(id), Code::Overloaded);
    drop(it.try_login("ticket-of-ann").expect("the identity is cached"));
}

#[test]
fn breaker_stops_questions_to_a_server_that_is_gone_and_tries_again() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=closed"]);
    app.behave(Behaviour::Raw(String::new()));
    for n in 0..8 {
        assert_eq!(it.refusal(&format!("ticket-of-x{n}")), Code::HookUnavailable);
    }
    assert_eq!(app.asked().len(), 5, "five failures in a row open the breaker");
    assert!(it.node.stderr().contains("hook keeps failing"), "{}", it.node.stderr());
    app.behave(Behaviour::Usual);
    assert_eq!(it.refusal("ticket-of-ann"), Code::HookUnavailable);
    let_time_pass("the breaker lets one request pass", Duration::from_millis(5_100));
    drop(it.try_login("ticket-of-ann").expect("a ticket"));
    drop(it.try_login("ticket-of-bob").expect("the breaker is closed"));
    let log = it.node.stderr();
    assert!(log.contains("the service answers again") && !log.contains("ticket-of-"), "{log}");
}

#[test]
fn server_that_does_not_listen_is_a_failure() {
    // No test gets this port, as it could one that was free a moment ago.
    let gone = SocketAddr::from(([127, 0, 0, 1], 1));
    let it = Hooked::start(gone, &["hooks.allow_fail=closed"]);
    assert_eq!(it.refusal("ticket-of-ann"), Code::HookUnavailable);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    assert_eq!(bob.refused(ask::send(send("ann", "m1", "x"))), Code::HookUnavailable);
    assert_eq!(it.node.metric("hook_allow_failures_total"), 1.0);
}

#[test]
fn hook_over_https_needs_a_trusted_certificate_for_its_name() {
    let pair = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name = rcgen::DistinguishedName::new();
    let certificate = params.self_signed(&pair).expect("a certificate");
    let key = PrivateKeyDer::try_from(pair.serialize_der()).expect("a key");
    let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|tls| tls.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key));
    let app = App::start_with(Some(Arc::new(tls.expect("a configuration"))));
    let files = fresh_data();
    fs::create_dir_all(&files).expect("a folder");
    let ca = files.join("ca.pem");
    fs::write(&ca, certificate.pem()).expect("a file");
    let ca = format!("hooks.ca_file={}", ca.display());
    let port = app.address.port();
    for (host, set, is_trusted) in [
        ("localhost", ca.as_str(), true),
        ("127.0.0.1", ca.as_str(), false),
        ("localhost", "hooks.ca_file=", false),
    ] {
        let url = format!("hooks.login_url=https://{host}:{port}/login");
        let it = Hooked::start(app.address, &["hooks.allow_fail=closed", &url, set]);
        match it.try_login("ticket-of-ann") {
            Ok(_) => assert!(is_trusted, "{host} {set}"),
            Err(code) => assert_eq!((code, is_trusted), (Code::HookUnavailable, false), "{host} {set}"),
        }
        let asked = app.asked();
        assert_eq!(asked.len(), usize::from(is_trusted), "{host} {set}");
        if !is_trusted {
            let log = it.node.stderr();
            assert!(log.contains("invalid peer certificate") && !log.contains("ticket-of-"), "{log}");
        }
    }
    fs::remove_dir_all(files).ok();
}

#[test]
fn hook_whose_name_is_unknown_is_a_failure() {
    let app = App::start();
    let sets = ["hooks.allow_fail=closed", "hooks.login_url=https://app.invalid/login"];
    let it = Hooked::start(app.address, &sets);
    assert_eq!(it.refusal("ticket-of-ann"), Code::HookUnavailable);
    drop(it.try_login(&it.node.token("bob")).expect("a token"));
}

#[test]
fn allow_hook_decides_on_joins_and_messages() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=closed"]);
    let team = it.node.group("team", &["bob".to_owned()]);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    assert_eq!(bob.text("ann", "m1", "the first one"), 1);
    assert_eq!(bob.text("ann", "m2", "an allowed start holds for the next ones"), 2);
    assert_eq!(bob.text("bob", "m3", "to my own devices"), 1);
    assert!(bob.text(&team, "m4", "to a group") > 0);
    assert_eq!(bob.refused(ask::send(send("carl", "m5", "x"))), Code::Forbidden);
    assert_eq!(bob.refused(ask::send(send("carl", "m6", "x"))), Code::Forbidden);
    bob.expect_done(ask::join("hall"));
    assert_eq!(bob.refused(ask::join("cellar")), Code::Forbidden);
    assert!(bob.text("r:hall", "m7", "to a room") > 0);
    let asked = app.asked();
    let asked: Vec<_> = asked
        .iter()
        .map(|it| (it.body["action"].as_str().expect("a text"), it.body["target"].as_str().expect("a text")))
        .collect();
    let expected = [
        ("start", "ann"),
        ("write", "g:team"),
        ("start", "carl"),
        ("join", "r:hall"),
        ("join", "r:cellar"),
        ("write", "r:hall"),
    ];
    assert_eq!(asked, expected);
    let mut ann = it.try_login(&it.node.token("ann")).expect("a token");
    assert_eq!(ann.text("bob", "m1", "an answer starts nothing"), 3);
    assert_eq!(app.asked()[0].body, json!({"user": "ann", "action": "write", "target": "bob"}));
    assert_eq!(it.node.metric("hook_allow_denials_total"), 2.0);
    assert_eq!(it.node.metric("hook_allow_cached_denials_total"), 1.0, "the second message to carl");
}

#[test]
fn refusals_by_the_allow_hook_are_logged_without_content() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=closed", "log.format=json"]);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    app.behave(Behaviour::Json(json!({"allow": false, "code": "muted", "message": "planted message"})));
    assert_eq!(bob.refused(ask::send(send("carl", "m1", "planted content"))), Code::Forbidden);
    assert_eq!(bob.refused(ask::join("cellar")), Code::Forbidden);
    let denials = || -> Vec<Value> {
        let lines = it.node.stderr();
        let lines = lines.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(|line: &Value| line["message"] == "hook `allow` refused a request").collect()
    };
    let lines = eventually("both refusals are logged", || Some(denials()).filter(|lines| lines.len() == 2));
    let actions: Vec<&str> = lines.iter().filter_map(|line| line["action"].as_str()).collect();
    assert_eq!(actions, ["write", "join"]);
    for line in &lines {
        assert_eq!((&line["level"], &line["code"]), (&"info".into(), &"muted".into()), "{line}");
        assert_eq!(line["user"].as_str().map(str::len), Some(16), "a hash stands for the user: {line}");
        assert!(line["connection"].as_str().is_some_and(|it| !it.is_empty()), "{line}");
        assert!(!line.to_string().contains("planted") && !line.to_string().contains("carl"), "{line}");
    }
    for n in 0..60 {
        assert_eq!(bob.refused(ask::send(send("carl", &format!("n{n}"), "x"))), Code::Forbidden);
    }
    assert!(denials().len() < 40, "the rate is bounded");
}

#[test]
fn messages_keep_their_order_while_one_waits_and_other_connections_go_on() {
    let app = App::start();
    let it = Hooked::start(
        app.address,
        &["hooks.allow_fail=closed", "hooks.allow_timeout_ms=3000", "node.shards=1"],
    );
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    let mut dora = it.try_login(&it.node.token("dora")).expect("a token");
    assert_eq!((bob.text("ann", "m1", "x"), dora.text("ann", "m1", "x")), (1, 1));
    app.asked();
    app.behave(Behaviour::Held);
    let late = bob.say(ask::send(send("emil", "m2", "needs an answer")));
    let next = bob.say(ask::send(send("ann", "m3", "needs none")));
    let ping = bob.say(ask::ping());
    eventually("the hook is asked", || (app.state.lock().asked.len() == 1).then_some(()));
    assert_eq!(dora.text("ann", "m2", "another connection"), 2);
    app.behave(Behaviour::Usual);
    let asked = [late, next, ping];
    let answers: Vec<_> =
        asked.iter().map(|_| bob.take("an answer", |frame| asked.contains(&frame.id))).collect();
    let acks: Vec<u64> = answers.iter().map(|frame| frame.id).filter(|id| *id != ping).collect();
    assert_eq!(acks, [late, next], "{answers:?}");
    assert!(answers.iter().all(|frame| !matches!(frame.body, Some(ServerBody::Error(_)))), "{answers:?}");
    assert_eq!(app.asked().len(), 1);
}

#[test]
fn allow_hook_without_a_valid_answer_fails_as_configured() {
    for (fail, is_open) in [("hooks.allow_fail=open", true), ("hooks.allow_fail=closed", false)] {
        let app = App::start();
        let it = Hooked::start(app.address, &[fail]);
        let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
        let wrong = wrong_answers();
        for (n, (name, behaviour)) in wrong.iter().enumerate() {
            app.behave(behaviour.clone());
            let to = send(&format!("x{n}"), &format!("m{n}"), "x");
            if is_open {
                assert_eq!(bob.send(to).seq, 1, "{name}");
            } else {
                assert_eq!(bob.refused(ask::send(to)), Code::HookUnavailable, "{name}");
            }
            app.behave(Behaviour::Usual);
            for m in 0..2 {
                assert_eq!(bob.text(&format!("y{n}-{m}"), &format!("y{n}-{m}"), "x"), 1, "after {name}");
            }
        }
        let count = wrong.len() as f64;
        assert_eq!(it.node.metric("hook_allow_failures_total"), count);
        assert_eq!(it.node.metric("hook_allow_unchecked_total"), if is_open { count } else { 0.0 });
    }
}

#[test]
fn allow_hook_that_refuses_by_its_status_never_opens() {
    let app = App::start();
    let it = Hooked::start(app.address, &["hooks.allow_fail=open"]);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    app.behave(Behaviour::Raw("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n".into()));
    for n in 0..8 {
        assert_eq!(bob.refused(ask::send(send("ann", &format!("m{n}"), "x"))), Code::Forbidden);
    }
    assert_eq!(app.asked().len(), 8, "the breaker stays closed");
    app.behave(Behaviour::Usual);
    assert_eq!(bob.text("ann", "m9", "x"), 1);
    assert_eq!(it.node.metric("hook_allow_unchecked_total"), 0.0);
}

/// Receiver of docs/hooks.md, ended with the test.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn receiver_of_the_page_answers_a_node() {
    let files = fresh_data();
    fs::create_dir_all(&files).expect("a folder");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/third_party/hooks/receiver.py");
    let mut python = Command::new("python3");
    python.arg(program).arg(secret_file(&files)).arg("0").stdout(Stdio::piped());
    let mut receiver = Receiver(python.spawn().expect("python3"));
    let mut line = String::new();
    BufReader::new(receiver.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let port: u16 = line.trim().strip_prefix("port ").and_then(|port| port.parse().ok()).expect("a port");
    let it = Hooked::start(
        ([127, 0, 0, 1], port).into(),
        &[
            "hooks.allow_fail=closed",
            "hooks.allow_timeout_ms=2000",
            &format!("hooks.before_url=http://127.0.0.1:{port}/before"),
            "hooks.before_fail=closed",
            "hooks.before_timeout_ms=2000",
        ],
    );
    let mut ann = it.try_login("ticket-of-ann").expect("a ticket");
    assert_eq!(it.refusal("ticket-of-eve"), Code::TokenInvalid);
    assert_eq!(ann.text("bob", "m1", "hello"), 1);
    assert_eq!(ann.refused(ask::send(send("carl", "m2", "hello"))), Code::Forbidden);
    let link = ann.ask(ask::send(send("dora", "m3", "see https://example.org")));
    let ServerBody::Error(link) = link else { panic!("{link:?}") };
    assert_eq!((link.code, &*link.message), (5001, "No links in a first message"));
    assert_eq!(ann.text("bob", "m4", "darn, see https://example.org"), 2);
    let history = it.node.http("GET", "/v1/conversations/d:ann:bob/messages", "");
    assert!(history.contains("****, see https://example.org"), "{history}");
    fs::remove_dir_all(files).ok();
}
