//! Test client: sends frames, and takes expected frames out of its inbox, in order.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tidegate_protocol::{Code, codec::Wire, pb};

use super::{
    Incoming, Link, WAIT_MAX,
    frames::{ClientBody, ServerBody, ask, code, send},
};

/// Longest time for which a client only listens.
const LISTEN_TIME_MAX: Duration = Duration::from_millis(200);

/// One connection with its received frames.
pub struct Client {
    /// Connection over its wire.
    pub link: Link,
    /// Wire of the connection.
    pub wire: Wire,
    /// Welcome frame, after a login.
    pub welcome: pb::Welcome,
    /// Status of the WebSocket close frame, once received.
    pub ws_close: Option<u16>,
    /// WebSocket pongs so far.
    pub pongs: Vec<Vec<u8>>,
    /// Received frames that were not taken yet.
    pub inbox: VecDeque<pb::ServerFrame>,
    /// End of the stream: `Some(None)` after an orderly end, otherwise the error.
    pub ended: Option<Option<String>>,
    last_id: u64,
}

impl Client {
    /// Opens a connection without sending a frame.
    pub fn connect(address: SocketAddr, wire: Wire) -> Self {
        Self::over(Link::connect(address, wire), wire)
    }

    /// A client over a connection that exists.
    pub fn over(link: Link, wire: Wire) -> Self {
        Self {
            link,
            wire,
            welcome: pb::Welcome::default(),
            ws_close: None,
            pongs: Vec::new(),
            inbox: VecDeque::new(),
            ended: None,
            last_id: 0,
        }
    }

    /// Sends Hello and waits for Welcome.
    pub fn login(&mut self, hello: pb::Hello) {
        match self.ask(ask::hello(hello)) {
            ServerBody::Welcome(welcome) => self.welcome = welcome,
            other => panic!("no welcome: {other:?}"),
        }
    }

    /// Sends a frame under a fresh id, and returns the id.
    pub fn say(&mut self, body: ClientBody) -> u64 {
        self.last_id += 1;
        self.say_as(self.last_id, body);
        self.last_id
    }

    /// Sends a frame under this id; 0 asks for no reply.
    pub fn say_as(&mut self, id: u64, body: ClientBody) {
        self.link.send(&pb::ClientFrame { id, body: Some(body) });
    }

    /// Returns the reply to the frame with that id.
    pub fn reply(&mut self, id: u64) -> ServerBody {
        let frame = self.take(&format!("an answer to frame {id}"), |frame| frame.id == id);
        frame.body.expect("answers have a body")
    }

    /// Sends a frame and returns the reply.
    pub fn ask(&mut self, body: ClientBody) -> ServerBody {
        let id = self.say(body);
        self.reply(id)
    }

    /// Sends a request that must be answered `Done`.
    #[track_caller]
    pub fn expect_done(&mut self, body: ClientBody) {
        let said = self.ask(body);
        assert!(matches!(said, ServerBody::Done(_)), "not done: {said:?}");
    }

    /// Sends a message and returns the ack.
    pub fn send(&mut self, send: pb::Send) -> pb::SendAck {
        let id = self.say(ask::send(send));
        self.expect_ack(id)
    }

    /// Sends a text and returns its seq.
    pub fn text(&mut self, place: &str, msg_id: &str, text: &str) -> u64 {
        self.send(send(place, msg_id, text)).seq
    }

    /// Returns the ack of the send with that frame id.
    pub fn expect_ack(&mut self, id: u64) -> pb::SendAck {
        match self.reply(id) {
            ServerBody::SendAck(ack) => ack,
            other => panic!("no ack: {other:?}"),
        }
    }

    /// Sends a frame that must be refused, and returns the code.
    pub fn refused(&mut self, body: ClientBody) -> Code {
        let id = self.say(body);
        self.expect_error(id)
    }

    /// Returns the refusal of the frame with that id.
    pub fn expect_error(&mut self, id: u64) -> Code {
        match self.reply(id) {
            ServerBody::Error(error) => {
                let code = code(error.code);
                assert_eq!((error.name.as_str(), error.temporary), (code.name(), code.temporary()));
                code
            }
            other => panic!("no error: {other:?}"),
        }
    }

