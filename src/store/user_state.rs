//! Personal state of a user in a conversation, shared by all devices: read mark, cleared mark, hidden entries, the
//! preference for push notices, and the bound of what the user can read.

use tidegate_protocol::settings::Push;

/// Position in a conversation with its message counts, so that the unread count is a subtraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Seq of the position, inclusive.
    pub seq: u64,
    /// Number of messages up to the position.
    pub messages: u64,
    /// Number of the user's own messages among them.
    pub own: u64,
}

/// Entry that the user has hidden from their own history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Seq of the entry.
    pub seq: u64,
    /// Whether the entry would count as unread above the marks: another user's message, sent while the user was a
    /// member.
    pub counts: bool,
}

/// Read, cleared, hidden and push state of one user in one conversation, and the bound of what the user can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserState {
    /// Read mark.
    pub mark: Mark,
    /// Cleared mark.
    pub cleared: Mark,
    /// Hidden entries above the cleared mark, ascending.
    pub hidden: Vec<Hidden>,
    /// Messages of the conversation that make push notices for the user; `None` if the user has no preference here.
    pub push: Option<Push>,
    /// Highest entry that the user can read, which the application has set; `None` if nothing but the membership bounds it.
    pub bound: Option<Mark>,
}

/// Change of a [`UserState`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Personal {
    /// Moves the read mark.
    Read(Mark),
    /// Moves the cleared mark.
    Cleared(Mark),
    /// Hides more entries.
    Hidden {
        /// Entries to hide, ascending.
        seqs: Vec<Hidden>,
        /// Drops stored hidden entries up to this seq: they are read, and removed for all users.
        forget: u64,
    },
    /// Sets or removes the preference for push notices.
    Push(Option<Push>),
    /// Sets or removes the bound of what the user can read. It moves in both directions.
    Bound(Option<Mark>),
}

impl UserState {
    /// Applies the change and returns whether it changed anything.
    ///
    /// A mark at a lower or equal seq changes nothing. Entries up to the cleared mark are not stored as hidden.
    pub fn apply(&mut self, change: &Personal) -> bool {
        match change {
            Personal::Read(mark) if mark.seq > self.mark.seq => self.mark = *mark,
            Personal::Cleared(mark) if mark.seq > self.cleared.seq => {
                self.cleared = *mark;
                self.hidden.retain(|it| it.seq > mark.seq);
            }
            Personal::Push(push) if *push != self.push => self.push = *push,
            Personal::Bound(bound) if *bound != self.bound => self.bound = *bound,
            Personal::Read(_) | Personal::Cleared(_) | Personal::Push(_) | Personal::Bound(_) => {
                return false;
            }
            Personal::Hidden { seqs, forget } => {
                let before = self.hidden.len();
                self.hidden.retain(|it| it.seq > *forget);
                let mut changed = self.hidden.len() < before;
                for new in seqs.iter().filter(|it| it.seq > self.cleared.seq) {
                    if let Err(index) = self.hidden.binary_search_by_key(&new.seq, |it| it.seq) {
                        self.hidden.insert(index, *new);
                        changed = true;
                    }
                }
                return changed;
            }
        }
        true
    }

    /// Returns whether the user has hidden the entry.
    pub fn hides(&self, seq: u64) -> bool {
        self.hidden.binary_search_by_key(&seq, |it| it.seq).is_ok()
    }

    /// Returns the higher of the two marks; nothing up to it is unread.
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
    fn marks_move_forward_and_cleared_entries_are_not_hidden() {
        let mut state = UserState::default();
        assert!(state.apply(&hide(&[3, 9], 0)) && state.apply(&hide(&[5], 0)));
        assert!(!state.apply(&hide(&[5], 0)), "once");
        assert!(state.apply(&Personal::Read(at(4))) && !state.apply(&Personal::Read(at(4))));
        assert_eq!((state.floor().seq, state.hides(5), state.hides(4)), (4, true, false));
        assert!(state.apply(&Personal::Cleared(at(6))) && !state.apply(&Personal::Cleared(at(5))));
        assert_eq!((state.floor().seq, state.hidden.len()), (6, 1));
        assert!(!state.apply(&hide(&[2, 6], 0)), "cleared already");
        assert!(state.apply(&hide(&[11], 9)), "9 is removed for all users");
        assert_eq!(state.hidden.iter().map(|it| it.seq).collect::<Vec<_>>(), [11]);
        let none = Personal::Push(Some(Push::None));
        assert!(state.apply(&none) && !state.apply(&none) && state.apply(&Personal::Push(None)));
        for bound in [Some(at(7)), Some(at(2)), None] {
            let change = Personal::Bound(bound);
            assert!(state.apply(&change) && !state.apply(&change) && state.bound == bound, "both directions");
        }
    }
}
