//! JSON form of frames: the exact output, and the other forms that the decoder accepts.

use tidegate_protocol::{
    Code,
    codec::{Decoded, Framing, WireError, decode_client, decode_server, encode_client, encode_server},
    content::{Content, ContentBody},
    pb::{self, client_frame, server_frame},
};

fn client(json: &str) -> pb::ClientFrame {
    match decode_client(json.as_bytes(), Framing::Json) {
        Ok(Decoded::Frame(frame)) => frame,
        other => panic!("{json}: {other:?}"),
    }
}

fn server(json: &str) -> pb::ServerFrame {
    match decode_server(json.as_bytes(), Framing::Json) {
        Ok(Decoded::Frame(frame)) => frame,
        other => panic!("{json}: {other:?}"),
    }
}

fn refused(json: &str) -> WireError {
    match decode_client(json.as_bytes(), Framing::Json) {
        Err(error) => {
            assert_eq!(error.code(), Code::Malformed, "{json}");
            error
        }
        read => panic!("{json}: {read:?}"),
    }
}

fn send(json: &str) -> pb::Send {
    match client(&format!("{{\"send\":{json}}}")).body {
        Some(client_frame::Body::Send(send)) => send,
        other => panic!("{json}: {other:?}"),
    }
}

#[test]
fn examples_of_the_specification_are_canonical() {
    for json in [
        r#"{"id":1,"hello":{"version":1,"token":"<jwt>","device":"cli"}}"#,
        r#"{"id":2,"send":{"toUser":"bob","msgId":"m1","content":{"text":"hi"}}}"#,
        r#"{"ack":{"conversation":"d:alice:bob","seq":2}}"#,
    ] {
        let mut out = Vec::new();
        encode_client(&client(json), Framing::Json, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), json);
    }
    for json in [
        r#"{"id":1,"welcome":{"session":"…","node":"n1","heartbeatMs":30000,"nextId":"…","resumed":false}}"#,
        r#"{"id":2,"sendAck":{"conversation":"d:alice:bob","msgId":"m1","seq":1,"time":1763712000000}}"#,
        r#"{"push":{"conversation":"d:alice:bob","seq":2,"sender":"bob","msgId":"x9","time":1763712000200,"content":{"text":"hey"}}}"#,
    ] {
        let mut out = Vec::new();
        encode_server(&server(json), Framing::Json, &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), json);
    }
}

