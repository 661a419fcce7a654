//! Player of a case: takes its steps one after the other, and judges what the client does.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tokio::net::TcpListener;

use super::{
    adapter::Adapter,
    answers::Answers,
    board::{Board, EventLog, Log, Order},
    connection,
    invariants::{self, Ban},
    pattern::{self, Bindings},
    step::{self, CONVERSATION, Case, Cut, Step},
    wire::{self, FrameForm, KitTransport},
};

/// Wait for what a step without `within` expects.
const PATIENCE: Duration = Duration::from_secs(4);
/// Wait for what is already late by its bound.
const LAST_CALL: Duration = Duration::from_millis(50);
/// How much too early a timer of the client may be.
const EARLY: Duration = Duration::from_millis(20);

/// Time in ms in which pushes are acknowledged: a second, and the scheduling of a busy machine.
const ACK_WITHIN: u64 = 1_500;

/// Kinds of which a client may send more than a case expects, such as acks that a later one covers.
const LOOSE: [&str; 8] = ["ack", "ping", "pong", "pull", "sync", "empty", "wsPing", "wsPong"];

/// A case that is played.
pub(super) struct Player<'a> {
    number: usize,
    case: &'a Case,
    transport: KitTransport,
    /// Time that is added to the bounds above.
    slack: Duration,
    adapter: &'a Adapter,
    pub(super) board: Arc<Board>,
    bindings: Bindings,
    ports: Bindings,
    connections: HashMap<String, usize>,
    /// Name of the connection that was opened last.
    current: String,
    marks: HashMap<String, Instant>,
    last_act: Instant,
    clients: Vec<String>,
    bans: Vec<Ban>,
    listeners: tokio::task::JoinSet<()>,
}

impl<'a> Player<'a> {
    /// Opens the addresses of the case.
    pub(super) async fn open(
        number: usize,
        case: &'a Case,
        transport: KitTransport,
        slack: Duration,
        adapter: &'a Adapter,
    ) -> Result<Self, String> {
        let answers = Answers {
            manual: case.manual.clone(),
            states: case.states.clone(),
            history: case.history.clone(),
        };
        let board = Arc::new(Board::new(Log { answers, ..Log::default() }));
        let mut listeners = tokio::task::JoinSet::new();
        let mut ports = Bindings::new();
        for name in &case.listeners {
            let listener = bind().await?;
            let port = port(&listener)?;
            ports.insert(name.clone(), transport.address(port).into());
            let other = if transport.is_ws() { "tls" } else { "ws" };
            ports.insert(format!("{name}/other"), format!("{other}://127.0.0.1:{port}").into());
            listeners.spawn(connection::listen(listener, name.clone(), transport, Arc::clone(&board)));
        }
        // The port is free again once the listener is dropped, and nothing else takes it within a case.
        let closed = port(&bind().await?)?;
        ports.insert("closed".to_owned(), transport.address(closed).into());
        adapter.join(number, &board);
        Ok(Self {
            number,
            case,
            transport,
            slack,
            adapter,
            board,
            bindings: Bindings::new(),
            ports,
            connections: HashMap::new(),
            current: String::new(),
            marks: HashMap::new(),
            last_act: Instant::now(),
            clients: Vec::new(),
            bans: Vec::new(),
            listeners,
        })
    }

    /// Plays all steps. Fails with the step and the reason.
    pub(super) async fn play(&mut self) -> Result<(), String> {
        for (at, step) in self.case.steps.iter().enumerate() {
            let result = Box::pin(self.step(step)).await;
            result.map_err(|reason| format!("step {}: {reason}", at + 1))?;
        }
        self.board.look(|log| invariants::check(log, &self.bans))
    }

