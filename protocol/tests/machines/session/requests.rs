//! What a live client may ask for, what is refused, and how a session ends.

use super::support::{Conn, chained_send, hello, key, send};
use tidegate_protocol::{
    Code,
    content::Content,
    id::RoomId,
    machine::session::{Action, Answer, Order, Phase},
    pb::{self, client_frame::Body as Asked, server_frame::Body as Said},
};

#[test]
fn a_send_becomes_a_submission_that_carries_what_the_client_said() {
    let mut conn = Conn::plain();
    let content = Content { unknown: vec![0x50, 1], ..Content::text("hi") };
    let send = pb::Send { to_user: "bob".to_owned(), attempt: 2, flags: 5, ..send("", "x") };
    conn.frame(8, Asked::Send(pb::Send { content: Some(content), ..send }));
    let submit = conn.submits.pop_front().expect("a submission");
    assert_eq!((submit.id, submit.conversation, submit.msg_id.as_str()), (8, key("d:ann:bob"), "x"));
    assert_eq!((submit.attempt, submit.flags), (2, 5));
    assert_eq!(submit.order, Order { epoch: 7, n: 0, chained: false });
    assert_eq!(submit.content, [&[0x0a, 2][..], b"hi", &[0x50, 1]].concat(), "unknown fields travel along");
    assert!(conn.heard().is_empty());
}

#[test]
fn a_send_that_cannot_be_right_is_refused_with_the_code_that_fits() {
    let no_content = pb::Send { content: None, ..send("g:a", "x") };
    let empty = pb::Send { content: Some(Content::default()), ..send("g:a", "x") };
    let large = pb::Send { content: Some(Content::text("a".repeat(99))), ..send("g:a", "x") };
    let both = pb::Send { to_user: "bob".to_owned(), ..send("g:a", "x") };
    let bad = [
        (no_content, "BAD_CONTENT"),
        (empty, "BAD_CONTENT"),
        (large, "CONTENT_TOO_LARGE"),
        (both, "BAD_CONTENT"),
        (send("", "x"), "BAD_CONTENT"),
        (send("g:a", ""), "BAD_ID"),
        (send("g:a", "a b"), "BAD_ID"),
        (send("d:bob:ann", "x"), "BAD_ID"),
        (pb::Send { to_user: "b:c".to_owned(), ..send("", "x") }, "BAD_ID"),
        (chained_send("g:a", "x", "a b"), "BAD_ID"),
        (send("d:bob:cem", "x"), "FORBIDDEN"),
        (chained_send("g:a", "x", "y"), "BAD_LINK"),
        (chained_send("r:a", "x", "y"), "BAD_LINK"),
    ];
    for (send, code) in bad {
        let mut conn = Conn::plain();
        conn.frame(4, Asked::Send(send.clone()));
        assert_eq!(conn.heard(), [format!("4 {code}")], "{send:?}");
        assert!(conn.submits.is_empty());
    }
}

#[test]
fn a_room_is_never_chained_even_with_a_chain() {
    let mut conn = Conn::chained();
    conn.frame(4, Asked::Send(chained_send("r:a", "m0", "m1")));
    assert_eq!(conn.heard(), ["4 BAD_LINK"]);
    conn.frame(5, Asked::Send(send("r:a", "x")));
    assert_eq!(conn.submitted(), ["x"]);
    assert_eq!(conn.session.expected().map(|id| id.as_str()), Some("m0"));
}

#[test]
fn pings_are_answered_in_both_forms() {
    let mut conn = Conn::plain();
    conn.pass(2.0);
    conn.frame(3, Asked::Ping(pb::Ping::default()));
    let Some(Action::Reply(frame)) = conn.said.first() else { panic!("no reply") };
    let Some(Said::Pong(pong)) = &frame.body else { panic!("no pong") };
    assert_eq!(pong.time, 1_763_712_002_000);
    conn.input(|s, _, now, out| s.handle_empty(now, out));
    assert_eq!(conn.heard(), ["3 pong", "0 pong"]);
}

#[test]
fn whatever_is_heard_keeps_a_session_alive() {
    let mut conn = Conn::plain();
    for _ in 0..10 {
        conn.pass(74.9);
        conn.input(|s, _, now, _| s.handle_heard(now));
    }
    assert!(!conn.is_closed());
    conn.pass(75.0);
    assert_eq!(conn.heard(), ["close HEARTBEAT_MISSED"]);
}

#[test]
fn acks_go_to_the_window() {
    let mut conn = Conn::plain();
    conn.frame(0, Asked::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 3 }));
    conn.frame(5, Asked::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 4 }));
    conn.frame(6, Asked::Ack(pb::Ack { conversation: "nowhere".to_owned(), seq: 4 }));
    assert_eq!(conn.heard(), ["acked g:a 3", "acked g:a 4", "5 done", "6 BAD_ID"]);
}

