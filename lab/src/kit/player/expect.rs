//! What a step expects of the client: connections, frames, events, and their times.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    super::{
        board::{EventLog, Log},
        pattern::{self, Bindings},
        step::Step,
    },
    Player,
};

/// Wait for what a step without `within` expects.
const PATIENCE: Duration = Duration::from_secs(4);
/// Wait for what is already late by its bound.
const LAST_CALL: Duration = Duration::from_millis(50);
/// How much too early a timer of the client may be.
const EARLY: Duration = Duration::from_millis(20);

/// Kinds of which a client may send more than a case expects, such as acks that a later one covers.
const LOOSE: [&str; 8] = ["ack", "ping", "pong", "pull", "sync", "empty", "wsPing", "wsPong"];

impl Player<'_> {
    pub(super) async fn opened(&mut self, name: &str, step: &Step) -> Result<(), String> {
        let listener = step.at.clone().unwrap_or_else(|| self.case.listeners[0].clone());
        let deadline = self.deadline(step)?;
        let probe = |log: &mut Log| {
            let found = log.connections.iter_mut().enumerate();
            let mut found =
                found.filter(|(_, it)| (listener == "*" || it.listener == listener) && !it.is_taken);
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

    pub(super) async fn expected(&mut self, pattern: &Value, step: &Step) -> Result<(), String> {
        let index = self.connection(step)?;
        let deadline = self.deadline(step)?;
        let pattern = &self.addressed(pattern);
        let sign = json!("sign");
        let kind = pattern.as_object().and_then(|map| map.keys().find(|key| *key != "id")).cloned();
        let is_loose = step.any == Some(true) || kind.as_deref().is_none_or(|kind| LOOSE.contains(&kind));
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

    pub(super) async fn event(&mut self, kind: &str, step: &Step) -> Result<(), String> {
        let client = step.client.as_deref().unwrap_or("c");
        let deadline = self.deadline(step)?;
        let with = self.addressed(&step.with.clone().unwrap_or_else(|| json!({})));
        let mut bindings = self.bindings.clone();
        let mut nearest = None;
        let probe = |log: &mut Log| {
            let is_open =
                |it: &&mut EventLog| !it.is_taken && it.client == client && it.event["event"] == kind;
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
        let at = found
            .unwrap_or_else(|| Err(late()))
            .map_err(|why| format!("expected event {kind} {with}: {why}"))?;
        self.bindings = bindings;
        self.in_time(step, at)
    }

    pub(super) async fn ended(&mut self, step: &Step) -> Result<(), String> {
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
    pub(super) fn none(&self, pattern: &Value, step: &Step) -> Result<(), String> {
        let index = self.connection(step)?;
        self.board.look(|log| {
            let mut frames = log.connections[index].frames.iter().filter(|arrived| !arrived.is_taken);
            let found =
                frames.find(|arrived| pattern::bind(pattern, &arrived.frame, &mut Bindings::new()).is_ok());
            found.map_or(Ok(()), |found| Err(format!("came too early, or at all: {}", found.frame)))
        })
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
}
