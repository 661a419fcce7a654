//! The live room of a person: how it leaves, and its last message there.

use rand::RngExt as _;
use tidegate_protocol::pb::{self, client_frame::Body as ClientBody};

use super::{Person, Session};
use crate::checker::HistoryEvent;

/// Ticks in which a person leaves the room, per hundred thousand.
const LEAVES: u32 = 30;

impl Person {
    /// Leaves the room now and then, until the next connection.
    pub(super) fn wander(&mut self, session: &mut Session, frames: &mut Vec<pb::ClientFrame>) {
        let leaves = session.inside && self.rng.random_ratio(LEAVES, 100_000);
        // A message in flight to the room would be permanently refused.
        let place = format!("r:{}", self.profile.room);
        if !leaves || self.unanswered.iter().any(|message| message.place == place) {
            return;
        }
        session.inside = false;
        self.events.push(HistoryEvent::Parted { session: session.number, conv: place });
        let room = self.profile.room.clone();
        let body = Some(ClientBody::Leave(pb::Leave { room, ..Default::default() }));
        frames.push(pb::ClientFrame { id: 0, body });
    }

    /// Sends a last message to the room: without it, members that get nothing more could not be judged.
    pub(super) fn close_room(&mut self, session: &Session) {
        if session.inside {
            self.add_loose(format!("r:{}", self.profile.room));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_protocol::codec::Wire;

    use super::super::{Phase, Profile};
    use super::*;

    fn person() -> Person {
        let profile = Profile {
            number: 0,
            user: "ann".to_owned(),
            device: "p".to_owned(),
            wire: Wire::Tcp,
            chained: false,
            places: vec!["g:team".to_owned()],
            room: "hall".to_owned(),
            pace: Duration::from_secs(3_600),
            in_flight_max: 32,
            hops: 0,
            hints: false,
        };
        let mut person = Person::new(profile, 7);
        person.on_open(1, "n1");
        person
    }

    /// Conversations of the messages that a tick sends.
    fn sent(person: &mut Person, phase: Phase) -> Vec<String> {
        person.tick(Duration::ZERO, phase);
        let events = person.take_events();
        let sent = events.into_iter().filter_map(|event| match event {
            HistoryEvent::SendInv { conv, .. } => Some(conv),
            _ => None,
        });
        sent.collect()
    }

    #[test]
    fn last_messages_go_to_the_room_as_well() {
        let mut person = person();
        assert!(sent(&mut person, Phase::Settle).is_empty());
        assert_eq!(sent(&mut person, Phase::Mark), ["g:team", "r:hall"]);
        assert!(sent(&mut person, Phase::Mark).is_empty(), "once");
    }

    #[test]
    fn person_that_has_left_the_room_sends_nothing_there() {
        let mut person = person();
        let has_parted = |person: &mut Person| {
            person.tick(Duration::ZERO, Phase::Settle);
            let events = person.take_events();
            events
                .iter()
                .any(|event| matches!(event, HistoryEvent::Parted { session: 1, conv } if conv == "r:hall"))
        };
        assert!((0..1_000_000).any(|_| has_parted(&mut person)), "it leaves now and then");
        assert_eq!(sent(&mut person, Phase::Mark), ["g:team"]);
    }
}
