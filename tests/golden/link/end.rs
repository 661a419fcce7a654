//! Calls of the golden files: how they are made, how the peer reads them, and its replies.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate::{
    link::{
        Answer, AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, AskKey, BestEffortMessage, CloseOrder,
        ConnectionPage, ConnectionQuery, GrpcLink, Landing, Link, LinkError, PartitionOffset, PeerPush,
        PublishedMark, RoutedSession, SentBy, Target,
    },
    revocation::Revocation,
    routes::NodeBoot,
    trace::{Facts, Step, TraceEvent, TraceFilter},
};
use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::Outcome,
};

use super::access;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Peer that records its calls, and replies by fixed rules.
#[derive(Default)]
pub(crate) struct End {
    asked: Mutex<Vec<String>>,
}

impl End {
    fn note(&self, what: String) {
        self.asked.lock().push(what);
    }

    /// Asserts that each call arrived once and unchanged; streams have no order among each other.
    pub(crate) fn check(&self, mut expected: Vec<String>) {
        let mut asked = self.asked.lock().clone();
        asked.sort();
        expected.sort();
        assert_eq!(asked, expected);
    }
}

pub(super) fn user(name: &str) -> UserId {
    UserId::new(name).expect("an id")
}

fn conversation(key: &str) -> ConversationId {
    ConversationId::parse(key).expect("a key")
}

pub(super) fn answers() -> Vec<Answer> {
    let outcomes = [
        Outcome::Accepted { seq: 300, ordinal: u64::MAX, time: 1_763_712_000_000 },
        Outcome::Duplicate { seq: 1, time: 2 },
        Outcome::Refused { code: Code::NotAMember },
        Outcome::RefusedBefore { code: Code::Conflict },
        Outcome::Void { newest: 1 << 63 },
        Outcome::Noted,
    ];
    let answer = |(request, outcome): (u64, Outcome)| {
        let traceparent = if request == 1 { TRACEPARENT.to_owned() } else { String::new() };
        Answer { conn: u64::MAX - 1, request, outcome, traceparent }
    };
    (1..).zip(outcomes).map(answer).collect()
}

fn session(name: &str, epoch: u64) -> RoutedSession {
    RoutedSession { user: user(name), device: DeviceId::new("phone").expect("an id"), epoch }
}

fn deliveries() -> Vec<PeerPush> {
    let targets = vec![Target::Conn(session("ann", 7)), Target::Anywhere(user("bob"))];
    let sent_by = Some(SentBy { at: super::caller(), conn: 1 << 40 });
    let push = b"\x0a\x05g:tea\x10\x07".as_slice();
    let tracked = PeerPush {
        push: push.into(),
        to: targets,
        tracked: true,
        sent_by,
        traceparent: TRACEPARENT.to_owned(),
    };
    let question = PeerPush {
        push: Default::default(),
        to: vec![Target::Conn(session("cid", 8))],
        tracked: false,
        sent_by: None,
        traceparent: String::new(),
    };
    vec![tracked, question]
}

fn asks() -> Vec<Ask> {
    let key = AskKey { hash: [0xab; 16], body_hash: [0xcd; 16] };
    let ask = |offset, key| Ask { partition: 3, offset, conn: 5, request: 6, key };
    vec![ask(0, Some(key)), ask(1, None), ask(2, None), ask(u64::MAX, None)]
}

fn words() -> Vec<AnswerStatus> {
    let said = AnswerStatus::Answered(Outcome::Accepted { seq: 1, ordinal: 2, time: 3 });
    vec![said, AnswerStatus::NotYet, AnswerStatus::Forgotten, AnswerStatus::NotOwner]
}

fn unarchived() -> Vec<PublishedMark> {
    vec![PublishedMark { owner: 1, to: 2 }, PublishedMark { owner: u64::MAX, to: 300 }]
}

fn level() -> ArchivedUpTo {
    let up_to = |partition, offset| PartitionOffset { partition, offset };
    ArchivedUpTo { archived: vec![up_to(0, 0), up_to(3, u64::MAX)], unarchived: vec![up_to(u32::MAX, 7)] }
}

fn best_effort() -> Vec<BestEffortMessage> {
    let frame = b"\xaa\x01\x02hi".as_slice();
    vec![
        BestEffortMessage::RoomMessage {
            room: conversation("r:hall"),
            push: b"\x0a\x06r:hall".as_slice().into(),
            class: 0,
            left_out: 0,
        },
        BestEffortMessage::RoomLoss { room: conversation("r:hall"), count: 5 },
        BestEffortMessage::Signal {
            conversation: conversation("g:tea"),
            users: vec![user("ann"), user("bob")],
            frame: frame.into(),
        },
        BestEffortMessage::Mark {
            conversation: conversation("d:ann:bob"),
            user: user("ann"),
            seq: 9,
            frame: frame.into(),
        },
        BestEffortMessage::FanOut {
            group: conversation("g:town"),
            record: b"\x0a\x06g:town\x10\x02".as_slice().into(),
        },
    ]
}

