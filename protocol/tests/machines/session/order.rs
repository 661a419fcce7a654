//! Order of a device through the session: numbers, refusals before the append, a full hold, and saved state (S37).

use super::support::{Conn, chained_send, hello, id, logged_in, send};
use tidegate_protocol::{
    Code,
    machine::session::{ChainSaved, SubmitAnswer},
    pb::{self, client_frame::Body as ClientBody},
};

fn accepted(seq: u64) -> SubmitAnswer {
    SubmitAnswer::Accepted { seq, time: 1 }
}

/// Returns (id, n) of the submissions since the last call.
fn numbered(conn: &mut Conn) -> Vec<(String, u64)> {
    conn.submits
        .drain(..)
        .map(|submit| {
            assert!(submit.order.chained && submit.order.epoch == 7);
            (submit.msg_id.to_string(), submit.order.n)
        })
        .collect()
}

fn pairs(pairs: &[(&str, u64)]) -> Vec<(String, u64)> {
    pairs.iter().map(|(id, n)| ((*id).to_owned(), *n)).collect()
}

#[test]
fn reordered_messages_are_submitted_in_chain_order() {
    let mut conn = Conn::chained();
    conn.frame(1, ClientBody::Send(chained_send("g:a", "m2", "m3")));
    conn.frame(2, ClientBody::Send(chained_send("g:b", "m1", "m2")));
    assert!(conn.submits.is_empty());
    conn.frame(3, ClientBody::Send(chained_send("g:a", "m0", "m1")));
    assert_eq!(numbered(&mut conn), pairs(&[("m0", 0), ("m1", 0), ("m2", 1)]));
    assert!(conn.output().is_empty(), "a held message gets its answer later");
}

#[test]
fn permanent_refusal_is_an_answer_and_leaves_no_hole() {
    let mut conn = Conn::chained();
    conn.link(1);
    conn.refusals.push_back(Code::Forbidden);
    conn.link(0);
    assert_eq!(conn.output(), ["save m0 then m1", "100 FORBIDDEN"]);
    assert_eq!(numbered(&mut conn), pairs(&[("m1", 0)]));
}

#[test]
fn retry_of_a_done_id_is_submitted_unchained() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.answer(0, accepted(1));
    conn.submits.clear();
    conn.link(0);
    let submit = conn.submits.pop_front().expect("a submission");
    assert_eq!((submit.order.chained, submit.attempt), (false, 1));
    conn.answer(submit.ticket, SubmitAnswer::Duplicate { seq: 1, time: 1 });
    assert_eq!(conn.output(), ["save m0 then m1", "100 ack m0 1", "100 dup m0 1"]);
    assert_eq!(conn.session.expected(), Some(&id("m1")));
}

#[test]
fn ids_done_before_the_login_are_acked_and_never_held() {
    let mut conn = Conn::new();
    conn.frame(1, ClientBody::Hello(hello("m0")));
    let saved = Some((id("m2"), vec![id("m0"), id("m1")]));
    conn.input(|s, l, now, out| s.logged_in(logged_in(saved), l, now, out));
    assert_eq!(conn.output(), ["login", "1 welcome m2"]);
    conn.link(0);
    conn.link(1);
    conn.link(2);
    assert_eq!(conn.submitted(), ["m0", "m1", "m2"]);
    assert_eq!(conn.session.held(), 0);
}

#[test]
fn client_resumes_from_any_saved_position_without_a_hold() {
    for (saved, declared) in (0..8).flat_map(|saved| (0..8).map(move |declared| (saved, declared))) {
        let what = format!("saved m{saved}, declared m{declared}");
        let mut conn = Conn::new();
        conn.frame(1, ClientBody::Hello(hello(&format!("m{declared}"))));
        let done = (0..saved).map(|n| id(&format!("m{n}"))).collect();
        let state = Some((id(&format!("m{saved}")), done));
        conn.input(|s, l, now, out| s.logged_in(logged_in(state), l, now, out));
        // Every other message overtakes its predecessor.
        let mut links: Vec<u64> = (declared..10).collect();
        links.chunks_mut(2).for_each(<[u64]>::reverse);
        let mut submitted = Vec::new();
        for n in links {
            conn.link(n);
            for submit in std::mem::take(&mut conn.submits) {
                submitted.push(submit.msg_id.to_string());
                conn.answer(submit.ticket, accepted(1));
            }
        }
        let all: std::collections::BTreeSet<_> = submitted.iter().cloned().collect();
        let due = (declared..10).map(|n| format!("m{n}")).collect();
        assert_eq!(all, due, "{what}");
        assert_eq!(conn.session.held(), 0, "{what}");
        assert_eq!(conn.session.expected(), Some(&id("m10")), "{what}");
    }
}

