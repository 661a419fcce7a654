//! The self-test: a clean history is silent, and every rule names the fault that is planted for it.

mod away;
mod calm;
mod edits;
mod marks;
mod presence;
mod recovery;
mod rooms;
mod stays;
mod webhooks;

use super::*;

const MS: u64 = 1_000_000;

/// A history under construction, with one event per millisecond.
#[derive(Clone, Default)]
struct Tape(Vec<Stamped<String>>);

impl Tape {
    fn add(&mut self, event: HistoryEvent<&str>) {
        let at = self.0.len() as u64 * MS;
        self.0.push(Stamped { at, event: event.map(str::to_owned) });
    }

    fn send(&mut self, by: Client<'_>, conv: &str, cid: &str, chained: bool) {
        let Client { user, session } = by;
        let body = body_of(cid);
        self.add(HistoryEvent::SendInv { user, device: "p", session, conv, cid, body, attempt: 0, chained });
    }

    fn ok(&mut self, cid: &str, seq: u64) {
        self.add(HistoryEvent::SendOk { cid, seq, duplicate: false });
    }

    fn recv(&mut self, by: Client<'_>, conv: &str, seq: u64, cid: Option<&str>) {
        let Client { user, session } = by;
        for via in [Via::Push, Via::App] {
            let body = cid.map_or(0, body_of);
            self.add(HistoryEvent::Recv { user, device: "p", session, conv, seq, cid, body, via });
        }
    }

    fn log(&mut self, conv: &str, seq: u64, sender: &str, cid: &str) {
        let body = body_of(cid);
        self.add(HistoryEvent::LogMessage { conv, seq, sender, device: "p", cid, body });
    }

    fn member(&mut self, seq: u64, user: &str, change: Change) {
        self.add(HistoryEvent::LogMember { conv: "g:g", seq, user, change });
    }

    fn history(&self) -> History {
        let mut history = History::default();
        for it in &self.0 {
            history.push(it.at, it.event.clone());
        }
        history
    }

    /// Returns the rules that are broken after a change.
    fn with(&self, change: impl FnOnce(&mut Vec<Stamped<String>>)) -> Vec<&'static str> {
        let mut changed = self.clone();
        change(&mut changed.0);
        check(&changed.history(), Budget::default()).broken.into_keys().collect()
    }

    /// Returns the index of the first event that fits.
    fn at(&self, wanted: impl Fn(&HistoryEvent<String>) -> bool) -> usize {
        self.0.iter().position(|it| wanted(&it.event)).unwrap()
    }
}

fn body_of(cid: &str) -> u64 {
    cid.bytes().fold(7, |hash, byte| hash * 31 + u64::from(byte))
}

/// A user with its connection.
#[derive(Clone, Copy)]
struct Client<'a> {
    user: &'a str,
    session: u64,
}

const ANN: Client<'_> = Client { user: "ann", session: 1 };
const BOB: Client<'_> = Client { user: "bob", session: 2 };
const DAN: Client<'_> = Client { user: "dan", session: 3 };

/// Returns a history in which two users talk, and a third is in their group until it is removed.
fn clean() -> Tape {
    let mut tape = Tape::default();
    for Client { user, session } in [ANN, BOB, DAN] {
        tape.add(HistoryEvent::Open { user, device: "p", session });
    }
    for seq in 1..=4 {
        let cid = format!("a{seq}");
        tape.send(ANN, "d:ann:bob", &cid, true);
        tape.ok(&cid, seq);
        tape.recv(BOB, "d:ann:bob", seq, Some(&cid));
    }
    for who in [ANN, BOB, DAN] {
        tape.recv(who, "g:g", 1, None);
    }
    tape.send(ANN, "g:g", "b2", false);
    tape.ok("b2", 2);
    tape.recv(BOB, "g:g", 2, Some("b2"));
    tape.recv(DAN, "g:g", 2, Some("b2"));
    tape.add(HistoryEvent::Member { conv: "g:g", user: "dan", change: Change::Kick, seq: 3 });
    for who in [ANN, BOB, DAN] {
        tape.recv(who, "g:g", 3, None);
    }
    tape.add(HistoryEvent::Nemesis { on: true, fault: "kill" });
    tape.add(HistoryEvent::Nemesis { on: false, fault: "kill" });
    tape.send(DAN, "g:g", "b4", false);
    tape.add(HistoryEvent::SendFail { cid: "b4", code: 2_004 });
    tape.send(ANN, "g:g", "b5", false);
    tape.add(HistoryEvent::SendInfo { cid: "b5" });
    tape.send(ANN, "g:g", "b5", false);
    tape.ok("b5", 4);
    tape.recv(BOB, "g:g", 4, Some("b5"));
    for seq in 1..=5 {
        let cid = format!("r{seq}");
        tape.send(ANN, "r:r", &cid, false);
        tape.ok(&cid, 1_000 + seq);
        if seq != 3 {
            tape.recv(BOB, "r:r", 1_000 + seq, Some(&cid));
        }
    }
    tape.add(HistoryEvent::Shed { session: 2, conv: "r:r", count: 1 });
    for seq in 1..=4 {
        tape.log("d:ann:bob", seq, "ann", &format!("a{seq}"));
    }
    for user in ["ann", "bob", "dan"] {
        tape.member(1, user, Change::Join);
    }
    tape.log("g:g", 2, "ann", "b2");
    tape.member(3, "dan", Change::Kick);
    tape.log("g:g", 4, "ann", "b5");
    tape
}

