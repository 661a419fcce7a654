//! Tests of a device with a library, without an adapter.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::{machine::LibraryClient, message_names::name_messages};
use crate::{
    adapter::Description,
    checker::{Budget, History, HistoryEvent, Via, check},
    person::{Phase, Profile, text_hash},
};

const CONV: &str = "d:ann:bob";

/// A device of ann, which writes to bob in each tick, over an adapter with these abilities and levels.
fn device(can: &[&str]) -> LibraryClient {
    let profile = Profile {
        number: 3,
        user: "ann".to_owned(),
        device: "phone".to_owned(),
        wire: Wire::ALL[0],
        chained: true,
        places: vec![CONV.to_owned()],
        room: "hall".to_owned(),
        pace: Duration::from_millis(20),
        in_flight_max: 32,
        hops: 0,
        hints: false,
    };
    let list = |all: &[&str]| all.iter().map(|it| (*it).to_owned()).collect();
    let (name, version) = ("test".to_owned(), String::new());
    let (levels, transports) = (list(can), list(&["tcp-json"]));
    let description = Description { name, version, levels, transports, can: list(can) };
    LibraryClient::new(profile, &description, json!({"do": "connect", "client": "device3"}), 1, 7)
}

/// Runs ticks until there is a command of this kind.
fn until(client: &mut LibraryClient, phase: Phase, what: &str) -> Value {
    let found = (0..1_000_000_u64).find_map(|tick| {
        client.tick(Duration::from_millis(20) * u32::try_from(tick).ok()?, phase, || 2);
        client.take_commands().into_iter().find(|it| it["do"] == what)
    });
    found.unwrap_or_else(|| panic!("no {what}"))
}

fn handle_event(client: &mut LibraryClient, event: &Value) {
    client.handle_event(event, Duration::ZERO, || 2);
}

fn is_sent(events: &[HistoryEvent<String>], name: &str) -> bool {
    events.iter().any(|it| matches!(it, HistoryEvent::SendOk { cid, .. } if cid == name))
}

#[test]
fn send_is_recorded_before_its_command_is_taken_and_its_answer_has_its_name() {
    let mut client = device(&[]);
    let send = until(&mut client, Phase::Talk, "send");
    let HistoryEvent::SendInv { cid, body, .. } = &client.take_events()[0] else { panic!("no send") };
    assert_eq!(send["content"]["text"].as_str().map(text_hash), Some(*body));
    let sent =
        json!({"event": "sent", "client": "device3/0", "as": send["as"], "conversation": CONV, "seq": 1});
    handle_event(&mut client, &sent);
    assert!(is_sent(&client.take_events(), cid));
    handle_event(&mut client, &sent);
    assert!(client.failure().is_some_and(|it| it.contains("answered")), "a second answer is a fault");
}

#[test]
fn message_in_flight_at_a_crash_is_waited_for_and_named_by_its_id() {
    let mut client = device(&["store"]);
    handle_event(&mut client, &json!({"event": "state", "client": "device3/0", "state": "live"}));
    let drop = until(&mut client, Phase::Talk, "drop");
    assert_eq!(drop["client"], "device3/0");
    assert_eq!(client.waiting(), usize::MAX, "the next client is not live");
    handle_event(&mut client, &json!({"event": "state", "client": "device3/0", "state": "live"}));
    assert_eq!(client.waiting(), usize::MAX, "what the old client reports late changes nothing");
    handle_event(&mut client, &json!({"event": "state", "client": "device3/1", "state": "live"}));
    let waiting = client.waiting();
    assert!(waiting > 0);
    let sent = json!({"event": "sent", "client": "device3/1", "conversation": CONV, "msgId": "m9", "seq": 4});
    handle_event(&mut client, &sent);
    assert_eq!(client.waiting(), waiting - 1);
    assert!(is_sent(&client.take_events(), "m9"));
    client.tick(Duration::ZERO, Phase::Settle, || 2);
    client.tick(Duration::from_secs(6), Phase::Settle, || 2);
    assert_eq!(client.waiting(), 0, "a command that the crash overtook has no answer");
}

#[test]
fn client_that_a_login_from_before_a_crash_replaces_is_started_again() {
    let mut client = device(&["store"]);
    until(&mut client, Phase::Talk, "drop");
    client.handle_event(
        &json!({"event": "state", "client": "device3/1", "state": "live"}),
        Duration::ZERO,
        || 2,
    );
    let replaced = json!({"event": "state", "client": "device3/1", "state": "closed", "code": 3500});
    client.handle_event(&replaced, Duration::ZERO, || 2);
    assert!(client.failure().is_none());
    assert_eq!(until(&mut client, Phase::Settle, "connect")["client"], "device3/2");
    let replaced = json!({"event": "state", "client": "device3/2", "state": "closed", "code": 3500});
    client.handle_event(&replaced, Duration::from_secs(86_400), || 2);
    assert!(
        client.failure().is_some_and(|it| it.contains("closed for ever")),
        "no login is late for so long"
    );
}

