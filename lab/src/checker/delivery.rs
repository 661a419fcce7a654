//! Rules 3, 7 and 8: received entries, compared with the log within one connection.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use super::{Checker, HistoryEvent, Id, Via, sends::Row};

/// Connections, and the entries that each saw.
#[derive(Default)]
pub(super) struct Sessions {
    pub(super) open: BTreeMap<u64, Session>,
    views: BTreeMap<(u64, Id), View>,
    /// Last seq that a device has shown, by conversation.
    shown: HashMap<(Id, Id, Id), u64>,
    shown_ids: HashSet<(Id, Id, Id)>,
    /// Seqs of a conversation that a device got, by a push or a pull over any connection.
    got: HashMap<(Id, Id, Id), HashSet<u64>>,
    /// Devices that report that they have everything, and the event of that report.
    complete: BTreeMap<(Id, Id), (usize, bool)>,
    /// Pushes after a later one of the conversation, for the first time on their connection.
    late: Vec<Got>,
}

#[derive(Clone, Copy)]
pub(super) struct Session {
    pub(super) user: Id,
    pub(super) device: Id,
    pub(super) opened: usize,
    /// Time of the close.
    pub(super) closed: Option<u64>,
}

/// Entries of one conversation that one connection saw.
#[derive(Default)]
struct View {
    /// Seqs with the event of their first push; they rise.
    seen: Vec<(u64, usize)>,
    /// Ranges that were announced as left out.
    gaps: Vec<(u64, u64)>,
}

/// A received entry.
#[derive(Clone, Copy)]
pub(super) struct Got {
    pub(super) at: usize,
    pub(super) user: Id,
    pub(super) device: Id,
    pub(super) session: u64,
    pub(super) conv: Id,
    pub(super) seq: u64,
    pub(super) cid: Option<Id>,
    body: u64,
}

