//! Tests of the judgement: a sound recording has no finding, and each planted fault has its own.

use std::time::Duration;

use super::{
    super::record::{Acked, Shown},
    *,
};

/// Recording of ada's a1, a2 and ben's b1, and the histories of both.
struct Case {
    record: Record,
    histories: [Vec<Stored>; 2],
}

const TEXTS: [(&str, User, u64); 3] = [("a1", User::Ada, 6), ("b1", User::Ben, 7), ("a2", User::Ada, 8)];

fn ack(seq: u64, is_duplicate: bool) -> Acked {
    Acked { seq, is_duplicate, at: Duration::ZERO }
}

fn shown(id: &str, seq: u64) -> Shown {
    Shown { seq, id: id.into(), text: format!("text of {id}"), at: Duration::ZERO, is_pulled: false }
}

fn stored(id: &str, seq: u64) -> Stored {
    Stored { seq, message: Some((id.into(), format!("text of {id}"))) }
}

impl Case {
    /// Records everything but what `is_left_out` names: `ack a1`, `show a1`.
    fn without(is_left_out: impl Fn(&str) -> bool) -> Self {
        let mut record = Record::default();
        for (id, by, seq) in TEXTS {
            record.attempt(by, id, &format!("text of {id}"), 1, Duration::ZERO);
            if !is_left_out(&format!("ack {id}")) {
                record.acked(id, ack(seq, false));
            }
            if !is_left_out(&format!("show {id}")) {
                record.show(by.other(), shown(id, seq));
            }
        }
        record.base = 5;
        let history = TEXTS.map(|(id, _, seq)| stored(id, seq)).to_vec();
        Self { record, histories: [history.clone(), history] }
    }

    fn sound() -> Self {
        Self::without(|_| false)
    }

    fn judge(&self) -> Judgement {
        judge(&self.record, &self.histories, Duration::ZERO)
    }

    fn rules(&self) -> Vec<&'static str> {
        let mut rules: Vec<_> = self.judge().findings.iter().map(|finding| finding.rule).collect();
        rules.dedup();
        rules
    }
}

#[test]
fn sound_recording_has_no_finding() {
    let judgement = Case::sound().judge();
    assert_eq!(judgement.counts, Counts { sent: 3, acked: 3, delivered: 3 });
    assert!(judgement.findings.is_empty(), "{:?}", judgement.findings);
    // A retry with the same answer is no second message.
    let mut case = Case::sound();
    case.record.attempt(User::Ada, "a1", "text of a1", 1, Duration::ZERO);
    case.record.acked("a1", ack(6, true));
    assert_eq!(case.judge(), judgement);
}

#[test]
fn entry_without_content_is_not_judged() {
    let mut case = Case::sound();
    case.histories.iter_mut().for_each(|history| history.push(Stored { seq: 9, message: None }));
    let judgement = case.judge();
    assert_eq!((judgement.counts.sent, judgement.findings.len()), (3, 0), "{judgement:?}");
}

#[test]
fn messages_that_neither_bot_sent_are_found() {
    let mut case = Case::sound();
    case.histories.iter_mut().for_each(|history| history.push(stored("x1", 9)));
    assert_eq!(case.rules(), ["never-sent"]);
    let mut case = Case::sound();
    case.record.show(User::Ben, shown("x1", 9));
    assert_eq!(case.rules(), ["never-sent", "phantom"]);
    assert_eq!(case.judge().count(Harm::Other), 2);
    // An own message that comes back.
    let mut case = Case::without(|step| step == "show b1");
    case.record.show(User::Ben, shown("b1", 7));
    assert_eq!(case.rules(), ["misplaced", "never-got", "non-monotonic"]);
}

#[test]
fn shown_message_must_be_where_the_history_has_it() {
    // Shown without an ack, and in no history.
    let mut case = Case::without(|step| step == "ack a2");
    case.histories.iter_mut().for_each(|history| history.truncate(2));
    assert_eq!(case.rules(), ["phantom"]);
    // Shown at another seq than that of the ack and of the history.
    let mut case = Case::without(|step| step == "show a2");
    case.record.show(User::Ben, shown("a2", 7));
    assert_eq!(case.rules(), ["inconsistent-seq"]);
    let mut case = Case::without(|step| step == "show a2");
    case.record.show(User::Ben, Shown { text: "another text".into(), ..shown("a2", 8) });
    assert_eq!(case.rules(), ["corrupted"]);
}