/// Takes the messages that were sent: name, conversation and attempt.
fn take_sends(client: &mut LibraryClient) -> Vec<(String, String, u32)> {
    let sends = client.take_events().into_iter().filter_map(|event| match event {
        HistoryEvent::SendInv { cid, conv, attempt, .. } => Some((cid, conv, attempt)),
        _ => None,
    });
    sends.collect()
}

/// A live device in the room, after the commands that create it.
fn in_the_hall(can: &[&str]) -> LibraryClient {
    let mut client = device(can);
    let join = until(&mut client, Phase::Settle, "join");
    assert_eq!(join["room"], "hall");
    handle_event(&mut client, &json!({"event": "state", "client": "device3/0", "state": "live"}));
    handle_event(&mut client, &json!({"event": "done", "client": "device3/0", "as": join["as"]}));
    client
}

#[test]
fn room_message_that_a_new_connection_may_repeat_is_another_attempt() {
    let mut client = in_the_hall(&["L3"]);
    assert!(client.take_events().iter().any(|it| matches!(it, HistoryEvent::Joined { session: 2, .. })));
    let send = loop {
        let send = until(&mut client, Phase::Talk, "send");
        if send["to"]["conversation"] == "r:hall" {
            break send;
        }
    };
    let sent = take_sends(&mut client);
    let (cid, ..) = sent.iter().find(|(_, conv, _)| conv == "r:hall").unwrap();
    handle_event(&mut client, &json!({"event": "state", "client": "device3/0", "state": "waiting"}));
    handle_event(&mut client, &json!({"event": "state", "client": "device3/0", "state": "live"}));
    assert!(take_sends(&mut client).contains(&(cid.clone(), "r:hall".to_owned(), 1)));
    // The first copy may have been accepted, so the refusal of the second one proves nothing.
    let refused = json!({"event": "failed", "client": "device3/0", "as": send["as"], "code": 2004});
    handle_event(&mut client, &refused);
    let events = client.take_events();
    assert!(
        events.iter().any(|it| matches!(it, HistoryEvent::SendInfo { cid: it } if it == cid)),
        "{events:?}"
    );
}

#[test]
fn room_message_that_was_answered_just_before_a_kill_may_be_sent_again() {
    let mut client = in_the_hall(&["L3"]);
    let mut answer = |at| loop {
        let send = until(&mut client, Phase::Talk, "send");
        let conv = if send["to"]["conversation"] == "r:hall" { "r:hall" } else { CONV };
        let sent =
            json!({"event": "sent", "client": "device3/0", "as": send["as"], "conversation": conv, "seq": 1});
        client.handle_event(&sent, Duration::from_secs(at), || 2);
        if conv == "r:hall" {
            break;
        }
    };
    [1, 9].into_iter().for_each(&mut answer);
    let sent: Vec<_> = take_sends(&mut client).into_iter().filter(|it| it.1 == "r:hall").collect();
    client.killed(Duration::from_secs(9));
    client.started();
    let name = client.name();
    for attempts in [1, 0] {
        handle_event(&mut client, &json!({"event": "state", "client": name, "state": "live"}));
        let again = take_sends(&mut client);
        assert!(!again.iter().any(|it| it.0 == sent[0].0), "{again:?}");
        assert_eq!(again.iter().filter(|it| it.0 == sent[1].0).count(), attempts);
        handle_event(&mut client, &json!({"event": "state", "client": name, "state": "waiting"}));
    }
}

#[test]
fn room_message_whose_answer_arrives_after_its_client_ended_may_be_sent_again() {
    let mut client = in_the_hall(&["L3"]);
    let send = loop {
        let send = until(&mut client, Phase::Talk, "send");
        if send["to"]["conversation"] == "r:hall" {
            break send;
        }
    };
    let sent = take_sends(&mut client);
    let (cid, ..) = sent.iter().rfind(|(_, conv, _)| conv == "r:hall").unwrap();
    client.killed(Duration::from_secs(9));
    client.started();
    let answer =
        json!({"event": "sent", "client": "device3/0", "as": send["as"], "conversation": "r:hall", "seq": 1});
    client.handle_event(&answer, Duration::from_secs(9), || 2);
    let name = client.name();
    handle_event(&mut client, &json!({"event": "state", "client": name, "state": "live"}));
    let again = take_sends(&mut client);
    assert!(again.contains(&(cid.clone(), "r:hall".to_owned(), 1)), "{again:?}");
}

