//! Personal state of a user in a conversation, shared by all devices: read mark, cleared mark and hidden entries.

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

/// Read, cleared and hidden state of one user in one conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserState {
    /// Read mark.
    pub mark: Mark,
    /// Cleared mark.
    pub cleared: Mark,
    /// Hidden entries above the cleared mark, ascending.
    pub hidden: Vec<Hidden>,
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
            Personal::Read(_) | Personal::Cleared(_) => return false,
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
    }
}
