//! Answers of the session: one per submission (accepted, duplicate, refused or unknown); a failed append closes.

use super::support::{Conn, chained_send, send};
use tidegate_protocol::{
    Code,
    machine::session::SubmitAnswer,
    pb::{self, client_frame::Body as ClientBody},
};

fn accepted(seq: u64) -> SubmitAnswer {
    SubmitAnswer::Accepted { seq, time: 1 }
}

#[test]
fn each_answer_is_sent_once_in_order_of_arrival() {
    let mut conn = Conn::plain();
    for n in 0..3 {
        conn.frame(n + 1, ClientBody::Send(send("g:a", &format!("x{n}"))));
    }
    conn.answer(1, accepted(5));
    conn.answer(1, accepted(6));
    conn.answer(0, SubmitAnswer::Duplicate { seq: 2, time: 1 });
    conn.answer(2, SubmitAnswer::Refused { code: Code::NotAMember, message: "".into() });
    conn.answer(99, accepted(9));
    assert_eq!(conn.output(), ["2 ack x1 5", "1 dup x0 2", "3 NOT_A_MEMBER"]);
    assert_eq!(conn.session.in_flight(), 0);
}

#[test]
fn no_answer_in_time_is_unknown_and_a_late_one_is_dropped() {
    let mut conn = Conn::plain();
    conn.frame(1, ClientBody::Send(send("g:a", "x")));
    conn.pass(2.0);
    conn.frame(2, ClientBody::Send(send("g:a", "y")));
    conn.pass(3.0);
    assert_eq!(conn.output(), ["1 UNKNOWN"]);
    conn.answer(0, accepted(1));
    conn.answer(1, accepted(2));
    assert_eq!(conn.output(), ["2 ack y 2"]);
    assert!(conn.session.poll_timeout(&conn.limits) > Some(conn.now));
}

#[test]
fn delay_counts_from_the_gate_and_only_for_what_it_admitted() {
    let mut conn = Conn::plain();
    for n in 0..3 {
        conn.frame(n + 1, ClientBody::Send(send("g:a", &format!("x{n}"))));
    }
    conn.pass(1.0);
    conn.session.admitted(1, conn.now);
    conn.session.admitted(2, conn.now);
    conn.session.admitted(2, conn.now);
    conn.pass(0.5);
    let delays = [0, 1, 2, 3].map(|ticket| conn.session.delay_of(ticket, conn.now));
    let half = Some(std::time::Duration::from_millis(500));
    assert_eq!((conn.session.gated(), delays), (2, [None, half, half, None]));
    conn.answer(1, accepted(1));
    assert_eq!((conn.session.gated(), conn.session.in_flight()), (1, 3), "the first one is unanswered");
    conn.answer(0, accepted(2));
    assert_eq!((conn.session.gated(), conn.session.in_flight()), (1, 1));
    conn.pass(4.0);
    assert_eq!((conn.session.gated(), conn.output().last().map(String::as_str)), (0, Some("3 UNKNOWN")));
}

#[test]
fn failed_append_closes_the_connection() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.link(1);
    conn.answer(0, SubmitAnswer::AppendFailed);
    assert_eq!(conn.output(), ["close RESYNC"]);
}

#[test]
fn reading_stops_at_in_flight_max_without_counting_silence() {
    let mut conn = Conn::plain();
    conn.limits.reply_deadline = std::time::Duration::from_secs(600);
    for n in 0..4 {
        assert!(conn.wants_read());
        conn.frame(n, ClientBody::Send(send("g:a", &format!("x{n}"))));
    }
    assert!(!conn.wants_read());
    conn.frame(9, ClientBody::Send(send("g:a", "y")));
    assert_eq!(conn.output(), ["9 BUSY"], "a driver that keeps reading loses nothing");
    conn.pass(500.0);
    conn.answer(0, accepted(1));
    assert!(conn.wants_read());
    conn.pass(74.0);
    assert!(!conn.is_closed(), "silence counts from when reading resumed");
    conn.pass(1.0);
    assert_eq!(conn.output(), ["0 ack x0 1", "close HEARTBEAT_MISSED"]);
}

#[test]
fn unchained_send_refused_by_the_shard_is_answered() {
    let mut conn = Conn::plain();
    conn.refusals.push_back(Code::BusUnavailable);
    conn.frame(1, ClientBody::Send(send("g:a", "x")));
    assert_eq!(conn.output(), ["1 BUS_UNAVAILABLE"]);
    assert_eq!((conn.session.in_flight(), conn.submits.len()), (0, 0));
    conn.frame(2, ClientBody::Send(send("g:a", "x")));
    assert_eq!(conn.submits.pop_front().map(|submit| submit.ticket), Some(1), "a ticket is never used twice");
}

#[test]
fn send_before_the_next_poll_is_busy_and_loses_none() {
    let mut conn = Conn::plain();
    for id in [1, 2] {
        let frame = pb::ClientFrame { id, body: Some(ClientBody::Send(send("g:a", &format!("x{id}")))) };
        conn.session.handle_frame(frame, &conn.limits, conn.now, &mut conn.actions);
    }
    assert!(!conn.wants_read());
    assert_eq!(conn.output(), ["2 BUSY"]);
    conn.input(|_, _, _, _| {});
    assert_eq!(conn.submitted(), ["x1"]);
    assert!(conn.wants_read());
}

#[test]
fn chained_refusal_after_its_successor_was_submitted_resyncs() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.link(1);
    conn.input(|s, l, now, out| s.submit_refused(0, Code::RateLimited.into(), l, now, out));
    assert_eq!(conn.output(), ["close RESYNC"]);
}

#[test]
fn s71_silence_does_not_count_while_a_chained_send_waits_to_be_polled() {
    let mut conn = Conn::chained();
    let body = Some(ClientBody::Send(chained_send("g:a", "m0", "m1")));
    let frame = pb::ClientFrame { id: 1, body };
    conn.session.handle_frame(frame, &conn.limits, conn.now, &mut conn.actions);
    assert!(conn.session.has_submit());
    // The driver waits for other sends of the user; 2.5 heartbeats are 75 s.
    conn.now = conn.now + std::time::Duration::from_secs(500);
    conn.session.handle_timeout(&conn.limits, conn.now, &mut conn.actions);
    assert!(!conn.is_closed());
    conn.pass(0.0);
    assert_eq!(conn.submits.len(), 1);
    conn.limits.reply_deadline = std::time::Duration::from_secs(600);
    conn.pass(74.0);
    assert!(!conn.is_closed(), "silence counts from when reading resumed");
    conn.pass(1.0);
    assert!(conn.is_closed());
}
