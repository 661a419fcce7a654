//! Driver of one client: sockets, clocks and waits around the machine.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;
use tokio::{sync::mpsc, time::timeout};

use super::{
    Faults, Members, PlantedFault, Stores, emit,
    machine::Machine,
    pace::{Next, Pace},
    refresh::{Refreshed, TokenRefresh},
    session::{Link, Move, Session, log_in, next_of, opened, write},
};
use crate::link::ClientSocket;

/// Interval at which a client sends acks, requests that are due, and signs of life.
const TICK: Duration = Duration::from_millis(20);
/// Time for a connect and its login.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(4);
/// Time for the answer to `bye`.
const BYE_TIMEOUT: Duration = Duration::from_secs(2);

/// A client of the adapter.
pub(super) struct Client {
    /// Tabs to which events go.
    members: Members,
    faults: Faults,
    stores: Stores,
    store: Option<String>,
    addresses: Vec<String>,
    wire: Wire,
    /// Fields of `hello` that stay.
    hello: Value,
    tokens: VecDeque<Value>,
    pace: Pace,
    machine: Machine,
    /// Address that a `goAway` named.
    alternate: Option<String>,
    failed: usize,
}

/// Why a client's loop ends, or its connection.
enum End {
    Lost(Option<Value>),
    Closed,
    Dropped,
}

impl Client {
    pub(super) fn new(command: &Value, members: &Members, faults: &Faults, stores: &Stores) -> Result<Self> {
        let name = command["client"].as_str().unwrap_or_default();
        let strings = |key: &str| command[key].as_array().into_iter().flatten().cloned();
        let options = &command["options"];
        let addresses: Vec<String> =
            strings("addresses").filter_map(|it| it.as_str().map(str::to_owned)).collect();
        let is_ws = addresses.first().context("no address")?.starts_with("ws:");
        let wire = match (is_ws, command["framing"] == "proto") {
            (false, false) => Wire::JsonLine,
            (false, true) => Wire::Tcp,
            (true, false) => Wire::WsText,
            (true, true) => Wire::WsBinary,
        };
        let chained = options["chain"] == true;
        let mut hello = json!({
            "version": 1, "device": command["device"], "settings": options["settings"],
            "features": ["refresh", "react", "watch"],
        });
        if chained {
            let settings = if hello["settings"].is_object() { hello["settings"].take() } else { json!({}) };
            hello["settings"] = settings;
            hello["settings"]["chain"] = true.into();
        }
        let store = options["store"].as_str().map(str::to_owned);
        let kept = store.as_ref().and_then(|store| stores.lock().remove(store));
        let fresh = || Machine::new(format!("m{name}"), chained, options["history"] == "all", faults.clone());
        Ok(Self {
            members: members.clone(),
            faults: faults.clone(),
            stores: stores.clone(),
            store,
            addresses,
            wire,
            hello,
            tokens: strings("tokens").collect(),
            pace: Pace::new(options["random"].as_f64(), !faults.contains(&PlantedFault::NoBackOff)),
            machine: kept.unwrap_or_else(fresh),
            alternate: None,
            failed: 0,
        })
    }

