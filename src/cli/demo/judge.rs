//! Judgement of a recording against the histories that both bots pulled, by those rules of the history checker
//! (docs/internals/testing.md) that concern one conversation of two devices. Pure.
//!
//! Only the bots write in their conversation: any other message in it counts as `never-sent`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use super::record::{Counts, Record, Shown, User};

/// Entry of a pulled history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) seq: u64,
    /// Id and text of the message; `None` for an entry without content.
    pub(super) message: Option<(String, String)>,
}

impl Stored {
    /// Returns the id of the message.
    fn id(&self) -> Option<&str> {
        self.message.as_ref().map(|(id, _)| id.as_str())
    }
}

/// Broken promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    pub(super) rule: &'static str,
    /// Sentence with the ids and seqs.
    pub(super) what: String,
}

/// Kind of harm that a broken promise does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    Lost,
    Doubled,
    OutOfOrder,
    /// Nothing of these three, such as a recovery that takes too long.
    Other,
}

/// Counts of all messages, and the broken promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    pub(super) counts: Counts,
    pub(super) findings: BTreeSet<Finding>,
}

impl Finding {
    /// Returns which count the finding belongs to.
    pub(super) fn harm(&self) -> Harm {
        match self.rule {
            "lost-acked" | "never-got" | "unexplained-gap" | "corrupted" => Harm::Lost,
            "duplicate-after-dedup"
            | "stored-twice"
            | "duplicate-seq"
            | "ack-differs-on-retry"
            | "refused-but-stored" => Harm::Doubled,
            "non-monotonic" | "session-order" | "real-time-inversion" | "inconsistent-seq" => {
                Harm::OutOfOrder
            }
            _ => Harm::Other,
        }
    }
}

impl Judgement {
    /// Returns the number of findings of a kind.
    pub(super) fn count(&self, harm: Harm) -> usize {
        self.findings.iter().filter(|finding| finding.harm() == harm).count()
    }

    fn add(&mut self, rule: &'static str, what: String) {
        self.findings.insert(Finding { rule, what });
    }
}

/// Judges a recording against the histories that each user pulled from its base on. The pull began at `pulled_at`:
/// what was acked or shown later need not be in them.
pub(super) fn judge(record: &Record, histories: &[Vec<Stored>; 2], pulled_at: Duration) -> Judgement {
    let mut judgement = Judgement { counts: record.counts(), ..Judgement::default() };
    for user in User::BOTH {
        let history = &histories[user as usize];
        check_shown(record, user, &mut judgement);
        check_history(record, user, history, &mut judgement);
        check_stored(record, user, history, pulled_at, &mut judgement);
    }
    check_acks(record, &mut judgement);
    check_order(record, &mut judgement);
    check_equal(histories, &mut judgement);
    judgement
}

/// Checks that a user was shown each message of the other once, in order and unchanged, and nothing else.
fn check_shown(record: &Record, user: User, judgement: &mut Judgement) {
    let (name, mut ids, mut last) = (user.name(), HashSet::new(), record.base);
    for shown in record.shown(user) {
        let (id, seq) = (&shown.id, shown.seq);
        if !ids.insert(id) {
            judgement.add("duplicate-after-dedup", format!("{name} was shown {id}, seq {seq}, once more"));
            continue;
        }
        if seq <= last {
            judgement.add("non-monotonic", format!("{name} was shown seq {seq}, {id}, after seq {last}"));
        }
        last = last.max(seq);
        match record.find(id) {
            None => {
                judgement
                    .add("never-sent", format!("{name} was shown {id}, seq {seq}, which neither bot sent"));
            }
            Some(sent) if sent.by == user => {
                judgement.add("misplaced", format!("{name} was shown {id}, seq {seq}, which is its own"));
            }
            Some(sent) if sent.text != shown.text => {
                judgement.add("corrupted", format!("{id}, seq {seq}, reached {name} with another text"));
            }
            Some(_) => {}
        }
    }
}

/// Checks that all acks of a message name one seq, which no other message has.
fn check_acks(record: &Record, judgement: &mut Judgement) {
    let mut owners: HashMap<u64, &str> = HashMap::new();
    for sent in record.sent() {
        let Some(first) = sent.seq() else { continue };
        for ack in sent.acks.iter().filter(|ack| ack.seq != first) {
            let what = format!("{} was acked as seq {first}, then as seq {}", sent.id, ack.seq);
            judgement.add("ack-differs-on-retry", what);
        }
        if let Some(other) = owners.insert(first, &sent.id) {
            judgement.add("duplicate-seq", format!("{other} and {} were both acked as seq {first}", sent.id));
        }
    }
}

