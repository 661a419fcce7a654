//! Requests of a live client: what is allowed, what is refused, and how a session ends.

use std::time::Duration;

use super::support::{Conn, chained_send, hello, key, send};
use tidegate_protocol::{
    Code,
    content::Content,
    id::RoomId,
    machine::session::{Action, JOINING_MAX, Order, SessionPhase, SubmitAnswer},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

#[test]
fn send_becomes_a_submission_with_all_fields() {
    let mut conn = Conn::plain();
    let content = Content { unknown: vec![0x50, 1], ..Content::text("hi") };
    let send = pb::Send { to_user: "bob".to_owned(), attempt: 2, flags: 5, ..send("", "x") };
    conn.frame(8, ClientBody::Send(pb::Send { content: Some(content), ..send }));
    let submit = conn.submits.pop_front().expect("a submission");
    assert_eq!((submit.id, submit.conversation, submit.msg_id.as_str()), (8, key("d:ann:bob"), "x"));
    assert_eq!((submit.attempt, submit.flags), (2, 5));
    assert_eq!(submit.order, Order { epoch: 7, n: 0, chained: false });
    assert_eq!(submit.content, [&[0x0a, 2][..], b"hi", &[0x50, 1]].concat(), "unknown fields are preserved");
    assert!(conn.output().is_empty());
}

#[test]
fn invalid_send_is_refused_with_a_code() {
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
        (pb::Send { to_user: "..".to_owned(), ..send("", "x") }, "BAD_ID"),
        (chained_send("g:a", "x", "a b"), "BAD_ID"),
        (send("d:bob:cem", "x"), "FORBIDDEN"),
        (chained_send("g:a", "x", "y"), "BAD_LINK"),
        (chained_send("r:a", "x", "y"), "BAD_LINK"),
    ];
    for (send, code) in bad {
        let mut conn = Conn::plain();
        conn.frame(4, ClientBody::Send(send.clone()));
        assert_eq!(conn.output(), [format!("4 {code}")], "{send:?}");
        assert!(conn.submits.is_empty());
    }
}

#[test]
fn a_room_is_never_chained_even_with_a_chain() {
    let mut conn = Conn::chained();
    conn.frame(4, ClientBody::Send(chained_send("r:a", "m0", "m1")));
    assert_eq!(conn.output(), ["4 BAD_LINK"]);
    conn.frame(5, ClientBody::Send(send("r:a", "x")));
    assert_eq!(conn.submitted(), ["x"]);
    assert_eq!(conn.session.expected().map(|id| id.as_str()), Some("m0"));
}

#[test]
fn pings_are_answered_in_both_forms() {
    let mut conn = Conn::plain();
    conn.pass(2.0);
    conn.frame(3, ClientBody::Ping(pb::Ping::default()));
    let Some(Action::Reply(frame)) = conn.actions.first() else { panic!("no reply") };
    let Some(ServerBody::Pong(pong)) = &frame.body else { panic!("no pong") };
    assert_eq!(pong.time, 1_763_712_002_000);
    conn.input(|s, l, now, out| s.handle_empty(l, now, out));
    assert_eq!(conn.output(), ["3 pong", "0 pong"]);
}

#[test]
fn any_sign_of_life_keeps_a_session_open() {
    let mut conn = Conn::plain();
    for _ in 0..10 {
        conn.pass(74.9);
        conn.input(|s, _, now, _| s.handle_heard(now));
    }
    assert!(!conn.is_closed());
    conn.pass(75.0);
    assert_eq!(conn.output(), ["close HEARTBEAT_MISSED"]);
}

#[test]
fn acks_go_to_the_window() {
    let mut conn = Conn::plain();
    conn.frame(0, ClientBody::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 3 }));
    conn.frame(5, ClientBody::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 4 }));
    conn.frame(6, ClientBody::Ack(pb::Ack { conversation: "nowhere".to_owned(), seq: 4 }));
    assert_eq!(conn.output(), ["acked g:a 3", "acked g:a 4", "5 done", "6 BAD_ID"]);
}

#[test]
fn unknown_frame_kind_is_unsupported() {
    let mut conn = Conn::plain();
    conn.input(|s, l, now, out| s.handle_frame(pb::ClientFrame { id: 4, body: None }, l, now, out));
    assert_eq!(conn.output(), ["4 UNSUPPORTED"]);
}

