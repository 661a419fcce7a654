//! Secrets: a node gets one in every input, and shows none of them in any output.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use serde_json::json;
use tidegate::auth;
use tidegate_protocol::{codec::Wire, pb};

use super::keys::{Keys, ask as request};
use crate::support::{
    Client, ClientBody, Link, Process, ServerBody, ask, command, eventually, hello, http::exchange, send,
};

/// Secrets by name.
#[derive(Default)]
struct Planted(Vec<(&'static str, String)>);

impl Planted {
    /// Returns a new secret for this input.
    fn secret(&mut self, input: &'static str) -> String {
        let secret = format!("sEcReT{:016x}{:02}", rand::random::<u64>(), self.0.len());
        self.0.push((input, secret.clone()));
        secret
    }

    /// Remembers a secret of another form.
    fn add(&mut self, input: &'static str, secret: &str) {
        self.0.push((input, secret.to_owned()));
    }

    /// Fails if one of the secrets is in the output.
    fn are_not_in(&self, output: &str, text: &str) {
        assert!(!text.is_empty(), "{output} is empty");
        for (input, secret) in &self.0 {
            let Some(at) = text.find(secret.as_str()) else { continue };
            let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
            let around: String = text[line..].chars().take(600).collect();
            panic!("the secret of {input} is in {output}: {around}");
        }
    }
}

fn closed(file: &Path, content: &str) {
    fs::write(file, content).expect("a file");
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("a file");
}

/// Files with secrets, and the settings that name them.
struct Files {
    sets: Vec<String>,
    token_key: Vec<u8>,
    config: PathBuf,
}

impl Files {
    fn plant(folder: &Path, planted: &mut Planted, hook: &str) -> Self {
        let file = |name: &str| folder.join(name);
        let token_key: [u8; 32] = rand::random();
        planted.add("the key of tokens", &HEXLOWER.encode(&token_key));
        closed(&file("tokens.key"), &HEXLOWER.encode(&token_key));
        let hook_secret = STANDARD.encode(rand::random::<[u8; 32]>());
        planted.add("the secret of hooks", &hook_secret);
        closed(&file("hooks.secret"), &format!("whsec_{hook_secret}\n"));
        let password = planted.secret("the password file of Redis");
        closed(&file("redis.password"), &password);
        let password = planted.secret("the password file of Postgres");
        closed(&file("postgres.password"), &password);
        let mut params = rcgen::CertificateParams::new(vec!["localhost".into()]).expect("a name");
        params.distinguished_name = rcgen::DistinguishedName::new();
        let pair = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&pair).expect("a certificate");
        let pem = pair.serialize_pem();
        planted.add("the key of TLS", pem.lines().nth(1).expect("a line of base64"));
        closed(&file("tls.key"), &pem);
        closed(&file("tls.crt"), &certificate.pem());
        let config = file("tidegate.toml");
        closed(&config, "");
        let set = |key: &str, name: &str| format!("{key}={}", file(name).display());
        let sets = vec![
            format!("auth.key_files=[k1={}]", file("tokens.key").display()),
            set("hooks.secret_file", "hooks.secret"),
            set("redis.password_file", "redis.password"),
            set("postgres.password_file", "postgres.password"),
            format!("tls.cert_files=[{}]", file("tls.crt").display()),
            format!("tls.key_files=[{}]", file("tls.key").display()),
            format!("hooks.login_url=http://{hook}/login"),
            "listen.origins=[https://known.example]".into(),
            "hooks.login_cookies=[session]".into(),
            "listen.proxies=[127.0.0.2]".into(),
            "trace.per_second=10000".into(),
            "admin.development=no".into(),
        ];
        Self { sets, token_key: token_key.to_vec(), config }
    }
}

/// Answers each request of a hook with a refusal that has a secret in it.
fn hook(secret: String) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut input = [0; 8_192];
            drop(stream.read(&mut input));
            let body = format!("{{\"user\":\"{secret} is no id\",\"expiresAt\":99999999999999}}");
            let head =
                format!("HTTP/1.1 200 OK\r\nx-secret: {secret}\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).ok();
        }
    });
    address
}

/// Sends bytes to the client port, and returns the response.
fn raw(node: &Process, from: [u8; 4], bytes: &[u8]) -> String {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&std::net::SocketAddr::from((from, 0)).into()).expect("loopback");
    socket.connect(&node.address().into()).expect("a port");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket takes options");
    stream.write_all(bytes).expect("it reads");
    let mut answer = vec![0; 4_096];
    let read = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// Signs a token with a secret id and a secret unknown claim.
fn token(planted: &mut Planted, key: &[u8], user: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs();
    let claims = json!({"sub": user, "exp": now + 600, "own": planted.secret("a claim of a token")});
    let token = auth::SigningKey::Secret(key.to_vec()).sign(Some("k1"), &claims).expect("a token");
    for part in token.split('.').skip(1) {
        planted.add("a token", part);
    }
    token
}