    /// Ends the clients and the addresses of the case.
    pub(super) fn finish(mut self) {
        self.adapter.leave(self.number, &self.clients);
        self.listeners.abort_all();
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        self.settings(step)?;
        if let Some(command) = &step.adapter {
            return self.command(command);
        }
        if let Some(name) = &step.open {
            return self.opened(name, step).await;
        }
        if let Some(name) = &step.login {
            return self.login(name, step).await;
        }
        if let Some(pattern) = &step.expect {
            return self.expected(pattern, step).await;
        }
        if let Some(seq) = step.acked {
            let conversation = step.conversation.as_deref().unwrap_or(CONVERSATION);
            let step = Step { within: step.within.or(Some(ACK_WITHIN)), ..step.clone() };
            let ack = json!({"ack": {"conversation": conversation, "seq": seq}});
            return self.expected(&ack, &step).await;
        }
        if let Some(pattern) = &step.none {
            return self.none(&self.filled_pattern(pattern), step);
        }
        if let Some(kind) = &step.event {
            return self.event(kind, step).await;
        }
        if let Some(ms) = step.wait {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            return Ok(());
        }
        if step.ended.is_some() || step.alive.is_some() {
            return self.ended(step).await;
        }
        self.act(step).await
    }

    /// Applies what a step sets for later.
    fn settings(&mut self, step: &Step) -> Result<(), String> {
        if let Some(name) = &step.mark {
            self.marks.insert(name.clone(), Instant::now());
        }
        if let Some(never) = &step.never {
            let frame = never.frame.as_ref().map(|frame| self.filled_pattern(frame));
            let ban = self.board.look(|log| Ban::new(never.clone(), frame, log));
            self.bans.push(ban);
        }
        let refusal = step.refuse.as_ref().map(|refusal| self.filled(refusal)).transpose()?;
        let at = step.at.clone().unwrap_or_else(|| self.case.listeners[0].clone());
        self.board.look(|log| {
            if let Some(refusal) = refusal {
                log.refusals.entry(at).or_default().push_back(refusal);
            }
            if let Some(states) = &step.states {
                log.answers.states.clone_from(states);
            }
            if let Some(history) = &step.history {
                log.answers.history.extend(history.clone());
            }
            if let Some(manual) = &step.manual {
                log.answers.manual.clone_from(manual);
            }
        });
        Ok(())
    }

    fn command(&mut self, command: &Map<String, Value>) -> Result<(), String> {
        let filled = self.filled(&Value::Object(command.clone()))?;
        let Value::Object(mut command) = filled else { return Err("no command".to_owned()) };
        let client = command.get("client").and_then(Value::as_str).unwrap_or("c");
        let client = format!("{}.{client}", self.number);
        if command.get("do").and_then(Value::as_str) == Some("connect") {
            let defaults = json!({
                "addresses": [self.ports[&self.case.listeners[0]]], "framing": self.transport.framing_name(),
                "user": "alice", "device": "phone", "tokens": ["t1"], "options": {},
            });
            for (key, value) in defaults.as_object().into_iter().flatten() {
                command.entry(key.clone()).or_insert_with(|| value.clone());
            }
            self.unique_names(&mut command);
            if !self.clients.contains(&client) {
                self.clients.push(client.clone());
            }
        }
        command.insert("client".to_owned(), client.into());
        self.last_act = Instant::now();
        self.adapter.send(&Value::Object(command))
    }

    /// Makes the names of `store` and `tabs` unique in the run.
    fn unique_names(&self, command: &mut Map<String, Value>) {
        for key in ["store", "tabs"] {
            if let Some(Value::String(name)) =
                command.get_mut("options").and_then(|options| options.get_mut(key))
            {
                *name = format!("{}.{name}", self.number);
            }
        }
    }

    async fn opened(&mut self, name: &str, step: &Step) -> Result<(), String> {
        let listener = step.at.clone().unwrap_or_else(|| self.case.listeners[0].clone());
        let deadline = self.deadline(step)?;
        let probe = |log: &mut Log| {
            let found = log.connections.iter_mut().enumerate();
            let mut found = found.filter(|(_, it)| (listener == "*" || it.listener == listener) && !it.is_taken);
            let (index, entry) = found.next()?;
            if entry.is_ready {
                entry.is_taken = true;
                return Some(Ok((index, entry.accepted)));
            }
            let reason = entry.fault.clone().or_else(|| {
                entry.ended.is_some().then(|| "the client ended it before its first frame".to_owned())
            });
            reason.map(Err)
        };
        let found = self.board.until(deadline, probe).await;
        let (index, at) = found.ok_or_else(|| format!("no connection to {listener:?} came"))??;
        self.in_time(step, at)?;
        self.connections.insert(name.to_owned(), index);
        name.clone_into(&mut self.current);
        Ok(())
    }