#[test]
fn what_is_not_known_is_unsupported() {
    let mut conn = Conn::plain();
    conn.input(|s, l, now, out| s.handle_frame(pb::ClientFrame { id: 4, body: None }, l, now, out));
    assert_eq!(conn.heard(), ["4 UNSUPPORTED"]);
}

#[test]
fn one_query_is_open_at_a_time_and_nothing_is_read_until_its_answer_is_taken() {
    let mut conn = Conn::plain();
    conn.frame(1, Asked::Read(pb::Read { conversation: "g:a".to_owned(), seq: 3 }));
    assert!(!conn.session.wants_read(&conn.limits));
    // A driver that reads on all the same.
    conn.frame(2, Asked::Sync(pb::Sync::default()));
    conn.input(|s, _, _, out| s.query_done(1, out));
    assert!(!conn.session.wants_read(&conn.limits), "told, not taken");
    conn.input(|s, l, now, _| s.query_over(l, now));
    assert!(conn.session.wants_read(&conn.limits));
    conn.input(|s, _, _, out| s.query_done(1, out));
    let read = "1 Read { conversation: g:a, seq: 3 }";
    assert_eq!(conn.heard(), [read, "2 BUSY", "1 done"]);
}

#[test]
fn a_pull_is_checked_before_anything_is_looked_up() {
    let pull = |conversation: &str, seqs: &[u64]| {
        let (conversation, seqs) = (conversation.to_owned(), seqs.to_vec());
        Asked::Pull(pb::Pull { conversation, seqs, ..Default::default() })
    };
    let mut conn = Conn::plain();
    conn.frame(1, pull("nowhere", &[]));
    conn.frame(2, pull("d:bob:cid", &[]));
    conn.frame(3, pull("r:stage", &[]));
    conn.frame(4, pull("g:a", &[0, 0]));
    conn.frame(5, pull("g:a", &[1; 201]));
    assert_eq!(
        conn.heard(),
        ["1 BAD_ID", "2 FORBIDDEN", "3 NOT_FOUND", "4 MALFORMED", "5 MALFORMED", "close TOO_MANY_ERRORS"]
    );
}

#[test]
fn a_pull_names_one_place_to_begin_at() {
    let pull = |cursor, seqs: &[u64], time, around| {
        let direction = if around { pb::Direction::Around } else { pb::Direction::Forward } as i32;
        let (conversation, seqs) = ("g:a".to_owned(), seqs.to_vec());
        Asked::Pull(pb::Pull { conversation, cursor, seqs, time, direction, limit: 1_000 })
    };
    let mut conn = Conn::plain();
    for (n, ask) in [
        pull(0, &[], 0, true),
        pull(0, &[], 7, true),
        pull(0, &[1], 7, false),
        pull(3, &[], 7, false),
        pull(3, &[1], 0, false),
    ]
    .into_iter()
    .enumerate()
    {
        conn.frame(n as u64, ask);
        assert_eq!(conn.heard()[0], format!("{n} MALFORMED"));
        conn.frame(0, Asked::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 3 }));
        conn.heard();
    }
    for (ask, which, limit) in
        [(pull(9, &[], 0, true), "Around(9)", 100), (pull(0, &[], 7, false), "Since(7)", 200)]
    {
        conn.frame(9, ask);
        let query = format!("9 Pull(Pull {{ conversation: g:a, which: {which}, limit: {limit} }})");
        assert_eq!(conn.heard(), [query]);
        conn.input(|s, l, now, _| s.query_over(l, now));
    }
}

