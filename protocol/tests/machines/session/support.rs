//! Session with the driver's loop, and short texts for its output.

use std::{collections::VecDeque, time::Duration};
use tidegate_protocol::{
    Code, Time,
    content::Content,
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::{
        chain::ChainLimits,
        session::{Action, ChainSaved, LoggedIn, Session, SessionLimits, SessionPhase, Submit, SubmitAnswer},
    },
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

pub(crate) fn id(text: &str) -> MsgId {
    MsgId::new(text).expect("well formed")
}

pub(crate) fn key(text: &str) -> ConversationId {
    ConversationId::parse(text).expect("well formed")
}

/// Small limits, so that tests reach them.
pub(crate) fn limits() -> SessionLimits {
    SessionLimits {
        in_flight_max: 4,
        chain: ChainLimits { hold_max: 3, hold_bytes_max: 1_000, order_timeout: Duration::from_secs(2) },
        content_bytes_max: 100,
        errors_max: 5,
        rooms_max: 2,
        chained_conversations_max: 3,
        ..SessionLimits::default()
    }
}

/// Connection as its driver sees it; `actions` and `submits` collect the output.
pub(crate) struct Conn {
    pub(crate) session: Session,
    pub(crate) limits: SessionLimits,
    pub(crate) now: Time,
    /// All actions, in order.
    pub(crate) actions: Vec<Action>,
    pub(crate) submits: VecDeque<Submit>,
    /// Codes with which the shard refuses the next submissions.
    pub(crate) refusals: VecDeque<Code>,
}

impl Conn {
    pub(crate) fn new() -> Self {
        Self::with(limits(), Time::from_millis(1_000))
    }

    pub(crate) fn with(limits: SessionLimits, now: Time) -> Self {
        Self {
            session: Session::new(now),
            limits,
            now,
            actions: Vec::new(),
            submits: VecDeque::new(),
            refusals: VecDeque::new(),
        }
    }

    /// Creates a live session without a chain.
    pub(crate) fn plain() -> Self {
        Self::live("")
    }

    /// Creates a live session whose chain expects m0.
    pub(crate) fn chained() -> Self {
        Self::live("m0")
    }

    fn live(next_id: &str) -> Self {
        let mut conn = Self::new();
        conn.frame(1, ClientBody::Hello(hello(next_id)));
        conn.input(|s, l, now, out| s.logged_in(logged_in(None), l, now, out));
        conn.actions.clear();
        conn
    }

    /// Feeds one input and runs the driver's loop of the session's module documentation.
    pub(crate) fn input(&mut self, input: impl FnOnce(&mut Session, &SessionLimits, Time, &mut Vec<Action>)) {
        let mut out = Vec::new();
        input(&mut self.session, &self.limits, self.now, &mut out);
        loop {
            self.actions.append(&mut out);
            let Some(submit) = self.session.poll_submit(&self.limits, self.now, &mut out) else { break };
            match self.refusals.pop_front() {
                Some(code) => {
                    self.session.submit_refused(submit.ticket, code.into(), &self.limits, self.now, &mut out);
                }
                None => self.submits.push_back(*submit),
            }
        }
        self.actions.append(&mut out);
    }

    pub(crate) fn frame(&mut self, id: u64, body: ClientBody) {
        self.input(|s, l, now, out| s.handle_frame(pb::ClientFrame { id, body: Some(body) }, l, now, out));
    }

    /// Sends m`n` → m`n + 1` to bob, as frame 100 + n.
    pub(crate) fn link(&mut self, n: u64) {
        let send = chained_send("d:ann:bob", &format!("m{n}"), &format!("m{}", n + 1));
        self.frame(100 + n, ClientBody::Send(send));
    }

    pub(crate) fn answer(&mut self, ticket: u64, answer: SubmitAnswer) {
        self.input(|s, l, now, out| s.answered(ticket, answer, l, now, out));
    }

    pub(crate) fn pass(&mut self, seconds: f64) {
        self.now = self.now + Duration::from_secs_f64(seconds);
        self.input(|s, l, now, out| s.handle_timeout(l, now, out));
    }

    pub(crate) fn wants_read(&self) -> bool {
        self.session.wants_read(&self.limits)
    }

    /// Returns the actions since the last call as short texts; see [`brief`].
    pub(crate) fn output(&mut self) -> Vec<String> {
        self.actions.drain(..).map(|action| brief(&action)).collect()
    }

    /// Returns the ids submitted since the last call.
    pub(crate) fn submitted(&mut self) -> Vec<String> {
        self.submits.drain(..).map(|submit| submit.msg_id.to_string()).collect()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.session.phase() == SessionPhase::Closed
    }
}

pub(crate) fn hello(next_id: &str) -> pb::Hello {
    pb::Hello { version: 1, device: "phone".to_owned(), next_id: next_id.to_owned(), ..Default::default() }
}

pub(crate) fn logged_in(chain_saved: Option<(MsgId, Vec<MsgId>)>) -> LoggedIn {
    LoggedIn {
        user: UserId::new("ann").expect("well formed"),
        device: DeviceId::new("phone").expect("well formed"),
        epoch: 7,
        session: "s1".to_owned(),
        node: NodeId::new("n1").expect("well formed"),
        chain_saved: chain_saved.map(|(expected, done)| ChainSaved { expected, done, skipped: Vec::new() }),
        resumed: false,
        server_time_ms: 1_763_712_000_000,
        fresh_next_id: id("fresh"),
    }
}

pub(crate) fn send(conversation: &str, msg_id: &str) -> pb::Send {
    pb::Send {
        conversation: conversation.to_owned(),
        msg_id: msg_id.to_owned(),
        content: Some(Content::text("hi")),
        ..Default::default()
    }
}

pub(crate) fn chained_send(conversation: &str, msg_id: &str, next_id: &str) -> pb::Send {
    pb::Send { next_id: next_id.to_owned(), ..send(conversation, msg_id) }
}

/// Short text of an action.
pub(crate) fn brief(action: &Action) -> String {
    match action {
        Action::Login(_) => "login".to_owned(),
        Action::Join { id, room } => format!("{id} join {room}"),
        Action::Signal { id, conversation, signal } => format!("{id} signal {conversation} {}", signal.kind),
        Action::React { id, room, kind } => format!("{id} react {room} {}", kind.as_str()),
        Action::Refresh { id, token } => format!("{id} refresh {token}"),
        Action::SignalDropped => "signal dropped".to_owned(),
        Action::Leave { room } => format!("leave {room}"),
        Action::Acked { conversation, seq } => format!("acked {conversation} {seq}"),
        Action::SaveChain { done, expected } => format!("save {done} then {expected}"),
        Action::SaveSkip { skipped, expected } => format!("save skipped {skipped}, expect {expected}"),
        Action::Alarm(alarm) => format!("alarm {alarm:?}"),
        Action::Close { code, .. } => format!("close {}", code.name()),
        Action::Query { id, query } => format!("{id} {query:?}"),
        Action::Reply(frame) | Action::Answer(frame) => brief_frame(frame),
    }
}

fn brief_frame(frame: &pb::ServerFrame) -> String {
    let text = match frame.body.as_ref().expect("a reply has a body") {
        ServerBody::SendAck(ack) if ack.duplicate => format!("dup {} {}", ack.msg_id, ack.seq),
        ServerBody::SendAck(ack) => format!("ack {} {}", ack.msg_id, ack.seq),
        ServerBody::Error(error) => error.name.clone(),
        ServerBody::Pong(_) => "pong".to_owned(),
        ServerBody::Welcome(welcome) => format!("welcome {}", welcome.next_id),
        ServerBody::Done(_) => "done".to_owned(),
        ServerBody::Notice(notice) => {
            let kind = pb::NoticeKind::try_from(notice.kind).expect("known").as_str_name();
            format!("{} {} {}", kind.trim_start_matches("NOTICE_KIND_"), notice.expected, notice.msg_id)
        }
        ServerBody::GoAway(_) => "goaway".to_owned(),
        ServerBody::NextIdIs(next) => format!("next {}", next.next_id),
        other => format!("{other:?}"),
    };
    format!("{} {}", frame.id, text.trim_end())
}
