//! What a user keeps of a conversation: how far it is read and cleared, and what is hidden (DESIGN 6.6, user level).

/// A place in a conversation, and what lies up to there: so that unread is a subtraction (DESIGN 6.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Everything up to here.
    pub seq: u64,
    /// How many messages the conversation has up to there.
    pub messages: u64,
    /// How many of them are the user's own.
    pub own: u64,
}

/// An entry that the user has taken away for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Which.
    pub seq: u64,
    /// Whether it would count as unread above the marks: a message of another, said while the user was in.
    pub counts: bool,
}

/// How a user stands to the history of a conversation; shared by their devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Up to where the user has read.
    pub mark: Mark,
    /// Up to where the user has cleared.
    pub cleared: Mark,
    /// What the user has hidden above that, ascending.
    pub hidden: Vec<Hidden>,
}

/// A change of a [`Level`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Personal {
    /// It is read up to there.
    Read(Mark),
    /// It is cleared up to there.
    Cleared(Mark),
    /// These are hidden, too.
    Hidden {
        /// Which, ascending.
        seqs: Vec<Hidden>,
        /// Those up to here need not be remembered: they are gone for everybody, and read.
        forget: u64,
    },
}

impl Level {
    /// Takes the change over; false = there was nothing to change. Marks at a lower seq change nothing, and what is
    /// cleared is not remembered as hidden.
    pub fn apply(&mut self, change: &Personal) -> bool {
        match change {
            Personal::Read(mark) if mark.seq > self.mark.seq => self.mark = *mark,
            Personal::Cleared(mark) if mark.seq > self.cleared.seq => {
                self.cleared = *mark;
                self.hidden.retain(|it| it.seq > mark.seq);
            }
            Personal::Read(_) | Personal::Cleared(_) => return false,
            Personal::Hidden { seqs, forget } => {
                let before = self.hidden.len();
                self.hidden.retain(|it| it.seq > *forget);
                let mut changed = self.hidden.len() < before;
                for new in seqs.iter().filter(|it| it.seq > self.cleared.seq) {
                    if let Err(place) = self.hidden.binary_search_by_key(&new.seq, |it| it.seq) {
                        self.hidden.insert(place, *new);
                        changed = true;
                    }
                }
                return changed;
            }
        }
        true
    }

    /// Whether the user has hidden that entry.
    pub fn hides(&self, seq: u64) -> bool {
        self.hidden.binary_search_by_key(&seq, |it| it.seq).is_ok()
    }

    /// Below it nothing is unread: the higher of the two marks.
    pub fn floor(&self) -> Mark {
        if self.cleared.seq > self.mark.seq { self.cleared } else { self.mark }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seq: u64) -> Mark {
        Mark { seq, messages: seq, own: 0 }
    }

    fn hide(seqs: &[u64], forget: u64) -> Personal {
        Personal::Hidden { seqs: seqs.iter().map(|seq| Hidden { seq: *seq, counts: true }).collect(), forget }
    }

    #[test]
    fn marks_move_forward_and_what_is_cleared_is_not_remembered_as_hidden() {
        let mut level = Level::default();
        assert!(level.apply(&hide(&[3, 9], 0)) && level.apply(&hide(&[5], 0)));
        assert!(!level.apply(&hide(&[5], 0)), "once");
        assert!(level.apply(&Personal::Read(at(4))) && !level.apply(&Personal::Read(at(4))));
        assert_eq!((level.floor().seq, level.hides(5), level.hides(4)), (4, true, false));
        assert!(level.apply(&Personal::Cleared(at(6))) && !level.apply(&Personal::Cleared(at(5))));
        assert_eq!((level.floor().seq, level.hidden.len()), (6, 1));
        assert!(!level.apply(&hide(&[2, 6], 0)), "cleared already");
        assert!(level.apply(&hide(&[11], 9)), "9 is gone for everybody");
        assert_eq!(level.hidden.iter().map(|it| it.seq).collect::<Vec<_>>(), [11]);
    }
}
