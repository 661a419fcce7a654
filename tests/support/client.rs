//! A client of a test: says frames, and takes what it expects out of what came, in order.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tidegate_protocol::{Code, codec::Wire, pb};

use super::{
    Incoming, Link, PATIENCE,
    frames::{Asked, Said, ask, code, send},
};

/// The longest time that a client only listens.
const MOMENT: Duration = Duration::from_millis(200);

/// One connection and what came over it so far.
pub struct Client {
    /// The connection.
    pub link: Link,
    /// How it talks.
    pub wire: Wire,
    /// What Welcome said, after a login.
    pub welcome: pb::Welcome,
    /// The status of the WebSocket close frame, once there was one.
    pub ws_close: Option<u16>,
    /// WebSocket pongs so far.
    pub pongs: Vec<Vec<u8>>,
    /// What came and was not taken yet.
    pub inbox: VecDeque<pb::ServerFrame>,
    /// How the stream ended, once it did: `None` inside = in order, otherwise the error.
    pub ended: Option<Option<String>>,
    last_id: u64,
}

impl Client {
    /// A connection on which nothing was said yet.
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

    /// Says Hello and waits for Welcome.
    pub fn login(&mut self, hello: pb::Hello) {
        match self.ask(ask::hello(hello)) {
            Said::Welcome(welcome) => self.welcome = welcome,
            other => panic!("no welcome: {other:?}"),
        }
    }

    /// Says it under a fresh id, which is given back.
    pub fn say(&mut self, body: Asked) -> u64 {
        self.last_id += 1;
        self.say_as(self.last_id, body);
        self.last_id
    }

    /// Says it under this id; 0 asks for no answer.
    pub fn say_as(&mut self, id: u64, body: Asked) {
        self.link.send(&pb::ClientFrame { id, body: Some(body) });
    }

    /// The answer to the frame with that id.
    pub fn reply(&mut self, id: u64) -> Said {
        let frame = self.take(&format!("an answer to frame {id}"), |frame| frame.id == id);
        frame.body.expect("answers have a body")
    }

    /// Says it and gives the answer.
    pub fn ask(&mut self, body: Asked) -> Said {
        let id = self.say(body);
        self.reply(id)
    }

    /// Sends and gives the ack.
    pub fn send(&mut self, send: pb::Send) -> pb::SendAck {
        let id = self.say(ask::send(send));
        self.expect_ack(id)
    }

    /// Sends a text and gives its seq.
    pub fn text(&mut self, place: &str, msg_id: &str, text: &str) -> u64 {
        self.send(send(place, msg_id, text)).seq
    }

    /// The ack of the send with that frame id.
    pub fn expect_ack(&mut self, id: u64) -> pb::SendAck {
        match self.reply(id) {
            Said::SendAck(ack) => ack,
            other => panic!("no ack: {other:?}"),
        }
    }

    /// Says what must be refused and gives the code.
    pub fn refused(&mut self, body: Asked) -> Code {
        let id = self.say(body);
        self.expect_error(id)
    }

    /// The refusal of the frame with that id.
    pub fn expect_error(&mut self, id: u64) -> Code {
        match self.reply(id) {
            Said::Error(error) => {
                let code = code(error.code);
                assert_eq!((error.name.as_str(), error.temporary), (code.name(), code.temporary()));
                code
            }
            other => panic!("no error: {other:?}"),
        }
    }

    /// The next push.
    pub fn expect_push(&mut self) -> pb::Push {
        let frame = self.take("a push", |frame| matches!(frame.body, Some(Said::Push(_))));
        match frame {
            pb::ServerFrame { id: 0, body: Some(Said::Push(push)) } => push,
            other => panic!("a push answers nothing: {other:?}"),
        }
    }

    /// The next `count` pushes.
    pub fn pushes(&mut self, count: usize) -> Vec<pb::Push> {
        (0..count).map(|_| self.expect_push()).collect()
    }

    /// The page that answers a pull.
    pub fn page(&mut self, pull: Asked) -> pb::Page {
        match self.ask(pull) {
            Said::Page(page) => page,
            other => panic!("no page: {other:?}"),
        }
    }

    /// The page that answers a pull; none while the store is away.
    pub fn try_page(&mut self, pull: Asked) -> Option<pb::Page> {
        match self.ask(pull) {
            Said::Page(page) => Some(page),
            Said::Error(error) if error.temporary => None,
            other => panic!("no page: {other:?}"),
        }
    }

    /// Syncs and gives the states, in order.
    pub fn sync(&mut self, positions: &[(&str, u64)]) -> Vec<pb::ConversationState> {
        self.sync_all(positions).0
    }

