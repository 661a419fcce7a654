//! Sends in flight of one user, over all connections: the further ones are read later, none is refused or lost, and each
//! connection keeps its order.

use std::{collections::VecDeque, time::Duration};

use tidegate::mail::{ConnKey, Mail};
use tidegate_protocol::{
    Code,
    machine::session::SubmitAnswer,
    pb,
    record::{Body, Record},
};

use crate::{
    login, login_as,
    manual_shards::ManualShards,
    network::Memory,
    support::{Client, ServerBody, ask, hello, send},
};

const DEVICES: usize = 8;

/// Messages of each device.
const MESSAGES: usize = 100;

/// Most of them in flight, with that number of devices.
const IN_FLIGHT_MAX: usize = 128;

/// Returns the number of the device that a message is from, and the number of the message.
fn place(record: &Record) -> (usize, usize) {
    let Body::Message(message) = &record.body else { panic!("a message") };
    let (device, n) = message.msg_id.as_str()[1..].split_once('-').expect("as it was named");
    (device.parse().expect("a number"), n.parse().expect("a number"))
}

fn accepted(record: &Record, seq: usize) -> (ConnKey, u64, SubmitAnswer) {
    let answer = SubmitAnswer::Accepted { seq: seq as u64, time: 1 };
    (ConnKey::unpack(record.origin.conn), record.origin.request, answer)
}

/// Sends all messages; a chained device sends each ten in reverse.
fn say_all(client: &mut Client, device: usize, is_chained: bool) -> Vec<u64> {
    let id = |n: usize| format!("m{device}-{n}");
    let order = (0..MESSAGES).map(|n| if is_chained { n / 10 * 10 + 9 - n % 10 } else { n });
    order
        .map(|n| {
            let next_id = if is_chained { id(n + 1) } else { String::new() };
            client.say(ask::send(pb::Send { next_id, ..send("carl", &id(n), "hi") }))
        })
        .collect()
}

/// S71.
#[test]
fn s71_sends_of_a_user_wait_for_each_other_only_and_none_is_lost() {
    let mut shards = ManualShards::<Memory>::new(1, |_, _| {});
    let token = shards.token("mallory");
    let mut devices: Vec<Client> = (0..DEVICES)
        .map(|n| {
            // Every second device has a chain.
            let next_id = if n % 2 == 1 { format!("m{n}-0") } else { String::new() };
            let hello = pb::Hello { next_id, ..hello(&token, &format!("d{n}")) };
            login_as(&mut shards, hello)
        })
        .collect();
    let mut bob = login(&mut shards, 0, "bob", &[]);
    let asked: Vec<Vec<u64>> =
        devices.iter_mut().enumerate().map(|(n, client)| say_all(client, n, n % 2 == 1)).collect();
    (0..20).for_each(|_| shards.turn(0));
    let mut in_flight: VecDeque<Record> = shards.take_sends().into();
    assert_eq!(in_flight.len(), IN_FLIGHT_MAX);
    // Another user is not affected.
    bob.say(ask::send(send("carl", "m100-0", "hi")));
    shards.turn(0);
    let [of_bob] = &shards.take_sends()[..] else { panic!("one message") };
    assert_eq!(place(of_bob), (100, 0));
    let mut next = [0; DEVICES];
    let mut answered = 0;
    while let Some(record) = in_flight.pop_front() {
        let (device, n) = place(&record);
        assert_eq!(n, std::mem::replace(&mut next[device], n + 1), "device {device}");
        answered += 1;
        shards.post(0, Mail::Answers(vec![accepted(&record, answered)]));
        if answered % 8 == 0 || in_flight.is_empty() {
            (0..4).for_each(|_| shards.turn(0));
            in_flight.extend(shards.take_sends());
        }
        assert!(in_flight.len() <= IN_FLIGHT_MAX);
        if answered == DEVICES * MESSAGES / 2 {
            assert!(next.iter().all(|n| *n >= MESSAGES / 4), "they send in turns: {next:?}");
        }
    }
    assert_eq!(next, [MESSAGES; DEVICES]);
    for (device, asked) in devices.iter_mut().zip(asked) {
        device.listen(Duration::ZERO);
        for request in asked {
            assert!(matches!(device.reply(request), ServerBody::SendAck(_)));
        }
    }
}

/// S71.
#[test]
fn s71_closed_connection_leaves_its_share_to_the_others() {
    let mut shards = ManualShards::<Memory>::new(1, |context, _| {
        context.conn_settings.change(|it| it.limits.in_flight_max = 4)
    });
    let mut first = login(&mut shards, 0, "mallory", &[]);
    let hello = hello(&shards.token("mallory"), "second");
    let mut second = login_as(&mut shards, hello);
    for n in 0..4 {
        first.say(ask::send(send("carl", &format!("m0-{n}"), "hi")));
    }
    shards.turn(0);
    assert_eq!(shards.take_sends().len(), 4);
    second.say(ask::send(send("carl", "m1-0", "hi")));
    (0..3).for_each(|_| shards.turn(0));
    assert!(shards.take_sends().is_empty(), "it waits");
    drop(first);
    (0..3).for_each(|_| shards.turn(0));
    // The closed connection waits for its answers until the deadline.
    shards.now = shards.now + Duration::from_secs(10);
    (0..6).for_each(|_| shards.turn(0));
    let [record] = &shards.take_sends()[..] else { panic!("one message") };
    assert_eq!(place(record), (1, 0));
}

/// S71.
#[test]
fn s71_send_that_waits_is_refused_when_the_node_stops() {
    let mut shards = ManualShards::<Memory>::new(1, |context, _| {
        context.conn_settings.change(|it| it.limits.in_flight_max = 1)
    });
    let mut first = login(&mut shards, 0, "mallory", &[]);
    let hello = hello(&shards.token("mallory"), "second");
    let mut second = login_as(&mut shards, hello);
    first.say(ask::send(send("carl", "m0-0", "hi")));
    shards.turn(0);
    let waiting = second.say(ask::send(send("carl", "m1-0", "hi")));
    (0..3).for_each(|_| shards.turn(0));
    shards.post(0, Mail::Stop(Code::Draining));
    (0..3).for_each(|_| shards.turn(0));
    let ServerBody::Error(error) = second.reply(waiting) else { panic!("an answer") };
    assert_eq!((error.name.as_str(), error.temporary), ("BUSY", true));
    assert_eq!(second.expect_close(), Code::Draining);
}
