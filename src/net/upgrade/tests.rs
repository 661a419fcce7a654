//! Tests of the upgrade request: accepted and refused requests, and the responses to them.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use proptest::{collection::vec, prelude::*, sample::Index};
use tokio_tungstenite::tungstenite::{Message, client, client::IntoClientRequest, http::HeaderValue};

use super::*;
use tidegate_protocol::{
    Code,
    ws::{Opcode, encode_server},
};

const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const BASE: &str = "Host: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";

fn policy() -> Policy {
    Policy { origins: vec!["https://chat.example.org".to_owned()], ..Policy::default() }
}

/// Returns an acceptable request with additional header lines.
fn request(more: &str) -> String {
    format!("GET / HTTP/1.1\r\n{BASE}{KEY}{more}\r\n")
}

fn try_upgrade(request: &str) -> Result<UpgradeProgress, UpgradeRefusal> {
    upgrade(request.as_bytes(), &policy())
}

fn accepted(request: &str) -> (String, SubProtocol) {
    match try_upgrade(request) {
        Ok(UpgradeProgress::Done { consumed, response, framing, .. }) => {
            assert_eq!(consumed, request.len());
            (String::from_utf8(response).expect("ASCII"), framing)
        }
        other => panic!("{request}{other:?}"),
    }
}

/// Returns the refusal of a request, after checking that its response is well formed and agrees with it.
fn refused(request: &str) -> UpgradeRefusal {
    let refusal = try_upgrade(request).expect_err(request);
    let response = String::from_utf8(refusal.response.clone()).expect("ASCII");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with(&format!("HTTP/1.1 {} ", refusal.status)), "{head}");
    let lines: Vec<&str> = head.split("\r\n").collect();
    assert!(lines.iter().any(|line| line.starts_with("Connection: ") && line.ends_with("close")), "{head}");
    assert!(lines.contains(&&*format!("Content-Length: {}", body.len())), "{head}");
    let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body.trim_end().lines().count(), 1);
    assert_eq!(json["code"], refusal.code.number());
    assert_eq!(json["name"], refusal.code.name());
    assert_eq!(json["message"], refusal.message);
    assert!(json["cure"].as_str().is_some_and(|cure| !cure.is_empty()));
    refusal
}