#[test]
fn an_integer_is_a_whole_number_or_a_string_of_digits() {
    let ack = |json: &str| match client(&format!(r#"{{"ack":{{"seq":{json}}}}}"#)).body {
        Some(client_frame::Body::Ack(ack)) => ack.seq,
        other => panic!("{json}: {other:?}"),
    };
    for (json, seq) in [
        ("7", 7),
        ("\"7\"", 7),
        ("null", 0),
        ("7.0", 7),
        ("1e3", 1000),
        ("9007199254740993", 9_007_199_254_740_993),
        ("18446744073709551615", u64::MAX),
        ("\"18446744073709551615\"", u64::MAX),
    ] {
        assert_eq!(ack(json), seq, "{json}");
    }
    for json in [
        "-1",
        "\"-1\"",
        "\"+1\"",
        "\" 1\"",
        "\"\"",
        "\"1e3\"",
        "0.5",
        "1e300",
        "18446744073709551616",
        "[1]",
        "true",
        "{}",
    ] {
        refused(&format!(r#"{{"ack":{{"seq":{json}}}}}"#));
    }
    assert_eq!(send(r#"{"attempt":"4294967295"}"#).attempt, u32::MAX);
    refused(r#"{"send":{"attempt":4294967296}}"#);
    assert_eq!(client(r#"{"id":"12","bye":{}}"#).id, 12);
}

#[test]
fn names_are_read_in_both_spellings_but_only_once() {
    let expected = pb::Send { to_user: "bob".into(), msg_id: "m".into(), ..Default::default() };
    assert_eq!(send(r#"{"toUser":"bob","msgId":"m"}"#), expected);
    assert_eq!(send(r#"{"to_user":"bob","msg_id":"m"}"#), expected);
    assert_eq!(client(r#"{"next_id":{}}"#), client(r#"{"nextId":{}}"#));
    refused(r#"{"send":{"toUser":"bob","to_user":"bob"}}"#);
    refused(r#"{"id":1,"id":1,"bye":{}}"#);
    refused(r#"{"id":1,"ping":{},"ping":{}}"#);
    let map = br#"{"error":{"detail":{"a":"1","a":"2"}}}"#;
    assert!(decode_server(map, Framing::Json).is_err());
}

#[test]
fn two_kinds_in_one_frame_or_content_are_malformed() {
    refused(r#"{"id":1,"ping":{},"bye":{}}"#);
    refused(r#"{"send":{"content":{"text":"a","data":"YQ=="}}}"#);
    assert_eq!(client(r#"{"ping":null,"bye":{}}"#).body, Some(client_frame::Body::Bye(pb::Bye {})));
    assert_eq!(send(r#"{"content":{"text":null,"data":"YQ=="}}"#).content, Some(Content::data("a")));
}

#[test]
fn unknown_fields_are_ignored_and_unknown_kinds_have_no_body() {
    assert_eq!(client(r#"{"id":3,"teleport":{"deep":[[{}]]}}"#), pb::ClientFrame { id: 3, body: None });
    assert_eq!(client(r#"{"teleport":1}"#), pb::ClientFrame { id: 0, body: None });
    assert_eq!(send(r#"{"msgId":"m","colour":"red","colour":"blue"}"#).msg_id, "m");
}

#[test]
fn nothing_or_an_object_without_keys_is_an_empty_frame() {
    for blank in ["", " ", "\t \r", "{}", " { } "] {
        assert_eq!(decode_client(blank.as_bytes(), Framing::Json), Ok(Decoded::Empty), "{blank:?}");
    }
    assert_eq!(decode_client(b"", Framing::Proto), Ok(Decoded::Empty));
}

#[test]
fn null_is_absence() {
    assert_eq!(send(r#"{"toUser":null,"attempt":null,"content":null}"#), pb::Send::default());
    let json = r#"{"pull":{"seqs":null,"direction":null}}"#;
    assert_eq!(client(json).body, Some(client_frame::Body::Pull(pb::Pull::default())));
    let json = r#"{"welcome":{"resumed":null,"limits":null}}"#;
    assert_eq!(server(json).body, Some(server_frame::Body::Welcome(pb::Welcome::default())));
    refused(r#"{"pull":{"seqs":[null]}}"#);
    refused(r#"{"sync":{"positions":[null]}}"#);
}

#[test]
fn an_enum_is_a_name_or_a_number() {
    let direction = |json: &str| match client(&format!(r#"{{"pull":{{"direction":{json}}}}}"#)).body {
        Some(client_frame::Body::Pull(pull)) => pull.direction,
        other => panic!("{json}: {other:?}"),
    };
    assert_eq!(direction("\"DIRECTION_FORWARD\""), pb::Direction::Forward as i32);
    assert_eq!(direction("1"), pb::Direction::Backward as i32);
    assert_eq!(direction("77"), 77);
    assert_eq!(direction("-1"), -1);
    for json in ["\"forward\"", "\"1\"", "1.5", "2147483648", "[]"] {
        refused(&format!(r#"{{"pull":{{"direction":{json}}}}}"#));
    }
    let mut out = Vec::new();
    let pull = pb::Pull { direction: 77, ..Default::default() };
    let frame = pb::ClientFrame { id: 0, body: Some(client_frame::Body::Pull(pull)) };
    encode_client(&frame, Framing::Json, &mut out);
    assert_eq!(out, br#"{"pull":{"direction":77}}"#);
}

#[test]
fn base64_is_read_in_either_alphabet_with_or_without_padding() {
    let data = |json: &str| match send(&format!(r#"{{"content":{{"data":"{json}"}}}}"#)).content {
        Some(Content { body: Some(ContentBody::Data(data)), .. }) => data,
        other => panic!("{json}: {other:?}"),
    };
    for json in ["+/8=", "-_8=", "+/8", "-_8", "+\\/8="] {
        assert_eq!(data(json), &[0xfb, 0xff][..], "{json}");
    }
    assert_eq!(data(""), &[][..]);
    for json in ["a", "a=b=", "+_8=", "a b=", "\u{e9}", "+/9="] {
        refused(&format!(r#"{{"send":{{"content":{{"data":"{json}"}}}}}}"#));
    }
}

#[test]
fn only_objects_are_messages() {
    for json in
        ["[]", "1", "\"x\"", "true", "[1,{}]", "{", "}", "{}{}", "{} x", "{\"a\":}", "{'id':1}", "NaN", "\0"]
    {
        refused(json);
    }
    refused(r#"{"send":["d:a:b","bob"]}"#);
    refused(r#"{"sync":{"positions":[["d:a:b",1]]}}"#);
    refused(r#"{"send":{"content":["a"]}}"#);
    refused(r#"{"bye":[]}"#);
}

#[test]
fn text_is_unicode_without_halves() {
    assert_eq!(send(r#"{"content":{"text":"\ud83d\ude00\u0000"}}"#).content, Some(Content::text("😀\0")));
    refused(r#"{"send":{"content":{"text":"\ud83d"}}}"#);
    for payload in [&b"{\"bye\":{},\"x\":\"\xff\"}"[..], b"\xff", b"{\"send\":{\"msgId\":\"\xc0\x80\"}}"] {
        assert!(matches!(decode_client(payload, Framing::Json), Err(WireError::Utf8(_))));
    }
}

#[test]
fn deep_nesting_is_skipped_or_refused_without_overflow() {
    let deep = |open: &str, close: &str| {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        format!(r#"{{"bye":{{}},"x":{open}1{close}}}"#)
    };
    // An unknown field is skipped without recursion; in a known one the depth or the type is refused.
    assert_eq!(client(&deep("[", "]")).body, Some(client_frame::Body::Bye(pb::Bye {})));
    assert_eq!(client(&deep("{\"a\":", "}")).body, Some(client_frame::Body::Bye(pb::Bye {})));
    refused(&"[".repeat(100_000));
    refused(&"{\"send\":".repeat(100_000));
    refused(&format!(r#"{{"send":{{"content":{{"text":{}}}}}}}"#, "[".repeat(100_000)));
}

#[test]
fn error_never_contains_the_input() {
    for json in [
        r#"{"hello":{"token":["secret"]}}"#,
        r#"{"hello":{"version":"secret"}}"#,
        r#"{"hello":"secret"}"#,
        r#"{"pull":{"direction":"secret"}}"#,
        r#"{"send":{"content":{"data":"secret!"}}}"#,
        r#"{"hello":{"token":"secret"#,
    ] {
        let error = refused(json);
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}