impl Checker<'_> {
    /// Checks everything that was received, and notes what came of live rooms.
    pub(super) fn check_deliveries(&mut self) {
        for at in 0..self.history.events.len() {
            let stamped = self.history.events[at];
            match stamped.event {
                HistoryEvent::Open { user, device, session } => {
                    self.sessions.open.insert(session, Session { user, device, opened: at, closed: None });
                }
                HistoryEvent::Close { session, .. } => {
                    if let Some(session) = self.sessions.open.get_mut(&session) {
                        session.closed = Some(stamped.at);
                    }
                }
                HistoryEvent::Gap { session, conv, first, last } => {
                    self.report.told_gaps += 1;
                    self.sessions.views.entry((session, conv)).or_default().gaps.push((first, last));
                }
                HistoryEvent::Shed { session, conv, count } => {
                    self.note_shed(at, (session, conv), count);
                }
                HistoryEvent::Joined { session, conv, .. } => self.note_stay(at, (session, conv)),
                HistoryEvent::Complete { user, device, hints } => {
                    self.sessions.complete.insert((user, device), (at, hints));
                }
                HistoryEvent::Recv { user, device, session, conv, seq, cid, body, via } => {
                    let got = Got { at, user, device, session, conv, seq, cid, body };
                    self.receive(got, via);
                }
                _ => {}
            }
        }
        self.add_silent_views();
        let views = std::mem::take(&mut self.sessions.views);
        for ((session, conv), view) in &views {
            let who = self.sessions.open.get(session).map(|it| (it.user, it.device));
            if who.and_then(|who| self.sessions.complete.get(&who)).is_none_or(|(_, hints)| !hints) {
                // A client with hints only pulls what was lost between nodes: `check_complete` judges all that it ever
                // got.
                self.check_view(*session, *conv, view);
            }
        }
        // The hole of a client that pulls may fill before its pull, when the push was in flight.
        for got in std::mem::take(&mut self.sessions.late) {
            match self.sessions.complete.get(&(got.user, got.device)) {
                Some((_, true)) => self.report.late += 1,
                _ => self.report_delivery("non-monotonic", got),
            }
        }
        for ((user, device), (at, _)) in self.sessions.complete.clone() {
            self.check_complete(user, device, at);
        }
    }

    /// Compares everything that a device was due, over all its connections, with everything that it got.
    fn check_complete(&mut self, user: Id, device: Id, at: usize) {
        let mut missing = Vec::new();
        for (conv, log) in &self.logs {
            let got = self.sessions.got.get(&(user, device, *conv));
            let lacks = |seq: &u64| got.is_none_or(|got| !got.contains(seq));
            let rows = log.rows.keys().copied().filter(lacks);
            let due = rows.filter(|seq| self.is_due(*conv, *seq, user, device, None));
            let due = due.filter(|seq| !self.may_have_expired(*conv, *seq, user, None));
            missing.extend(due.map(|seq| (*conv, seq)));
        }
        for (conv, seq) in missing {
            self.broken("never-got", at, |h| {
                format!("{}/{} never got {} {seq}", h.name(user), h.name(device), h.name(conv))
            });
        }
    }

    fn receive(&mut self, got: Got, via: Via) {
        self.report.pushes += 1;
        let room = self.history.name(got.conv).starts_with("r:");
        self.check_origin(got);
        if room {
            if via == Via::Push {
                self.note_talk(got);
            }
            return;
        }
        self.check_place(got, via);
        self.sessions.got.entry((got.user, got.device, got.conv)).or_default().insert(got.seq);
        if !self.was_member(got.conv, got.user, got.seq) {
            self.report_delivery("leak-after-kick", got);
        }
        match via {
            Via::Push => self.note_push(got),
            Via::Pull => self.report.pulled += 1,
            Via::App => self.note_shown(got),
        }
    }

    /// Checks that a message was sent before, to that conversation, with that content, and was not refused.
    fn check_origin(&mut self, got: Got) {
        let Some(cid) = got.cid else { return };
        let Some(send) = self.sends.get(&cid) else { return self.report_delivery("never-sent", got) };
        let (body, conv, first, failed) = (send.body, send.conv, send.first, send.failed.is_some());
        if first > got.at {
            self.report_delivery("time-travel", got);
        }
        if failed {
            self.report_delivery("aborted-read", got);
        }
        if body != got.body && !self.edits.has(got.conv, got.seq, got.body) {
            self.report_delivery("corrupted", got);
        }
        if conv != got.conv {
            self.report_delivery("misplaced", got);
        }
    }

    /// Checks that the log has that entry at this seq, and that an edit with content has its own. A library may have pulled the
    /// message for it, with the content of a later edit.
    fn check_place(&mut self, got: Got, via: Via) {
        let row = self.logs.get(&got.conv).and_then(|log| log.rows.get(&got.seq)).copied();
        match (row, got.cid) {
            (None, _) => self.report_delivery("phantom", got),
            (Some(Row::Message { cid }), Some(mine)) if cid == mine => {}
            (Some(Row::Edit { of, cid }), None) => {
                let is_own = self.edits.asked(cid).is_some_and(|edit| edit.body == got.body);
                let is_later = via == Via::App && self.edits.has(got.conv, of, got.body);
                if got.body != 0 && !is_own && !is_later {
                    self.report_delivery("corrupted", got);
                }
            }
            (Some(Row::Member), None) => {}
            _ => self.report_delivery("inconsistent-seq", got),
        }
    }

    fn note_push(&mut self, got: Got) {
        let view = self.sessions.views.entry((got.session, got.conv)).or_default();
        match view.seen.last() {
            Some((last, _)) if *last >= got.seq => {
                let known = view.seen.binary_search_by_key(&got.seq, |(seq, _)| *seq).is_ok();
                if known {
                    self.report.repeated += 1;
                } else {
                    self.sessions.late.push(got);
                }
            }
            _ => view.seen.push((got.seq, got.at)),
        }
    }

    fn note_shown(&mut self, got: Got) {
        let key = (got.user, got.device, got.conv);
        if let Some(cid) = got.cid
            && !self.sessions.shown_ids.insert((got.user, got.device, cid))
        {
            return self.report_delivery("duplicate-after-dedup", got);
        }
        let Some(last) = self.sessions.shown.insert(key, got.seq) else { return };
        if got.seq <= last {
            return self.report_delivery("non-monotonic", got);
        }
        let view = self.sessions.views.get(&(got.session, got.conv));
        let is_reported = |seq: u64| view.is_some_and(|view| view.is_told(seq));
        let missed = (last + 1..got.seq)
            .filter(|seq| self.is_due(got.conv, *seq, got.user, got.device, None) && !is_reported(*seq))
            .any(|seq| !self.may_have_expired(got.conv, seq, got.user, Some(got.at)));
        if missed {
            self.report_delivery("silent-skip", got);
        }
    }

    /// Adds the connections that lived to the end and saw nothing of one of their conversations.
    fn add_silent_views(&mut self) {
        let mut convs: HashMap<Id, Vec<Id>> = HashMap::default();
        for (conv, log) in &self.logs {
            let pair = self.pair(*conv);
            let direct = pair.into_iter().flat_map(|(a, b)| [a, b]);
            for user in log.members.keys().copied().chain(direct.filter_map(|it| self.history.find(it))) {
                convs.entry(user).or_default().push(*conv);
            }
        }
        let alive: Vec<(u64, Id)> = (self.sessions.open.iter())
            .filter(|(_, it)| it.closed.is_none())
            .map(|(session, it)| (*session, it.user))
            .collect();
        for (session, user) in alive {
            for conv in convs.get(&user).into_iter().flatten() {
                self.sessions.views.entry((session, *conv)).or_default();
            }
        }
    }

    fn check_view(&mut self, number: u64, conv: Id, view: &View) {
        let (Some(session), Some(log)) = (self.sessions.open.get(&number).copied(), self.logs.get(&conv))
        else {
            return;
        };
        let alive = session.closed.is_none();
        let first = view.seen.first().map_or(u64::MAX, |(seq, _)| *seq);
        let last = view.seen.last().map_or(0, |(seq, _)| *seq);
        let range = if alive { 1..=u64::MAX } else { first..=last };
        if range.is_empty() {
            return;
        }
        let (mut missing, mut excused) = (Vec::new(), 0);
        let mut seen = view.seen.iter().copied().peekable();
        for seq in log.rows.range(range).map(|(seq, _)| *seq) {
            while seen.next_if(|(it, _)| *it < seq).is_some() {}
            let next = seen.peek().copied();
            if next.is_some_and(|(it, _)| it == seq) {
                continue;
            }
            let inside = first < seq && seq < last;
            let since = (!inside).then_some(session.opened);
            if view.is_told(seq) || !self.is_due(conv, seq, session.user, session.device, since) {
                continue;
            }
            match (session.closed, next) {
                (Some(closed), Some((_, at)))
                    if closed.saturating_sub(self.history.events[at].at) < self.budget.excuse_ns =>
                {
                    excused += 1;
                }
                (_, next) => missing.push((seq, inside, next.map(|(_, at)| at))),
            }
        }
        self.report.excused += excused;
        for (seq, inside, at) in missing {
            let rule = if inside { "silent-skip" } else { "not-delivered" };
            let at = at.unwrap_or(self.history.events.len());
            self.broken(rule, at, |h| {
                let (user, device) = (h.name(session.user), h.name(session.device));
                format!("connection {number} of {user}/{device} never got {} {seq}", h.name(conv))
            });
        }
    }

    /// Returns whether a row was due to a device: its user is a member, it did not write the row itself and, with
    /// `since`, the row was surely sent after that event.
    pub(super) fn is_due(&self, conv: Id, seq: u64, user: Id, device: Id, since: Option<usize>) -> bool {
        let row = self.logs.get(&conv).and_then(|log| log.rows.get(&seq));
        let late = match row {
            None => return false,
            Some(Row::Member | Row::Edit { .. }) => since.is_none(),
            Some(Row::Message { cid }) => match self.sends.get(cid) {
                None => return false,
                Some(send) => {
                    (send.user, send.device) != (user, device)
                        && since.is_none_or(|opened| send.first > opened)
                }
            },
        };
        late && self.was_member(conv, user, seq)
    }

    /// Returns whether a message may have been `expired` for a user, with `until` before that event: it was edited while the
    /// user was out, so all that is stored is a content that the user may not see. Who is in again gets the message.
    fn may_have_expired(&self, conv: Id, seq: u64, user: Id, until: Option<usize>) -> bool {
        let Some(log) = self.logs.get(&conv) else { return false };
        log.edits.get(&seq).into_iter().flatten().any(|edit| {
            let Some(Row::Edit { cid, .. }) = log.rows.get(edit) else { return false };
            let asked = self.edits.asked(*cid);
            let was_asked = until.is_none_or(|until| asked.is_some_and(|asked| asked.at < until));
            was_asked && !self.was_member(conv, user, *edit)
        })
    }

    fn was_member(&self, conv: Id, user: Id, seq: u64) -> bool {
        if let Some((a, b)) = self.pair(conv) {
            let user = self.history.name(user);
            return a == user || b == user;
        }
        let spans = self.logs.get(&conv).and_then(|log| log.members.get(&user));
        spans.is_some_and(|spans| spans.iter().any(|(from, to)| (from..=to).contains(&&seq)))
    }

    /// Returns the two users of a direct conversation.
    pub(super) fn pair(&self, conv: Id) -> Option<(&str, &str)> {
        self.history.name(conv).strip_prefix("d:")?.split_once(':')
    }

    pub(super) fn report_delivery(&mut self, rule: &'static str, got: Got) {
        self.broken(rule, got.at, |h| {
            let (user, device) = (h.name(got.user), h.name(got.device));
            let what = got.cid.map_or("a change of members", |cid| h.name(cid));
            format!("{user}/{device} on {} got {what} as {} {}", got.session, h.name(got.conv), got.seq)
        });
    }
}

impl Sessions {
    /// Returns the event by which a device reported that it has everything.
    pub(super) fn completed(&self, user: Id, device: Id) -> Option<usize> {
        self.complete.get(&(user, device)).map(|(at, _)| *at)
    }
}

impl View {
    fn is_told(&self, seq: u64) -> bool {
        self.gaps.iter().any(|(first, last)| (first..=last).contains(&&seq))
    }
}
