//! Login, from the first byte to Welcome: allowed frames, timeouts, settings, and the start of the chain.

use super::support::{Conn, hello, id, limits, logged_in, send};
use std::time::Duration;
use tidegate_protocol::{
    Code, Time,
    id::ConversationId,
    machine::{
        session::{Action, Session, SessionLimits, SessionPhase},
        window::{Tracked, Verdict, Window},
    },
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
    settings::{Unread, UserSettings},
};

#[test]
fn a_session_is_small() {
    assert!(size_of::<Session>() <= 256, "{} bytes", size_of::<Session>());
}

#[test]
fn hello_requests_a_login_and_gets_welcome() {
    let mut conn = Conn::new();
    conn.frame(9, ClientBody::Hello(hello("")));
    assert_eq!(conn.output(), ["login"]);
    assert_eq!(conn.session.phase(), SessionPhase::LoggingIn);
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    let Some(Action::Reply(frame)) = conn.actions.pop() else { panic!("no reply") };
    let Some(ServerBody::Welcome(welcome)) = frame.body else { panic!("no welcome") };
    assert_eq!((frame.id, welcome.session.as_str(), welcome.node.as_str()), (9, "s1", "n1"));
    assert_eq!((welcome.heartbeat_ms, welcome.resumed), (30_000, Some(false)));
    assert_eq!((welcome.next_id.as_str(), welcome.server_time), ("fresh", 1_763_712_000_000));
    assert_eq!(welcome.limits.map(|limits| (limits.hold_max, limits.in_flight_max)), Some((3, 4)));
    assert_eq!(conn.session.identity().map(|me| me.user.to_string()), Some("ann".to_owned()));
}

#[test]
fn anything_but_one_hello_before_welcome_closes() {
    let early_frames = [
        ClientBody::Send(send("g:a", "x")),
        ClientBody::Ping(pb::Ping::default()),
        ClientBody::Bye(pb::Bye {}),
    ];
    for early in early_frames {
        let mut conn = Conn::new();
        conn.frame(1, early.clone());
        assert_eq!(conn.output(), ["close BAD_STATE"]);
        let mut conn = Conn::new();
        conn.frame(1, ClientBody::Hello(hello("")));
        conn.frame(2, early);
        assert_eq!(conn.output(), ["login", "close BAD_STATE"]);
    }
    let mut conn = Conn::new();
    conn.input(|s, l, now, out| s.handle_empty(l, now, out));
    assert_eq!(conn.output(), ["close BAD_STATE"]);
}

#[test]
fn a_second_hello_closes() {
    let mut conn = Conn::plain();
    conn.frame(2, ClientBody::Hello(hello("")));
    assert_eq!(conn.output(), ["close BAD_STATE"]);
}

#[test]
fn invalid_hello_is_refused_with_a_code() {
    let bad = [
        (pb::Hello { version: 2, ..hello("") }, "BAD_VERSION"),
        (pb::Hello { device: "a b".to_owned(), ..hello("") }, "BAD_ID"),
        (pb::Hello { device: String::new(), ..hello("") }, "BAD_ID"),
        (hello("not an id"), "BAD_ID"),
    ];
    for (hello, code) in bad {
        let mut conn = Conn::new();
        conn.frame(3, ClientBody::Hello(hello));
        assert_eq!(conn.output(), [format!("3 {code}"), format!("close {code}")]);
    }
}

#[test]
fn refused_login_sends_an_error_and_closes() {
    let mut conn = Conn::new();
    conn.frame(3, ClientBody::Hello(hello("")));
    conn.input(|s, _, _, out| s.login_refused(Code::TokenExpired, "", out));
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    assert_eq!(conn.output(), ["login", "3 TOKEN_EXPIRED", "close TOKEN_EXPIRED"]);
}

