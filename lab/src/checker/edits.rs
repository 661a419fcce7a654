//! Edits: each row names a message before it, as a client asked, and a message has the content of its newest edit.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use super::{
    Checker, Id,
    sends::{AckedEdit, AskedEdit, Row, StoredBody},
};

/// Edits and contents of a history.
#[derive(Default)]
pub(super) struct Edits {
    asked: HashMap<Id, AskedEdit>,
    acked: Vec<AckedEdit>,
    stored: Vec<StoredBody>,
}

impl Edits {
    pub(super) fn note_asked(&mut self, cid: Id, edit: AskedEdit) {
        self.asked.entry(cid).or_insert(edit);
    }

    pub(super) fn note_acked(&mut self, edit: AckedEdit) {
        self.acked.push(edit);
    }

    pub(super) fn note_stored(&mut self, stored: StoredBody) {
        self.stored.push(stored);
    }

    /// Returns an edit as it was first asked for.
    pub(super) fn asked(&self, cid: Id) -> Option<&AskedEdit> {
        self.asked.get(&cid)
    }

    /// Returns whether a message may have had this content because of an edit.
    pub(super) fn has(&self, conv: Id, of: u64, body: u64) -> bool {
        self.asked.values().any(|edit| (edit.conv, edit.of, edit.body) == (conv, of, body))
    }
}

impl Checker<'_> {
    /// Checks the edits of the log, and the content that its messages have at the end.
    pub(super) fn check_edits(&mut self) {
        let end = self.history.events.len();
        let (mut newest, mut wrong, mut stored) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        for (conv, log) in &self.logs {
            for (seq, row) in &log.rows {
                let Row::Edit { of, cid } = *row else { continue };
                let is_message = match log.rows.get(&of) {
                    Some(Row::Message { .. }) => of < *seq,
                    Some(_) => false,
                    // Retention has removed it.
                    None => log.gaps.iter().any(|(_, first, last)| (*first..=*last).contains(&of)),
                };
                if !is_message {
                    wrong.push(("edit-misplaced", *conv, *seq, of));
                }
                if !stored.insert(cid) {
                    wrong.push(("stored-twice", *conv, *seq, of));
                }
                match self.edits.asked(cid).filter(|edit| (edit.conv, edit.of) == (*conv, of)) {
                    Some(edit) => drop(newest.insert((*conv, of), edit.body)),
                    None => wrong.push(("edit-unasked", *conv, *seq, of)),
                }
            }
        }
        wrong.sort_unstable_by_key(|it| (it.1, it.2));
        for (rule, conv, seq, of) in wrong {
            self.broken(rule, end, |h| format!("{} {seq} edits {of}", h.name(conv)));
        }
        for AckedEdit { at, cid, seq } in std::mem::take(&mut self.edits.acked) {
            let log = self.edits.asked(cid).and_then(|edit| self.logs.get(&edit.conv));
            let row = log.and_then(|log| log.rows.get(&seq));
            if !matches!(row, Some(Row::Edit { cid: it, .. }) if *it == cid) {
                self.broken("lost-acked", at, |h| format!("the edit {} at {seq}", h.name(cid)));
            }
        }
        for StoredBody { at, conv, seq, cid, body } in std::mem::take(&mut self.edits.stored) {
            let sent = self.sends.get(&cid).map(|send| send.body);
            match newest.get(&(conv, seq)) {
                Some(edited) if *edited != body => {
                    self.broken("edit-lost", at, |h| {
                        format!("{} at {seq} has other content than that of its newest edit", h.name(cid))
                    });
                }
                Some(_) => {}
                None if sent.is_some_and(|sent| sent != body) => {
                    self.broken("corrupted", at, |h| format!("{} in the log at {seq}", h.name(cid)));
                }
                None => {}
            }
        }
    }
}