fn clients(node: &Process, planted: &mut Planted, key: &[u8], answers: &mut String) {
    let login = |token: &str, device: &str| {
        let mut client = Client::connect(node.address(), Wire::WsText);
        let answer = client.ask(ask::hello(hello(token, device)));
        (client, answer)
    };
    let alice_token = token(planted, key, "alice");
    let (mut alice, welcome) = login(&alice_token, "marked-device");
    assert!(matches!(welcome, ServerBody::Welcome(_)), "{welcome:?}");
    let bob_token = token(planted, key, "bob");
    let (mut bob, _) = login(&bob_token, "phone");
    let content = planted.secret("a message");
    assert_eq!(alice.text("bob", "m1", &content), 1);
    bob.expect_push();
    alice.expect_done(ask::join("hall"));
    alice.text("r:hall", "m2", &planted.secret("a room message"));
    alice.text("g:team", "m3", &planted.secret("a group message"));
    alice.say(ask::signal("bob", "typing", &planted.secret("a signal")));
    let large = planted.secret("a large message").repeat(1_000);
    answers.push_str(&format!("{:?}", alice.ask(ask::send(send("bob", "m4", &large)))));
    let refresh = pb::Refresh { token: planted.secret("the token of a refresh") };
    let refused = alice.ask(ClientBody::Refresh(refresh));
    assert!(matches!(refused, ServerBody::Error(_)), "{refused:?}");
    answers.push_str(&format!("{refused:?}"));
    // Refused and malformed logins.
    let forged =
        format!("{}{}", &alice_token[..alice_token.len() - 40], planted.secret("a forged signature"));
    for credential in
        [forged, planted.secret("a credential"), format!("x.{}.y", planted.secret("a malformed token"))]
    {
        let (_, answer) = login(&credential, "phone");
        let ServerBody::Error(error) = answer else { panic!("{answer:?}") };
        answers.push_str(&error.message);
    }
    let cookie = format!("session={}", planted.secret("the cookie of a login"));
    let page = [("Origin", "https://known.example"), ("Cookie", cookie.as_str())];
    let page = Link::from_page(node.address(), &page).expect("an upgrade");
    let answer = Client::over(page, Wire::WsText).ask(ask::hello(hello("", "cookie-device")));
    assert!(matches!(answer, ServerBody::Error(_)), "{answer:?}");
    answers.push_str(&format!("{answer:?}"));
    let (_, answer) = login(&alice_token, &format!("no id {}", "x".repeat(3)));
    answers.push_str(&format!("{answer:?}"));
}

fn first_bytes(node: &Process, planted: &mut Planted, answers: &mut String) {
    for (path, origin) in [
        ("/", "https://known.example"),
        ("/", "https://foreign.example"),
        ("/nowhere", "https://known.example"),
    ] {
        let request = format!(
            "GET {path}?own={} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: {origin}\r\n\
             Sec-WebSocket-Protocol: tidegate.v1.json\r\nCookie: session={}\r\nAuthorization: Basic {}\r\nX-Own: {}\r\n\r\n",
            planted.secret("a query"),
            planted.secret("a cookie"),
            planted.secret("a header Authorization"),
            planted.secret("an unknown header"),
        );
        answers.push_str(&raw(node, [127, 0, 0, 1], request.as_bytes()));
    }
    let assign = format!(
        "GET /v1/assign?token={} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n",
        planted.secret("a token in a query"),
        planted.secret("a token for an assignment"),
    );
    answers.push_str(&raw(node, [127, 0, 0, 1], assign.as_bytes()));
    let malformed =
        format!("{{\"hello\":{{\"token\":\"{}\",\"nosuch\":1\n", planted.secret("a malformed frame"));
    answers.push_str(&raw(node, [127, 0, 0, 1], malformed.as_bytes()));
    // A PROXY header of version 2 with a value of a client certificate, and one of version 1 that is wrong.
    let value = planted.secret("a PROXY header");
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
    let length = u16::try_from(12 + 3 + value.len()).expect("short");
    header.extend(length.to_be_bytes());
    header.extend([192, 0, 2, 1, 192, 0, 2, 2, 0, 80, 0, 80, 0xe0]);
    header.extend(u16::try_from(value.len()).expect("short").to_be_bytes());
    header.extend(value.as_bytes());
    answers.push_str(&raw(node, [127, 0, 0, 2], &[&header[..], b"GET / HTTP/1.1\r\n\r\n"].concat()));
    let wrong = format!("PROXY TCP4 {} 1 2 3\r\n", planted.secret("a wrong PROXY header"));
    answers.push_str(&raw(node, [127, 0, 0, 2], wrong.as_bytes()));
    answers.push_str(&raw(node, [127, 0, 0, 1], wrong.as_bytes()));
}

