//! From the first byte to Welcome: who may say what, how long it may take, and where the chain starts.

use super::support::{Conn, hello, id, logged_in, send};
use std::time::Duration;
use tidegate_protocol::{
    Code, Time,
    id::ConversationId,
    machine::{
        session::{Action, Phase, Session},
        window::{Tracked, Verdict, Window},
    },
    pb::{self, client_frame::Body as Asked, server_frame::Body as Said},
    settings::{Unread, UserSettings},
};

#[test]
fn a_session_is_small() {
    assert!(size_of::<Session>() <= 256, "{} bytes", size_of::<Session>());
}

#[test]
fn hello_asks_for_a_login_and_welcome_answers_it() {
    let mut conn = Conn::new();
    conn.frame(9, Asked::Hello(hello("")));
    assert_eq!(conn.heard(), ["login"]);
    assert_eq!(conn.session.phase(), Phase::LoggingIn);
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    let Some(Action::Reply(frame)) = conn.said.pop() else { panic!("no reply") };
    let Some(Said::Welcome(welcome)) = frame.body else { panic!("no welcome") };
    assert_eq!((frame.id, welcome.session.as_str(), welcome.node.as_str()), (9, "s1", "n1"));
    assert_eq!((welcome.heartbeat_ms, welcome.resumed), (30_000, Some(false)));
    assert_eq!((welcome.next_id.as_str(), welcome.server_time), ("fresh", 1_763_712_000_000));
    assert_eq!(welcome.limits.map(|told| (told.hold_max, told.in_flight_max)), Some((3, 4)));
    assert_eq!(conn.session.identity().map(|me| me.user.to_string()), Some("ann".to_owned()));
}

#[test]
fn anything_but_one_hello_before_welcome_closes() {
    for early in [Asked::Send(send("g:a", "x")), Asked::Ping(pb::Ping::default()), Asked::Bye(pb::Bye {})] {
        let mut conn = Conn::new();
        conn.frame(1, early.clone());
        assert_eq!(conn.heard(), ["close BAD_STATE"]);
        let mut conn = Conn::new();
        conn.frame(1, Asked::Hello(hello("")));
        conn.frame(2, early);
        assert_eq!(conn.heard(), ["login", "close BAD_STATE"]);
    }
    let mut conn = Conn::new();
    conn.input(|s, _, now, out| s.handle_empty(now, out));
    assert_eq!(conn.heard(), ["close BAD_STATE"]);
}

#[test]
fn a_second_hello_closes() {
    let mut conn = Conn::plain();
    conn.frame(2, Asked::Hello(hello("")));
    assert_eq!(conn.heard(), ["close BAD_STATE"]);
}

#[test]
fn a_hello_that_cannot_be_right_is_told_why() {
    let bad = [
        (pb::Hello { version: 2, ..hello("") }, "BAD_VERSION"),
        (pb::Hello { device: "a b".to_owned(), ..hello("") }, "BAD_ID"),
        (pb::Hello { device: String::new(), ..hello("") }, "BAD_ID"),
        (hello("not an id"), "BAD_ID"),
    ];
    for (hello, code) in bad {
        let mut conn = Conn::new();
        conn.frame(3, Asked::Hello(hello));
        assert_eq!(conn.heard(), [format!("3 {code}"), format!("close {code}")]);
    }
}

#[test]
fn a_refused_login_says_so_and_closes() {
    let mut conn = Conn::new();
    conn.frame(3, Asked::Hello(hello("")));
    conn.input(|s, _, _, out| s.login_refused(Code::TokenExpired, "", out));
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    assert_eq!(conn.heard(), ["login", "3 TOKEN_EXPIRED", "close TOKEN_EXPIRED"]);
}

#[test]
fn hello_must_come_in_five_seconds_and_so_must_the_answer() {
    let mut conn = Conn::new();
    assert_eq!(conn.session.poll_timeout(&conn.limits), Some(Time::from_millis(6_000)));
    conn.pass(4.999);
    assert!(!conn.is_closed());
    conn.frame(1, Asked::Hello(hello("")));
    conn.pass(4.999);
    assert!(!conn.is_closed(), "the login has its own five seconds");
    conn.pass(0.001);
    assert_eq!(conn.heard(), ["login", "close OVERLOADED"]);

    let mut mute = Conn::new();
    mute.pass(5.0);
    assert_eq!(mute.heard(), ["close HANDSHAKE_TIMEOUT"]);
}

