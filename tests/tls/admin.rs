//! TLS of the admin and the monitor port: pages, programs, callers without TLS, and the commands.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, version::TLS13};

use crate::{
    handshakes::{authority, handshake},
    support::{Process, eventually, http},
    tunnel::{Authority, Pair},
};

fn start(pair: &Pair) -> Process {
    let sets = [
        format!("admin.tls_cert={}", pair.cert.display()),
        format!("admin.tls_key={}", pair.key.display()),
        "admin.tls_monitor=true".to_owned(),
        "listen.monitor=127.0.0.1:0".to_owned(),
        "node.store=memory".to_owned(),
    ];
    Process::start(&sets.each_ref().map(String::as_str))
}

fn client(authority: &Authority) -> Arc<ClientConfig> {
    Arc::new(authority.client(&[&TLS13]))
}

/// Sends a request over TLS, and returns the response.
fn ask(to: SocketAddr, config: &Arc<ClientConfig>, head: &str) -> String {
    let mut stream = handshake(to, "localhost", config).expect("a handshake");
    let request = format!("{head}Connection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers, and ends with an announcement");
    answer
}

#[test]
fn admin_and_monitor_port_speak_tls_alone() {
    let authority = authority();
    let node = start(&authority.certify("node", &["localhost"]));
    let config = client(&authority);
    let port = node.admin().port();
    let host = format!("Host: localhost:{port}\r\n");
    for (path, expected) in [("/overview", "<!doctype html>"), ("/healthz", "\"status\":\"ok\"")] {
        let answer = ask(node.admin(), &config, &format!("GET {path} HTTP/1.1\r\n{host}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.to_lowercase().contains(expected), "{path}: {answer}");
    }
    assert!(
        ask(node.monitor(), &config, "GET /metrics HTTP/1.1\r\nHost: a\r\n").contains("tidegate_connections")
    );
    // A page of this port may read; pages of others, and by HTTP, may not.
    for (origin, status) in [("https", 200), ("http", 403)] {
        let page = format!("Origin: {origin}://localhost:{port}\r\nSec-Fetch-Site: same-origin\r\n");
        let answer = ask(node.admin(), &config, &format!("GET /v1/nodes HTTP/1.1\r\n{host}{page}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{origin}: {answer}");
    }
    let foreign = ask(node.admin(), &config, "GET /v1/nodes HTTP/1.1\r\nHost: evil.example\r\n");
    assert!(foreign.starts_with("HTTP/1.1 421"), "{foreign}");
    for plain in [node.admin(), node.monitor()] {
        let (status, body) = http::ask_by(plain, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n", "");
        assert_eq!(status, 400);
        assert!(body.contains("TLS_REQUIRED") && body.contains("https://"), "{body}");
    }
}

#[test]
fn silent_callers_of_the_admin_port_are_closed_and_a_changed_certificate_is_served() {
    let authority = authority();
    let pair = authority.certify("node", &["localhost"]);
    let node = start(&pair);
    let mut silent = TcpStream::connect(node.admin()).expect("it accepts");
    silent.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
    let next = crate::handshakes::authority();
    let own = next.certify("node", &["localhost"]);
    std::fs::rename(&own.cert, &pair.cert).expect("a file");
    std::fs::rename(&own.key, &pair.key).expect("a file");
    eventually("the new certificate", || handshake(node.admin(), "localhost", &client(&next)).ok());
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
}

#[test]
fn commands_verify_the_certificate_of_the_admin_port() {
    let authority = authority();
    let node = start(&authority.certify("node", &["localhost"]));
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(words).output().expect("it runs");
        let text =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
        (output.status.success(), text)
    };
    let data = node.data().to_str().expect("text");
    let url = format!("https://localhost:{}", node.admin().port());
    let ca = authority.file();
    let ca = ca.to_str().expect("text");
    for words in [&["nodes", "--data", data][..], &["nodes", "--admin", &url, "--ca", ca]] {
        let (is_ok, text) = run(words);
        assert!(is_ok && text.contains("NODE"), "{words:?}: {text}");
    }
    let (is_ok, text) = run(&["nodes", "--admin", &url]);
    assert!(!is_ok && text.contains("--ca"), "an authority that the system does not know: {text}");
    let ip = format!("https://127.0.0.1:{}", node.admin().port());
    let (is_ok, text) = run(&["nodes", "--admin", &ip, "--ca", ca]);
    assert!(!is_ok && text.contains("not valid for name"), "{text}");
    let (is_ok, text) = run(&["nodes", "--admin", &node.admin().to_string()]);
    assert!(!is_ok && text.contains("TLS_REQUIRED"), "without https: {text}");
}
