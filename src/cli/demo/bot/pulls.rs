//! Pulls of a bot: of what is missing, and of a history for a comparison.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    pb::{self, client_frame::Body as ClientBody},
};

use super::{
    super::{
        audit::{Audit, Pulled},
        past::{Past, Recheck},
        record::Record,
    },
    Asked, Bot,
};

/// Messages in one page.
const PAGE_MESSAGES: u32 = 100;

impl Bot {
    /// Begins to pull the history after `base`, for a comparison, or what was judged before, too. It changes nothing of
    /// what the bot has.
    pub(in super::super) fn begin_audit(&mut self, base: u64, judged: Option<&Arc<Past>>) {
        self.forget_audit();
        self.audit = Some(Audit::new(base, judged.and_then(|past| Recheck::new(past, self.user))));
        self.ask_audit();
    }

    /// Returns whether the pulled history is complete.
    pub(in super::super) fn has_audit(&self) -> bool {
        self.audit.as_ref().is_some_and(Audit::is_complete)
    }

    /// Ends the pull; returns the history, if it is complete.
    pub(in super::super) fn end_audit(&mut self) -> Option<Pulled> {
        self.forget_audit().filter(Audit::is_complete).map(Audit::into_pulled)
    }

    /// Ends the pull. A page that is still on its way belongs to no later one.
    fn forget_audit(&mut self) -> Option<Audit> {
        self.asked.retain(|_, asked| !matches!(asked, Asked::Audit));
        self.audit.take()
    }

    /// Asks for the next page of the comparison, if one is due.
    pub(super) fn ask_audit(&mut self) {
        let Some(audit) = self.audit.as_ref().filter(|audit| !audit.is_complete()) else { return };
        if !self.is_asked(&Asked::Audit) {
            let pull = self.forward(audit.cursor());
            self.ask(Asked::Audit, pull);
        }
    }

    /// Takes a page for the comparison.
    pub(super) fn take_audited(&mut self, page: pb::Page) {
        if let Some(audit) = &mut self.audit {
            audit.add(page);
        }
        self.ask_audit();
    }

    /// Handles a refusal of a page for the comparison: nothing is behind the cursor, or the passing of time repeats
    /// the request.
    pub(super) fn audit_refused(&mut self, error: &pb::Error) {
        let is_end = !error.temporary || error.code == u32::from(Code::NotYet.number());
        if let Some(audit) = self.audit.as_mut().filter(|_| is_end) {
            audit.end();
        }
    }

    /// Asks for what is missing.
    pub(super) fn pull_missing(&mut self) {
        let Some(complete) = self.complete.filter(|complete| *complete < self.target) else { return };
        if !self.is_asked(&Asked::Pull) {
            let pull = self.forward(complete);
            self.ask(Asked::Pull, pull);
        }
    }

    /// Takes a page of what was missing.
    pub(super) fn take_page(&mut self, page: pb::Page, now: Duration, record: &mut Record) {
        let before = self.complete;
        self.last_error = None;
        self.exists(page.complete_to);
        for push in page.messages {
            self.take(push, true, now, record);
        }
        for seq in page.recalled {
            self.know(seq, None, record);
        }
        for range in page.expired {
            for seq in range.first..=range.last.min(self.target) {
                self.know(seq, None, record);
            }
        }
        self.ack(false);
        // A page without progress is not asked for again at once.
        if self.complete > before {
            self.pull_missing();
        }
    }

    fn forward(&self, cursor: u64) -> ClientBody {
        let direction = pb::Direction::Forward.into();
        let conversation = self.conversation.to_owned();
        ClientBody::Pull(pb::Pull {
            conversation,
            cursor,
            limit: PAGE_MESSAGES,
            direction,
            ..Default::default()
        })
    }
}