fn is_send(wanted: &str) -> impl Fn(&HistoryEvent<String>) -> bool {
    move |event| matches!(event, HistoryEvent::SendInv { cid, .. } if cid == wanted)
}

fn is_ok(wanted: &str) -> impl Fn(&HistoryEvent<String>) -> bool {
    move |event| matches!(event, HistoryEvent::SendOk { cid, .. } if cid == wanted)
}

fn is_row(wanted: &str) -> impl Fn(&HistoryEvent<String>) -> bool {
    move |event| matches!(event, HistoryEvent::LogMessage { cid, .. } if cid == wanted)
}

fn is_push(wanted: &str, how: Via) -> impl Fn(&HistoryEvent<String>) -> bool {
    move |event| matches!(event, HistoryEvent::Recv { cid: Some(cid), via, .. } if cid == wanted && *via == how)
}

#[test]
fn message_that_its_client_stored_is_answered_or_in_the_log() {
    let mut tape = clean();
    let sent = tape.at(|event| matches!(event, HistoryEvent::SendInv { cid, .. } if cid == "b2"));
    let (at, event) = (tape.0[sent].at, HistoryEvent::SendKept { cid: "b2".to_owned() });
    tape.0.insert(sent + 1, Stamped { at, event });
    let (ok, row) = (
        tape.at(is_ok("b2")),
        |it: &Stamped<String>| matches!(&it.event, HistoryEvent::LogMessage { cid, .. } if cid == "b2"),
    );
    assert!(tape.with(|_| ()).is_empty());
    assert!(tape.with(|it| drop(it.remove(ok))).is_empty(), "an ack that is lost is no lost message");
    let lost = tape.with(|it| {
        it.remove(ok);
        it.retain(|it| !row(it));
    });
    assert!(lost.contains(&"kept-lost"), "{lost:?}");
    let refused = tape.with(|it| {
        it[ok].event = HistoryEvent::SendFail { cid: "b2".to_owned(), code: 2_004 };
        it.retain(|it| !row(it));
    });
    assert!(!refused.contains(&"kept-lost"), "{refused:?}");
}

#[test]
fn a_clean_history_is_silent_and_counted() {
    let tape = clean();
    let report = check(&tape.history(), Budget::default());
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!((report.sent, report.acked, report.refused, report.rows), (12, 11, 1, 8));
    assert_eq!((report.repeated, report.shed, report.faults), (0, 1, 1));
}

#[test]
fn what_is_allowed_is_counted_and_not_judged() {
    let tape = clean();
    let again = tape.at(is_push("a2", Via::Push));
    let mut repeated = tape.clone();
    repeated.0.insert(again + 3, tape.0[again].clone());
    let report = check(&repeated.history(), Budget::default());
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!(report.repeated, 1);
    // A hole just before a disconnect: its announcement may have been in flight.
    let mut cut = tape.clone();
    cut.0.retain(|it| !is_push("a2", Via::Push)(&it.event));
    cut.0.retain(|it| !matches!(&it.event, HistoryEvent::Recv { via: Via::App, .. }));
    let close = cut.at(is_push("b5", Via::Push)) + 1;
    cut.0.insert(close, Stamped { at: cut.0[close].at, event: HistoryEvent::Close { session: 2, code: 0 } });
    let report = check(&cut.history(), Budget::default());
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!(report.excused, 1);
}