    async fn login(&mut self, name: &str, step: &Step) -> Result<(), String> {
        self.opened(name, step).await?;
        let hello = step.hello.clone().unwrap_or_else(|| json!({}));
        let pattern = json!({"id": "$helloId", "hello": hello});
        self.bindings.remove("helloId");
        let wait = Step { on: Some(name.to_owned()), ..Step::default() };
        self.expected(&pattern, &wait).await?;
        let mut welcome = json!({
            "session": format!("s-{name}"), "node": "n1", "heartbeatMs": 30_000, "resumed": false,
            "limits": {
                "frameBytesMax": 65_536, "contentBytesMax": 32_768, "holdMax": 256, "holdBytesMax": 262_144,
                "inFlightMax": 256,
            },
            "serverTime": 1_763_712_000_000_u64, "nextId": format!("n-{name}"),
            "settings": {
                "ackTimeoutMs": 5_000, "ackTries": 3, "heartbeatMs": 30_000, "unread": "all",
                "retention": "forever", "search": "on",
            },
        });
        let has_next_id = step.welcome.as_ref().is_some_and(|welcome| welcome.contains_key("nextId"));
        for (key, value) in step.welcome.iter().flatten() {
            welcome[key] = self.filled(value)?;
        }
        let id = self.bindings["helloId"].clone();
        let index = self.connection(&wait)?;
        let declared = self.board.look(|log| {
            let hello = log.connections[index].frames.iter().find(|arrived| arrived.kind == "hello");
            hello.map(|arrived| arrived.frame["hello"]["nextId"].clone())
        });
        match (declared, &step.undeclared) {
            (Some(Value::String(declared)), _) if !has_next_id => welcome["nextId"] = declared.into(),
            (_, Some(own)) => welcome["nextId"] = own.as_str().into(),
            _ => {}
        }
        self.bindings.insert("nextId".to_owned(), welcome["nextId"].clone());
        self.write(index, &[json!({"id": id, "welcome": welcome})], step)
    }

    async fn expected(&mut self, pattern: &Value, step: &Step) -> Result<(), String> {
        let index = self.connection(step)?;
        let deadline = self.deadline(step)?;
        let pattern = &self.addressed(pattern);
        let sign = json!("sign");
        let kind = pattern.as_object().and_then(|map| map.keys().find(|key| *key != "id")).cloned();
        let is_loose =
            step.any == Some(true) || kind.as_deref().is_none_or(|kind| LOOSE.contains(&kind));
        let mut bindings = self.bindings.clone();
        let mut nearest = None;
        let probe = |log: &mut Log| {
            let entry = &mut log.connections[index];
            for arrived in entry.frames.iter_mut().filter(|arrived| !arrived.is_taken) {
                if *pattern == sign {
                    if LOOSE.contains(&arrived.kind.as_str()) {
                        arrived.is_taken = true;
                        return Some(Ok(arrived.at));
                    }
                } else if kind.as_ref() == Some(&arrived.kind) {
                    match pattern::bind(pattern, &arrived.frame, &mut bindings) {
                        Ok(()) => {
                            arrived.is_taken = true;
                            return Some(Ok(arrived.at));
                        }
                        Err(reason) if !is_loose => return Some(Err(reason)),
                        Err(reason) => nearest = Some(reason),
                    }
                }
            }
            if let Some(fault) = &entry.fault {
                return Some(Err(fault.clone()));
            }
            entry.ended.map(|_| Err("the connection has ended".to_owned()))
        };
        let found = self.board.until(deadline, probe).await;
        let late = || format!("it did not come; nearest: {nearest:?}");
        let at = found.unwrap_or_else(|| Err(late())).map_err(|why| format!("expected {pattern}: {why}"))?;
        self.bindings = bindings;
        self.in_time(step, at)
    }

