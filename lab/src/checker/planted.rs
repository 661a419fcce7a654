//! Losses planted into a recorded history, each of which the checker has to name: a checker that can't fail proves nothing.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, bail};

use super::{
    Budget, History, HistoryEvent, Id, Via, check,
    webhooks::{FeedRules, WEBHOOK},
};

/// Messages of a live room that come before the rest is lost.
const FIRST_MESSAGES: usize = 3;

/// The name of a loss, the rules that have to name it, and the history with it.
type Plant = (&'static str, &'static [&'static str], History);

/// Checks the history, which has to be clean, and then each loss planted into it. Returns how many losses were named.
///
/// # Errors
/// Fails when a promise is broken, a loss is not named, or the history has nothing that can be lost.
pub fn all_named(history: &str) -> anyhow::Result<usize> {
    let history = History::parse(history)?;
    check(&history, Budget::default()).judge().context("as it was recorded")?;
    let plants = plants(&history)?;
    for (what, rules, planted) in &plants {
        let report = check(planted, Budget::default());
        for rule in *rules {
            if !report.broken.contains_key(rule) {
                bail!("{what}: the checker does not name `{rule}`, but {:?}", report.broken);
            }
        }
        println!("planted: {what}: {:?}", report.broken);
    }
    Ok(plants.len())
}

fn plants(history: &History) -> anyhow::Result<Vec<Plant>> {
    Ok(vec![
        (
            "an acked message that the log does not have",
            &["lost-acked"],
            without_the_last_row(history).context("nothing was stored")?,
        ),
        (
            "a message that was never sent",
            &["never-sent"],
            without_the_last_send(history).context("nothing was sent")?,
        ),
        (
            "a marker that was neither pushed nor pulled",
            &["not-delivered", "never-got"],
            without_the_last_push(history).context("nothing was pushed")?,
        ),
        (
            "a message missed while away and never pulled",
            &["never-got"],
            without_a_pull(history).context("no device missed a message and pulled it")?,
        ),
        (
            "a member of a live room that got nothing of it",
            &["shed-untold"],
            without_a_stay(history, 0)
                .context("no member of a live room got a message and stayed to the end")?,
        ),
        (
            "a member of a live room that got nothing more of it after its first messages",
            &["shed-untold"],
            without_a_stay(history, FIRST_MESSAGES)
                .context("no member of a live room got messages and stayed to the end")?,
        ),
        (
            "an event that no endpoint of webhooks got",
            &["webhook-lost"],
            without_the_last_delivery(history).context("no endpoint of webhooks got anything")?,
        ),
        (
            "two events of a conversation that changed places on their way to an endpoint of webhooks",
            &["webhook-order"],
            with_swapped_deliveries(history)
                .context("no endpoint of webhooks got two events of a conversation")?,
        ),
    ])
}

/// Returns the history without these events.
fn without(history: &History, is_lost: impl Fn(&HistoryEvent<Id>) -> bool) -> History {
    let mut rest = history.clone();
    rest.events.retain(|it| !is_lost(&it.event));
    rest
}

/// Returns what `wanted` finds in the last event that has it.
fn last<T>(history: &History, wanted: impl Fn(&HistoryEvent<Id>) -> Option<T>) -> Option<T> {
    history.events.iter().rev().find_map(|it| wanted(&it.event))
}

fn without_the_last_row(history: &History) -> Option<History> {
    let row = |event: &HistoryEvent<Id>| match event {
        HistoryEvent::LogMessage { cid, .. } => Some(*cid),
        _ => None,
    };
    let lost = last(history, row)?;
    Some(without(history, |event| row(event) == Some(lost)))
}

/// Returns whether a conversation is a live room.
fn is_room(history: &History, conv: Id) -> bool {
    history.name(conv).starts_with("r:")
}

/// Returns the history without any attempt to send the message that was sent last.
fn without_the_last_send(history: &History) -> Option<History> {
    let send = |event: &HistoryEvent<Id>| match event {
        HistoryEvent::SendInv { cid, .. } => Some(*cid),
        _ => None,
    };
    let lost = last(history, send)?;
    Some(without(history, |event| send(event) == Some(lost)))
}

/// An entry that a device received: user, device, conversation and seq.
type Entry = (Id, Id, Id, u64);

/// Returns the entry of a `recv`, how it came, and its message.
fn entry(event: &HistoryEvent<Id>) -> Option<(Entry, Via, Option<Id>)> {
    match *event {
        HistoryEvent::Recv { user, device, conv, seq, cid, via, .. } => {
            Some(((user, device, conv, seq), via, cid))
        }
        _ => None,
    }
}

fn without_entry(history: &History, lost: Entry) -> History {
    without(history, |event| entry(event).is_some_and(|(entry, ..)| entry == lost))
}

fn without_the_last_push(history: &History) -> Option<History> {
    let is_marker = |entry: &Entry| !is_room(history, entry.2);
    let lost =
        last(history, |event| entry(event).filter(|(entry, via, _)| *via == Via::Push && is_marker(entry)))?;
    Some(without_entry(history, lost.0))
}

/// Returns the history in which a member of a live room that stayed to the end got nothing but so many messages.
fn without_a_stay(history: &History, first: usize) -> Option<History> {
    let (mut joined, mut ended): (HashSet<(u64, Id)>, HashSet<u64>) = Default::default();
    let mut devices: HashMap<u64, (Id, Id)> = HashMap::new();
    let mut complete: HashSet<(Id, Id)> = HashSet::new();
    for stamped in &history.events {
        match stamped.event {
            HistoryEvent::Open { user, device, session } => drop(devices.insert(session, (user, device))),
            HistoryEvent::Joined { session, conv, .. } => drop(joined.insert((session, conv))),
            HistoryEvent::Complete { user, device, .. } => drop(complete.insert((user, device))),
            // What was announced as shed may be missing.
            HistoryEvent::Parted { session, .. }
            | HistoryEvent::Close { session, .. }
            | HistoryEvent::Shed { session, .. } => drop(ended.insert(session)),
            _ => {}
        }
    }
    let talk = |event: &HistoryEvent<Id>| match *event {
        HistoryEvent::Recv { session, conv, via: Via::Push, .. } if is_room(history, conv) => {
            Some((session, conv))
        }
        _ => None,
    };
    // The last message of a room is a closing one.
    let stay = last(history, |event| {
        talk(event).filter(|stay| {
            let is_complete = devices.get(&stay.0).is_some_and(|device| complete.contains(device));
            joined.contains(stay) && !ended.contains(&stay.0) && is_complete
        })
    })?;
    let mut rest = history.clone();
    let mut came = 0;
    rest.events.retain(|it| {
        let is_of_stay = talk(&it.event) == Some(stay);
        came += usize::from(is_of_stay);
        !is_of_stay || came <= first
    });
    Some(rest)
}

/// Returns the history without a message of another device that a device only received by a pull.
fn without_a_pull(history: &History) -> Option<History> {
    let (mut entries, mut pushed, mut sent) = (Vec::new(), HashSet::new(), HashSet::new());
    for stamped in &history.events {
        if let HistoryEvent::SendInv { user, device, cid, .. } = stamped.event {
            sent.insert((user, device, cid));
        }
        let Some((entry, via, cid)) = entry(&stamped.event) else { continue };
        if via == Via::Push {
            pushed.insert(entry);
        }
        entries.push((entry, via, cid));
    }
    let is_own = |entry: &Entry, cid: Id| sent.contains(&(entry.0, entry.1, cid));
    let (lost, ..) = entries.iter().find(|(entry, via, cid)| {
        *via == Via::Pull && !pushed.contains(entry) && cid.is_some_and(|cid| !is_own(entry, cid))
    })?;
    Some(without_entry(history, *lost))
}

/// Event that an endpoint of webhooks got: endpoint, conversation and seq.
type Delivery = (Id, Id, u64);

/// Returns what an endpoint of webhooks got.
fn delivery(history: &History, event: &HistoryEvent<Id>) -> Option<Delivery> {
    match *event {
        HistoryEvent::Delivered { endpoint, conv, seq, .. }
            if FeedRules::of(history.name(endpoint)).kind == WEBHOOK =>
        {
            Some((endpoint, conv, seq))
        }
        _ => None,
    }
}

/// Returns the history without any delivery of the event that an endpoint got last. The endpoint reports all the same that it
/// has everything.
fn without_the_last_delivery(history: &History) -> Option<History> {
    let lost = last(history, |event| delivery(history, event))?;
    Some(without(history, |event| delivery(history, event) == Some(lost)))
}

/// Returns the history in which the first deliveries of two events of a conversation that followed one another have changed
/// places.
fn with_swapped_deliveries(history: &History) -> Option<History> {
    let mut newest: HashMap<(Id, Id), (usize, u64)> = HashMap::new();
    for (at, stamped) in history.events.iter().enumerate() {
        let Some((endpoint, conv, seq)) = delivery(history, &stamped.event) else { continue };
        match newest.get(&(endpoint, conv)) {
            Some((_, before)) if seq <= *before => continue,
            Some((before, _)) => {
                let mut swapped = history.clone();
                (swapped.events[*before].event, swapped.events[at].event) =
                    (stamped.event, history.events[*before].event);
                return Some(swapped);
            }
            None => drop(newest.insert((endpoint, conv), (at, seq))),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_in_which_nothing_happened_proves_nothing() {
        assert!(all_named("").is_err());
    }

    #[test]
    fn all_attempts_of_the_last_message_are_taken_out() {
        let mut history = History::default();
        for (cid, attempt) in [("m1", 0), ("m2", 0), ("m2", 1)] {
            let (user, device, conv) = ("ann", "phone", "g:team");
            let send = HistoryEvent::SendInv {
                user,
                device,
                session: 1,
                conv,
                cid,
                body: 0,
                attempt,
                chained: false,
            };
            history.push(0, send);
        }
        let rest = without_the_last_send(&history).expect("messages were sent");
        assert_eq!(rest.events, history.events[..1]);
    }

    #[test]
    fn messages_of_a_stay_are_taken_out_after_the_first_ones() {
        let (user, device, conv) = ("bob", "phone", "r:hall");
        let mut history = History::default();
        for session in [1, 2, 3] {
            history.push(0, HistoryEvent::Open { user, device, session });
            history.push(0, HistoryEvent::Joined { session, conv, node: "n1" });
        }
        history.push(0, HistoryEvent::<&str>::Close { session: 1, code: 0 });
        for (session, seq) in [(2, 1), (2, 2), (3, 1)] {
            let (cid, via) = (Some("m"), Via::Push);
            history.push(0, HistoryEvent::Recv { user, device, session, conv, seq, cid, body: 0, via });
        }
        history.push(0, HistoryEvent::Shed { session: 3, conv, count: 1 });
        assert!(without_a_stay(&history, 0).is_none(), "no device reports that it has everything");
        history.push(0, HistoryEvent::Complete { user, device, hints: false });
        let left = |first| {
            let rest = without_a_stay(&history, first).expect("a member stays");
            let came =
                rest.events.iter().filter(|it| matches!(it.event, HistoryEvent::Recv { session: 2, .. }));
            (came.count(), history.events.len() - rest.events.len())
        };
        assert_eq!((left(0), left(1)), ((0, 2), (1, 1)));
    }

    /// Deliveries of the events 1, 2, 2 and 3 of a group to an endpoint, after others to another consumer.
    fn delivered() -> History {
        let mut history = History::default();
        for (endpoint, seq) in [("stream", 1), ("stream", 2), ("crm", 1), ("crm", 2), ("crm", 2), ("crm", 3)]
        {
            history.push(0, HistoryEvent::Delivered { endpoint, conv: "g:team", seq, cid: None, body: 0 });
        }
        history
    }

    fn seqs(history: &History) -> Vec<u64> {
        history.events.iter().filter_map(|it| Some(delivery(history, &it.event)?.2)).collect()
    }

    #[test]
    fn all_deliveries_of_the_last_event_to_an_endpoint_are_taken_out() {
        let mut history = delivered();
        let again = history.events[5];
        history.events.push(again);
        history.push(
            0,
            HistoryEvent::Delivered { endpoint: "stream", conv: "g:team", seq: 3, cid: None, body: 0 },
        );
        let rest = without_the_last_delivery(&history).expect("events were delivered");
        assert_eq!(seqs(&rest), [1, 2, 2]);
        assert_eq!(rest.events.len(), 6, "what other consumers got is left");
    }

    #[test]
    fn first_deliveries_of_two_events_change_places() {
        let swapped = with_swapped_deliveries(&delivered()).expect("events were delivered");
        assert_eq!(seqs(&swapped), [2, 1, 2, 3]);
        let mut once = delivered();
        once.events.truncate(3);
        assert!(with_swapped_deliveries(&once).is_none(), "other consumers have another order");
    }
}