#[test]
fn hello_and_login_time_out_after_five_seconds_each() {
    let mut conn = Conn::new();
    assert_eq!(conn.session.poll_timeout(&conn.limits), Some(Time::from_millis(6_000)));
    conn.pass(4.999);
    assert!(!conn.is_closed());
    conn.frame(1, ClientBody::Hello(hello("")));
    conn.pass(4.999);
    assert!(!conn.is_closed(), "the login has its own five seconds");
    conn.pass(0.001);
    assert_eq!(conn.output(), ["login", "close OVERLOADED"]);

    let mut mute = Conn::new();
    mute.pass(5.0);
    assert_eq!(mute.output(), ["close HANDSHAKE_TIMEOUT"]);
}

#[test]
fn user_settings_are_clamped_to_their_bounds() {
    for (wish, granted) in [(0, 30_000), (1, 5_000), (60_000, 60_000), (u32::MAX, 300_000)] {
        let mut conn = Conn::new();
        let settings =
            pb::Settings { heartbeat_ms: wish, ack_timeout_ms: wish, ack_tries: 9, ..Default::default() };
        conn.frame(1, ClientBody::Hello(pb::Hello { settings: Some(settings), ..hello("") }));
        conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
        conn.now = conn.now + Duration::from_millis(granted * 5 / 2 - 1);
        conn.pass(0.0);
        assert!(!conn.is_closed());
        conn.pass(0.001);
        assert_eq!(conn.output().last().map(String::as_str), Some("close HEARTBEAT_MISSED"));
        let window = conn.session.window_limits(&conn.limits);
        assert!(window.ack_timeout >= Duration::from_millis(1_250), "{window:?}");
        assert!(window.ack_timeout <= Duration::from_secs(20) && window.tries == 3, "{window:?}");
    }
}

#[test]
fn stored_settings_apply_where_hello_sets_none() {
    let mut conn = Conn::new();
    let settings = pb::Settings { heartbeat_ms: 60_000, unread: "none".into(), ..Default::default() };
    conn.frame(1, ClientBody::Hello(pb::Hello { settings: Some(settings), ..hello("") }));
    let before = UserSettings { ack_tries: 1, heartbeat_ms: 9_000, ..Default::default() };
    let both = conn.session.requested_settings().over(before);
    conn.session.set_settings(both);
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    assert_eq!(conn.session.window_limits(&conn.limits).tries, 1);
    assert_eq!(conn.session.viewing().unread, Unread::None);
    assert_eq!(conn.session.requested_settings(), UserSettings::default(), "the login is complete");
    conn.now = conn.now + Duration::from_millis(149_999);
    conn.pass(0.0);
    assert!(!conn.is_closed(), "the newer setting applies");
}

/// Only the test advances the time.
#[test]
fn window_uses_the_ack_settings_of_the_user() {
    let mut conn = Conn::new();
    let settings = pb::Settings { ack_timeout_ms: 2_000, ack_tries: 2, ..Default::default() };
    conn.frame(1, ClientBody::Hello(pb::Hello { settings: Some(settings), ..hello("") }));
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    let mut window = Window::new(conn.session.window_limits(&conn.limits));
    let (conversation, at) = (ConversationId::parse("g:a").expect("a key"), Time::from_millis);
    assert_eq!(window.track(&conversation, 1, "push", 4, at(0)), Tracked::Ok);
    let mut copies = Vec::new();
    for (now, sent) in [(1_999, 0), (2_000, 1), (3_999, 1), (4_000, 2), (5_999, 2)] {
        assert_eq!(window.handle_timeout(at(now), &mut copies), Verdict::Fine);
        assert_eq!(copies.len(), sent, "at {now} ms");
    }
    assert_eq!(window.handle_timeout(at(6_000), &mut copies), Verdict::GiveUp);
}

#[test]
fn invalid_setting_is_refused() {
    let mut conn = Conn::new();
    let settings = Some(pb::Settings { retention: "2d".into(), ..Default::default() });
    conn.frame(1, ClientBody::Hello(pb::Hello { settings, ..hello("") }));
    assert_eq!(conn.output(), ["1 BAD_SETTING", "close BAD_SETTING"]);
}