    /// Returns the next push.
    pub fn expect_push(&mut self) -> pb::Push {
        let frame = self.take("a push", |frame| matches!(frame.body, Some(ServerBody::Push(_))));
        match frame {
            pb::ServerFrame { id: 0, body: Some(ServerBody::Push(push)) } => push,
            other => panic!("a push answers nothing: {other:?}"),
        }
    }

    /// Returns the next `count` pushes.
    pub fn pushes(&mut self, count: usize) -> Vec<pb::Push> {
        (0..count).map(|_| self.expect_push()).collect()
    }

    /// Returns the page that answers a pull.
    pub fn page(&mut self, pull: ClientBody) -> pb::Page {
        match self.ask(pull) {
            ServerBody::Page(page) => page,
            other => panic!("no page: {other:?}"),
        }
    }

    /// Returns the page that answers a pull; `None` while the store is unavailable.
    pub fn try_page(&mut self, pull: ClientBody) -> Option<pb::Page> {
        match self.ask(pull) {
            ServerBody::Page(page) => Some(page),
            ServerBody::Error(error) if error.temporary => None,
            other => panic!("no page: {other:?}"),
        }
    }

    /// Syncs and returns the states, in order.
    pub fn sync(&mut self, positions: &[(&str, u64)]) -> Vec<pb::ConversationState> {
        self.sync_all(positions).0
    }

    /// Syncs and returns the states, in order, and the unread total of the end frame.
    pub fn sync_all(&mut self, positions: &[(&str, u64)]) -> (Vec<pb::ConversationState>, u64) {
        let id = self.say(ask::sync(positions));
        let mut states = Vec::new();
        loop {
            match self.reply(id) {
                ServerBody::ConversationState(state) => states.push(state),
                ServerBody::SyncEnd(end) => return (states, end.unread),
                other => panic!("no state: {other:?}"),
            }
        }
    }

    /// Returns the state of one conversation, by a sync.
    pub fn state(&mut self, conversation: &str) -> pb::ConversationState {
        let found = self.sync(&[]).into_iter().find(|state| state.conversation == conversation);
        found.unwrap_or_else(|| panic!("{conversation} is not in the sync"))
    }