#[test]
fn a_signal_is_checked_and_held_to_a_budget() {
    let signal = |conversation: &str, kind: &str, bytes: usize| {
        let content = Some(tidegate_protocol::content::Content::text("x".repeat(bytes)));
        let (conversation, kind) = (conversation.to_owned(), kind.to_owned());
        Asked::Signal(pb::Signal {
            conversation,
            kind,
            content,
            sender: "bob".to_owned(),
            ..Default::default()
        })
    };
    let mut conn = Conn::plain();
    conn.frame(1, signal("d:bob:cid", "typing", 1));
    conn.frame(2, signal("r:stage", "typing", 1));
    conn.frame(3, signal("g:a", "", 1));
    conn.frame(4, signal("g:a", "typing", 2_000));
    assert_eq!(conn.heard(), ["1 FORBIDDEN", "2 UNSUPPORTED", "3 BAD_ID", "4 CONTENT_TOO_LARGE"]);
    for id in 0..10 {
        conn.frame(id, signal("d:ann:bob", "typing", 1));
        let Some(Action::Signal { signal, .. }) = conn.said.pop() else { panic!("a signal") };
        assert_eq!((signal.sender.as_str(), signal.conversation.as_str()), ("ann", "d:ann:bob"));
        conn.input(|s, l, _, out| s.signalled(id, Ok(()), l, out));
        conn.heard();
    }
    conn.frame(0, signal("g:a", "typing", 1));
    conn.frame(7, signal("g:a", "typing", 1));
    assert_eq!(conn.heard(), ["signal dropped", "signal dropped", "7 RATE_LIMITED"]);
    conn.pass(0.1);
    conn.frame(0, signal("g:a", "typing", 1));
    conn.frame(0, signal("g:a", "typing", 1));
    assert_eq!(conn.heard(), ["0 signal g:a typing", "signal dropped"]);
    conn.pass(60.0);
    for _ in 0..10 {
        conn.frame(0, signal("g:a", "typing", 1));
    }
    conn.frame(0, signal("g:a", "typing", 1));
    assert_eq!(
        conn.heard().iter().filter(|said| *said == "signal dropped").count(),
        1,
        "no more than a second's"
    );
}

#[test]
fn a_frame_names_a_thousand_positions_at_most() {
    let positions = |n| vec![pb::Position { conversation: "g:a".to_owned(), seq: 1 }; n];
    let mut conn = Conn::plain();
    conn.frame(1, Asked::Ping(pb::Ping { positions: positions(1_000) }));
    conn.frame(2, Asked::Ping(pb::Ping { positions: positions(1_001) }));
    conn.frame(3, Asked::Sync(pb::Sync { positions: positions(1_001) }));
    let heard = conn.heard();
    assert!(heard[0].starts_with("1 Positions"), "{heard:?}");
    assert_eq!(heard[1..], ["2 MALFORMED", "3 MALFORMED"]);
}

#[test]
fn rooms_are_joined_once_and_up_to_a_bound() {
    let join = |room: &str| Asked::Join(pb::Join { room: room.to_owned() });
    let mut conn = Conn::plain();
    conn.frame(1, join("a"));
    let a = RoomId::new("a").expect("well formed");
    conn.input(|s, l, _, out| s.joined(1, &a, Ok(()), l, out));
    conn.frame(2, join("a"));
    conn.frame(3, join("b"));
    let b = RoomId::new("b").expect("well formed");
    conn.input(|s, l, _, out| s.joined(3, &b, Err(Code::Forbidden), l, out));
    conn.frame(4, join("c"));
    conn.frame(5, join("d"));
    conn.frame(6, join("not a room"));
    let expected = [
        "1 join a",
        "1 done",
        "2 done",
        "3 join b",
        "3 FORBIDDEN",
        "4 join c",
        "5 TOO_MANY_ROOMS",
        "6 BAD_ID",
    ];
    assert_eq!(conn.heard(), expected);
    conn.frame(7, Asked::Leave(pb::Leave { room: "a".to_owned(), ..Default::default() }));
    conn.frame(8, Asked::Leave(pb::Leave { room: "a".to_owned(), ..Default::default() }));
    assert_eq!(conn.heard(), ["leave a", "7 done", "8 done"]);
    assert_eq!(conn.session.rooms().len(), 1);
}

#[test]
fn too_many_refused_frames_in_a_row_close_for_good() {
    let mut conn = Conn::plain();
    for id in 1..=4 {
        conn.frame(id, Asked::Send(send("d:bob:cem", "x")));
    }
    conn.frame(5, Asked::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 1 }));
    conn.heard();
    for id in 6..=9 {
        conn.frame(id, Asked::Send(send("d:bob:cem", "x")));
    }
    assert!(!conn.is_closed(), "a good frame came in between");
    conn.frame(10, Asked::Send(send("d:bob:cem", "x")));
    assert_eq!(conn.heard()[4..], ["10 FORBIDDEN", "close TOO_MANY_ERRORS"]);
}

#[test]
fn refusals_of_the_ledger_count_as_well() {
    let mut conn = Conn::plain();
    for n in 0..5 {
        conn.frame(n, Asked::Send(send("g:a", &format!("x{n}"))));
        let submit = conn.submits.pop_front().expect("a submission");
        conn.answer(submit.ticket, Answer::Refused { code: Code::NotAMember, message: "".into() });
    }
    assert_eq!(conn.heard().last().map(String::as_str), Some("close TOO_MANY_ERRORS"));
}