#[test]
fn open_query_stops_reading_until_its_answer_is_taken() {
    let mut conn = Conn::plain();
    conn.frame(1, ClientBody::Read(pb::Read { conversation: "g:a".to_owned(), seq: 3 }));
    assert!(!conn.session.wants_read(&conn.limits));
    // A driver that keeps reading.
    conn.frame(2, ClientBody::Sync(pb::Sync::default()));
    conn.input(|s, _, _, out| s.query_done(1, out));
    assert!(!conn.session.wants_read(&conn.limits), "answered, but not taken");
    conn.input(|s, l, now, _| s.query_over(l, now));
    assert!(conn.session.wants_read(&conn.limits));
    conn.input(|s, _, _, out| s.query_done(1, out));
    let read = "1 Read { conversation: g:a, seq: 3 }";
    assert_eq!(conn.output(), [read, "2 BUSY", "1 done"]);
}

#[test]
fn invalid_pull_is_refused_before_the_query() {
    let pull = |conversation: &str, seqs: &[u64]| {
        let (conversation, seqs) = (conversation.to_owned(), seqs.to_vec());
        ClientBody::Pull(pb::Pull { conversation, seqs, ..Default::default() })
    };
    let mut conn = Conn::plain();
    conn.frame(1, pull("nowhere", &[]));
    conn.frame(2, pull("d:bob:cid", &[]));
    conn.frame(3, pull("r:stage", &[]));
    conn.frame(4, pull("g:a", &[0, 0]));
    conn.frame(5, pull("g:a", &[1; 201]));
    assert_eq!(
        conn.output(),
        ["1 BAD_ID", "2 FORBIDDEN", "3 NOT_FOUND", "4 MALFORMED", "5 MALFORMED", "close TOO_MANY_ERRORS"]
    );
}

#[test]
fn pull_needs_exactly_one_starting_point() {
    let pull = |cursor, seqs: &[u64], time, around| {
        let direction = if around { pb::Direction::Around } else { pb::Direction::Forward } as i32;
        let (conversation, seqs) = ("g:a".to_owned(), seqs.to_vec());
        ClientBody::Pull(pb::Pull { conversation, cursor, seqs, time, direction, limit: 1_000 })
    };
    let mut conn = Conn::plain();
    for (n, body) in [
        pull(0, &[], 0, true),
        pull(0, &[], 7, true),
        pull(0, &[1], 7, false),
        pull(3, &[], 7, false),
        pull(3, &[1], 0, false),
    ]
    .into_iter()
    .enumerate()
    {
        conn.frame(n as u64, body);
        assert_eq!(conn.output()[0], format!("{n} MALFORMED"));
        // Refusals are forgotten.
        conn.now = conn.now + Duration::from_secs(10);
    }
    for (body, which, limit) in
        [(pull(9, &[], 0, true), "Around(9)", 100), (pull(0, &[], 7, false), "Since(7)", 200)]
    {
        conn.frame(9, body);
        let query = format!("9 Pull(Pull {{ conversation: g:a, which: {which}, limit: {limit} }})");
        assert_eq!(conn.output(), [query]);
        conn.input(|s, l, now, _| s.query_over(l, now));
    }
}