    /// Returns the next receipt.
    pub fn expect_receipt(&mut self) -> pb::Receipt {
        match self.take("a receipt", |frame| matches!(frame.body, Some(ServerBody::Receipt(_)))).body {
            Some(ServerBody::Receipt(receipt)) => receipt,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next numbers of a room for which `wanted` returns true.
    pub fn expect_stats(&mut self, what: &str, wanted: impl Fn(&pb::RoomStats) -> bool) -> pb::RoomStats {
        let is_wanted = |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::RoomStats(stats)) if wanted(stats));
        match self.take(what, is_wanted).body {
            Some(ServerBody::RoomStats(stats)) => stats,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next report of presence.
    pub fn expect_presence(&mut self) -> pb::Presence {
        match self.take("presence", |frame| matches!(frame.body, Some(ServerBody::Presence(_)))) {
            pb::ServerFrame { id: 0, body: Some(ServerBody::Presence(presence)) } => presence,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next signal.
    pub fn expect_signal(&mut self) -> pb::Signal {
        match self.take("a signal", |frame| matches!(frame.body, Some(ServerBody::Signal(_)))).body {
            Some(ServerBody::Signal(signal)) => signal,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next notice.
    pub fn expect_notice(&mut self) -> pb::Notice {
        match self.take("a notice", |frame| matches!(frame.body, Some(ServerBody::Notice(_)))).body {
            Some(ServerBody::Notice(notice)) => notice,
            other => panic!("{other:?}"),
        }
    }

    /// Expects the Close frame, which is the last one, and an orderly end of the stream after it.
    pub fn expect_close(&mut self) -> Code {
        let frame = self.take("a close", |frame| matches!(frame.body, Some(ServerBody::Close(_))));
        let Some(ServerBody::Close(close)) = frame.body else { panic!("{frame:?}") };
        let code = code(close.code);
        assert_eq!(close.name, code.name());
        assert_eq!(close.reconnect, pb::Reconnect::from(code.reconnect()) as i32);
        let late = self.until_end();
        assert!(late.is_empty(), "frames after Close: {late:?}");
        if matches!(self.wire, Wire::WsBinary | Wire::WsText) {
            assert_eq!(self.ws_close, Some(code.ws_close()), "the close frame of the WebSocket");
        }
        code
    }

    /// Reads to the end of the stream, which must be orderly; returns the received frames.
    pub fn until_end(&mut self) -> Vec<pb::ServerFrame> {
        let seen = self.inbox.len();
        let deadline = Instant::now() + WAIT_MAX;
        while self.pump(deadline) {}
        assert_eq!(self.ended, Some(None), "an orderly end; {:?}", self.inbox);
        self.inbox.split_off(seen).into()
    }

    /// Whether the connection has ended, however it did.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Waits for everything that the node wrote before now.
    pub fn settle(&mut self) {
        assert!(matches!(self.ask(ask::ping()), ServerBody::Pong(_)));
    }

    /// Asserts that no push has arrived, after [`Client::settle`].
    pub fn no_push(&mut self) {
        self.settle();
        let push = self.inbox.iter().find(|frame| matches!(frame.body, Some(ServerBody::Push(_))));
        assert!(push.is_none(), "unexpected: {push:?}");
    }

    /// Acks and waits until the node has processed it.
    pub fn ack(&mut self, conversation: &str, seq: u64) {
        assert!(matches!(self.ask(ask::ack(conversation, seq)), ServerBody::Done(_)));
    }

    /// Asserts that no push arrives within that time.
    pub fn no_push_for(&mut self, time: Duration) {
        self.pump_for(time);
        self.no_push();
    }

    /// Receives frames for a moment. A test that needs a longer time gives the reason to `let_time_pass`.
    pub fn listen(&mut self, time: Duration) {
        assert!(time <= LISTEN_TIME_MAX, "{time:?} is no moment");
        self.pump_for(time);
    }

    /// Waits as long as a refusal asks for, within the time of a test, and receives frames meanwhile.
    pub fn back_off(&mut self, retry_after_ms: u32) {
        self.pump_for(Duration::from_millis(retry_after_ms.clamp(20, 500).into()));
    }

    fn pump_for(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while self.pump(deadline) {}
    }

    /// Takes the first frame that is `wanted`, waiting for it; the others stay.
    pub fn take(&mut self, what: &str, wanted: impl Fn(&pb::ServerFrame) -> bool) -> pb::ServerFrame {
        let deadline = Instant::now() + WAIT_MAX;
        let mut looked = 0;
        loop {
            if let Some(at) = (looked..self.inbox.len()).find(|at| wanted(&self.inbox[*at])) {
                return self.inbox.remove(at).expect("found there");
            }
            looked = self.inbox.len();
            let (inbox, ended) = (&self.inbox, &self.ended);
            assert!(ended.is_none(), "in vain: {what}; ended {ended:?} after {inbox:?}");
            let more = self.pump(deadline);
            assert!(more || self.ended.is_some(), "timed out: {what}; the inbox has {:?}", self.inbox);
        }
    }

    /// Reads one item; returns false if nothing arrives in time, or at the end.
    pub fn pump(&mut self, deadline: Instant) -> bool {
        if self.ended.is_some() {
            return false;
        }
        match self.link.receive(deadline) {
            Incoming::Frame(frame) => self.inbox.push_back(*frame),
            Incoming::Pong(payload) => self.pongs.push(payload),
            Incoming::WsClose(status) => self.ws_close = status,
            Incoming::End => self.ended = Some(None),
            Incoming::Broken(error) => self.ended = Some(Some(error)),
            Incoming::Nothing => return false,
        }
        self.ended.is_none()
    }
}