#[test]
fn who_says_that_nothing_is_missing_is_held_to_it() {
    let tape = clean();
    let complete =
        |user: &str| HistoryEvent::Complete { user: user.to_owned(), device: "p".into(), hints: true };
    let mut lost = tape.clone();
    lost.0.retain(|it| !matches!(&it.event, HistoryEvent::Recv { via: Via::App, .. }));
    lost.0.retain(|it| !is_push("a2", Via::Push)(&it.event));
    assert_eq!(lost.with(|_| {}), ["silent-skip"]);
    for user in ["ann", "bob", "dan"] {
        lost.0.push(Stamped { at: lost.0.len() as u64 * MS, event: complete(user) });
    }
    assert_eq!(lost.with(|_| {}), ["never-got"]);
    // A hole that fills without a pull is no violation for a device that pulls.
    let mut late = tape.clone();
    late.0.retain(|it| !matches!(&it.event, HistoryEvent::Recv { via: Via::App, .. }));
    let push = late.0.remove(late.at(is_push("a2", Via::Push)));
    let behind = late.at(is_push("a3", Via::Push)) + 1;
    late.0.insert(behind, Stamped { at: late.0[behind].at, ..push });
    assert!(late.with(|_| {}).contains(&"non-monotonic"));
    let last = late.0.len() as u64 * MS;
    assert!(late.with(|it| it.push(Stamped { at: last, event: complete("bob") })).is_empty());
    // A pull over a later connection of the device is as good.
    let pull = HistoryEvent::Recv {
        user: "bob".into(),
        device: "p".into(),
        session: 9,
        conv: "d:ann:bob".into(),
        seq: 2,
        cid: Some("a2".into()),
        body: body_of("a2"),
        via: Via::Pull,
    };
    let end = lost.at(|event| matches!(event, HistoryEvent::Complete { .. }));
    let at = lost.0[end].at;
    assert!(lost.with(|it| it.insert(end, Stamped { at, event: pull })).is_empty());
}

#[test]
fn a_history_comes_back_from_its_lines() {
    let history = clean().history();
    let lines: Vec<String> = history.events.iter().map(|event| history.line(event).unwrap()).collect();
    let back = History::parse(&lines.join("\n")).unwrap();
    assert_eq!(back.events, history.events);
    assert!(lines[0].contains("\"ann\""), "{}", lines[0]);
    assert_eq!(History::parse("\n{}\n").unwrap_err().line, 2);
}

#[test]
fn acks_and_the_log_disagree() {
    let tape = clean();
    let row = tape.at(is_row("a4"));
    assert!(tape.with(|it| drop(it.remove(row))).contains(&"lost-acked"));
    let ok = tape.at(is_ok("a4"));
    let again = Stamped { at: 0, event: HistoryEvent::SendOk { cid: "a4".into(), seq: 9, duplicate: true } };
    assert_eq!(tape.with(|it| it.insert(ok + 1, again)), ["ack-differs-on-retry"]);
    let refused = Stamped { at: 0, event: HistoryEvent::SendFail { cid: "b5".into(), code: 2_004 } };
    assert_eq!(
        tape.with(|it| it.insert(tape.at(is_ok("b5")), refused)),
        ["aborted-read", "refused-but-stored"]
    );
    let kick = tape.at(|event| matches!(event, HistoryEvent::Member { .. }));
    let member =
        |seq| HistoryEvent::Member { conv: "g:g".into(), user: "dan".into(), change: Change::Kick, seq };
    assert!(tape.with(|it| it[kick].event = member(2)).contains(&"lost-acked"));
}

