//! The self-test of recovery: faults that follow one another, and waits that are nobody's fault.

use super::*;

const S: u64 = 1_000 * MS;

/// A history with times in seconds.
#[derive(Default)]
struct Broken(Tape);

impl Broken {
    fn add(&mut self, seconds: u64, event: HistoryEvent<&str>) {
        self.0.0.push(Stamped { at: seconds * S, event: event.map(str::to_owned) });
    }

    /// Adds faults of 4 s, with a second between two of them.
    fn faults(&mut self, seconds: std::ops::Range<u64>) {
        for from in seconds.step_by(5) {
            self.fault("kill", from..from + 4);
        }
    }

    fn fault(&mut self, fault: &str, seconds: std::ops::Range<u64>) {
        self.add(seconds.start, HistoryEvent::Nemesis { on: true, fault });
        self.add(seconds.end, HistoryEvent::Nemesis { on: false, fault });
    }

    fn send(&mut self, seconds: u64, cid: &str) {
        let Client { user, session } = ANN;
        let (device, conv) = ("p", "r:r");
        let send =
            HistoryEvent::SendInv { user, device, session, conv, cid, body: 0, attempt: 0, chained: false };
        self.add(seconds, send);
    }

    fn ok(&mut self, seconds: u64, cid: &str) {
        self.add(seconds, HistoryEvent::SendOk { cid, seq: seconds, duplicate: false });
    }

    fn report(self) -> CheckReport {
        let mut tape = self.0;
        tape.0.sort_by_key(|it| it.at);
        check(&tape.history(), Budget::default())
    }
}

#[test]
fn faults_that_follow_one_another_share_one_budget() {
    let mut broken = Broken::default();
    broken.faults(0..200);
    broken.send(1, "w1");
    broken.ok(200, "w1");
    let report = broken.report();
    assert_eq!(report.broken.keys().copied().collect::<Vec<_>>(), ["slow-recovery"]);
    assert_eq!(report.longest_recovery_ns, 40 * S);
    let mut never = Broken::default();
    never.faults(0..200);
    never.send(1, "w1");
    assert!(never.report().broken.contains_key("slow-recovery"), "no ack came at all");
}

#[test]
fn time_without_a_wait_or_with_a_fault_does_not_count() {
    let mut acked = Broken::default();
    acked.faults(0..200);
    for from in [1, 101] {
        let cid = format!("w{from}");
        acked.send(from, &cid);
        acked.ok(from + 98, &cid);
    }
    let report = acked.report();
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!(report.longest_recovery_ns, 19 * S);
    let mut long = Broken::default();
    long.fault("postgres-stop", 0..100);
    long.send(1, "w1");
    long.ok(101, "w1");
    assert!(long.report().is_clean(), "nothing had to be accepted during the fault");
    let mut refused = Broken::default();
    refused.faults(0..400);
    refused.send(1, "w1");
    refused.add(2, HistoryEvent::SendFail { cid: "w1", code: 2_004 });
    refused.send(399, "w2");
    refused.ok(400, "w2");
    assert!(refused.report().is_clean(), "a refusal is an answer");
}

#[test]
fn ack_of_any_client_ends_the_waits_of_all() {
    let mut broken = Broken::default();
    broken.fault("kill", 0..4);
    broken.send(5, "w1");
    for from in [10, 30, 50, 70] {
        let cid = format!("x{from}");
        broken.send(from, &cid);
        broken.ok(from + 1, &cid);
    }
    let report = broken.report();
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!(report.longest_recovery_ns, 7 * S);
}

#[test]
fn outage_of_a_receiver_of_webhooks_does_not_restart_the_budget() {
    let mut broken = Broken::default();
    broken.fault("kill", 0..4);
    broken.send(5, "w1");
    for from in [10, 20, 30] {
        broken.fault("receiver", from..from + 3);
    }
    broken.ok(50, "w1");
    assert!(broken.report().broken.contains_key("slow-recovery"));
}