    async fn event(&mut self, kind: &str, step: &Step) -> Result<(), String> {
        let client = step.client.as_deref().unwrap_or("c");
        let deadline = self.deadline(step)?;
        let with = self.addressed(&step.with.clone().unwrap_or_else(|| json!({})));
        let mut bindings = self.bindings.clone();
        let mut nearest = None;
        let probe = |log: &mut Log| {
            let is_open = |it: &&mut EventLog| !it.is_taken && it.client == client && it.event["event"] == kind;
            for entry in log.events.iter_mut().filter(is_open) {
                match pattern::bind(&with, &entry.event, &mut bindings) {
                    Ok(()) => {
                        entry.is_taken = true;
                        return Some(Ok(entry.at));
                    }
                    Err(reason) => nearest = Some(reason),
                }
            }
            log.dead.clone().map(Err)
        };
        let found = self.board.until(deadline, probe).await;
        let late = || format!("it did not come; nearest: {nearest:?}");
        let at =
            found.unwrap_or_else(|| Err(late())).map_err(|why| format!("expected event {kind} {with}: {why}"))?;
        self.bindings = bindings;
        self.in_time(step, at)
    }

    async fn ended(&mut self, step: &Step) -> Result<(), String> {
        let index = self.connection(step)?;
        if step.alive.is_some() {
            let is_open = self.board.look(|log| log.connections[index].ended.is_none());
            return if is_open { Ok(()) } else { Err("the connection has ended".to_owned()) };
        }
        let deadline = self.deadline(step)?;
        let found = self.board.until(deadline, |log| log.connections[index].ended).await;
        self.in_time(step, found.ok_or("the client did not end the connection")?)
    }

    /// Checks that a frame has not come.
    fn none(&self, pattern: &Value, step: &Step) -> Result<(), String> {
        let index = self.connection(step)?;
        self.board.look(|log| {
            let mut frames = log.connections[index].frames.iter().filter(|arrived| !arrived.is_taken);
            let found = frames
                .find(|arrived| pattern::bind(pattern, &arrived.frame, &mut Bindings::new()).is_ok());
            found.map_or(Ok(()), |found| Err(format!("came too early, or at all: {}", found.frame)))
        })
    }

    /// Carries out what the step does on a connection.
    async fn act(&mut self, step: &Step) -> Result<(), String> {
        if let Some(short) = &step.push {
            let conversation = step.conversation.as_deref().unwrap_or(CONVERSATION);
            let short = self.filled(short)?;
            let frames: Vec<Value> =
                step::messages(&short, conversation).into_iter().map(|push| json!({"push": push})).collect();
            let index = self.connection(step)?;
            return self.write(index, &frames, step);
        }
        if let Some(frames) = &step.send {
            let frames = match self.filled(frames)? {
                Value::Array(frames) => frames,
                frame => vec![frame],
            };
            let index = self.connection(step)?;
            return self.write(index, &frames, step);
        }
        let order = if let Some(raw) = &step.raw {
            let mut out = Vec::new();
            wire::put_raw(raw, self.transport, &mut out).map_err(|error| format!("{error:#}"))?;
            Order::Write(vec![out])
        } else if let Some(text) = &step.ws_ping {
            let mut out = Vec::new();
            tidegate_protocol::ws::encode_server(
                tidegate_protocol::ws::Opcode::Ping,
                text.as_bytes(),
                &mut out,
            );
            Order::Write(vec![out])
        } else if let Some(stalls) = step.stall {
            Order::Stall(stalls)
        } else if let Some(cut) = step.cut {
            Order::Cut(cut)
        } else {
            return Ok(());
        };
        let index = self.connection(step)?;
        self.order(index, order)
    }

