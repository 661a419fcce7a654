//! What a step has the scripted node do: log a client in, write, cut, stall.

use std::time::Instant;

use serde_json::{Value, json};
use tidegate_protocol::ws::{self, Opcode};

use super::{
    super::{
        board::Order,
        step::{self, CONVERSATION, Cut, Step},
        wire::{self, FrameForm},
    },
    Player,
};

impl Player<'_> {
    pub(super) async fn login(&mut self, name: &str, step: &Step) -> Result<(), String> {
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

    /// Carries out what the step does on a connection.
    pub(super) async fn act(&mut self, step: &Step) -> Result<(), String> {
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
            ws::encode_server(Opcode::Ping, text.as_bytes(), &mut out);
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
        let form =
            FrameForm { fragments: step.fragments.unwrap_or(1), unknown_fields: step.unknown == Some(true) };
        for frame in frames {
            wire::put(frame, self.transport, form, &mut bytes).map_err(|error| format!("{error:#}"))?;
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
}
