//! Closing messages of live rooms: those that members send once all faults have ended. A run waits for them before it is
//! quiet, so that the checker can judge a member that got none, and a run in which all came does not wait for longer.

use foldhash::{HashMap, HashSet};

use super::{History, HistoryEvent, Id};

/// Tracker of the closing messages of a run: all messages to live rooms from [`Self::begin`] on.
#[derive(Debug, Default)]
pub struct Closings {
    has_begun: bool,
    /// Users and devices of the open connections.
    devices: HashMap<u64, (Id, Id)>,
    /// Connections in rooms.
    inside: HashSet<(u64, Id)>,
    messages: HashMap<Id, Closing>,
}

/// A closing message.
#[derive(Debug)]
struct Closing {
    conv: Id,
    is_acked: bool,
    /// Connections that were in the room when it was sent, and have not got it.
    lacking: HashSet<u64>,
}

impl Closings {
    /// Makes each message to a room from now on a closing one.
    pub fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Returns whether each closing message that was acked has come to all that were in the room and are so still.
    pub fn have_come(&self) -> bool {
        self.messages.values().all(|message| !message.is_acked || message.lacking.is_empty())
    }

    /// Notes the newest event of the history.
    pub fn note(&mut self, history: &History) {
        let Some(stamped) = history.events.last() else { return };
        match stamped.event {
            HistoryEvent::Open { user, device, session } => {
                self.devices.insert(session, (user, device));
            }
            HistoryEvent::Joined { session, conv, .. } => {
                self.inside.insert((session, conv));
            }
            HistoryEvent::Parted { session, conv } => self.leave(session, Some(conv)),
            HistoryEvent::Close { session, .. } => {
                self.devices.remove(&session);
                self.leave(session, None);
            }
            HistoryEvent::SendInv { user, device, conv, cid, .. }
                if self.has_begun && history.name(conv).starts_with("r:") =>
            {
                let inside =
                    self.inside.iter().filter(|(_, room)| *room == conv).map(|(session, _)| *session);
                let others = inside.filter(|session| self.devices.get(session) != Some(&(user, device)));
                let lacking = others.collect();
                self.messages.entry(cid).or_insert(Closing { conv, is_acked: false, lacking });
            }
            HistoryEvent::SendOk { cid, .. } => {
                if let Some(message) = self.messages.get_mut(&cid) {
                    message.is_acked = true;
                }
            }
            HistoryEvent::Recv { session, cid: Some(cid), .. } => {
                if let Some(message) = self.messages.get_mut(&cid) {
                    message.lacking.remove(&session);
                }
            }
            _ => {}
        }
    }

    /// Notes that a connection is no longer in this room, or in any.
    fn leave(&mut self, session: u64, room: Option<Id>) {
        let concerns = |conv: Id| room.is_none_or(|room| room == conv);
        self.inside.retain(|(inside, conv)| *inside != session || !concerns(*conv));
        for message in self.messages.values_mut().filter(|message| concerns(message.conv)) {
            message.lacking.remove(&session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Via, *};

    #[derive(Default)]
    struct Run {
        history: History,
        closings: Closings,
    }

    impl Run {
        fn add(&mut self, event: HistoryEvent<&str>) {
            self.history.push(0, event);
            self.closings.note(&self.history);
        }

        fn join(&mut self, user: &str, session: u64) {
            self.add(HistoryEvent::Open { user, device: "p", session });
            self.add(HistoryEvent::Joined { session, conv: "r:r", node: "n1" });
        }

        fn send(&mut self, cid: &str) {
            let (user, device, conv) = ("ann", "p", "r:r");
            self.add(HistoryEvent::SendInv {
                user,
                device,
                session: 1,
                conv,
                cid,
                body: 0,
                attempt: 0,
                chained: false,
            });
            self.add(HistoryEvent::SendOk { cid, seq: 1, duplicate: false });
        }

        fn receive(&mut self, session: u64, cid: &str) {
            let (user, device, conv, via) = ("bob", "p", "r:r", Via::Push);
            self.add(HistoryEvent::Recv {
                user,
                device,
                session,
                conv,
                seq: 1,
                cid: Some(cid),
                body: 0,
                via,
            });
        }
    }

    #[test]
    fn closing_message_is_awaited_by_those_who_are_in_the_room() {
        let mut run = Run::default();
        run.join("ann", 1);
        run.join("bob", 2);
        run.send("before");
        assert!(run.closings.have_come(), "nothing was begun");
        run.closings.begin();
        run.send("closing");
        assert!(!run.closings.have_come());
        run.join("dan", 3);
        run.receive(2, "closing");
        assert!(run.closings.have_come(), "dan came later");
    }

    #[test]
    fn closing_message_is_not_awaited_from_those_who_leave() {
        for event in [
            HistoryEvent::Parted { session: 2, conv: "r:r" },
            HistoryEvent::Close { session: 2, code: 0 },
            HistoryEvent::Recv {
                user: "bob",
                device: "p",
                session: 2,
                conv: "r:r",
                seq: 1,
                cid: Some("closing"),
                body: 0,
                via: Via::Push,
            },
        ] {
            let mut run = Run::default();
            run.join("ann", 1);
            run.join("bob", 2);
            run.closings.begin();
            run.send("closing");
            run.add(HistoryEvent::Parted { session: 2, conv: "r:other" });
            assert!(!run.closings.have_come());
            run.add(event);
            assert!(run.closings.have_come(), "{event:?}");
        }
    }
}