    /// Writes frames, or the part of them that the step names, and ends the connection after a `close` or a part.
    fn write(&mut self, index: usize, frames: &[Value], step: &Step) -> Result<(), String> {
        let mut bytes = Vec::new();
        let form = FrameForm {
            fragments: step.fragments.unwrap_or(1),
            unknown_fields: step.unknown == Some(true),
        };
        for frame in frames {
            wire::put(frame, self.transport, form, &mut bytes)
                .map_err(|error| format!("{error:#}"))?;
        }
        self.board.look(|log| {
            log.sent.extend(frames.iter().map(|frame| (Instant::now(), index, frame.clone())));
        });
        let closes = frames.iter().any(|frame| frame["close"].is_object());
        let mut cut = step.cut.or(closes.then_some(Cut::End));
        if let Some(count) = step.bytes {
            let length = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
            // A cut is always inside, also of the shorter frames of another framing.
            let inside = bytes.len().saturating_sub(1);
            let length = if count < 0 { bytes.len().saturating_sub(length) } else { length.min(inside) };
            bytes.truncate(length);
            cut = cut.or(Some(Cut::Reset));
        }
        let rest = bytes.split_off(step.split.unwrap_or(usize::MAX).min(bytes.len()));
        let mut parts = vec![bytes, rest];
        parts.retain(|part| !part.is_empty());
        self.order(index, Order::Write(parts))?;
        cut.map_or(Ok(()), |cut| self.order(index, Order::Cut(cut)))
    }

    fn order(&mut self, index: usize, order: Order) -> Result<(), String> {
        self.last_act = Instant::now();
        let orders = self.board.look(|log| log.connections[index].orders.clone());
        // The client may leave once it has read the last frame.
        let may_be_late = matches!(order, Order::Cut(_));
        match orders.try_send(order) {
            Err(_) if !may_be_late => Err("the connection has ended".to_owned()),
            _ => Ok(()),
        }
    }

    fn connection(&self, step: &Step) -> Result<usize, String> {
        let name = step.on.as_ref().unwrap_or(&self.current);
        self.connections.get(name).copied().ok_or_else(|| format!("no connection is named {name:?}"))
    }

    /// Returns the time from which the bounds of a step count.
    fn since(&self, step: &Step) -> Result<Instant, String> {
        step.since.as_ref().map_or(Ok(self.last_act), |name| {
            self.marks.get(name).copied().ok_or_else(|| format!("no mark is named {name:?}"))
        })
    }

    fn deadline(&self, step: &Step) -> Result<Instant, String> {
        let now = Instant::now();
        let Some(within) = step.within else { return Ok(now + PATIENCE + self.slack) };
        Ok((self.since(step)? + Duration::from_millis(within) + self.slack).max(now + LAST_CALL))
    }

    /// Checks the bounds of a step for what happened at a time.
    fn in_time(&self, step: &Step, at: Instant) -> Result<(), String> {
        let since = self.since(step)?;
        let passed = at.saturating_duration_since(since);
        let bound = Duration::from_millis;
        if step.not_before.is_some_and(|least| passed + EARLY < bound(least)) {
            return Err(format!("too early: after {} ms", passed.as_millis()));
        }
        if step.within.is_some_and(|most| passed > bound(most) + self.slack) {
            return Err(format!("too late: after {} ms", passed.as_millis()));
        }
        Ok(())
    }

    /// Returns a value with the captures and addresses that it names.
    fn filled(&self, template: &Value) -> Result<Value, String> {
        Ok(self.addressed(&pattern::fill(template, &self.bindings)?))
    }

    /// Returns a pattern with the captures that are bound.
    fn filled_pattern(&self, pattern: &Value) -> Value {
        pattern::fill(pattern, &self.bindings).unwrap_or_else(|_| pattern.clone())
    }

    fn addressed(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => text
                .strip_prefix('@')
                .and_then(|name| self.ports.get(name).cloned().or_else(|| long_text(name)))
                .unwrap_or_else(|| value.clone()),
            Value::Array(items) => items.iter().map(|item| self.addressed(item)).collect(),
            Value::Object(map) => {
                map.iter().map(|(key, item)| (key.clone(), self.addressed(item))).collect::<Map<_, _>>().into()
            }
            other => other.clone(),
        }
    }
}

/// Returns the text of `@text:N`: N characters.
fn long_text(name: &str) -> Option<Value> {
    let length = name.strip_prefix("text:")?.parse::<usize>().ok()?;
    Some("tidegate ".chars().cycle().take(length).collect::<String>().into())
}

async fn bind() -> Result<TcpListener, String> {
    TcpListener::bind("127.0.0.1:0").await.map_err(|error| format!("no port: {error}"))
}

fn port(listener: &TcpListener) -> Result<u16, String> {
    Ok(listener.local_addr().map_err(|error| error.to_string())?.port())
}