#[test]
fn what_followed_the_pull_of_the_histories_need_not_be_in_them() {
    let later = Duration::from_millis(1);
    let mut case = Case::without(|step| step.ends_with("a2"));
    case.histories.iter_mut().for_each(|history| history.truncate(2));
    case.record.acked("a2", Acked { at: later, ..ack(8, false) });
    case.record.show(User::Ben, Shown { at: later, ..shown("a2", 8) });
    assert!(case.rules().is_empty(), "{:?}", case.rules());
    let judgement = judge(&case.record, &case.histories, later);
    assert_eq!(judgement.findings.len(), 3, "{judgement:?}");
}

#[test]
fn message_without_an_ack_is_not_lost() {
    let mut case = Case::without(|step| step.ends_with("a2"));
    case.histories.iter_mut().for_each(|history| history.truncate(2));
    let judgement = case.judge();
    assert_eq!(judgement.counts, Counts { sent: 3, acked: 2, delivered: 2 });
    assert!(judgement.findings.is_empty(), "{:?}", judgement.findings);
}

#[test]
fn lost_messages_are_found() {
    let never = Case::without(|step| step == "show a2");
    assert_eq!(never.rules(), ["never-got"]);
    let judgement = never.judge();
    assert_eq!((judgement.counts.delivered, judgement.count(Harm::Lost)), (2, 1));
    let what = &judgement.findings.first().unwrap().what;
    assert!(what.contains("ben") && what.contains("a2") && what.contains('8'), "{what}");

    let mut case = Case::sound();
    case.histories.iter_mut().for_each(|history| history.truncate(2));
    assert_eq!(case.rules(), ["lost-acked", "phantom"]);
    // Gone from the middle of one history.
    let mut case = Case::sound();
    case.histories[1].remove(1);
    assert_eq!(case.rules(), ["lost-acked", "unexplained-gap"]);
    let mut case = Case::sound();
    case.histories[0].remove(0);
    assert!(case.rules().contains(&"unexplained-gap"), "the first entry after the base is missing");
    let mut case = Case::sound();
    for history in &mut case.histories {
        history[0].message = Some(("a1".into(), "another text".into()));
    }
    assert_eq!(case.rules(), ["corrupted"]);
    assert_eq!(case.judge().count(Harm::Lost), 1);
}

#[test]
fn doubled_messages_are_found() {
    let mut case = Case::sound();
    case.record.show(User::Ben, shown("a1", 6));
    assert_eq!(case.rules(), ["duplicate-after-dedup"]);
    let mut case = Case::sound();
    case.histories.iter_mut().for_each(|history| history.push(stored("a1", 9)));
    assert!(case.rules().contains(&"stored-twice"), "{:?}", case.rules());
    let mut case = Case::sound();
    case.record.acked("a1", ack(9, true));
    assert_eq!(case.rules(), ["ack-differs-on-retry"]);
    let mut case = Case::without(|step| step == "ack b1");
    case.record.acked("b1", ack(6, false));
    assert!(case.rules().contains(&"duplicate-seq"), "{:?}", case.rules());
    let mut case = Case::without(|step| step == "ack a2");
    case.record.refused("a2", "2001 NO".into());
    assert_eq!(case.rules(), ["refused-but-stored"]);
    assert_eq!(case.judge().count(Harm::Doubled), 1);
}

#[test]
fn disorder_is_found() {
    let mut case = Case::without(|step| step == "show a1");
    case.record.show(User::Ben, shown("a1", 6));
    assert_eq!(case.rules(), ["non-monotonic"]);
    // The message was sent after the ack of seq 8.
    let mut case = Case::sound();
    case.record.attempt(User::Ben, "b2", "text of b2", 1, Duration::ZERO);
    case.record.acked("b2", ack(4, false));
    assert!(case.rules().contains(&"real-time-inversion"), "{:?}", case.rules());
    assert!(case.rules().contains(&"session-order"), "{:?}", case.rules());
    let mut case = Case::sound();
    case.histories[1].swap(0, 1);
    (case.histories[1][0].seq, case.histories[1][1].seq) = (6, 7);
    assert!(case.rules().contains(&"inconsistent-seq"), "{:?}", case.rules());
    assert!(case.judge().count(Harm::OutOfOrder) >= 1);
}