#[test]
fn bad_link_skipped_id_and_held_id_have_different_codes() {
    let mut conn = Conn::chained();
    conn.frame(1, ClientBody::Send(chained_send("g:a", "m0", "m0")));
    conn.link(2);
    conn.link(2);
    conn.pass(2.0);
    conn.pass(2.0);
    conn.link(0);
    let output = conn.output();
    assert_eq!(output[..2], ["1 BAD_LINK", "102 NOT_YET"]);
    assert!(output[2].starts_with("alarm OrderBlocked"), "{output:?}");
    assert_eq!(output[3], "0 ORDER_BLOCKED m0");
    assert!(output[5].starts_with("alarm OrderSkipped"), "{output:?}");
    let saved = "save skipped m0, expect m2";
    assert_eq!(output[4], saved, "saved before the client is notified");
    assert_eq!(output[6..], ["0 ORDER_SKIPPED m0 m2", saved, "100 ORDER_SKIPPED"]);
    assert_eq!(numbered(&mut conn), pairs(&[("m2", 0)]));
}

/// The saved position must not be a skipped id, or the next login would accept that id after its successors.
#[test]
fn skip_is_saved_for_later_connections_of_the_device() {
    let mut conn = Conn::chained();
    for n in [0, 1, 3] {
        conn.link(n);
    }
    conn.pass(2.0);
    conn.pass(2.0);
    assert!(conn.output().contains(&"save skipped m2, expect m0".to_owned()), "m0 and m1 have no answer yet");
    conn.answer(0, accepted(1));
    assert!(conn.output().contains(&"save m0 then m1".to_owned()));
    conn.answer(1, accepted(2));
    assert!(conn.output().contains(&"save m1 then m3".to_owned()), "m2 is skipped");
    for declared in ["m2", "m3"] {
        let mut next = Conn::new();
        next.frame(1, ClientBody::Hello(hello(declared)));
        let saved =
            ChainSaved { expected: id("m3"), done: vec![id("m0"), id("m1")], skipped: vec![id("m2")] };
        let mut login = logged_in(None);
        login.chain_saved = Some(saved);
        next.input(|s, l, now, out| s.logged_in(login, l, now, out));
        assert_eq!(next.session.expected(), Some(&id("m3")), "{declared}");
        next.link(2);
        assert_eq!(next.output().last().map(String::as_str), Some("102 ORDER_SKIPPED"));
        next.link(3);
        assert_eq!(numbered(&mut next), pairs(&[("m3", 0)]));
    }
}

#[test]
fn full_hold_stops_reading_and_parks_one_frame() {
    let mut conn = Conn::chained();
    for n in 1..=4 {
        assert!(conn.wants_read());
        conn.link(n);
    }
    assert!(!conn.wants_read());
    let output = conn.output();
    assert!(output[0].starts_with("alarm OrderWindowFull"), "{output:?}");
    assert_eq!(output[1..], ["0 ORDER_WINDOW_FULL m0"]);
    assert_eq!(conn.session.held(), 4);
    conn.link(5);
    assert_eq!(conn.output(), ["105 BUSY"], "one frame is parked, and no second one is lost");
}

#[test]
fn order_timeout_relieves_a_full_hold() {
    let mut conn = Conn::chained();
    for n in 1..=4 {
        conn.link(n);
    }
    // m0 is the next frame in the socket, which is not read.
    conn.output();
    conn.limits.heartbeat = std::time::Duration::from_secs(1);
    conn.pass(2.0);
    assert!(!conn.wants_read());
    conn.pass(2.0);
    assert_eq!(numbered(&mut conn), pairs(&[("m1", 0), ("m2", 1), ("m3", 2), ("m4", 3)]));
    for n in 0..4 {
        conn.answer(n, accepted(n + 1));
    }
    assert!(conn.wants_read());
    conn.link(0);
    assert_eq!(conn.output().last().map(String::as_str), Some("100 ORDER_SKIPPED"));
}

