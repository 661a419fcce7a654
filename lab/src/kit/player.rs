//! Player of a case: takes its steps one after the other, and judges what the client does.

mod act;
mod expect;

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
    board::{Board, Log},
    connection,
    invariants::{self, Ban},
    pattern::{self, Bindings},
    step::{CONVERSATION, Case, Step},
    wire::KitTransport,
};

/// Time in ms in which pushes are acknowledged: a second, and the scheduling of a busy machine.
const ACK_WITHIN: u64 = 1_500;

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

    fn connection(&self, step: &Step) -> Result<usize, String> {
        let name = step.on.as_ref().unwrap_or(&self.current);
        self.connections.get(name).copied().ok_or_else(|| format!("no connection is named {name:?}"))
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
            Value::Object(map) => map
                .iter()
                .map(|(key, item)| (key.clone(), self.addressed(item)))
                .collect::<Map<_, _>>()
                .into(),
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
