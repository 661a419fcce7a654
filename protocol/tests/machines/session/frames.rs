//! Budget of frames of a session: which frames count, what a pause stops, and when the session closes.

use std::time::Duration;

use super::support::{Conn, chained_send, send};
use tidegate_protocol::{
    Code, Time,
    machine::session::SubmitAnswer,
    pb::{self, client_frame::Body as ClientBody},
};

/// Creates a live session that reads `4 * per_second` frames at once.
fn limited(per_second: u32, chained: bool) -> Conn {
    let mut conn = if chained { Conn::chained() } else { Conn::plain() };
    conn.limits.frames_per_second = per_second;
    conn
}

fn ping(conn: &mut Conn) {
    conn.frame(9, ClientBody::Ping(pb::Ping::default()));
}

/// Returns how many pings the session reads now.
fn left(conn: &mut Conn) -> usize {
    let mut count = 0;
    while conn.wants_read() && count < 1_000 {
        ping(conn);
        count += 1;
    }
    conn.output();
    count
}

#[test]
fn x9_every_frame_that_is_no_send_or_due_ack_counts() {
    let ack = || ClientBody::Ack(pb::Ack { conversation: "g:a".to_owned(), seq: 1 });
    type Case = (&'static str, fn(&mut Conn));
    let others: [Case; 7] = [
        ("ping", ping),
        ("empty", |conn| conn.input(|s, l, now, out| s.handle_empty(l, now, out))),
        ("control", |conn| conn.input(|s, l, now, _| s.handle_control_frame(l, now))),
        ("pong", |conn| conn.frame(0, ClientBody::Pong(pb::Pong::default()))),
        ("next id", |conn| conn.frame(9, ClientBody::NextId(pb::NextId {}))),
        ("invalid send", |conn| conn.frame(9, ClientBody::Send(send("nowhere", "m")))),
        ("refused send", |conn| {
            conn.refusals.push_back(Code::Busy);
            conn.frame(9, ClientBody::Send(send("g:a", "m")));
        }),
    ];
    for (name, frame) in others {
        let mut conn = limited(1, false);
        frame(&mut conn);
        assert_eq!(left(&mut conn), 3, "{name}");
    }
    let mut conn = limited(1, false);
    conn.frame(9, ack());
    assert_eq!(left(&mut conn), 3, "an ack that nothing was waiting for");
    let mut conn = limited(1, false);
    for _ in 0..100 {
        conn.frame(9, ack());
        conn.input(|s, l, _, _| s.ack_was_due(l));
    }
    assert_eq!(left(&mut conn), 4, "due acks");
}

#[test]
fn x9_accepted_sends_are_free_and_repeated_ones_are_not() {
    for chained in [false, true] {
        let mut conn = limited(1, chained);
        for n in 0..100 {
            let (msg_id, next_id) = (format!("m{n}"), format!("m{}", n + 1));
            let body = if chained { chained_send("g:a", &msg_id, &next_id) } else { send("g:a", &msg_id) };
            conn.frame(n, ClientBody::Send(body));
            let ticket = conn.submits.pop_front().expect("a submission").ticket;
            conn.answer(ticket, SubmitAnswer::Accepted { seq: n, time: 1 });
            assert!(conn.wants_read(), "after {n}");
        }
        for n in 0..3 {
            conn.frame(n, ClientBody::Send(send("g:a", "m0")));
            let ticket = conn.submits.pop_front().expect("a submission").ticket;
            conn.answer(ticket, SubmitAnswer::Duplicate { seq: 1, time: 1 });
        }
        assert_eq!(left(&mut conn), 1);
    }
}

/// S70.
#[test]
fn s70_message_to_a_live_room_counts_once_whatever_its_answer() {
    let mut conn = limited(1, false);
    conn.frame(9, ClientBody::Send(send("r:hall", "m0")));
    let ticket = conn.submits.pop_front().expect("a submission").ticket;
    conn.answer(ticket, SubmitAnswer::Accepted { seq: 1, time: 1 });
    assert_eq!(left(&mut conn), 3, "accepted");
    let mut conn = limited(1, false);
    conn.frame(9, ClientBody::Send(send("r:hall", "m0")));
    let ticket = conn.submits.pop_front().expect("a submission").ticket;
    let refusal = SubmitAnswer::Refused { code: Code::NotAMember, message: "".into() };
    conn.answer(ticket, refusal);
    assert_eq!(left(&mut conn), 3, "refused");
    let mut conn = limited(1, false);
    conn.refusals.push_back(Code::Busy);
    conn.frame(9, ClientBody::Send(send("r:hall", "m0")));
    assert_eq!(left(&mut conn), 3, "refused before its number");
}

#[test]
fn x9_last_frame_of_the_budget_may_be_a_send() {
    let mut conn = limited(1, false);
    (0..3).for_each(|_| ping(&mut conn));
    for n in 0..3 {
        conn.frame(n, ClientBody::Send(send("g:a", &format!("m{n}"))));
    }
    assert_eq!(conn.submitted().len(), 3);
    assert!(conn.wants_read());
}

#[test]
fn x9_silence_does_not_count_while_reading_is_stopped() {
    let mut conn = limited(1, false);
    left(&mut conn);
    assert_eq!(conn.session.poll_timeout(&conn.limits), Some(conn.now + Duration::from_secs(1)));
    // The shard was frozen.
    conn.pass(3_600.0);
    assert!(!conn.is_closed() && conn.wants_read());
    conn.pass(74.9);
    assert!(!conn.is_closed());
    conn.pass(0.1);
    assert_eq!(conn.output(), ["close HEARTBEAT_MISSED"]);
}

#[test]
fn x9_client_that_persists_is_closed() {
    let mut conn = limited(10, false);
    let began = conn.now;
    let mut frames = 0;
    while !conn.is_closed() {
        frames += left(&mut conn);
        let due: Time = conn.session.poll_timeout(&conn.limits).expect("it resumes");
        assert!(due > conn.now);
        conn.now = due;
        conn.input(|s, l, now, out| s.handle_timeout(l, now, out));
    }
    let took = conn.now.since(began);
    assert!((10_000..10_500).contains(&took.as_millis()), "{took:?}");
    assert!((130..=145).contains(&frames), "{frames} frames were read");
    assert_eq!(conn.output(), ["close TOO_MANY_FRAMES"]);
}