#[test]
fn kill_of_the_adapter_excuses_the_repeat_of_what_was_shown_just_before() {
    let mut client = device(&["store", "ordered"]);
    let message = |seq: u64| json!({"event": "message", "conversation": CONV, "seq": seq, "msgId": "x"});
    let shown = |client: &mut LibraryClient, seq, at| {
        client.handle_event(&message(seq), Duration::from_secs(at), || 2);
        client.take_events().iter().any(|it| matches!(it, HistoryEvent::Recv { via: Via::App, .. }))
    };
    assert!(shown(&mut client, 1, 1));
    assert!(shown(&mut client, 2, 8));
    client.killed(Duration::from_secs(8));
    client.take_commands();
    client.tick(Duration::from_secs(9), Phase::Talk, || 2);
    assert!(client.take_commands().is_empty(), "no command goes to an adapter that is not there");
    assert_eq!(client.waiting(), usize::MAX);
    client.started();
    assert_eq!(client.take_commands()[0]["client"], "device3/1");
    assert!(!shown(&mut client, 2, 10), "the position may not have been stored");
    assert!(shown(&mut client, 2, 10), "a second repeat is a copy");
    assert!(shown(&mut client, 1, 10), "and so is that of an older entry");
}

#[test]
fn entry_that_a_dropped_client_still_showed_may_be_repeated() {
    let mut client = device(&["store", "ordered"]);
    let shown = |client: &mut LibraryClient, run: &str, seq| {
        let message = json!({"event": "message", "client": run, "conversation": CONV, "seq": seq, "msgId": format!("m{seq}")});
        client.handle_event(&message, Duration::from_secs(10), || 2);
        client.take_events().iter().any(|it| matches!(it, HistoryEvent::Recv { via: Via::App, .. }))
    };
    client.killed(Duration::from_secs(10));
    client.started();
    assert!(shown(&mut client, "device3/former", 4), "it was on its way when the client was dropped");
    let present = client.name();
    assert!(!shown(&mut client, &present, 4), "the next client may show it, too");
    assert!(shown(&mut client, &present, 4), "a second time is a copy");
}

#[test]
fn kill_of_the_adapter_excuses_the_show_of_an_own_message_that_was_acked_just_before() {
    let mut client = device(&["store", "ordered"]);
    let shown = |client: &mut LibraryClient, seq| {
        let message = json!({"event": "message", "conversation": CONV, "seq": seq, "msgId": "x"});
        client.handle_event(&message, Duration::from_secs(10), || 2);
        client.take_events().iter().any(|it| matches!(it, HistoryEvent::Recv { via: Via::App, .. }))
    };
    let send = until(&mut client, Phase::Talk, "send");
    let sent =
        json!({"event": "sent", "client": "device3/0", "as": send["as"], "conversation": CONV, "seq": 4});
    client.handle_event(&sent, Duration::from_secs(5), || 2);
    assert!(shown(&mut client, 5));
    client.killed(Duration::from_secs(10));
    client.started();
    assert!(!shown(&mut client, 4), "its position may not have been stored");
    assert!(!shown(&mut client, 5), "nor that of the entry after it");
    assert!(shown(&mut client, 4), "a second one is a copy");
}

#[test]
fn message_that_the_library_stored_has_its_name_in_the_answer_after_a_kill() {
    let mut client = device(&["store", "files"]);
    let send = until(&mut client, Phase::Talk, "send");
    let HistoryEvent::SendInv { cid, .. } = &client.take_events()[0] else { panic!("no send") };
    let stored = json!({"event": "stored", "client": "device3/0", "msgId": "m9", "content": send["content"]});
    handle_event(&mut client, &stored);
    let events = client.take_events();
    assert!(matches!(&events[..], [HistoryEvent::SendKept { cid: it }] if it == cid), "{events:?}");
    client.killed(Duration::ZERO);
    client.started();
    let sent = json!({"event": "sent", "client": "device3/1", "conversation": CONV, "msgId": "m9", "seq": 4});
    handle_event(&mut client, &sent);
    assert!(is_sent(&client.take_events(), cid));
}

#[test]
fn device_is_complete_once_everything_it_can_pull_was_shown() {
    let mut client = device(&["sync", "ordered"]);
    handle_event(&mut client, &json!({"event": "state", "client": "device3/0", "state": "live"}));
    let sync = until(&mut client, Phase::Check, "sync");
    handle_event(&mut client, &json!({"event": "done", "client": "device3/0", "as": sync["as"]}));
    let pull = until(&mut client, Phase::Check, "pull");
    let entry = |seq: u64| json!({"seq": seq, "msgId": format!("b{seq}"), "content": {"text": "hi"}});
    let first = json!({"messages": [entry(1)], "completeTo": 2});
    handle_event(
        &mut client,
        &json!({"event": "done", "client": "device3/0", "as": pull["as"], "page": first}),
    );
    let pull = until(&mut client, Phase::Check, "pull");
    assert_eq!(pull["cursor"], 1, "the next page");
    let last = json!({"messages": [entry(2)], "completeTo": 2});
    handle_event(
        &mut client,
        &json!({"event": "done", "client": "device3/0", "as": pull["as"], "page": last}),
    );
    client.tick(Duration::ZERO, Phase::Check, || 2);
    assert!(!client.is_complete());
    for seq in [1, 2] {
        let shown = json!({"event": "message", "conversation": CONV, "seq": seq, "msgId": format!("b{seq}")});
        handle_event(&mut client, &shown);
    }
    client.tick(Duration::ZERO, Phase::Check, || 2);
    assert!(client.is_complete());
}