#[test]
fn wishes_are_granted_within_bounds() {
    for (wish, granted) in [(0, 30_000), (1, 5_000), (60_000, 60_000), (u32::MAX, 300_000)] {
        let mut conn = Conn::new();
        let settings =
            pb::Settings { heartbeat_ms: wish, ack_timeout_ms: wish, ack_tries: 9, ..Default::default() };
        conn.frame(1, Asked::Hello(pb::Hello { settings: Some(settings), ..hello("") }));
        conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
        conn.now = conn.now + Duration::from_millis(granted * 5 / 2 - 1);
        conn.pass(0.0);
        assert!(!conn.is_closed());
        conn.pass(0.001);
        assert_eq!(conn.heard().last().map(String::as_str), Some("close HEARTBEAT_MISSED"));
        let window = conn.session.window_limits(&conn.limits);
        assert!(window.ack_timeout >= Duration::from_millis(1_250), "{window:?}");
        assert!(window.ack_timeout <= Duration::from_secs(20) && window.tries == 3, "{window:?}");
    }
}

#[test]
fn what_was_wished_before_counts_where_nothing_is_wished_now() {
    let mut conn = Conn::new();
    let settings = pb::Settings { heartbeat_ms: 60_000, unread: "none".into(), ..Default::default() };
    conn.frame(1, Asked::Hello(pb::Hello { settings: Some(settings), ..hello("") }));
    let before = UserSettings { ack_tries: 1, heartbeat_ms: 9_000, ..Default::default() };
    let both = conn.session.wished().over(before);
    conn.session.wishes_are(both);
    conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
    assert_eq!(conn.session.window_limits(&conn.limits).tries, 1);
    assert_eq!(conn.session.viewing().unread, Unread::None);
    assert_eq!(conn.session.wished(), UserSettings::default(), "the login is decided");
    conn.now = conn.now + Duration::from_millis(149_999);
    conn.pass(0.0);
    assert!(!conn.is_closed(), "the newer of two wishes counts");
}

/// In time that stands still but where the test moves it.
#[test]
fn a_window_waits_and_gives_up_as_wished() {
    let mut conn = Conn::new();
    let settings = pb::Settings { ack_timeout_ms: 2_000, ack_tries: 2, ..Default::default() };
    conn.frame(1, Asked::Hello(pb::Hello { settings: Some(settings), ..hello("") }));
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
fn a_wish_that_means_nothing_is_turned_away() {
    let mut conn = Conn::new();
    let settings = Some(pb::Settings { retention: "2d".into(), ..Default::default() });
    conn.frame(1, Asked::Hello(pb::Hello { settings, ..hello("") }));
    assert_eq!(conn.heard(), ["1 BAD_SETTING", "close BAD_SETTING"]);
}

/// What Welcome tells, and what the chain then expects.
fn start(declared: &str, chain: bool, saved: Option<&str>) -> (String, Option<String>) {
    let mut conn = Conn::new();
    let settings = Some(pb::Settings { chain, ..Default::default() });
    conn.frame(1, Asked::Hello(pb::Hello { settings, ..hello(declared) }));
    let saved = saved.map(|saved| (id(saved), vec![id("old")]));
    conn.input(|s, l, now, out| s.logged_in(logged_in(saved), l, now, out));
    let told = conn.heard().pop().expect("a welcome");
    (told, conn.session.expected().map(ToString::to_string))
}

#[test]
fn the_chain_starts_at_the_declared_id_unless_it_is_done_then_at_the_saved_one_or_a_fresh_one() {
    let told = |next: &str| format!("1 welcome {next}");
    let some = |next: &str| Some(next.to_owned());
    assert_eq!(start("", false, None), (told("fresh"), None), "no chain was asked for");
    assert_eq!(start("", false, Some("s")), (told("s"), None));
    assert_eq!(start("", true, None), (told("fresh"), some("fresh")));
    assert_eq!(start("c", false, None), (told("c"), some("c")), "adopted");
    assert_eq!(start("c", false, Some("c")), (told("c"), some("c")));
    assert_eq!(start("old", false, Some("s")), (told("s"), some("s")), "done: the client missed the acks");
    assert_eq!(start("c", false, Some("s")), (told("c"), some("c")), "not done: the last saves were lost");
    assert_eq!(start("", true, Some("s")), (told("s"), some("s")));
}
