//! Promises that are checked at the end of a run.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidegate_protocol::{
    machine::ledger::{Key, Outcome, edit_key, message_key, request_key},
    record::{Body, Message, SenderOrder, body_hash},
};

use crate::{
    client::Client,
    model::{Decision, Id, Model},
    owner::Log,
    store::Tables,
};

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, want: &T) -> Result<(), String> {
    if got == want { Ok(()) } else { Err(format!("{what} in the store: {got:?}, in the replay: {want:?}")) }
}

/// Checks that the store equals the replay of the log.
pub(crate) fn store(store: &Tables, model: &Model) -> Result<(), String> {
    same("rules", &store.rules, &model.rules)?;
    same("heads", &store.heads, &model.heads)?;
    same("members", &store.members, &model.members)?;
    same("devices", &store.devices, &model.devices)?;
    same("rows", &store.rows, &model.rows)?;
    same("recalls", &store.recalled, &model.recalled)?;
    same("edits", &store.edited, &model.edited)?;
    for (decision, edit) in model.edits.values().filter(|(it, _)| it.offset >= model.rules.keys_from) {
        let Decision { seq, time, hash, offset, refused } = *decision;
        let key = store.keys.get(&edit_key(edit)).copied();
        same("key of an edit", &key, &Some(Key { seq, time, body_hash: hash, offset, refused }))?;
    }
    for (id, decision) in model.ids.iter().filter(|(_, decision)| decision.offset >= model.rules.keys_from) {
        let Decision { seq, time, hash, offset, refused } = *decision;
        let key = store.keys.get(&message_key(&named(id))).copied();
        same("key", &key, &Some(Key { seq, time, body_hash: hash, offset, refused }))?;
    }
    for (decision, change) in model.requests.values().filter(|(it, _)| it.offset >= model.rules.keys_from) {
        let Decision { seq, time, hash, offset, refused } = *decision;
        let key = store.keys.get(&request_key(change)).copied();
        same("key of a request", &key, &Some(Key { seq, time, body_hash: hash, offset, refused }))?;
    }
    Ok(())
}

/// Returns a message with this id.
fn named((conversation, sender, device, msg_id): &Id) -> Message {
    Message {
        conversation: conversation.clone(),
        sender: sender.clone(),
        device: device.clone(),
        msg_id: msg_id.clone(),
        attempt: 0,
        content: Bytes::new(),
        order: SenderOrder { epoch: 0, n: 0, chained: false },
        flags: 0,
        mode: Default::default(),
        body_hash: body_hash(b""),
    }
}

/// Checks that seqs are 1, 2, 3, … in log order, per conversation.
pub(crate) fn seqs(model: &Model, log: &Log) -> Result<(), String> {
    let mut last = BTreeMap::new();
    for (answer, (_, record)) in model.answers.iter().zip(&log.entries) {
        let (Some(Outcome::Accepted { seq, .. }), Some(record)) = (answer, record) else { continue };
        let last = last.entry(record.conversation()).or_insert(0);
        *last += 1;
        same("seq", seq, last)?;
    }
    Ok(())
}

/// Checks the acks of a client: no acked message is lost or renumbered, and its order is decision.
pub(crate) fn client(client: &Client, model: &Model, exempt: &BTreeSet<Id>) -> Result<(), String> {
    for (index, sent) in client.sent.iter().enumerate() {
        let Some((seq, acked)) = sent.acked else { continue };
        match model.history.get(&(sent.conversation.clone(), seq)).map(|row| &row.body) {
            Some(Body::Message(it))
                if (&it.sender, &it.device, &it.msg_id) == (&client.user, &client.device, &sent.msg_id) => {}
            other => return Err(format!("{} was acked as {seq}, where {other:?} is", sent.msg_id)),
        }
        for later in client.sent.iter().skip(index + 1).filter(|it| it.conversation == sent.conversation) {
            let Some((other, _)) = later.acked else { continue };
            if later.begun > acked && other < seq {
                return Err(format!(
                    "{} was sent after the ack of {}, but has a lower seq",
                    later.msg_id, sent.msg_id
                ));
            }
            let loose = [sent, later].iter().any(|it| {
                let id = (
                    sent.conversation.clone(),
                    client.user.clone(),
                    client.device.clone(),
                    it.msg_id.clone(),
                );
                exempt.contains(&id)
            });
            if client.chains && !loose && other < seq {
                return Err(format!("chained {} comes after its successor {}", sent.msg_id, later.msg_id));
            }
        }
    }
    Ok(())
}
