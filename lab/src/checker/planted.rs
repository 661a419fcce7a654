//! Losses planted into a recorded history, each of which the checker has to name: a checker that can't fail proves nothing.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, bail};

use super::{
    Budget, Checker, History, HistoryEvent, Id, Via, check,
    rooms::OwedMessages,
    webhooks::{FeedRules, WEBHOOK},
};

/// Messages of a live room that come before the rest is lost.
const FIRST_MESSAGES: usize = 3;

/// The name of a loss, the rules that have to name it, and the history with it; `None` if the rules allow each such loss.
type Plant = (&'static str, &'static [&'static str], Option<History>);

/// Checks the history, which has to be clean, and then each loss planted into it. Returns how many losses were named. Prints
/// the losses of live rooms that are not planted, because no member was due such a message.
///
/// # Errors
/// Fails when a promise is broken, a loss is not named, or the history has nothing else that can be lost.
pub fn all_named(history: &str) -> anyhow::Result<usize> {
    let history = History::parse(history)?;
    check(&history, Budget::default()).judge().context("as it was recorded")?;
    let mut named = 0;
    for (what, rules, planted) in plants(&history)? {
        let Some(planted) = planted else {
            println!("not planted: {what}: no member was due such a message when the run was quiet");
            continue;
        };
        let report = check(&planted, Budget::default());
        for rule in rules {
            if !report.broken.contains_key(rule) {
                bail!("{what}: the checker does not name `{rule}`, but {:?}", report.broken);
            }
        }
        println!("planted: {what}: {:?}", report.broken);
        named += 1;
    }
    Ok(named)
}

fn plants(history: &History) -> anyhow::Result<Vec<Plant>> {
    let owed = owed_messages(history);
    Ok(vec![
        (
            "an acked message that the log does not have",
            &["lost-acked"],
            Some(without_the_last_row(history).context("nothing was stored")?),
        ),
        (
            "a message that was never sent",
            &["never-sent"],
            Some(without_the_last_send(history).context("nothing was sent")?),
        ),
        (
            "a marker that was neither pushed nor pulled",
            &["not-delivered", "never-got"],
            Some(without_the_last_push(history).context("nothing was pushed")?),
        ),
        (
            "a message missed while away and never pulled",
            &["never-got"],
            Some(without_a_pull(history).context("no device missed a message and pulled it")?),
        ),
        (
            "a member of a live room that got nothing of it",
            &["shed-untold"],
            without_a_stay(history, &owed, 0),
        ),
        (
            "a member of a live room that got nothing more of it after its first messages",
            &["shed-untold"],
            without_a_stay(history, &owed, FIRST_MESSAGES),
        ),
        (
            "an event that no endpoint of webhooks got",
            &["webhook-lost"],
            Some(without_the_last_delivery(history).context("no endpoint of webhooks got anything")?),
        ),
        (
            "two events of a conversation that changed places on their way to an endpoint of webhooks",
            &["webhook-order"],
            Some(
                with_swapped_deliveries(history)
                    .context("no endpoint of webhooks got two events of a conversation")?,
            ),
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

/// Returns the messages of live rooms that members had to get by the end of the run.
fn owed_messages(history: &History) -> OwedMessages {
    let mut checker = Checker::new(history, Budget::default());
    checker.index();
    checker.check_deliveries();
    checker.owed_at_the_end()
}

/// Returns the history in which a member of a live room that stayed to the end got nothing but its `first` messages. At least
/// one of the others was due to it. Of several such members it is the one that got a message last.
fn without_a_stay(history: &History, owed: &OwedMessages, first: usize) -> Option<History> {
    let mut came: HashMap<(u64, Id), Vec<(usize, Id)>> = HashMap::new();
    for (at, stamped) in history.events.iter().enumerate() {
        if let HistoryEvent::Recv { session, conv, cid: Some(cid), via: Via::Push, .. } = stamped.event {
            came.entry((session, conv)).or_default().push((at, cid));
        }
    }
    let stays = owed.iter().filter_map(|(stay, owed)| {
        let (kept, lost) = came.get(stay)?.split_at_checked(first)?;
        let is_kept = |cid: &Id| kept.iter().any(|(_, other)| other == cid);
        lost.iter().any(|(_, cid)| owed.contains(cid) && !is_kept(cid)).then_some(lost)
    });
    let lost = stays.max_by_key(|lost| lost.last().map(|(at, _)| *at))?;
    let lost: HashSet<usize> = lost.iter().map(|(at, _)| *at).collect();
    let mut rest = history.clone();
    let mut at = 0;
    rest.events.retain(|_| {
        at += 1;
        !lost.contains(&(at - 1))
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

    const S: u64 = 1_000_000_000;
    const HALL: &str = "r:hall";

    fn join(history: &mut History, user: &str, session: u64, node: &str) {
        history.push(0, HistoryEvent::Open { user, device: "phone", session });
        history.push(0, HistoryEvent::Joined { session, conv: HALL, node });
    }

    /// Adds a message of Ann to the room, which comes to these members at once.
    fn talk(history: &mut History, second: u64, members: &[(&str, u64)]) {
        let (at, device, conv, name) = (second * S, "phone", HALL, format!("m{second}"));
        let cid = name.as_str();
        let send = HistoryEvent::SendInv {
            user: "ann",
            device,
            session: 1,
            conv,
            cid,
            body: 0,
            attempt: 0,
            chained: false,
        };
        history.push(at, send);
        history.push(at, HistoryEvent::SendOk { cid, seq: second, duplicate: false });
        for &(user, session) in members {
            let (seq, cid, via) = (second, Some(cid), Via::Push);
            history.push(at, HistoryEvent::Recv { user, device, session, conv, seq, cid, body: 0, via });
        }
    }

    /// Adds the end of the run, 10 s after its begin.
    fn rest(history: &mut History) {
        for user in ["ann", "bob", "dan"] {
            history.push(10 * S, HistoryEvent::Complete { user, device: "phone", hints: false });
        }
        history.push(10 * S, HistoryEvent::<&str>::Quiet {});
    }

    /// Returns the connection that gets nothing but its first messages, and how many it loses; `None` if none can be chosen.
    fn loser(history: &History, first: usize) -> Option<(u64, usize)> {
        let planted = without_a_stay(history, &owed_messages(history), first)?;
        let named = check(&planted, Budget::default()).broken.into_keys().collect::<Vec<_>>();
        assert_eq!(named, ["shed-untold"]);
        let came = |history: &History, member: u64| {
            let events = history.events.iter();
            events
                .filter(|it| matches!(it.event, HistoryEvent::Recv { session, .. } if session == member))
                .count()
        };
        let losses = [2, 3].map(|member| (member, came(history, member) - came(&planted, member)));
        losses.into_iter().find(|(_, lost)| *lost > 0)
    }

    #[test]
    fn messages_of_a_stay_are_taken_out_after_the_first_ones() {
        let mut history = History::default();
        for (user, session) in [("ann", 1), ("bob", 2), ("dan", 3)] {
            join(&mut history, user, session, "n1");
        }
        for second in 1..=4 {
            talk(&mut history, second, &[("bob", 2), ("dan", 3)]);
        }
        assert_eq!(loser(&history, 0), None, "the run was not quiet yet");
        let mut shed = history.clone();
        shed.push(4 * S, HistoryEvent::Shed { session: 3, conv: HALL, count: 1 });
        rest(&mut history);
        rest(&mut shed);
        assert_eq!((loser(&history, 0), loser(&history, 1)), (Some((3, 4)), Some((3, 3))));
        assert_eq!(loser(&shed, 1), Some((2, 3)), "what was announced may be missing");
        assert_eq!((loser(&history, 4), loser(&history, 5)), (None, None), "nothing more came");
    }

    #[test]
    fn stay_to_which_nothing_was_due_at_the_end_is_not_chosen() {
        let far_from_ann = |is_bob_there: bool| {
            let mut history = History::default();
            for (user, session, node) in [("ann", 1, "n1"), ("bob", 2, "n1"), ("dan", 3, "n2")] {
                join(&mut history, user, session, node);
            }
            history.push(0, HistoryEvent::Nemesis { on: true, fault: "peers" });
            let members = [("bob", 2), ("dan", 3)];
            for second in 1..=4 {
                talk(&mut history, second, &members[usize::from(!is_bob_there)..]);
            }
            if !is_bob_there {
                history.push(4 * S, HistoryEvent::Shed { session: 2, conv: HALL, count: 4 });
            }
            history.push(6 * S, HistoryEvent::Nemesis { on: false, fault: "peers" });
            rest(&mut history);
            history
        };
        assert_eq!(
            loser(&far_from_ann(true), 3),
            Some((2, 1)),
            "the last one is due to Dan 8 s after the fault"
        );
        assert_eq!(loser(&far_from_ann(false), 3), None);
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
