//! Rules 1 to 4 and 6: sends and answers, compared with the log.

use std::collections::BTreeMap;

use super::{Change, Checker, HistoryEvent, Id};

/// A message with all its attempts.
pub(super) struct Send {
    pub(super) first: usize,
    pub(super) user: Id,
    pub(super) device: Id,
    pub(super) session: u64,
    pub(super) conv: Id,
    pub(super) body: u64,
    pub(super) attempts: u32,
    /// Event and connection of the last attempt.
    pub(super) last: (usize, u64),
    pub(super) chained: bool,
    /// Seq and event of the first ack.
    pub(super) ok: Option<(u64, usize)>,
    pub(super) failed: Option<usize>,
    /// Event by which the client stored it.
    pub(super) kept: Option<usize>,
    /// Seq in the log.
    pub(super) stored: Option<u64>,
    /// Highest seq of the conversation that was acked before the first attempt.
    pub(super) floor: u64,
}

/// Entry of the log at a seq.
#[derive(Clone, Copy)]
pub(super) enum Row {
    Message {
        cid: Id,
    },
    Member,
    /// Edit of the message at this seq.
    Edit {
        of: u64,
        cid: Id,
    },
}

/// Edit that a client asked for.
#[derive(Clone, Copy)]
pub(super) struct AskedEdit {
    pub(super) conv: Id,
    /// Seq of the message.
    pub(super) of: u64,
    pub(super) body: u64,
    /// Event at which a client asked for it.
    pub(super) at: usize,
}

/// Edit that was accepted.
#[derive(Clone, Copy)]
pub(super) struct AckedEdit {
    /// Event of the ack.
    pub(super) at: usize,
    pub(super) cid: Id,
    pub(super) seq: u64,
}

/// Content of a message in the log at the end.
#[derive(Clone, Copy)]
pub(super) struct StoredBody {
    /// Event that shows it.
    pub(super) at: usize,
    pub(super) conv: Id,
    pub(super) seq: u64,
    pub(super) cid: Id,
    pub(super) body: u64,
}

/// Log of a conversation at the end.
#[derive(Default)]
pub(super) struct Log {
    pub(super) rows: BTreeMap<u64, Row>,
    /// Seqs of the edits of a message.
    pub(super) edits: BTreeMap<u64, Vec<u64>>,
    /// Ranges that are declared as removed, with their events.
    pub(super) gaps: Vec<(usize, u64, u64)>,
    /// Ranges of seqs in which a user was a member, both ends included.
    pub(super) members: BTreeMap<Id, Vec<(u64, u64)>>,
}

impl Log {
    fn change(&mut self, user: Id, change: Change, seq: u64) {
        let spans = self.members.entry(user).or_default();
        match change {
            Change::Join if spans.last().is_none_or(|(_, to)| *to != u64::MAX) => spans.push((seq, u64::MAX)),
            Change::Join => {}
            Change::Leave | Change::Kick => {
                if let Some((_, to)) = spans.last_mut()
                    && *to == u64::MAX
                {
                    *to = seq;
                }
            }
        }
    }
}