#[test]
fn example_of_rfc_6455_section_1_3_is_accepted() {
    let (response, framing) = accepted(&request(""));
    assert!(response.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{response}");
    assert!(response.ends_with("\r\n\r\n"));
    let lower = response.to_ascii_lowercase();
    assert!(response.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{response}");
    assert!(lower.contains("\r\nconnection: upgrade\r\n") && lower.contains("\r\nupgrade: websocket\r\n"));
    assert!(!lower.contains("sec-websocket-protocol"), "none offered, none answered");
    assert_eq!(framing, SubProtocol::Json);
}

#[test]
fn first_supported_sub_protocol_of_the_client_is_chosen() {
    for (offer, framing) in [
        ("tidegate.v1.proto, tidegate.v1.json", SubProtocol::Proto),
        ("tidegate.v1.json,tidegate.v1.proto", SubProtocol::Json),
        ("chat, ,tidegate.v1.proto", SubProtocol::Proto),
        ("chat\r\nSec-WebSocket-Protocol: tidegate.v1.json", SubProtocol::Json),
    ] {
        let (response, chosen) = accepted(&request(&format!("Sec-WebSocket-Protocol: {offer}\r\n")));
        assert_eq!(chosen, framing, "{offer}");
        let line = format!("sec-websocket-protocol: {}\r\n", framing.name());
        assert!(response.contains(&line), "{response}");
    }
    assert_eq!(accepted(&request("Sec-WebSocket-Protocol:\r\n")).1, SubProtocol::Json);
    assert_eq!(refused(&request("Sec-WebSocket-Protocol: chat, mqtt\r\n")).status, 400);
}

#[test]
fn request_completes_at_its_last_byte_and_leaves_later_bytes() {
    let whole = request("Sec-WebSocket-Protocol: tidegate.v1.proto\r\n");
    for len in 0..whole.len() {
        assert_eq!(try_upgrade(&whole[..len]), Ok(UpgradeProgress::NeedMore), "{len}");
    }
    let expected = try_upgrade(&whole);
    let followed = format!("{whole}{}", "\u{1}".repeat(20_000));
    assert_eq!(try_upgrade(&followed), expected);
    assert!(matches!(expected, Ok(UpgradeProgress::Done { consumed, .. }) if consumed == whole.len()));
}

#[test]
fn headers_of_browsers_and_proxies_are_accepted() {
    let text = "GET /v1/ws?v=1 HTTP/1.1\r\nhost: h:7800\r\nconnection: keep-alive, Upgrade\r\nUPGRADE: WebSocket\r\n\
         sec-websocket-version:13\r\nsec-websocket-key:   dGhlIHNhbXBsZSBub25jZQ==  \r\n\
         Sec-WebSocket-Extensions: permessage-deflate\r\nCookie: a=\"\u{e9}\"\r\nContent-Length: 0\r\n\
         Origin: https://chat.example.org\r\n\r\n";
    let (response, _) = accepted(text);
    assert!(!response.to_ascii_lowercase().contains("extensions"), "no extension is supported");
    let split = request("").replace("Connection: Upgrade", "Connection: keep-alive\r\nConnection: Upgrade");
    accepted(&split);
}

#[test]
fn origin_must_be_listed_if_it_is_sent() {
    let from = |origin: &str| request(&format!("Origin: {origin}\r\n"));
    for origin in
        ["https://evil.example", "null", "", "https://chat.example.org.evil", "https://chat.example.org:8"]
    {
        let refusal = refused(&from(origin));
        assert_eq!((refusal.status, refusal.code), (403, Code::OriginRefused), "{origin}");
    }
    accepted(&from("https://chat.example.org"));
    accepted(&from("HTTPS://CHAT.example.org"));
    let any = Policy { origins: vec!["*".to_owned()], ..policy() };
    assert!(upgrade(from("null").as_bytes(), &any).is_ok());
    assert!(upgrade(from("null").as_bytes(), &Policy::default()).is_err());
    let local = Policy { admits_loopback: true, ..policy() };
    for (origin, is_admitted) in [
        ("http://127.0.0.1:7801", true),
        ("http://localhost:7811", true),
        ("https://chat.example.org", true),
        ("http://evil.example", false),
        ("http://localhost.evil.example", false),
        ("null", false),
    ] {
        assert_eq!(upgrade(from(origin).as_bytes(), &local).is_ok(), is_admitted, "{origin}");
        let is_listed = origin.contains("chat.example.org");
        assert_eq!(upgrade(from(origin).as_bytes(), &policy()).is_ok(), is_listed, "{origin}");
    }
    assert!(upgrade(request("").as_bytes(), &Policy::default()).is_ok(), "not a browser");
}

#[test]
fn token_in_the_url_is_refused_and_not_repeated() {
    for query in ["token=SECRET", "a=b&token=SECRET", "Access_Token=SECRET", "jwt=SECRET", "token"] {
        let refusal = refused(&request("").replace("GET /", &format!("GET /v1/ws?{query}")));
        assert_eq!(refusal.status, 400);
        assert!(refusal.message.contains("URL"));
        assert!(!String::from_utf8_lossy(&refusal.response).contains("SECRET"));
    }
    accepted(&request("").replace("GET /", "GET /?mytoken=1&tokens=2"));
}

#[test]
fn plain_request_is_refused_with_the_supported_sub_protocols() {
    let curl = "GET / HTTP/1.1\r\nHost: h\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n";
    let without = |line: &str| request("").replace(line, "");
    let old = request("").replace("HTTP/1.1", "HTTP/1.0");
    for text in [
        curl,
        &without("Connection: Upgrade\r\n"),
        &without("Upgrade: websocket\r\n"),
        &old,
        "GET /x HTTP/1.1\r\n\r\n",
    ] {
        let refusal = refused(text);
        assert_eq!((refusal.status, refusal.code), (426, Code::BadUpgrade), "{text}");
        let response = String::from_utf8_lossy(&refusal.response).into_owned();
        assert!(SubProtocol::ALL.iter().all(|framing| response.contains(framing.name())), "{response}");
        assert!(response.contains("\r\nUpgrade: websocket\r\n"), "{response}");
    }
}

#[test]
fn other_websocket_version_is_refused_with_version_13() {
    for version in ["8", "7", "14", "013", "13, 8", ""] {
        let refusal = refused(&request("").replace("Version: 13", &format!("Version: {version}")));
        assert_eq!(refusal.status, 426, "{version}");
        assert!(String::from_utf8_lossy(&refusal.response).contains("\r\nSec-WebSocket-Version: 13\r\n"));
    }
    assert_eq!(refused(&request("").replace("Sec-WebSocket-Version: 13\r\n", "")).status, 426);
}

#[test]
fn key_that_is_not_sixteen_bytes_is_refused() {
    for key in
        ["", "abc", "dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25jZSE=", "!!!!IHNhbXBsZSBub25jZQ==", "é"]
    {
        let refusal = refused(&request("").replace("dGhlIHNhbXBsZSBub25jZQ==", key));
        assert_eq!(refusal.status, 400, "{key}");
        assert!(refusal.message.contains("Sec-WebSocket-Key"));
    }
    assert_eq!(refused(&request("").replace(KEY, "")).status, 400);
}

#[test]
fn repeated_unique_headers_are_refused() {
    for twice in [KEY, "Sec-WebSocket-Version: 13\r\n", "Host: h\r\n"] {
        assert_eq!(refused(&request(twice)).status, 400, "{twice}");
    }
    let origin = "Origin: https://chat.example.org\r\n";
    assert_eq!(refused(&request(&origin.repeat(2))).status, 400);
    assert_eq!(refused(&request("").replace("Host: h\r\n", "")).status, 400);
}

#[test]
fn bodies_other_methods_and_other_paths_are_refused() {
    assert_eq!(refused(&request("Content-Length: 5\r\n")).status, 400);
    assert_eq!(refused(&request("Transfer-Encoding: chunked\r\n")).status, 400);
    for method in ["POST", "CONNECT", "get"] {
        let refusal = refused(&request("").replace("GET", method));
        assert_eq!(refusal.status, 405, "{method}");
        assert!(String::from_utf8_lossy(&refusal.response).contains("\r\nAllow: GET\r\n"));
    }
    for path in ["/metrics", "/v1/ws/", "//", "*", "http://h/", "/v1/ws#x"] {
        assert_eq!(refused(&request("").replace("GET /", &format!("GET {path}"))).status, 404, "{path}");
    }
}

#[test]
fn heads_and_header_counts_over_the_limit_are_refused_at_once() {
    let huge = request(&format!("X: {}\r\n", "a".repeat(HEAD_BYTES_MAX)));
    assert_eq!(try_upgrade(&huge[..HEAD_BYTES_MAX - 1]), Ok(UpgradeProgress::NeedMore));
    assert_eq!(refused(&huge[..HEAD_BYTES_MAX]).status, 431);
    assert_eq!(refused(&huge).status, 431);
    let target = format!("GET /?{} HTTP/1.1\r\n", "a".repeat(HEAD_BYTES_MAX));
    assert_eq!(refused(&target).status, 431);

    let room = HEAD_BYTES_MAX - request("X: \r\n").len();
    accepted(&request(&format!("X: {}\r\n", "a".repeat(room))));
    assert_eq!(refused(&request(&format!("X: {}\r\n", "a".repeat(room + 1)))).status, 431);

    accepted(&request(&"X: y\r\n".repeat(HEADERS_MAX - 5)));
    assert_eq!(refused(&request(&"X: y\r\n".repeat(HEADERS_MAX - 4))).status, 431);
    assert_eq!(refused(&format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(1_000))).status, 431);
}

#[test]
fn input_other_than_http_1_is_refused_at_once() {
    assert_eq!(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").status, 505);
    assert_eq!(refused("GET / FTP/1.1\r\n").status, 505);
    for junk in ["\u{16}\u{3}\u{1}", "GET\u{0}", "GET / HTTP/1.1\r\nNo colon here\r\n", " : \r\n"] {
        assert_eq!(refused(junk).status, 400, "{junk:?}");
    }
    assert_eq!(refused("GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n").status, 400);
}

proptest! {
    #[test]
    fn no_request_panics_and_every_refusal_is_a_response(
        at in any::<Index>(),
        len in 0_usize..40,
        bytes in vec(any::<u8>(), 0..40),
    ) {
        let mut text = request("Origin: null\r\nSec-WebSocket-Protocol: a\r\n").into_bytes();
        let at = at.index(text.len());
        text.splice(at..text.len().min(at + len), bytes);
        if let Err(refusal) = upgrade(&text, &Policy::default()) {
            prop_assert!(refusal.response.starts_with(b"HTTP/1.1 "));
        }
    }
}

#[test]
fn tungstenite_client_accepts_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        let mut input = Vec::new();
        loop {
            let mut bytes = [0; 64];
            let n = socket.read(&mut bytes).expect("bytes");
            input.extend_from_slice(&bytes[..n]);
            if let UpgradeProgress::Done { consumed, mut response, framing, .. } =
                upgrade(&input, &policy()).expect("let in")
            {
                assert_eq!((consumed, framing), (input.len(), SubProtocol::Proto));
                encode_server(Opcode::Text, "早".as_bytes(), &mut response);
                socket.write_all(&response).expect("sent");
                return;
            }
        }
    });
    let mut request = format!("ws://{address}/v1/ws").into_client_request().expect("a request");
    request.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("tidegate.v1.proto"));
    let socket = std::net::TcpStream::connect(address).expect("connected");
    let (mut socket, response) = client(request, socket).expect("upgraded");
    assert_eq!(response.headers()["sec-websocket-protocol"], "tidegate.v1.proto");
    assert_eq!(socket.read().expect("a message"), Message::text("早"));
    server.join().expect("the server is well");
}