#[test]
fn bye_waits_for_the_answers_under_way() {
    let mut conn = Conn::plain();
    conn.frame(1, Asked::Send(send("g:a", "x")));
    conn.frame(2, Asked::Bye(pb::Bye {}));
    assert_eq!(conn.heard(), ["2 done"]);
    assert!(!conn.wants_read());
    conn.frame(3, Asked::Send(send("g:a", "y")));
    conn.answer(0, Answer::Accepted { seq: 1, time: 2 });
    assert_eq!(conn.heard(), ["1 ack x 1", "close BYE"]);
    assert_eq!(conn.submitted(), ["x"]);
}

/// What is only read may be asked for elsewhere.
#[test]
fn leaving_waits_for_the_answer_to_what_goes_to_the_log_and_for_no_other_query() {
    let recall = || Asked::Recall(pb::Recall { conversation: "g:a".to_owned(), seq: 1 });
    let leave = || Asked::Leave(pb::Leave { conversation: "g:a".to_owned(), ..Default::default() });
    for (asked, id) in [(recall(), 1), (leave(), 1), (leave(), 0)] {
        for refused in [true, false] {
            let mut conn = Conn::plain();
            conn.frame(id, asked.clone());
            conn.heard();
            conn.input(|s, _, _, out| s.leave(Code::Draining, "", out));
            conn.pass(1.0);
            assert!(conn.heard().is_empty() && conn.session.phase() == Phase::Leaving);
            conn.input(|s, limits, _, out| match refused {
                true => s.query_refused(id, Code::Unknown, "", limits, out),
                false => s.query_done(id, out),
            });
            let told = match (refused, id) {
                (true, _) => vec![format!("{id} UNKNOWN")],
                (false, 0) => vec![],
                (false, _) => vec![format!("{id} done")],
            };
            assert_eq!(conn.heard(), [told, vec!["close DRAINING".to_owned()]].concat());
        }
    }
    let mut conn = Conn::plain();
    conn.frame(1, Asked::Sync(pb::Sync::default()));
    conn.heard();
    conn.input(|s, _, _, out| s.leave(Code::Draining, "", out));
    assert_eq!(conn.heard(), ["close DRAINING"]);
}

#[test]
fn leaving_ends_at_the_reply_deadline_at_the_latest() {
    let mut conn = Conn::plain();
    conn.frame(1, Asked::Send(send("g:a", "x")));
    conn.input(|s, _, _, out| s.leave(Code::Draining, "", out));
    assert_eq!(conn.session.phase(), Phase::Leaving);
    conn.pass(5.0);
    assert_eq!(conn.heard(), ["1 UNKNOWN", "close DRAINING"]);
}

#[test]
fn a_drain_is_told_to_live_clients_only() {
    let mut conn = Conn::plain();
    assert!(conn.session.begin_drain(pb::GoAway::default(), &mut conn.said));
    assert_eq!(conn.heard(), ["0 goaway"]);
    conn.frame(1, Asked::Send(send("g:a", "x")));
    assert_eq!(conn.submitted(), ["x"], "and they go on until their slot");
    let mut early = Conn::new();
    assert!(!early.session.begin_drain(pb::GoAway::default(), &mut early.said));
    assert!(early.heard().is_empty());
}

#[test]
fn nothing_comes_after_a_close() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.link(2);
    conn.input(|s, _, _, out| s.handle_violation(Code::Malformed, "not protobuf", out));
    assert_eq!(conn.heard(), ["close MALFORMED"]);
    conn.input(|s, _, _, out| s.close(Code::Kicked, "", out));
    conn.input(|s, _, _, out| s.leave(Code::Kicked, "", out));
    conn.input(|s, _, now, out| s.handle_empty(now, out));
    conn.frame(5, Asked::Hello(hello("")));
    conn.link(1);
    conn.answer(0, Answer::Accepted { seq: 1, time: 2 });
    conn.answer(0, Answer::AppendFailed);
    conn.pass(1_000.0);
    assert!(conn.heard().is_empty());
    assert_eq!((conn.session.poll_timeout(&conn.limits), conn.wants_read()), (None, false));
}

#[test]
fn a_group_is_left_by_its_key_and_nothing_else_is() {
    let leave = |room: &str, conversation: &str| {
        Asked::Leave(pb::Leave { room: room.to_owned(), conversation: conversation.to_owned() })
    };
    let mut conn = Conn::plain();
    for (room, conversation, code) in [
        ("", "d:ann:bob", "FORBIDDEN"),
        ("", "r:a", "BAD_ID"),
        ("a", "g:a", "MALFORMED"),
        ("", "g:", "BAD_ID"),
    ] {
        conn.frame(3, leave(room, conversation));
        assert_eq!(conn.heard(), [format!("3 {code}")]);
    }
    conn.frame(4, leave("", "g:a"));
    assert_eq!(conn.heard(), ["4 Leave(g:a)"]);
    conn.input(|s, _, _, out| s.query_done(4, out));
    assert_eq!(conn.heard(), ["4 done"]);
}