    /// Connects, and reconnects until a final close.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Value>) {
        loop {
            let end = match timeout(LOGIN_TIMEOUT, Box::pin(self.connect(None))).await {
                Ok(Ok(session)) => Box::pin(self.live(session, &mut commands)).await,
                Ok(Err(close)) => End::Lost(close),
                Err(_) => End::Lost(None),
            };
            let close = match end {
                End::Lost(close) => close,
                End::Closed => return,
                End::Dropped => {
                    self.machine.lost(u64::MAX, Instant::now());
                    if let Some(store) = self.store {
                        self.stores.lock().insert(store, self.machine);
                    }
                    return;
                }
            };
            self.machine.lost(u64::MAX, Instant::now());
            self.flush_events();
            let Some(wait) = self.wait_after(close.as_ref()) else {
                self.state("closed", close.as_ref());
                return;
            };
            self.state("waiting", close.as_ref());
            if !self.pause(wait, &mut commands).await {
                return;
            }
        }
    }

    /// Returns the time until the next attempt.
    fn wait_after(&mut self, close: Option<&Value>) -> Option<Duration> {
        let name = close.and_then(|close| close["name"].as_str()).unwrap_or_default();
        let now = Instant::now();
        if matches!(name, "TOKEN_EXPIRED" | "TOKEN_INVALID" | "TOKEN_REVOKED") {
            if self.faults.contains(&PlantedFault::KeepToken) {
                return Some(self.pace.back_off());
            }
            let refused = self.tokens.pop_front()?;
            return (*self.tokens.front()? != refused).then(|| self.pace.back_off());
        }
        if name == "REPLACED" && self.faults.contains(&PlantedFault::ReconnectReplaced) {
            return Some(self.pace.back_off());
        }
        match self.pace.after(close, now) {
            Next::Wait(wait) if self.faults.contains(&PlantedFault::Hurry) => {
                Some(wait.min(Duration::from_millis(50)))
            }
            Next::Wait(wait) => Some(wait),
            Next::Never => None,
        }
    }

    /// Waits, and takes commands meanwhile. Returns whether the client goes on.
    async fn pause(&mut self, wait: Duration, commands: &mut mpsc::Receiver<Value>) -> bool {
        let until = Instant::now() + wait;
        loop {
            match tokio::time::timeout_at(until.into(), commands.recv()).await {
                Err(_) => return true,
                Ok(None) => return false,
                Ok(Some(command)) => match command["do"].as_str() {
                    Some("online") => return true,
                    Some("drop") => {
                        if let Some(store) = self.store.take() {
                            let empty = Machine::new(String::new(), false, false, self.faults.clone());
                            self.stores.lock().insert(store, std::mem::replace(&mut self.machine, empty));
                        }
                        return false;
                    }
                    Some("close") => {
                        self.state("closed", None);
                        self.event(json!({"event": "done", "as": tag(&command)}));
                        return false;
                    }
                    Some("attach") => {}
                    _ => self.request(command),
                },
            }
        }
    }

    /// Connects to the alternate or the next address, and logs in. Fails with the node's `close`, if one came.
    async fn connect(&mut self, to: Option<String>) -> Result<Session, Option<Value>> {
        self.state("connecting", None);
        let next = self.addresses[self.failed % self.addresses.len()].clone();
        let address = to.or_else(|| self.alternate.take()).unwrap_or(next);
        self.failed += 1;
        match log_in(&address, self.wire, &self.hello_frame()).await {
            Ok((socket, frame)) if frame["welcome"].is_object() => {
                self.failed -= 1;
                Ok(self.begin(socket, &frame["welcome"]))
            }
            Ok((_, frame)) => Err(frame.get("close").cloned()),
            Err(_) => Err(None),
        }
    }

    fn hello_frame(&self) -> Value {
        let mut hello = self.hello.clone();
        hello["token"] = self.tokens.front().cloned().unwrap_or_default();
        self.machine.hello(&hello)
    }

    /// Begins a session with its `welcome`.
    fn begin(&mut self, socket: ClientSocket, welcome: &Value) -> Session {
        let now = Instant::now();
        self.pace.live(now);
        self.hello["resume"] = welcome["session"].clone();
        self.event(json!({
            "event": "state", "state": "live", "session": welcome["session"], "node": welcome["node"],
        }));
        self.machine.live(welcome, now);
        let heartbeat = Duration::from_millis(welcome["heartbeatMs"].as_u64().unwrap_or(30_000));
        let refresh = match self.tokens.front() {
            Some(token) if !self.faults.contains(&PlantedFault::NoRefresh) => {
                TokenRefresh::new(welcome, token, &self.pace, now)
            }
            _ => TokenRefresh::default(),
        };
        Session { socket, heartbeat, received: now, sent: now, refresh }
    }

    /// Serves a session and those that it moves to.
    async fn live(&mut self, session: Session, commands: &mut mpsc::Receiver<Value>) -> End {
        let mut tick = tokio::time::interval(TICK);
        let mut link = Link { session, old: None, plan: Move::None, bye: None };
        loop {
            self.flush_events();
            let end = tokio::select! {
                frame = link.session.socket.next() => {
                    let frame = frame.ok().and_then(|it| serde_json::to_value(&it).ok());
                    self.frame(&mut link, frame).await
                }
                frame = next_of(&mut link.old) => {
                    let frame = frame.ok().and_then(|it| serde_json::to_value(&it).ok());
                    match frame.filter(|frame| !frame["close"].is_object()) {
                        Some(frame) => self.machine.frame(&frame, Instant::now()),
                        None => if let Some((_, up_to)) = link.old.take() {
                            self.machine.lost(up_to, Instant::now());
                        }
                    }
                    None
                }
                opened = opened(&mut link.plan) => {
                    self.moved(&mut link, opened);
                    None
                }
                command = commands.recv() => self.command(&mut link, command).await,
                _ = tick.tick() => self.tick(&mut link, Instant::now()).await,
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Handles a frame of the session; `None` is the end of its stream.
    async fn frame(&mut self, link: &mut Link, frame: Option<Value>) -> Option<End> {
        let close = match &frame {
            Some(frame) if !frame["close"].is_object() => None,
            Some(frame) => Some(Some(frame["close"].clone())),
            None => Some(None),
        };
        if let Some(close) = close {
            // The new login ends this connection, perhaps before its welcome arrives.
            if matches!(link.plan, Move::Opening(_)) {
                let opened = opened(&mut link.plan).await;
                if self.moved(link, opened) {
                    if let Some((_, up_to)) = link.old.take() {
                        self.machine.lost(up_to, Instant::now());
                    }
                    return None;
                }
            }
            return Some(self.lost(close, link.bye.take()));
        }
        let frame = frame?;
        link.session.received = Instant::now();
        if frame["goAway"].is_object() {
            link.plan = self.plan(&frame["goAway"]);
        } else if let Some(outcome) = link.session.refresh.answered(&frame, Instant::now()) {
            self.refreshed(&mut link.session, &outcome);
        } else {
            self.machine.frame(&frame, Instant::now());
        }
        None
    }

    /// Reports the outcome of a refresh, and plans the next one.
    fn refreshed(&mut self, session: &mut Session, outcome: &Refreshed) {
        let (code, name) = match outcome {
            Refreshed::Later => return,
            Refreshed::Refused(code, name) => (code.clone(), name.clone()),
            Refreshed::Done => {
                self.tokens.pop_front();
                (0.into(), "".into())
            }
        };
        let token = self.tokens.front().cloned().unwrap_or_default();
        session.refresh.plan(&token, &self.pace, Instant::now());
        self.event(json!({"event": "refresh", "code": code, "name": name}));
    }

    /// Continues on the connection of a move. Returns whether its login succeeded.
    fn moved(&mut self, link: &mut Link, opened: Result<(ClientSocket, Value)>) -> bool {
        link.plan = Move::None;
        let Some((socket, frame)) = opened.ok().filter(|(_, frame)| frame["welcome"].is_object()) else {
            return false;
        };
        let up_to = self.machine.outbox.last_request();
        let next = self.begin(socket, &frame["welcome"]);
        link.old = Some((std::mem::replace(&mut link.session, next), up_to));
        true
    }

    async fn command(&mut self, link: &mut Link, command: Option<Value>) -> Option<End> {
        let Some(command) = command else { return Some(End::Dropped) };
        match command["do"].as_str() {
            Some("drop") => return Some(End::Dropped),
            Some("close") => {
                link.plan = Move::None;
                link.bye = Some((tag(&command), Instant::now() + BYE_TIMEOUT));
                // Without an answer, the time ends the connection.
                write(&mut link.session, vec![json!({"bye": {}})]).await.ok();
            }
            Some("online") => {}
            Some("attach") => {
                emit(&json!({"event": "state", "client": command["client"], "state": "live"}));
            }
            _ => self.request(command),
        }
        None
    }

    async fn tick(&mut self, link: &mut Link, now: Instant) -> Option<End> {
        if let Move::Planned(at, address) = &link.plan
            && *at <= now
        {
            let (address, wire, hello) = (address.clone(), self.wire, self.hello_frame());
            link.plan = Move::Opening(tokio::spawn(Box::pin(async move {
                timeout(LOGIN_TIMEOUT, log_in(&address, wire, &hello)).await?
            })));
        }
        let ends = link.bye.as_ref().is_some_and(|(_, until)| *until <= now);
        if ends || self.is_silent(&link.session, now) || !self.speak(&mut link.session, now).await {
            return Some(self.lost(None, link.bye.take()));
        }
        None
    }

    fn is_silent(&self, session: &Session, now: Instant) -> bool {
        now - session.received > session.heartbeat.mul_f64(2.5)
            && !self.faults.contains(&PlantedFault::IgnoreSilence)
    }

    /// Sends what is due, and a sign of life. Returns whether the connection takes it.
    async fn speak(&mut self, session: &mut Session, now: Instant) -> bool {
        let mut frames = self.machine.take_frames(now);
        let pings = !self.faults.contains(&PlantedFault::NoPing);
        let id = self.machine.outbox.request_id();
        frames.extend(session.refresh.request(id, self.tokens.get(1), now));
        if frames.is_empty() && pings && now - session.sent > session.heartbeat.mul_f64(0.7) {
            let id = self.machine.outbox.request_id();
            frames.push(json!({"id": id, "ping": {"positions": self.machine.positions()}}));
        }
        write(session, frames).await.is_ok()
    }

    /// Plans the move that a `goAway` asks for.
    fn plan(&mut self, go_away: &Value) -> Move {
        if self.faults.contains(&PlantedFault::IgnoreGoAway) {
            return Move::None;
        }
        let ms = |key: &str| Duration::from_millis(go_away[key].as_u64().unwrap_or_default());
        let at = Instant::now() + ms("afterMs") + self.pace.part(ms("windowMs"));
        let scheme = if self.addresses[0].starts_with("ws:") { "ws://" } else { "tcp://" };
        let mut alternates = go_away["alternates"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let alternate = alternates.find(|it| it.starts_with(scheme)).map(str::to_owned);
        self.alternate.clone_from(&alternate);
        Move::Planned(at, alternate.unwrap_or_else(|| self.addresses[0].clone()))
    }

    /// Ends a session, and after `bye` the client.
    fn lost(&mut self, close: Option<Value>, bye: Option<(Value, Instant)>) -> End {
        let Some((tag, _)) = bye else { return End::Lost(close) };
        self.flush_events();
        self.state("closed", close.as_ref());
        self.event(json!({"event": "done", "as": tag}));
        End::Closed
    }

    fn flush_events(&mut self) {
        for event in self.machine.take_events() {
            self.event(event);
        }
    }

    fn state(&self, state: &str, close: Option<&Value>) {
        let close = close.unwrap_or(&Value::Null);
        let (code, name) = (close["code"].as_u64().unwrap_or(0), close["name"].as_str().unwrap_or_default());
        self.event(json!({"event": "state", "state": state, "code": code, "name": name}));
    }

    /// Hands a request of a tab to the machine.
    fn request(&mut self, mut command: Value) {
        command["as"] = tag(&command);
        self.machine.command(&command, Instant::now());
    }

    /// Writes an event for the tab whose request it answers, or else for each one.
    fn event(&self, mut event: Value) {
        let tag = event.as_object_mut().and_then(|event| event.remove("as")).unwrap_or_default();
        let members = self.members.lock().clone();
        // The request of a former process has no tab that waits for it.
        if members.iter().any(|member| tag["client"] == member.as_str()) {
            event["client"] = tag["client"].clone();
            event["as"] = tag["as"].clone();
            emit(&event);
            return;
        }
        for member in &members {
            event["client"] = member.as_str().into();
            emit(&event);
        }
    }
}

/// Returns the tab of a command, and the name of the command.
fn tag(command: &Value) -> Value {
    json!({"client": command["client"], "as": command["as"]})
}