impl Checker<'_> {
    /// Indexes sends and log rows for the rules.
    pub(super) fn index(&mut self) {
        // The highest acked seq of each conversation so far.
        let mut acked: BTreeMap<Id, u64> = BTreeMap::new();
        for at in 0..self.history.events.len() {
            match self.history.events[at].event {
                HistoryEvent::SendInv { user, device, session, conv, cid, body, chained, .. } => {
                    let floor = acked.get(&conv).copied().unwrap_or(0);
                    let send = self.sends.entry(cid).or_insert(Send {
                        first: at,
                        user,
                        device,
                        session,
                        conv,
                        body,
                        attempts: 0,
                        last: (at, session),
                        chained,
                        ok: None,
                        failed: None,
                        kept: None,
                        stored: None,
                        floor,
                    });
                    send.attempts += 1;
                    send.last = (at, session);
                }
                HistoryEvent::SendOk { cid, seq, .. } => self.note_ack(at, cid, seq, &mut acked),
                HistoryEvent::SendFail { cid, .. } => match self.sends.get_mut(&cid) {
                    Some(send) => send.failed = Some(at),
                    None => self.broken("never-sent", at, |h| format!("a refusal of {}", h.name(cid))),
                },
                HistoryEvent::SendKept { cid } => {
                    if let Some(send) = self.sends.get_mut(&cid) {
                        send.kept.get_or_insert(at);
                    }
                }
                HistoryEvent::Member { conv, seq, .. } => {
                    let highest = acked.entry(conv).or_default();
                    *highest = seq.max(*highest);
                }
                HistoryEvent::LogMessage { conv, seq, sender, device, cid, body } => {
                    self.note_row(at, conv, seq, cid, (sender, device, body));
                }
                HistoryEvent::LogMember { conv, seq, user, change } => {
                    let log = self.logs.entry(conv).or_default();
                    log.change(user, change, seq);
                    let before = log.rows.insert(seq, Row::Member);
                    if matches!(before, Some(Row::Message { .. })) {
                        self.broken("duplicate-seq", at, |h| format!("{} {seq}", h.name(conv)));
                    }
                }
                HistoryEvent::EditInv { conv, of, cid, body, .. } => {
                    self.edits.note_asked(cid, AskedEdit { at, conv, of, body })
                }
                HistoryEvent::EditOk { cid, seq } => self.edits.note_acked(AckedEdit { at, cid, seq }),
                HistoryEvent::LogEdit { conv, seq, of, cid } => {
                    self.note_edit(at, conv, seq, of, cid);
                }
                HistoryEvent::LogGap { conv, first, last } => {
                    self.logs.entry(conv).or_default().gaps.push((at, first, last));
                }
                _ => {}
            }
        }
        self.report.sent = self.sends.len() as u64;
        self.report.rows = self.logs.values().map(|log| log.rows.len() as u64).sum();
    }

    fn note_edit(&mut self, at: usize, conv: Id, seq: u64, of: u64, cid: Id) {
        let log = self.logs.entry(conv).or_default();
        log.edits.entry(of).or_default().push(seq);
        if log.rows.insert(seq, Row::Edit { of, cid }).is_some() {
            self.broken("duplicate-seq", at, |h| format!("{} {seq}", h.name(conv)));
        }
    }

    fn note_ack(&mut self, at: usize, cid: Id, seq: u64, acked: &mut BTreeMap<Id, u64>) {
        let Some(send) = self.sends.get_mut(&cid) else {
            return self.broken("never-sent", at, |h| format!("an ack of {}", h.name(cid)));
        };
        let highest = acked.entry(send.conv).or_default();
        *highest = seq.max(*highest);
        let room = self.history.name(send.conv).starts_with("r:");
        match send.ok {
            None => send.ok = Some((seq, at)),
            // Live rooms number each attempt: they remember no ids.
            Some((before, _)) if before != seq && !room => {
                let what = move |h: &super::History| format!("{} had {before}, then {seq}", h.name(cid));
                self.broken("ack-differs-on-retry", at, what);
            }
            Some(_) => {}
        }
        if room {
            self.note_room_ack(at, cid, seq);
        }
    }

    fn note_row(&mut self, at: usize, conv: Id, seq: u64, cid: Id, origin: (Id, Id, u64)) {
        let log = self.logs.entry(conv).or_default();
        if log.rows.insert(seq, Row::Message { cid }).is_some() {
            self.broken("duplicate-seq", at, |h| format!("{} {seq}", h.name(conv)));
        }
        let Some(send) = self.sends.get_mut(&cid) else {
            return self.broken("never-sent", at, |h| {
                format!("{} {seq} is {}, which nobody sent", h.name(conv), h.name(cid))
            });
        };
        let (sent_in, sent_by) = (send.conv, (send.user, send.device));
        if let Some(before) = send.stored.replace(seq) {
            self.broken("stored-twice", at, |h| {
                format!("{} at {before} and at {seq} of {}", h.name(cid), h.name(conv))
            });
        }
        // Judged once all edits are known.
        self.edits.note_stored(StoredBody { at, conv, seq, cid, body: origin.2 });
        if sent_in != conv || sent_by != (origin.0, origin.1) {
            self.broken("misplaced", at, |h| {
                format!("{} was sent to {} by {}", h.name(cid), h.name(sent_in), h.name(sent_by.0))
            });
        }
    }

    /// Compares acks and refusals with the log.
    pub(super) fn check_sends(&mut self) {
        let mut found = Vec::new();
        let (mut acked, mut refused) = (0, 0);
        for (cid, send) in &self.sends {
            acked += u64::from(send.ok.is_some());
            refused += u64::from(send.failed.is_some());
            if self.history.name(send.conv).starts_with("r:") {
                continue;
            }
            if let Some((seq, at)) = send.ok
                && send.stored != Some(seq)
            {
                found.push(("lost-acked", at, *cid, seq));
            }
            if let (Some(at), Some(seq)) = (send.failed, send.stored) {
                found.push(("refused-but-stored", at, *cid, seq));
            }
            if let (Some(at), None, None, None) = (send.kept, send.ok, send.failed, send.stored) {
                found.push(("kept-lost", at, *cid, 0));
            }
        }
        (self.report.acked, self.report.refused) = (acked, refused);
        found.sort_unstable_by_key(|it| it.1);
        for (rule, at, cid, seq) in found {
            self.broken(rule, at, |h| format!("{} at {seq}", h.name(cid)));
        }
        for at in 0..self.history.events.len() {
            let HistoryEvent::Member { conv, user, change, seq } = self.history.events[at].event else {
                continue;
            };
            let spans = self.logs.get(&conv).and_then(|log| log.members.get(&user));
            let there = spans.is_some_and(|spans| {
                spans.iter().any(|(from, to)| match change {
                    Change::Join => *from == seq,
                    Change::Leave | Change::Kick => *to == seq,
                })
            });
            if !there {
                self.broken("lost-acked", at, |h| {
                    format!("{change:?} of {} in {} at {seq}", h.name(user), h.name(conv))
                });
            }
        }
    }

    /// Checks the holes of each log.
    pub(super) fn check_logs(&mut self) {
        let (mut holes, mut false_gaps) = (Vec::new(), Vec::new());
        for (conv, log) in &self.logs {
            for &(at, first, last) in &log.gaps {
                if let Some((seq, _)) = log.rows.range(first..=last.max(first)).next() {
                    false_gaps.push((at, *conv, *seq));
                }
            }
            // Seqs begin at 1, so missing seqs before the first row are a hole, too.
            let mut expected = 1;
            for seq in log.rows.keys() {
                while expected < *seq {
                    let reported_gap =
                        log.gaps.iter().find(|(_, first, last)| (first..=last).contains(&&expected));
                    match reported_gap {
                        Some((_, _, last)) => expected = last + 1,
                        None => {
                            holes.push((*conv, expected, *seq));
                            break;
                        }
                    }
                }
                expected = seq + 1;
            }
        }
        let end = self.history.events.len();
        for (conv, from, before) in holes {
            let what = move |h: &super::History| format!("{} from {from} to before {before}", h.name(conv));
            self.broken("unexplained-gap", end, what);
        }
        for (at, conv, seq) in false_gaps {
            self.broken("false-gap", at, |h| format!("{} {seq} is there", h.name(conv)));
        }
    }
}