fn query() -> TraceFilter {
    TraceFilter {
        msg: Some("m1".into()),
        user: Some("ann".into()),
        traces: vec![1, u128::MAX],
        ..TraceFilter::default()
    }
}

fn steps() -> Vec<TraceEvent> {
    let facts = Facts { msg: "m1", conversation: "d:ann:bob", seq: 7, user: "ann", device: "phone" };
    vec![
        TraceEvent::new(u128::MAX, 5, Step::Received, facts, "attempt 0"),
        TraceEvent::new(1, 6, Step::NotAppended, Facts::default(), ""),
    ]
}

/// Returns what the peer records of all calls, in the order of [`call_all`].
pub(crate) fn calls(caller: &NodeBoot) -> Vec<String> {
    vec![
        format!("{:?}", answers()),
        format!("{:?}", deliveries()),
        format!("{:?}", [session("ann", 7), session("bob", 1 << 50)]),
        "settled []".to_owned(),
        format!("settled {:?}", unarchived()),
        format!("{caller} {:?}", asks()),
        format!("{:?}", query()),
        format!("{:?}", best_effort()),
        "a refusal".to_owned(),
        "a doubt".to_owned(),
    ]
}

/// Makes each kind of call once, and checks the results.
pub(crate) async fn call_all(link: &GrpcLink, caller: &NodeBoot, to: &NodeBoot) {
    let patience = Duration::from_secs(1);
    // Calls wait in their queue until there is a connection.
    assert_eq!(link.answers(to, answers()).await, Ok(()));
    let landings = vec![vec![Landing::Delivered, Landing::NotHere], vec![Landing::NotHere]];
    assert_eq!(link.deliver(to, deliveries()).await, Ok(landings));
    let sessions = vec![session("ann", 7), session("bob", 1 << 50)];
    assert_eq!(link.stop_sessions(to, sessions).await, Ok(vec![true, false]));
    assert_eq!(link.archive_status(to, Vec::new(), patience).await, Ok(ArchiveStatus::ArchivedUpTo(level())));
    assert_eq!(
        link.archive_status(to, unarchived(), patience).await,
        Ok(ArchiveStatus::NotYet(unarchived()))
    );
    assert_eq!(link.answers_again(caller, to, asks()).await, Ok(words()));
    let found = link.traces(to, query()).await.map(|steps| format!("{steps:?}"));
    assert_eq!(found, Ok(format!("{:?}", steps())));
    assert_eq!(link.send_best_effort(to, best_effort()).await, Ok(()));
    let refused = link.stop_sessions(to, vec![session("refused", 1)]).await;
    assert_eq!(refused, Err(LinkError::Unavailable("the node is leaving".to_owned())));
    let doubt = link.stop_sessions(to, vec![session("doubt", 1)]).await;
    assert_eq!(doubt, Err(LinkError::Unknown("half of it was done".to_owned())));
}

#[async_trait]
impl Link for End {
    async fn answers(&self, _: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.note(format!("{answers:?}"));
        Ok(())
    }

    async fn deliver(&self, _: &NodeBoot, deliveries: Vec<PeerPush>) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.note(format!("{deliveries:?}"));
        let landing = |target: &Target| match target {
            Target::Conn(session) if session.epoch == 7 => Landing::Delivered,
            _ => Landing::NotHere,
        };
        Ok(deliveries.iter().map(|it| it.to.iter().map(landing).collect()).collect())
    }

    async fn stop_sessions(
        &self,
        _: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        match sessions[0].user.as_str() {
            "refused" => {
                self.note("a refusal".to_owned());
                Err(LinkError::Unavailable("the node is leaving".to_owned()))
            }
            "doubt" => {
                self.note("a doubt".to_owned());
                Err(LinkError::Unknown("half of it was done".to_owned()))
            }
            _ => {
                self.note(format!("{sessions:?}"));
                Ok(sessions.iter().map(|session| session.epoch == 7).collect())
            }
        }
    }

    async fn archive_status(
        &self,
        _: &NodeBoot,
        told: Vec<PublishedMark>,
        patience: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        assert_eq!(patience, Duration::from_secs(1));
        self.note(format!("settled {told:?}"));
        Ok(if told.is_empty() { ArchiveStatus::ArchivedUpTo(level()) } else { ArchiveStatus::NotYet(told) })
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        _: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        self.note(format!("{from} {asks:?}"));
        Ok(words())
    }

    async fn send_best_effort(
        &self,
        _: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        self.note(format!("{messages:?}"));
        Ok(())
    }

    async fn traces(&self, _: &NodeBoot, query: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        self.note(format!("{query:?}"));
        Ok(steps())
    }

    async fn connections(&self, _: &NodeBoot, query: ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        self.note(format!("{query:?}"));
        Ok(access::page())
    }

    async fn close_connections(&self, _: &NodeBoot, order: CloseOrder) -> Result<u64, LinkError> {
        self.note(format!("{order:?}"));
        Ok(access::CLOSED)
    }

    async fn revoke(&self, _: &NodeBoot, revocation: Revocation) -> Result<u64, LinkError> {
        self.note(format!("{revocation:?}"));
        Ok(access::CLOSED)
    }
}