#[test]
fn hold_of_unrelated_messages_empties_skip_by_skip() {
    let mut conn = Conn::chained();
    for n in [10, 20, 30, 40] {
        conn.link(n);
    }
    assert!(!conn.wants_read());
    let mut skips = 0;
    while conn.session.held() > 0 {
        let due = conn.session.poll_timeout(&conn.limits).expect("a full hold has a timer");
        conn.now = due;
        conn.pass(0.0);
        let tickets: Vec<u64> = conn.submits.iter().map(|submit| submit.ticket).collect();
        for ticket in tickets {
            conn.answer(ticket, accepted(1));
        }
        skips += 1;
        assert!(skips <= 8, "an alarm and a skip each, at most");
    }
    assert_eq!(conn.submitted(), ["m10", "m20", "m30", "m40"]);
    assert!(conn.wants_read());
}

#[test]
fn message_larger_than_the_hold_does_not_block_forever() {
    let mut conn = Conn::chained();
    conn.limits.content_bytes_max = 10_000;
    let large = |n: u64| {
        let content = Some(tidegate_protocol::content::Content::text("a".repeat(2_000)));
        let send = chained_send("g:a", &format!("m{n}"), &format!("m{}", n + 1));
        ClientBody::Send(pb::Send { content, ..send })
    };
    conn.frame(1, large(5));
    assert!(conn.wants_read());
    conn.frame(2, large(9));
    assert!(!conn.wants_read());
    for _ in 0..4 {
        conn.pass(2.0);
    }
    assert_eq!(conn.submitted(), ["m5", "m9"]);
}

#[test]
fn only_the_answered_prefix_is_saved() {
    let mut conn = Conn::chained();
    for n in 0..3 {
        conn.link(n);
    }
    conn.answer(1, accepted(2));
    assert_eq!(conn.output(), ["101 ack m1 2"], "m0 has no answer yet");
    conn.answer(0, accepted(1));
    assert_eq!(conn.output(), ["save m0 then m1", "save m1 then m2", "100 ack m0 1"]);
    conn.pass(5.0);
    assert_eq!(conn.output(), ["102 UNKNOWN"], "the next connection starts with it");
    conn.link(3);
    conn.answer(3, accepted(4));
    assert_eq!(conn.output(), ["103 ack m3 4"]);
    // The resend resolves it, so it is saved together with its successor.
    conn.link(2);
    conn.answer(4, SubmitAnswer::Duplicate { seq: 3, time: 1 });
    assert_eq!(conn.output(), ["save m2 then m3", "save m3 then m4", "102 dup m2 3"]);
}

#[test]
fn client_that_never_resends_an_unknown_message_is_resynced() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.pass(5.0);
    for n in 1..=256 {
        assert!(!conn.is_closed(), "{n}");
        conn.link(n);
        conn.answer(n, accepted(n));
    }
    assert_eq!(conn.output().last().map(String::as_str), Some("close RESYNC"));
}

#[test]
fn broken_order_is_resynced() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.answer(0, SubmitAnswer::Refused { code: Code::OrderBroken, message: "".into() });
    assert_eq!(conn.output(), ["100 ORDER_BROKEN", "close RESYNC"]);
}

#[test]
fn too_many_conversations_of_one_chain_are_resynced() {
    let mut conn = Conn::chained();
    for n in 0..4 {
        let (msg_id, next_id) = (format!("m{n}"), format!("m{}", n + 1));
        conn.frame(n, ClientBody::Send(chained_send(&format!("g:a{n}"), &msg_id, &next_id)));
        for submit in std::mem::take(&mut conn.submits) {
            conn.answer(submit.ticket, accepted(1));
        }
    }
    assert_eq!(conn.output().last().map(String::as_str), Some("close RESYNC"));
}

#[test]
fn next_id_returns_the_expected_id() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.frame(2, ClientBody::NextId(pb::NextId {}));
    assert_eq!(conn.output(), ["2 next m1"]);
    let mut plain = Conn::plain();
    plain.frame(2, ClientBody::NextId(pb::NextId {}));
    assert_eq!(plain.output(), ["2 next"], "empty: this session has no chain");
}

#[test]
fn unchained_sends_pass_a_blocked_chain() {
    let mut conn = Conn::chained();
    conn.link(5);
    conn.frame(1, ClientBody::Send(send("g:a", "x")));
    assert_eq!(conn.submitted(), ["x"]);
}
