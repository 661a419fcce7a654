//! Past: what earlier judgements found in the history, so that a loss since then is found too. Pure.
//!
//! A judgement forgets the messages that it was about. Of each entry it leaves 16 bytes here: the seq and a hash.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use super::{
    judge::{Finding, Stored},
    record::User,
};

/// Findings of one comparison that name their seq; further ones are counted in one more.
const NAMED_MAX: usize = 16;

/// Seqs and hashes of the entries that were judged and are forgotten, ascending.
#[derive(Clone, Debug, Default)]
pub(super) struct Past(Vec<(u64, u64)>);

impl Past {
    /// Adds the entries up to `end` of a history that was judged.
    pub(super) fn add(&mut self, history: &[Stored], end: u64) {
        for entry in history.iter().filter(|entry| entry.seq <= end) {
            if self.0.last().is_none_or(|(last, _)| *last < entry.seq) {
                self.0.push((entry.seq, hash_of(entry)));
            }
        }
    }

    /// Returns the seq before the first entry; `None` without entries.
    fn base(&self) -> Option<u64> {
        self.0.first().map(|(seq, _)| seq.saturating_sub(1))
    }
}

fn hash_of(entry: &Stored) -> u64 {
    let mut hasher = DefaultHasher::new();
    entry.message.hash(&mut hasher);
    hasher.finish()
}

/// Comparison of a pulled history with the past, entry by entry, so that the history is not kept.
#[derive(Debug)]
pub(super) struct Recheck {
    past: Arc<Past>,
    user: User,
    base: u64,
    /// Index of the next entry of the past.
    next: usize,
    found: Vec<(&'static str, u64)>,
    unnamed: usize,
}

impl Recheck {
    /// Begins the comparison of a user's history; `None` if nothing was judged yet.
    pub(super) fn new(past: &Arc<Past>, user: User) -> Option<Self> {
        let (past, base) = (Arc::clone(past), past.base()?);
        Some(Self { past, user, base, next: 0, found: Vec::new(), unnamed: 0 })
    }

    /// Returns the seq from which the history is pulled.
    pub(super) const fn base(&self) -> u64 {
        self.base
    }

    /// Begins again.
    pub(super) fn restart(&mut self) {
        self.next = 0;
        self.found.clear();
        self.unnamed = 0;
    }

    /// Compares the next entry of the history.
    pub(super) fn add(&mut self, entry: &Stored) {
        self.lose_before(entry.seq);
        if let Some((seq, hash)) = self.past.0.get(self.next).copied()
            && seq == entry.seq
        {
            self.next += 1;
            if hash != hash_of(entry) {
                self.find("corrupted", seq);
            }
        }
    }

    /// Ends the comparison: what did not come is lost. Returns the findings.
    pub(super) fn end(mut self) -> Vec<Finding> {
        self.lose_before(u64::MAX);
        let name = self.user.name();
        let sentence = |(rule, seq): &(&'static str, u64)| {
            let what = match *rule {
                "corrupted" => format!("seq {seq} of {name}'s history is not what it was when it was judged"),
                _ => format!("seq {seq} was in {name}'s history when it was judged, and is there no longer"),
            };
            Finding { rule, what }
        };
        let more = (self.unnamed > 0).then(|| Finding {
            rule: "lost-acked",
            what: format!("{} more of {name}'s judged entries are lost or changed", self.unnamed),
        });
        self.found.iter().map(sentence).chain(more).collect()
    }

    /// Reports the entries before `seq` as lost.
    fn lose_before(&mut self, seq: u64) {
        while let Some((lost, _)) = self.past.0.get(self.next).copied().filter(|(next, _)| *next < seq) {
            self.next += 1;
            self.find("lost-acked", lost);
        }
    }

    fn find(&mut self, rule: &'static str, seq: u64) {
        if self.found.len() < NAMED_MAX {
            self.found.push((rule, seq));
        } else {
            self.unnamed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(seq: u64, text: &str) -> Stored {
        Stored { seq, message: Some((format!("id{seq}"), text.to_owned())) }
    }

    fn history() -> Vec<Stored> {
        (6..=45).map(|seq| stored(seq, "text")).collect()
    }

    /// Returns the findings in a history whose first forty entries were judged in two parts.
    fn found(history: &[Stored]) -> Vec<(&'static str, String)> {
        let (mut past, judged) = (Past::default(), self::history());
        past.add(&judged[..10], 15);
        // The end of a judged part is where nothing was open.
        past.add(&judged[10..], 44);
        let mut recheck = Recheck::new(&Arc::new(past), User::Ben).unwrap();
        assert_eq!(recheck.base(), 5);
        recheck.add(&stored(6, "of the connection before"));
        recheck.restart();
        history.iter().for_each(|entry| recheck.add(entry));
        recheck.end().into_iter().map(|finding| (finding.rule, finding.what)).collect()
    }

    #[test]
    fn judged_entry_that_is_lost_later_is_found() {
        assert_eq!(found(&history()), []);
        for at in [0, 7, 38] {
            let mut lost = history();
            let seq = lost.remove(at).seq;
            let what = format!("seq {seq} was in ben's history when it was judged, and is there no longer");
            assert_eq!(found(&lost), [("lost-acked", what)]);
        }
        let mut later = history();
        later.remove(39);
        assert_eq!(found(&later), [], "the rest is for the next judgement");
    }

    #[test]
    fn judged_entry_that_changes_later_is_found() {
        let mut changed = history();
        changed[3] = stored(9, "another text");
        changed[4].message = None;
        let rules: Vec<_> = found(&changed).into_iter().map(|(rule, _)| rule).collect();
        assert_eq!(rules, ["corrupted", "corrupted"]);
    }

    #[test]
    fn findings_are_bounded() {
        let found = found(&[]);
        assert_eq!(found.len(), NAMED_MAX + 1);
        assert_eq!(found[NAMED_MAX].1, "23 more of ben's judged entries are lost or changed");
        assert!(Recheck::new(&Arc::default(), User::Ada).is_none());
    }
}
