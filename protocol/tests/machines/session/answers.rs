//! Each submission has one answer: accepted, duplicate, refused or unknown; a failed append ends the conn.

use super::support::{Conn, send};
use tidegate_protocol::{
    Code,
    machine::session::Answer,
    pb::{self, client_frame::Body as Asked},
};

fn accepted(seq: u64) -> Answer {
    Answer::Accepted { seq, time: 1 }
}

#[test]
fn answers_are_given_once_and_in_the_order_they_come() {
    let mut conn = Conn::plain();
    for n in 0..3 {
        conn.frame(n + 1, Asked::Send(send("g:a", &format!("x{n}"))));
    }
    conn.answer(1, accepted(5));
    conn.answer(1, accepted(6));
    conn.answer(0, Answer::Duplicate { seq: 2, time: 1 });
    conn.answer(2, Answer::Refused { code: Code::NotAMember, message: "".into() });
    conn.answer(99, accepted(9));
    assert_eq!(conn.heard(), ["2 ack x1 5", "1 dup x0 2", "3 NOT_A_MEMBER"]);
    assert_eq!(conn.session.in_flight(), 0);
}

#[test]
fn no_answer_in_time_is_unknown_and_a_late_one_is_dropped() {
    let mut conn = Conn::plain();
    conn.frame(1, Asked::Send(send("g:a", "x")));
    conn.pass(2.0);
    conn.frame(2, Asked::Send(send("g:a", "y")));
    conn.pass(3.0);
    assert_eq!(conn.heard(), ["1 UNKNOWN"]);
    conn.answer(0, accepted(1));
    conn.answer(1, accepted(2));
    assert_eq!(conn.heard(), ["2 ack y 2"]);
    assert!(conn.session.poll_timeout(&conn.limits) > Some(conn.now));
}

#[test]
fn a_failed_append_ends_the_conn_because_successors_may_have_passed() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.link(1);
    conn.answer(0, Answer::AppendFailed);
    assert_eq!(conn.heard(), ["close RESYNC"]);
}

#[test]
fn reading_stops_while_too_much_is_in_flight_and_silence_is_forgiven() {
    let mut conn = Conn::plain();
    conn.limits.reply_deadline = std::time::Duration::from_secs(600);
    for n in 0..4 {
        assert!(conn.wants_read());
        conn.frame(n, Asked::Send(send("g:a", &format!("x{n}"))));
    }
    assert!(!conn.wants_read());
    conn.frame(9, Asked::Send(send("g:a", "y")));
    assert_eq!(conn.heard(), ["9 BUSY"], "a driver that reads on loses nothing");
    conn.pass(500.0);
    conn.answer(0, accepted(1));
    assert!(conn.wants_read());
    conn.pass(74.0);
    assert!(!conn.is_closed(), "silence counts from when reading went on");
    conn.pass(1.0);
    assert_eq!(conn.heard(), ["0 ack x0 1", "close HEARTBEAT_MISSED"]);
}

#[test]
fn an_unchained_send_that_the_shard_refuses_is_answered_and_forgotten() {
    let mut conn = Conn::plain();
    conn.refusals.push_back(Code::BusUnavailable);
    conn.frame(1, Asked::Send(send("g:a", "x")));
    assert_eq!(conn.heard(), ["1 BUS_UNAVAILABLE"]);
    assert_eq!((conn.session.in_flight(), conn.submits.len()), (0, 0));
    conn.frame(2, Asked::Send(send("g:a", "x")));
    assert_eq!(conn.submits.pop_front().map(|submit| submit.ticket), Some(1), "a ticket is never used twice");
}

#[test]
fn a_driver_that_does_not_poll_gets_no_second_submission_and_loses_none() {
    let mut conn = Conn::plain();
    for id in [1, 2] {
        let frame = pb::ClientFrame { id, body: Some(Asked::Send(send("g:a", &format!("x{id}")))) };
        conn.session.handle_frame(frame, &conn.limits, conn.now, &mut conn.said);
    }
    assert!(!conn.wants_read());
    assert_eq!(conn.heard(), ["2 BUSY"]);
    conn.input(|_, _, _, _| {});
    assert_eq!(conn.submitted(), ["x1"]);
    assert!(conn.wants_read());
}

#[test]
fn a_chained_refusal_that_comes_after_its_successor_left_starts_a_new_epoch() {
    let mut conn = Conn::chained();
    conn.link(0);
    conn.link(1);
    conn.input(|s, l, now, out| s.submit_refused(0, Code::RateLimited, "", l, now, out));
    assert_eq!(conn.heard(), ["close RESYNC"]);
}