#[test]
fn signal_is_validated_and_limited_by_a_budget() {
    let signal = |conversation: &str, kind: &str, bytes: usize| {
        let content = Some(tidegate_protocol::content::Content::text("x".repeat(bytes)));
        let (conversation, kind) = (conversation.to_owned(), kind.to_owned());
        ClientBody::Signal(pb::Signal {
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
    assert_eq!(conn.output(), ["1 FORBIDDEN", "2 UNSUPPORTED", "3 BAD_ID", "4 CONTENT_TOO_LARGE"]);
    for id in 0..10 {
        conn.frame(id, signal("d:ann:bob", "typing", 1));
        let Some(Action::Signal { signal, .. }) = conn.actions.pop() else { panic!("a signal") };
        assert_eq!((signal.sender.as_str(), signal.conversation.as_str()), ("ann", "d:ann:bob"));
        conn.input(|s, l, _, out| s.signalled(id, Ok(()), l, out));
        conn.output();
    }
    conn.frame(0, signal("g:a", "typing", 1));
    conn.frame(7, signal("g:a", "typing", 1));
    assert_eq!(conn.output(), ["signal dropped", "signal dropped", "7 RATE_LIMITED"]);
    conn.pass(0.1);
    conn.frame(0, signal("g:a", "typing", 1));
    conn.frame(0, signal("g:a", "typing", 1));
    assert_eq!(conn.output(), ["0 signal g:a typing", "signal dropped"]);
    conn.pass(60.0);
    for _ in 0..10 {
        conn.frame(0, signal("g:a", "typing", 1));
    }
    conn.frame(0, signal("g:a", "typing", 1));
    assert_eq!(
        conn.output().iter().filter(|text| *text == "signal dropped").count(),
        1,
        "the budget is that of one second"
    );
}

#[test]
fn reaction_is_validated_and_shares_the_budget_of_signals() {
    let react = |room: &str, kind: &str| {
        ClientBody::React(pb::React { room: room.to_owned(), kind: kind.to_owned() })
    };
    let mut conn = Conn::plain();
    conn.frame(1, react("no such name", "like"));
    conn.frame(2, react("hall", ""));
    conn.frame(3, react("hall", "seventeen-bytes-x"));
    assert_eq!(conn.output(), ["1 BAD_ID", "2 BAD_ID", "3 BAD_ID"]);
    for id in 0..10 {
        conn.frame(id, react("hall", "like"));
        assert_eq!(conn.output(), [format!("{id} react hall like")]);
        conn.input(|s, l, _, out| s.signalled(id, Ok(()), l, out));
        conn.output();
    }
    conn.frame(0, react("hall", "like"));
    conn.frame(7, react("hall", "like"));
    assert_eq!(conn.output(), ["signal dropped", "signal dropped", "7 RATE_LIMITED"]);
}

#[test]
fn frame_has_at_most_1000_positions() {
    let positions = |n| vec![pb::Position { conversation: "g:a".to_owned(), seq: 1 }; n];
    let mut conn = Conn::plain();
    conn.frame(1, ClientBody::Ping(pb::Ping { positions: positions(1_000) }));
    conn.frame(2, ClientBody::Ping(pb::Ping { positions: positions(1_001) }));
    conn.frame(3, ClientBody::Sync(pb::Sync { positions: positions(1_001) }));
    let output = conn.output();
    assert!(output[0].starts_with("1 Positions"), "{output:?}");
    assert_eq!(output[1..], ["2 MALFORMED", "3 MALFORMED"]);
}

#[test]
fn rooms_are_joined_once_and_up_to_a_limit() {
    let join = |room: &str| ClientBody::Join(pb::Join { room: room.to_owned() });
    let mut conn = Conn::plain();
    conn.frame(1, join("a"));
    let a = RoomId::new("a").expect("well formed");
    conn.input(|s, l, now, out| s.joined(1, &a, Ok(()), l, now, out));
    conn.frame(2, join("a"));
    conn.frame(3, join("b"));
    let b = RoomId::new("b").expect("well formed");
    conn.input(|s, l, now, out| s.joined(3, &b, Err((Code::Forbidden, "")), l, now, out));
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
    assert_eq!(conn.output(), expected);
    conn.frame(7, ClientBody::Leave(pb::Leave { room: "a".to_owned(), ..Default::default() }));
    conn.frame(8, ClientBody::Leave(pb::Leave { room: "a".to_owned(), ..Default::default() }));
    assert_eq!(conn.output(), ["leave a", "7 done", "8 done"]);
    assert_eq!(conn.session.rooms().len(), 1);
}

/// Frames that are always accepted must not buy refusals back.
#[test]
fn x16_error_budget_is_not_bought_back() {
    let mut conn = Conn::plain();
    let good = [
        ClientBody::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 1 }),
        ClientBody::Join(pb::Join { room: "a".to_owned() }),
        ClientBody::Leave(pb::Leave { room: "a".to_owned(), ..Default::default() }),
        ClientBody::Ping(pb::Ping::default()),
    ];
    for id in 1..=4 {
        conn.frame(id, ClientBody::Send(send("d:bob:cem", "x")));
        good.iter().for_each(|body| conn.frame(0, body.clone()));
    }
    assert!(!conn.is_closed());
    conn.output();
    conn.frame(5, ClientBody::Send(send("d:bob:cem", "x")));
    assert_eq!(conn.output(), ["5 FORBIDDEN", "close TOO_MANY_ERRORS"]);
}

#[test]
fn refusals_are_forgotten_with_time_and_accepted_sends() {
    let mut conn = Conn::plain();
    let refused = |conn: &mut Conn| conn.frame(1, ClientBody::Send(send("d:bob:cem", "x")));
    (0..4).for_each(|_| refused(&mut conn));
    conn.frame(2, ClientBody::Send(send("g:a", "y")));
    let ticket = conn.submits.pop_front().expect("a submission").ticket;
    conn.answer(ticket, SubmitAnswer::Accepted { seq: 1, time: 2 });
    refused(&mut conn);
    assert!(!conn.is_closed(), "an accepted send makes room for one refusal");
    conn.now = conn.now + Duration::from_secs(10);
    refused(&mut conn);
    assert!(!conn.is_closed(), "one refusal is forgotten each 10 s");
    refused(&mut conn);
    assert!(conn.is_closed());
}

#[test]
fn refusals_of_the_ledger_count_as_errors() {
    let mut conn = Conn::plain();
    for n in 0..5 {
        conn.frame(n, ClientBody::Send(send("g:a", &format!("x{n}"))));
        let submit = conn.submits.pop_front().expect("a submission");
        conn.answer(submit.ticket, SubmitAnswer::Refused { code: Code::NotAMember, message: "".into() });
    }
    assert_eq!(conn.output().last().map(String::as_str), Some("close TOO_MANY_ERRORS"));
}

#[test]
fn bye_waits_for_answers_in_flight() {
    let mut conn = Conn::plain();
    conn.frame(1, ClientBody::Send(send("g:a", "x")));
    conn.frame(2, ClientBody::Bye(pb::Bye {}));
    assert_eq!(conn.output(), ["2 done"]);
    assert!(!conn.wants_read());
    conn.frame(3, ClientBody::Send(send("g:a", "y")));
    conn.answer(0, SubmitAnswer::Accepted { seq: 1, time: 2 });
    assert_eq!(conn.output(), ["1 ack x 1", "close BYE"]);
    assert_eq!(conn.submitted(), ["x"]);
}

/// A query that only reads can be repeated on another node.
#[test]
fn leaving_waits_only_for_queries_that_append() {
    let recall = || ClientBody::Recall(pb::Recall { conversation: "g:a".to_owned(), seq: 1 });
    let leave = || ClientBody::Leave(pb::Leave { conversation: "g:a".to_owned(), ..Default::default() });
    for (body, id) in [(recall(), 1), (leave(), 1), (leave(), 0)] {
        for refused in [true, false] {
            let mut conn = Conn::plain();
            conn.frame(id, body.clone());
            conn.output();
            conn.input(|s, _, _, out| s.leave(Code::Draining, "", out));
            conn.pass(1.0);
            assert!(conn.output().is_empty() && conn.session.phase() == SessionPhase::Leaving);
            conn.input(|s, limits, _, out| match refused {
                true => s.query_refused(id, Code::Unknown, "", limits, out),
                false => s.query_done(id, out),
            });
            let answer = match (refused, id) {
                (true, _) => vec![format!("{id} UNKNOWN")],
                (false, 0) => vec![],
                (false, _) => vec![format!("{id} done")],
            };
            assert_eq!(conn.output(), [answer, vec!["close DRAINING".to_owned()]].concat());
        }
    }
    let mut conn = Conn::plain();
    conn.frame(1, ClientBody::Sync(pb::Sync::default()));
    conn.output();
    conn.input(|s, _, _, out| s.leave(Code::Draining, "", out));
    assert_eq!(conn.output(), ["close DRAINING"]);
}

#[test]
fn leaving_ends_at_the_reply_deadline_at_the_latest() {
    let mut conn = Conn::plain();
    conn.frame(1, ClientBody::Send(send("g:a", "x")));
    conn.input(|s, _, _, out| s.leave(Code::Draining, "", out));
    assert_eq!(conn.session.phase(), SessionPhase::Leaving);
    conn.pass(5.0);
    assert_eq!(conn.output(), ["1 UNKNOWN", "close DRAINING"]);
}

#[test]
fn only_live_clients_get_go_away() {
    let mut conn = Conn::plain();
    assert!(conn.session.begin_drain(pb::GoAway::default(), &mut conn.actions));
    assert_eq!(conn.output(), ["0 goaway"]);
    conn.frame(1, ClientBody::Send(send("g:a", "x")));
    assert_eq!(conn.submitted(), ["x"], "the session continues until its slot");
    let mut early = Conn::new();
    assert!(!early.session.begin_drain(pb::GoAway::default(), &mut early.actions));
    assert!(early.output().is_empty());
}

#[test]
fn no_frame_follows_a_close() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.link(2);
    conn.input(|s, _, _, out| s.handle_violation(Code::Malformed, "not protobuf", out));
    assert_eq!(conn.output(), ["close MALFORMED"]);
    conn.input(|s, _, _, out| s.close(Code::Kicked, "", out));
    conn.input(|s, _, _, out| s.leave(Code::Kicked, "", out));
    conn.input(|s, l, now, out| s.handle_empty(l, now, out));
    conn.frame(5, ClientBody::Hello(hello("")));
    conn.link(1);
    conn.answer(0, SubmitAnswer::Accepted { seq: 1, time: 2 });
    conn.answer(0, SubmitAnswer::AppendFailed);
    conn.pass(1_000.0);
    assert!(conn.output().is_empty());
    assert_eq!((conn.session.poll_timeout(&conn.limits), conn.wants_read()), (None, false));
}