/// Checks the order: a message sent after an ack is behind it, and messages of one connection keep their order.
fn check_order(record: &Record, judgement: &mut Judgement) {
    let mut lasts: HashMap<(u64, bool), u64> = HashMap::new();
    for sent in record.sent() {
        let Some(seq) = sent.seq() else { continue };
        if seq <= sent.floor {
            let what = format!("{} has seq {seq}, and was sent after the ack of seq {}", sent.id, sent.floor);
            judgement.add("real-time-inversion", what);
        }
        // Either attempt of a repeated send may be the stored one.
        if sent.attempts > 1 {
            continue;
        }
        let last = lasts.entry((sent.session, sent.by == User::Ada)).or_default();
        if seq < *last {
            let what = format!("{} has seq {seq}, and was sent after that with seq {last}", sent.id);
            judgement.add("session-order", what);
        }
        *last = seq.max(*last);
    }
}

/// Checks a user's history: no hole, nothing twice, and only what was sent, unchanged and not refused.
fn check_history(record: &Record, user: User, history: &[Stored], judgement: &mut Judgement) {
    let name = user.name();
    let mut places: HashMap<&str, u64> = HashMap::new();
    let mut expected = record.base + 1;
    for entry in history {
        if entry.seq != expected {
            judgement.add(
                "unexplained-gap",
                format!("{name}'s history has seq {} where {expected} is due", entry.seq),
            );
        }
        expected = entry.seq + 1;
        let Some((id, text)) = &entry.message else { continue };
        if let Some(before) = places.insert(id, entry.seq) {
            judgement.add("stored-twice", format!("{id} is stored at seq {before} and at seq {}", entry.seq));
        }
        let Some(sent) = record.find(id) else {
            judgement
                .add("never-sent", format!("{id} is stored at seq {}, and neither bot sent it", entry.seq));
            continue;
        };
        if sent.text != *text {
            judgement.add("corrupted", format!("{id} is stored at seq {} with another text", entry.seq));
        }
        if sent.refused.is_some() && sent.acks.is_empty() {
            judgement
                .add("refused-but-stored", format!("{id} was refused, and is stored at seq {}", entry.seq));
        }
    }
}

/// Checks that a user's history has everything that was acked and that the user was shown, at that seq, and that the
/// user was shown what was acked.
fn check_stored(
    record: &Record,
    user: User,
    history: &[Stored],
    pulled_at: Duration,
    judgement: &mut Judgement,
) {
    let name = user.name();
    let entries: HashMap<u64, &Stored> = history.iter().map(|entry| (entry.seq, entry)).collect();
    let is_due = |seq: u64, at: Duration| seq > record.base && at <= pulled_at;
    for Shown { id, seq, .. } in record.shown(user).iter().filter(|it| is_due(it.seq, it.at)) {
        let (rule, found) = match entries.get(seq) {
            Some(entry) if entry.id() == Some(id.as_str()) => continue,
            Some(_) => ("inconsistent-seq", "another there"),
            None => ("phantom", "no such entry"),
        };
        judgement.add(rule, format!("{name} was shown {id} as seq {seq}, and its history has {found}"));
    }
    let shown = record.ids_shown(user);
    for sent in record.sent() {
        let Some(ack) = sent.acks.first().filter(|ack| ack.at <= pulled_at) else { continue };
        let (id, seq) = (&sent.id, ack.seq);
        if entries.get(&seq).and_then(|entry| entry.id()) != Some(id.as_str()) {
            judgement.add(
                "lost-acked",
                format!("{id} was acked as seq {seq}, and {name}'s history has it not there"),
            );
        }
        if sent.by != user && !shown.contains(id.as_str()) {
            judgement.add("never-got", format!("{name} never got seq {seq}, {id}"));
        }
    }
}

/// Checks that both histories have the same message at each seq.
fn check_equal(histories: &[Vec<Stored>; 2], judgement: &mut Judgement) {
    let [ada, ben] = histories;
    let of_ada: BTreeMap<u64, &Stored> = ada.iter().map(|entry| (entry.seq, entry)).collect();
    for entry in ben {
        if of_ada.get(&entry.seq).is_some_and(|other| other.message != entry.message) {
            judgement
                .add("inconsistent-seq", format!("ada and ben have different messages at {}", entry.seq));
        }
    }
}

#[cfg(test)]
mod tests;