#[test]
fn the_log_repeats_or_misses_something() {
    let tape = clean();
    let row = tape.at(is_row("a4"));
    let set = |at: usize, to: u64| {
        move |it: &mut Vec<Stamped<String>>| {
            if let HistoryEvent::LogMessage { seq, .. } = &mut it[at].event {
                *seq = to;
            }
        }
    };
    assert!(tape.with(set(row, 3)).contains(&"duplicate-seq"));
    assert!(tape.with(set(row, 6)).contains(&"unexplained-gap"));
    let mut twice = tape.0[row].clone();
    twice.event = HistoryEvent::LogMessage {
        conv: "d:ann:bob".into(),
        seq: 5,
        sender: "ann".into(),
        device: "p".into(),
        cid: "a4".into(),
        body: body_of("a4"),
    };
    assert!(tape.with(|it| it.push(twice)).contains(&"stored-twice"));
    let gap = |first, last| Stamped {
        at: 0,
        event: HistoryEvent::LogGap { conv: "d:ann:bob".into(), first, last },
    };
    assert_eq!(tape.with(|it| it.push(gap(4, 4))), ["false-gap"]);
    let mut pruned = tape.clone();
    pruned.0.retain(|it| !matches!(&it.event, HistoryEvent::SendOk { cid, .. } if cid == "a1"));
    pruned.0.retain(|it| !is_push("a1", Via::Push)(&it.event) && !is_push("a1", Via::App)(&it.event));
    pruned.0.retain(|it| !is_row("a1")(&it.event));
    assert_eq!(pruned.with(|_| {}), ["unexplained-gap"]);
    assert!(pruned.with(|it| it.push(gap(1, 1))).is_empty());
}

#[test]
fn what_came_is_not_what_was_sent() {
    let tape = clean();
    let push = tape.at(is_push("a3", Via::Push));
    let alter = |change: fn(&mut u64, &mut Option<String>, &mut u64)| {
        tape.with(|it| {
            let HistoryEvent::Recv { seq, cid, body, .. } = &mut it[push].event else { panic!("no push") };
            change(seq, cid, body);
        })
    };
    assert_eq!(alter(|_, _, body| *body += 1), ["corrupted"]);
    assert!(alter(|seq, _, _| *seq = 77).contains(&"phantom"));
    assert!(alter(|_, cid, _| *cid = Some("zz".into())).contains(&"never-sent"));
    assert!(alter(|_, cid, _| *cid = None).contains(&"inconsistent-seq"));
    assert!(alter(|_, cid, body| (*cid, *body) = (Some("b2".into()), body_of("b2"))).contains(&"misplaced"));
    let row = tape.at(is_row("a3"));
    let other = tape.with(|it| {
        if let HistoryEvent::LogMessage { body, .. } = &mut it[row].event {
            *body += 1;
        }
    });
    assert_eq!(other, ["corrupted"]);
    let early = tape.with(|it| {
        let taken = it.remove(push);
        it.insert(push - 2, taken);
    });
    assert_eq!(early, ["time-travel"]);
}

/// Swaps the seqs of two messages everywhere.
fn swap(it: &mut [Stamped<String>], one: (&str, u64), two: (&str, u64)) {
    for event in it {
        if let HistoryEvent::SendOk { cid, seq, .. }
        | HistoryEvent::LogMessage { cid, seq, .. }
        | HistoryEvent::Recv { cid: Some(cid), seq, .. } = &mut event.event
        {
            if cid == one.0 {
                *seq = two.1;
            } else if cid == two.0 {
                *seq = one.1;
            }
        }
    }
}

#[test]
fn order_is_lost() {
    let tape = clean();
    let swapped = tape.with(|it| swap(it, ("a2", 2), ("a3", 3)));
    for rule in ["real-time-inversion", "session-order", "chain-order", "non-monotonic"] {
        assert!(swapped.contains(&rule), "{rule}: {swapped:?}");
    }
    // The flaw S11: an allocator that was away hands out an old number after newer ones were acked.
    let late = tape.with(|it| swap(it, ("b2", 2), ("b5", 4)));
    assert!(late.contains(&"real-time-inversion"), "{late:?}");
}

/// The send was refused before its sender joined, the refusal was lost, and the retry of the member was accepted.
#[test]
fn a_retry_after_a_join_is_let_in_behind_its_successors() {
    let mut tape = Tape::default();
    tape.add(HistoryEvent::Open { user: "ann", device: "p", session: 1 });
    tape.add(HistoryEvent::Member { conv: "g:g", user: "bob", change: Change::Join, seq: 1 });
    tape.send(ANN, "g:g", "e1", true);
    tape.send(ANN, "g:g", "e2", true);
    tape.ok("e2", 3);
    tape.send(ANN, "g:g", "e1", true);
    tape.ok("e1", 4);
    tape.member(1, "bob", Change::Join);
    tape.member(2, "ann", Change::Join);
    tape.log("g:g", 3, "ann", "e2");
    tape.log("g:g", 4, "ann", "e1");
    assert_eq!(tape.with(|_| {}), ["let-in-late"]);
    let in_front = tape.with(|it| swap(it, ("e1", 4), ("e2", 3)));
    assert!(!in_front.contains(&"let-in-late"), "{in_front:?}");
    let always = tape.with(|it| {
        for event in it {
            if let HistoryEvent::LogMember { seq, .. } = &mut event.event {
                *seq = 1;
            }
        }
    });
    assert!(always.contains(&"chain-order"), "{always:?}");
}

