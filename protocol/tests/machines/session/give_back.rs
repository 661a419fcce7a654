//! Chained messages behind a temporary refusal: given back in chain order, never held, never skipped (S54).

use super::support::{Conn, chained_send, id};
use proptest::prelude::*;
use std::{collections::VecDeque, time::Duration};
use tidegate_protocol::{
    Code, Time,
    machine::session::{Action, SubmitAnswer, SubmitRefusal},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

fn accepted(seq: u64) -> SubmitAnswer {
    SubmitAnswer::Accepted { seq, time: 1 }
}

#[test]
fn k11_held_successors_are_given_back_in_chain_order() {
    let mut conn = Conn::chained();
    conn.link(2);
    conn.link(1);
    conn.refusals.push_back(Code::Busy);
    conn.link(0);
    assert_eq!(conn.output(), ["100 BUSY", "101 BUSY", "102 BUSY"]);
    assert_eq!((conn.session.expected(), conn.session.held()), (Some(&id("m0")), 0));
    conn.link(0);
    conn.link(1);
    conn.link(2);
    assert_eq!(conn.submitted(), ["m0", "m1", "m2"]);
}

#[test]
fn k11_a_refusal_during_a_release_gives_the_rest_back() {
    let mut conn = Conn::chained();
    conn.link(1);
    conn.link(2);
    conn.limits.in_flight_max = 1;
    conn.link(0);
    assert_eq!(conn.submitted(), ["m0"]);
    conn.refusals.push_back(Code::BusUnavailable);
    conn.answer(0, accepted(1));
    let output = conn.output();
    assert_eq!(output, ["save m0 then m1", "100 ack m0 1", "101 BUS_UNAVAILABLE", "102 BUS_UNAVAILABLE"]);
    conn.limits.in_flight_max = 4;
    conn.link(1);
    conn.link(2);
    let numbers: Vec<_> = conn.submits.iter().map(|it| (it.msg_id.as_str(), it.order.n)).collect();
    assert_eq!(numbers, [("m1", 1), ("m2", 2)]);
}

#[test]
fn k11_no_timer_runs_and_reading_goes_on_however_much_was_pipelined() {
    let mut conn = Conn::chained();
    conn.refusals.push_back(Code::Busy);
    // Far more than `hold_max` behind the refused message.
    for n in 0..20 {
        conn.link(n);
        assert!(conn.wants_read());
    }
    let refused: Vec<_> = (100..120).map(|frame| format!("{frame} BUSY")).collect();
    assert_eq!(conn.output(), refused);
    // The order timeout is 2 s: neither an alarm nor a skip follows.
    for _ in 0..4 {
        conn.pass(1.0);
    }
    assert!(conn.output().is_empty());
    for n in 0..4 {
        conn.link(n);
    }
    assert_eq!(conn.submitted(), ["m0", "m1", "m2", "m3"]);
}

#[test]
fn k11_the_parked_message_is_given_back_as_well() {
    let mut conn = Conn::chained();
    for n in 1..=4 {
        conn.link(n);
    }
    assert!(!conn.wants_read(), "m4 is parked: three are held");
    conn.output();
    // Two order timeouts skip m0; m1 is released and refused.
    conn.refusals.push_back(Code::Overloaded);
    conn.pass(2.0);
    conn.pass(2.0);
    let output = conn.output();
    let refused = ["101 OVERLOADED", "102 OVERLOADED", "103 OVERLOADED", "104 OVERLOADED"];
    assert_eq!(output[output.len() - 4..], refused, "{output:?}");
    assert!(conn.wants_read());
}

#[test]
fn k11_the_wait_is_the_remaining_one() {
    let mut conn = Conn::chained();
    conn.frame(100, ClientBody::Send(chained_send("g:a", "m0", "m1")));
    let ticket = conn.submits.pop_front().expect("submitted").ticket;
    let retry_after = Duration::from_millis(7_000);
    conn.input(|s, l, now, out| {
        let refusal = SubmitRefusal { retry_after, ..Code::RateLimited.into() };
        s.submit_refused(ticket, refusal, l, now, out);
    });
    conn.pass(3.0);
    conn.frame(101, ClientBody::Send(chained_send("g:a", "m1", "m2")));
    let waits: Vec<_> = conn.actions.iter().filter_map(error).map(|it| it.retry_after_ms).collect();
    assert_eq!(waits, [7_000, 4_000]);
}

#[test]
fn k11_a_client_that_gives_the_message_up_is_not_stuck() {
    let mut conn = Conn::chained();
    conn.refusals.push_back(Code::Busy);
    conn.link(0);
    conn.output();
    // The announced second and the order timeout: early messages are held again, with alarm and skip.
    conn.pass(3.0);
    conn.link(1);
    assert_eq!(conn.session.held(), 1);
    conn.pass(2.0);
    conn.pass(2.0);
    assert_eq!(conn.submitted(), ["m1"]);
}

fn error(action: &Action) -> Option<&pb::Error> {
    match action {
        Action::Reply(frame) => match frame.body.as_ref()? {
            ServerBody::Error(error) => Some(error),
            _ => None,
        },
        _ => None,
    }
}

/// Client that follows SPEC section 6: after a refusal it waits, and then sends again from the first refused id.
struct Client {
    conn: Conn,
    /// Messages from 0 on that are accepted.
    accepted: Vec<String>,
    /// First message without an ack, and the first that was not sent since the last refusal.
    next: (u64, u64),
    wait_until: Option<Time>,
    open: VecDeque<u64>,
}

impl Client {
    fn new() -> Self {
        let (mut conn, accepted, open) = (Conn::chained(), Vec::new(), VecDeque::new());
        // Outcomes that stay unknown are not the subject here.
        conn.limits.reply_deadline = Duration::from_secs(3_600);
        Self { conn, accepted, next: (0, 0), wait_until: None, open }
    }

    fn send(&mut self) {
        if self.conn.wants_read() {
            self.conn.link(self.next.1);
            self.next.1 += 1;
        }
    }

    fn take(&mut self) -> Result<(), TestCaseError> {
        for submit in self.conn.submits.drain(..) {
            self.accepted.push(submit.msg_id.to_string());
            self.open.push_back(submit.ticket);
        }
        for action in std::mem::take(&mut self.conn.actions) {
            match &action {
                Action::SaveChain { .. } => {}
                Action::Reply(frame) => match frame.body.as_ref().expect("a body") {
                    ServerBody::SendAck(_) => self.next.0 += 1,
                    ServerBody::Error(error) => {
                        prop_assert!(error.temporary, "{error:?}");
                        let wait = Duration::from_millis(error.retry_after_ms.into());
                        self.wait_until.get_or_insert(self.conn.now + wait);
                    }
                    other => prop_assert!(false, "{other:?}"),
                },
                other => prop_assert!(false, "{other:?}"),
            }
        }
        Ok(())
    }

    fn pass(&mut self, ms: u64) {
        self.conn.now = self.conn.now + Duration::from_millis(ms);
        self.conn.session.handle_heard(self.conn.now);
        self.conn.input(|s, l, now, out| s.handle_timeout(l, now, out));
        if self.wait_until.is_some_and(|until| until <= self.conn.now) {
            self.wait_until = None;
            // Submitted ones without an ack are neither refused nor sent again.
            self.next.1 = self.next.0 + self.open.len() as u64;
        }
    }

    fn answer(&mut self) {
        if let Some(ticket) = self.open.pop_front() {
            self.conn.answer(ticket, accepted(ticket + 1));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send,
    Refuse(u8),
    Answer,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => Just(Step::Send),
        2 => (0..4u8).prop_map(Step::Refuse),
        4 => Just(Step::Answer),
        3 => (1..1_500u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn k11_every_message_ends_accepted_in_chain_order(steps in proptest::collection::vec(step(), 1..120)) {
        const CODES: [Code; 4] = [Code::Busy, Code::BusUnavailable, Code::Overloaded, Code::RateLimited];
        let mut client = Client::new();
        for step in steps {
            match step {
                Step::Send => client.send(),
                Step::Refuse(code) => client.conn.refusals.push_back(CODES[usize::from(code)]),
                Step::Answer => client.answer(),
                Step::Pass(ms) => client.pass(ms),
            }
            client.take()?;
        }
        client.conn.refusals.clear();
        let all = client.next.1;
        for _ in 0..400 {
            client.pass(500);
            client.take()?;
            if client.next.1 < all && client.wait_until.is_none() {
                client.send();
            }
            client.answer();
            client.take()?;
        }
        let expected: Vec<_> = (0..client.accepted.len()).map(|n| format!("m{n}")).collect();
        prop_assert!(client.accepted.len() as u64 >= all, "{} of {all}", client.accepted.len());
        prop_assert_eq!(client.accepted, expected);
    }
}