#[test]
fn leave_by_key_works_for_groups_only() {
    let leave = |room: &str, conversation: &str| {
        ClientBody::Leave(pb::Leave { room: room.to_owned(), conversation: conversation.to_owned() })
    };
    let mut conn = Conn::plain();
    for (room, conversation, code) in [
        ("", "d:ann:bob", "FORBIDDEN"),
        ("", "r:a", "BAD_ID"),
        ("a", "g:a", "MALFORMED"),
        ("", "g:", "BAD_ID"),
    ] {
        conn.frame(3, leave(room, conversation));
        assert_eq!(conn.output(), [format!("3 {code}")]);
    }
    conn.frame(4, leave("", "g:a"));
    assert_eq!(conn.output(), ["4 Leave(g:a)"]);
    conn.input(|s, _, _, out| s.query_done(4, out));
    assert_eq!(conn.output(), ["4 done"]);
}

/// A place that a leave freed at once would make joins in flight unbounded.
#[test]
fn x3_joins_in_flight_are_bounded_whatever_is_left_meanwhile() {
    let room = |n: usize| RoomId::new(&format!("room-{n}")).expect("well formed");
    let join = |n| ClientBody::Join(pb::Join { room: room(n).to_string() });
    let leave = |n| ClientBody::Leave(pb::Leave { room: room(n).to_string(), ..Default::default() });
    let mut conn = Conn::plain();
    conn.limits.rooms_max = 100;
    let mut joins = 0;
    while conn.wants_read() && joins < 1_000 {
        conn.frame(0, join(joins));
        joins += 1;
        if conn.wants_read() {
            conn.frame(0, leave(joins - 1));
        }
    }
    assert_eq!(joins, JOINING_MAX);
    conn.pass(80.0);
    assert!(!conn.is_closed(), "a client that is not read is not silent");
    conn.input(|s, l, now, out| s.joined(0, &room(3), Ok(()), l, now, out));
    assert!(conn.wants_read());
    conn.frame(0, join(joins));
    assert!(!conn.wants_read());
    conn.input(|s, _, _, out| s.join_limited(0, &room(4), Duration::from_secs(1), out));
    assert!(conn.wants_read());
    assert_eq!(conn.session.rooms(), [room(7), room(8)]);
}

#[test]
fn x3_room_that_is_left_keeps_its_place_until_its_join_has_an_outcome() {
    let join = |room: &str| ClientBody::Join(pb::Join { room: room.to_owned() });
    let leave = |room: &str| ClientBody::Leave(pb::Leave { room: room.to_owned(), ..Default::default() });
    let mut conn = Conn::plain();
    conn.frame(1, join("a"));
    conn.frame(2, leave("a"));
    conn.frame(3, join("a"));
    conn.frame(4, join("b"));
    conn.frame(5, leave("a"));
    conn.frame(6, join("c"));
    assert_eq!(
        conn.output(),
        ["1 join a", "leave a", "2 done", "3 join a", "4 BUSY", "leave a", "5 done", "6 BUSY"]
    );
    let a = RoomId::new("a").expect("well formed");
    for id in [1, 3] {
        conn.input(|s, l, now, out| s.joined(id, &a, Ok(()), l, now, out));
    }
    conn.frame(7, join("b"));
    conn.frame(8, join("c"));
    assert_eq!(conn.output(), ["1 done", "3 done", "7 join b", "8 join c"]);
}