#[test]
fn the_clients_own_dedup_fails() {
    let tape = clean();
    let shown = tape.at(is_push("a2", Via::App));
    let again = tape.0[shown].clone();
    assert_eq!(tape.with(|it| it.insert(shown + 4, again)), ["duplicate-after-dedup"]);
    assert_eq!(tape.with(|it| drop(it.remove(shown))), ["silent-skip"]);
    let member = tape.at(|event| matches!(event, HistoryEvent::Recv { cid: None, via: Via::App, .. }));
    let again = tape.0[member].clone();
    assert_eq!(tape.with(|it| it.insert(member + 1, again)), ["non-monotonic"]);
}

#[test]
fn a_member_misses_something_without_a_word() {
    let tape = clean();
    let drop_pushes = |cid: &'static str| {
        move |it: &mut Vec<Stamped<String>>| {
            it.retain(|it| !is_push(cid, Via::Push)(&it.event) && !is_push(cid, Via::App)(&it.event));
        }
    };
    assert!(tape.with(drop_pushes("a2")).contains(&"silent-skip"));
    assert_eq!(tape.with(drop_pushes("a4")), ["not-delivered"]);
    let findings = tape.with(|it| {
        drop_pushes("a4")(it);
        let gap = HistoryEvent::Gap { session: 2, conv: "d:ann:bob".into(), first: 4, last: 4 };
        it.push(Stamped { at: 0, event: gap });
    });
    assert!(findings.is_empty(), "{findings:?}");
    let nothing = tape.with(|it| {
        for cid in ["a1", "a2", "a3", "a4"] {
            drop_pushes(cid)(it);
        }
    });
    assert_eq!(nothing, ["not-delivered"]);
}

#[test]
fn somebody_hears_what_is_not_theirs() {
    let tape = clean();
    let leak = |user: &str, session, conv: &str, seq, cid: &str| {
        let (user, conv, body) = (user.to_owned(), conv.to_owned(), body_of(cid));
        let cid = Some(cid.to_owned());
        let event =
            HistoryEvent::Recv { user, device: "p".into(), session, conv, seq, cid, body, via: Via::Push };
        let at = tape.at(is_push("b5", Via::Push));
        tape.with(|it| it.insert(at, Stamped { at: 0, event }))
    };
    assert_eq!(leak("dan", 3, "g:g", 4, "b5"), ["leak-after-kick"]);
    assert_eq!(leak("dan", 3, "d:ann:bob", 1, "a1"), ["leak-after-kick"]);
}

#[test]
fn a_room_sheds_more_than_it_says() {
    let tape = clean();
    let shed = tape.at(|event| matches!(event, HistoryEvent::Shed { .. }));
    let last = tape.at(is_send("r5"));
    let later = |it: &mut Vec<Stamped<String>>| it[last..].iter_mut().for_each(|it| it.at += 5_000 * MS);
    assert!(tape.with(later).is_empty(), "it was told");
    let untold = |it: &mut Vec<Stamped<String>>| {
        later(it);
        it.remove(shed);
    };
    assert_eq!(tape.with(untold), ["shed-untold"]);
    assert!(tape.with(|it| drop(it.remove(shed))).is_empty(), "it may be overtaken by the last one");
}

#[test]
fn the_broker_comes_back_too_late() {
    let tape = clean();
    let ok = tape.at(is_ok("b5"));
    let late = |it: &mut Vec<Stamped<String>>| {
        for event in &mut it[ok..] {
            event.at += 60_000 * MS;
        }
    };
    assert_eq!(tape.with(late), ["slow-recovery"]);
    let never = tape.with(|it| {
        late(it);
        it.retain(
            |it| !matches!(&it.event, HistoryEvent::SendOk { cid, .. } if cid == "b5" || cid.starts_with('r')),
        );
    });
    assert_eq!(never, ["slow-recovery"]);
}