/// Returns the output of a login, and the id that the chain then expects.
fn start(declared: &str, chain: bool, saved: Option<&str>) -> (String, Option<String>) {
    let mut conn = Conn::new();
    let settings = Some(pb::Settings { chain, ..Default::default() });
    conn.frame(1, ClientBody::Hello(pb::Hello { settings, ..hello(declared) }));
    let saved = saved.map(|saved| (id(saved), vec![id("old")]));
    conn.input(|s, l, now, out| s.logged_in(logged_in(saved), l, now, out));
    let welcome = conn.output().pop().expect("a welcome");
    (welcome, conn.session.expected().map(ToString::to_string))
}

#[test]
fn chain_starts_at_the_declared_saved_or_fresh_id() {
    let welcome = |next: &str| format!("1 welcome {next}");
    let some = |next: &str| Some(next.to_owned());
    assert_eq!(start("", false, None), (welcome("fresh"), None), "no chain was requested");
    assert_eq!(start("", false, Some("s")), (welcome("s"), None));
    assert_eq!(start("", true, None), (welcome("fresh"), some("fresh")));
    assert_eq!(start("c", false, None), (welcome("c"), some("c")), "adopted");
    assert_eq!(start("c", false, Some("c")), (welcome("c"), some("c")));
    assert_eq!(start("old", false, Some("s")), (welcome("s"), some("s")), "done: the client missed the acks");
    assert_eq!(start("c", false, Some("s")), (welcome("c"), some("c")), "not done: the last saves were lost");
    assert_eq!(start("", true, Some("s")), (welcome("s"), some("s")));
}

/// Returns the Welcome that the session has sent.
fn welcome_of(conn: &Conn) -> pb::Welcome {
    let welcome = conn.actions.iter().find_map(|action| match action {
        Action::Reply(frame) => match &frame.body {
            Some(ServerBody::Welcome(welcome)) => Some(welcome.clone()),
            _ => None,
        },
        _ => None,
    });
    welcome.expect("a welcome")
}

#[test]
fn welcome_names_the_features_that_both_sides_have() {
    let cases: [(&[&str], &[&str]); 5] = [
        (&["watch", "react"], &["react", "watch"]),
        (&["react", "refresh", "later"], &["refresh", "react"]),
        (&["react"], &["react"]),
        (&["later"], &[]),
        (&[], &[]),
    ];
    for (used, named) in cases {
        let mut conn = Conn::new();
        let features = used.iter().map(|name| (*name).to_owned()).collect();
        conn.frame(1, ClientBody::Hello(pb::Hello { features, ..hello("") }));
        conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
        assert_eq!(welcome_of(&conn).features, named, "{used:?}");
    }
}

#[test]
fn welcome_names_no_watches_of_a_node_without_them() {
    let mut conn = Conn::with(SessionLimits { has_watches: false, ..limits() }, Time::from_millis(1_000));
    let features = ["watch", "react"].map(str::to_owned).to_vec();
    conn.frame(1, ClientBody::Hello(pb::Hello { features, ..hello("") }));
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    assert_eq!(welcome_of(&conn).features, ["react"]);
}

#[test]
fn refresh_is_answered_by_its_outcome() {
    let mut conn = Conn::plain();
    let refresh = |conn: &mut Conn, id| {
        conn.frame(id, ClientBody::Refresh(pb::Refresh { token: "t".to_owned() }));
        assert_eq!(conn.output().last(), Some(&format!("{id} refresh t")));
    };
    refresh(&mut conn, 1);
    conn.input(|s, l, _, out| s.refreshed(1, Ok(()), l, out));
    assert_eq!(conn.output(), ["1 done"]);
    refresh(&mut conn, 2);
    conn.input(|s, l, _, out| s.refreshed(2, Err((Code::TokenNotNewer, "")), l, out));
    assert_eq!(conn.output(), ["2 TOKEN_NOT_NEWER"]);
    refresh(&mut conn, 3);
    conn.input(|s, _, _, out| s.refresh_limited(3, "", Duration::from_secs(2), out));
    assert_eq!(conn.output(), ["3 RATE_LIMITED"]);
    conn.input(|s, _, _, out| s.close(Code::TokenExpired, "", out));
    conn.input(|s, l, _, out| s.refreshed(4, Ok(()), l, out));
    assert_eq!(conn.output(), ["close TOKEN_EXPIRED"], "a late outcome is dropped");
}