    /// Syncs and gives the states, in order, and what the end says is unread in all.
    pub fn sync_all(&mut self, positions: &[(&str, u64)]) -> (Vec<pb::ConversationState>, u64) {
        let id = self.say(ask::sync(positions));
        let mut states = Vec::new();
        loop {
            match self.reply(id) {
                Said::ConversationState(state) => states.push(state),
                Said::SyncEnd(end) => return (states, end.unread),
                other => panic!("no state: {other:?}"),
            }
        }
    }

    /// The state of one conversation, by a sync.
    pub fn state(&mut self, conversation: &str) -> pb::ConversationState {
        let found = self.sync(&[]).into_iter().find(|state| state.conversation == conversation);
        found.unwrap_or_else(|| panic!("{conversation} is not told of"))
    }

    /// The next receipt.
    pub fn expect_receipt(&mut self) -> pb::Receipt {
        match self.take("a receipt", |frame| matches!(frame.body, Some(Said::Receipt(_)))).body {
            Some(Said::Receipt(receipt)) => receipt,
            other => panic!("{other:?}"),
        }
    }

    /// The next signal.
    pub fn expect_signal(&mut self) -> pb::Signal {
        match self.take("a signal", |frame| matches!(frame.body, Some(Said::Signal(_)))).body {
            Some(Said::Signal(signal)) => signal,
            other => panic!("{other:?}"),
        }
    }

    /// The next notice.
    pub fn expect_notice(&mut self) -> pb::Notice {
        match self.take("a notice", |frame| matches!(frame.body, Some(Said::Notice(_)))).body {
            Some(Said::Notice(notice)) => notice,
            other => panic!("{other:?}"),
        }
    }

    /// The Close frame, which is the last one, and an orderly end of the stream behind it.
    pub fn expect_close(&mut self) -> Code {
        let frame = self.take("a close", |frame| matches!(frame.body, Some(Said::Close(_))));
        let Some(Said::Close(close)) = frame.body else { panic!("{frame:?}") };
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

    /// Reads to the end of the stream, which must be orderly; gives the frames that came.
    pub fn until_end(&mut self) -> Vec<pb::ServerFrame> {
        let seen = self.inbox.len();
        let deadline = Instant::now() + PATIENCE;
        while self.pump(deadline) {}
        assert_eq!(self.ended, Some(None), "an orderly end; {:?}", self.inbox);
        self.inbox.split_off(seen).into()
    }

    /// Whether the connection is over, however it ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Makes sure that everything is here that the node wrote before now.
    pub fn settle(&mut self) {
        assert!(matches!(self.ask(ask::ping()), Said::Pong(_)));
    }

    /// No push is here, after [`Client::settle`].
    pub fn no_push(&mut self) {
        self.settle();
        let push = self.inbox.iter().find(|frame| matches!(frame.body, Some(Said::Push(_))));
        assert!(push.is_none(), "unexpected: {push:?}");
    }

    /// Acks and waits until the node has taken note.
    pub fn ack(&mut self, conversation: &str, seq: u64) {
        assert!(matches!(self.ask(ask::ack(conversation, seq)), Said::Done(_)));
    }

    /// No push comes within that time.
    pub fn no_push_for(&mut self, time: Duration) {
        self.pump_for(time);
        self.no_push();
    }

    /// Takes what comes within a moment. A test that needs a longer time gives the reason to `let_time_pass`.
    pub fn listen(&mut self, time: Duration) {
        assert!(time <= MOMENT, "{time:?} is no moment");
        self.pump_for(time);
    }

    /// Waits as long as a refusal asks for, within what a test has time for, and takes what comes meanwhile.
    pub fn back_off(&mut self, retry_after_ms: u32) {
        self.pump_for(Duration::from_millis(retry_after_ms.clamp(20, 500).into()));
    }

    fn pump_for(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while self.pump(deadline) {}
    }

    /// Takes the first frame that is `wanted`, waiting for it; the others stay.
    pub fn take(&mut self, what: &str, wanted: impl Fn(&pb::ServerFrame) -> bool) -> pb::ServerFrame {
        let deadline = Instant::now() + PATIENCE;
        let mut looked = 0;
        loop {
            if let Some(at) = (looked..self.inbox.len()).find(|at| wanted(&self.inbox[*at])) {
                return self.inbox.remove(at).expect("found there");
            }
            looked = self.inbox.len();
            let (inbox, ended) = (&self.inbox, &self.ended);
            assert!(ended.is_none(), "in vain: {what}; ended {ended:?} after {inbox:?}");
            let more = self.pump(deadline);
            assert!(more || self.ended.is_some(), "in vain: {what}; there is {:?}", self.inbox);
        }
    }

    /// Reads one thing; false = nothing in time, or the end.
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