fn assign_request(request: &str) -> AssignAsked {
    match try_upgrade(request) {
        Ok(UpgradeProgress::Assign(request)) => request,
        other => panic!("{request}{other:?}"),
    }
}

#[test]
fn assign_request_is_parsed_or_refused() {
    let get = |query: &str, more: &str| format!("GET /v1/assign{query} HTTP/1.1\r\nHost: h\r\n{more}\r\n");
    let plain = assign_request(&get("", "authorization: bearer  a.b.c \r\n"));
    assert_eq!((&*plain.token, plain.transport, &*plain.zone, plain.count), ("a.b.c", None, "", 3));
    assert!(!format!("{plain:?}").contains("a.b.c"), "tokens stay out of logs");
    let full = assign_request(&get("?transport=ws&zone=eu-1&count=16&new=1", "Authorization: Bearer t\r\n"));
    assert_eq!((full.transport, &*full.zone, full.count), (Some(Transport::Ws), "eu-1", 16));
    assert_eq!(
        assign_request(&get("", "")).token,
        "",
        "a missing token is refused like an invalid one, later"
    );
    let page = assign_request(&get("", "Origin: https://chat.example.org\r\n"));
    assert_eq!(page.origin.as_deref(), Some("https://chat.example.org"));
    assert!(assign_request(&get("", "").replace("GET", "OPTIONS")).preflight);
    for (request, status) in [
        (get("?token=t", ""), 400),
        (get("?transport=mqtt", ""), 400),
        (get("?count=17", ""), 400),
        (get("?zone=a%20b", ""), 400),
        (get("", "Authorization: Basic YTpi\r\n"), 400),
        (get("", "Origin: https://evil.example\r\n"), 403),
        (get("", "").replace("GET", "POST"), 405),
        (get("x", ""), 426),
    ] {
        assert_eq!(refused(&request).status, status, "{request}");
    }
}