/// A history in which a library sent one message, and the store has it under these ids, with this text.
fn stored(ids: &[&str], text: &str) -> History {
    let (mut history, body) = (History::default(), text_hash(text));
    let (conv, user, device) = (CONV, "ann", "phone");
    let (cid, sent) = ("library3.0", text_hash("hi"));
    history.push(
        1,
        HistoryEvent::SendInv { user, device, session: 1, conv, cid, body: sent, attempt: 0, chained: true },
    );
    history.push(2, HistoryEvent::SendOk { cid: ids[0], seq: 1, duplicate: false });
    for (seq, cid) in (1..).zip(ids) {
        let (user, device) = ("bob", "phone");
        history.push(
            3,
            HistoryEvent::Recv { user, device, session: 2, conv, seq, cid: Some(cid), body, via: Via::App },
        );
        history.push(4, HistoryEvent::LogMessage { conv, seq, sender: "ann", device, cid, body });
    }
    history
}

/// The same with the text that was sent, and with names.
fn stored_as(ids: &[&str]) -> History {
    let mut history = stored(ids, "hi");
    name_messages(&mut history);
    history
}

#[test]
fn message_has_one_name_whatever_id_the_library_chose() {
    assert!(check(&stored_as(&["x"]), Budget::default()).is_clean());
    let twice = check(&stored_as(&["x", "y"]), Budget::default());
    assert!(twice.broken.contains_key("stored-twice"), "{:?}", twice.broken);
    assert!(twice.broken.contains_key("duplicate-after-dedup"), "{:?}", twice.broken);
}

#[test]
fn edited_message_has_the_name_of_what_the_library_sent() {
    let (conv, of, seq) = (CONV, 1, 2);
    let mut history = stored(&["x"], "better");
    let (cid, body, was) = ("edit-1", text_hash("better"), text_hash("hi"));
    history.push(5, HistoryEvent::EditInv { conv, of, cid, body, was });
    history.push(5, HistoryEvent::LogEdit { conv, seq, of, cid });
    name_messages(&mut history);
    let report = check(&history, Budget::default());
    assert!(report.is_clean(), "{:?}", report.violations);
}

#[test]
fn edit_is_shown_at_its_own_seq() {
    let mut client = device(&["ordered", "edits"]);
    let edited = json!({"event": "edited", "client": "device3/0", "conversation": CONV, "seq": 1, "edit": 4, "content": {"text": "better"}});
    handle_event(&mut client, &edited);
    let events = client.take_events();
    assert!(
        matches!(&events[..], [HistoryEvent::Recv { seq: 4, cid: None, via: Via::App, .. }]),
        "{events:?}"
    );
}

#[test]
fn own_message_that_was_edited_need_not_be_shown() {
    let mut client = device(&["ordered", "edits"]);
    handle_event(&mut client, &json!({"event": "state", "client": "device3/0", "state": "live"}));
    let send = until(&mut client, Phase::Talk, "send");
    let sent = json!({"event": "sent", "client": "device3/0", "as": send["as"], "conversation": CONV, "seq": 1, "msgId": "m9"});
    handle_event(&mut client, &sent);
    let pull = until(&mut client, Phase::Check, "pull");
    client.take_events();
    let page = json!({"messages": [
        {"seq": 1, "sender": "ann", "msgId": "m9", "content": {"text": "edit 1 of 1"}, "edited": {"seq": 2}},
        {"seq": 2, "sender": "ann", "msgId": "edit-1", "edit": {"seq": 1, "content": {"text": "edit 1 of 1"}}},
    ], "completeTo": 2});
    handle_event(
        &mut client,
        &json!({"event": "done", "client": "device3/0", "as": pull["as"], "page": page}),
    );
    let received = client.take_events();
    assert!(matches!(&received[1], HistoryEvent::Recv { seq: 2, cid: None, .. }), "{received:?}");
    client.tick(Duration::ZERO, Phase::Check, || 2);
    assert!(!client.is_complete(), "the edit is to be shown");
    handle_event(
        &mut client,
        &json!({"event": "edited", "client": "device3/0", "conversation": CONV, "seq": 1, "edit": 2}),
    );
    client.tick(Duration::ZERO, Phase::Check, || 2);
    assert!(client.is_complete());
}