fn admin(node: &Process, planted: &mut Planted, key: &str, config: &Path, answers: &mut String) {
    let mut take = |reply: crate::support::http::Reply| {
        answers.push_str(&reply.head);
        answers.push_str(&String::from_utf8_lossy(&reply.body));
    };
    let wrong_key = format!("{}{}", &key[..13], planted.secret("a wrong key"));
    take(request(node.admin(), "GET", "/v1/nodes", Some(&wrong_key), ""));
    let body = |secret: String| json!({"id": "team2", "members": ["alice"], "own": secret}).to_string();
    take(request(node.admin(), "POST", "/v1/groups", Some(key), &body(planted.secret("an unknown field"))));
    take(request(
        node.admin(),
        "POST",
        "/v1/groups",
        Some(key),
        &format!("{{\"id\": {}", planted.secret("a malformed body")),
    ));
    let named = json!({"id": "team3", "members": ["alice"], "name": planted.secret("the name of a group")})
        .to_string();
    take(request(node.admin(), "POST", "/v1/groups", Some(key), &named));
    let path = format!("/v1/nodes?own={}", planted.secret("a query of the admin port"));
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nCookie: {}\r\nX-Own: {}\r\n",
        planted.secret("a cookie of the admin port"),
        planted.secret("a header of the admin port"),
    );
    take(exchange(node.admin(), &head, ""));
    let head = format!(
        "GET /v1/nodes HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\n",
        planted.secret("a foreign host")
    );
    take(exchange(node.admin(), &head, ""));
    // Passwords in the wrong place.
    for text in [
        format!("[redis]\nurls = [\"redis://:{}@r1\"]\n", planted.secret("a URL of Redis")),
        format!("[redis]\nurls = \"redis://:{}@r1\"\n", planted.secret("a URL of Redis that is no list")),
        format!("[postgres]\nurl = \"postgres://a:{}@p1/x\"\n", planted.secret("a URL of Postgres")),
        format!("[postgres]\nurl = postgres://a:{}@p1/x\n", planted.secret("a URL without quotation marks")),
        format!("[auth]\njwks_url = \"https://a:{}@idp.example/\"\n", planted.secret("a URL of keys")),
        format!("[hooks]\nallow_url = \"https://a:{}@app.example/\"\n", planted.secret("a URL of a hook")),
        format!("[limits]\nframe_bytes_max = \"{}\"\n", planted.secret("a text for a number")),
    ] {
        closed(config, &text);
        let reply = request(node.admin(), "POST", "/v1/reload", Some(key), "");
        assert_eq!(reply.status, 400, "{text}");
        take(reply);
    }
}

#[test]
fn no_output_has_a_secret_of_an_input() {
    let (keys, mut planted) = (Keys::new(), Planted::default());
    let key = keys.add("root", "groups,users,operate", &[]);
    planted.add("the admin key", &key[13..]);
    let hook = hook(planted.secret("an answer of a hook"));
    let Files { mut sets, token_key, config } = Files::plant(&keys.data, &mut planted, &hook);
    sets.push(keys.set());
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(["log.format=json"]).collect();
    let mut serve = command(&keys.data, &sets);
    serve.arg("--config").arg(&config).env("TIDEGATE_LOG", "info,tidegate=trace,tidegate_protocol=trace");
    let node = Process::spawn(&keys.data, serve);
    let create = json!({"id": "team", "members": ["alice", "bob"]}).to_string();
    assert_eq!(request(node.admin(), "POST", "/v1/groups", Some(&key), &create).status, 201);
    let mut answers = String::new();
    clients(&node, &mut planted, &token_key, &mut answers);
    first_bytes(&node, &mut planted, &mut answers);
    admin(&node, &mut planted, &key, &config, &mut answers);
    planted.are_not_in("an answer", &answers);
    let get = |path: &str| {
        String::from_utf8_lossy(&request(node.admin(), "GET", path, Some(&key), "").body).into_owned()
    };
    // What is no secret is there, so the search sees what the node writes.
    let trace = eventually("the message is traced", || {
        Some(get("/v1/trace?user=alice")).filter(|it| it.contains("m1"))
    });
    let events = get("/v1/events");
    let audit = fs::read_to_string(keys.data.join("audit.jsonl")).expect("a file");
    let log =
        eventually("the login is logged", || Some(node.stderr()).filter(|it| it.contains("marked-device")));
    assert!(events.contains("marked-device") && audit.contains("/v1/reload"), "{events} {audit}");
    for (output, text) in [
        ("the traces", &trace),
        ("the events", &events),
        ("the audit log", &audit),
        ("the log", &log),
        ("the metrics", &get("/metrics")),
        ("the nodes", &get("/v1/nodes")),
        ("the file of the node", &fs::read_to_string(keys.data.join("node.json")).expect("a file")),
    ] {
        planted.are_not_in(output, text);
    }
    // A secret in an output is found.
    planted.add("the name of a device", "marked-device");
    let found = std::panic::catch_unwind(|| planted.are_not_in("the log", &log));
    assert!(found.is_err());
    assert!(planted.0.len() > 35, "{} secrets", planted.0.len());
}
