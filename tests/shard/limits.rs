//! Rate limits at the edges of a shard: each is answered `RATE_LIMITED` with a time after which the same request
//! succeeds.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tidegate::limiter::{Limiter, RateLimits};
use tidegate_protocol::pb;

use crate::{
    manual_shards::ManualShards,
    network::{Memory, Network as _},
    pipes::Received,
    support::{Client, ClientBody, ServerBody, ask, hello, send},
};

const MS: Duration = Duration::from_millis(1);

/// Creates shards with one limiter, as a node has.
fn limited(count: usize, rates: RateLimits) -> ManualShards<Memory> {
    ManualShards::new(count, |context, _| {
        context.limiter = Arc::new(Limiter::new(rates, context.metrics.clone()));
    })
}

/// Returns the announced wait of a refusal because of a rate limit.
fn wait_of(error: &pb::Error) -> Duration {
    assert_eq!((error.name.as_str(), error.temporary), ("RATE_LIMITED", true), "{error:?}");
    assert!(error.retry_after_ms > 0);
    Duration::from_millis(error.retry_after_ms.into())
}

/// Logs in, or returns the announced wait; the Close of a refusal names the same one.
fn login(
    shards: &mut ManualShards<Memory>,
    shard: usize,
    who: (&str, &str),
    address: Option<IpAddr>,
) -> Result<Client, Duration> {
    let token = shards.token(who.0);
    match shards.log_in(shard, &token, who.1, address) {
        (client, ServerBody::Welcome(_)) => Ok(client),
        (mut client, ServerBody::Error(error)) => {
            let close = client.take("a close", |frame| matches!(frame.body, Some(ServerBody::Close(_))));
            let Some(ServerBody::Close(close)) = close.body else { panic!("a close") };
            assert_eq!((close.code, close.after_ms), (error.code, error.retry_after_ms));
            Err(wait_of(&error))
        }
        (_, other) => panic!("{other:?}"),
    }
}

/// Sends a request; returns the announced wait if it is refused. A send that is admitted has no answer here.
fn ask_for(
    shards: &mut ManualShards<Memory>,
    shard: usize,
    client: &mut Client,
    body: ClientBody,
) -> Result<(), Duration> {
    match shards.ask(shard, client, body) {
        Some(ServerBody::Error(error)) => Err(wait_of(&error)),
        Some(ServerBody::Done(_) | ServerBody::SyncEnd(_) | ServerBody::Pong(_)) | None => Ok(()),
        other => panic!("{other:?}"),
    }
}

/// Two connections of a user on different shards share the limit; another user has one of its own.
fn two_shards(rates: RateLimits) -> (ManualShards<Memory>, [Client; 2], Client) {
    let mut shards = limited(2, rates);
    let phone = login(&mut shards, 0, ("ann", "phone"), None).expect("a login");
    let laptop = login(&mut shards, 1, ("ann", "laptop"), None).expect("a login");
    let other = login(&mut shards, 1, ("bob", "phone"), None).expect("a login");
    (shards, [phone, laptop], other)
}

/// Sends a token that is no good; returns the code, and the wait if there is one.
fn refused_login(
    shards: &mut ManualShards<Memory>,
    shard: usize,
    token: &str,
    address: Option<IpAddr>,
) -> (String, Duration) {
    let mut client = Memory::connect(shards);
    shards.accept_from(shard, address);
    client.say(ask::hello(hello(token, "d")));
    (0..2).for_each(|_| shards.turn(shard));
    let ServerBody::Error(error) = client.reply(1) else { panic!("a refusal") };
    (error.name, Duration::from_millis(error.retry_after_ms.into()))
}

/// Returns the response to `GET /v1/assign`, or to the preflight without a token.
fn assign(shards: &mut ManualShards<Memory>, token: Option<&str>, address: Option<IpAddr>) -> String {
    let request = match token {
        Some(token) => format!("GET /v1/assign HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n"),
        None => "OPTIONS /v1/assign HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
    };
    let end = Memory::connect_raw(shards, request.as_bytes());
    shards.accept_from(0, address);
    let mut response = Vec::new();
    for _ in 0..3 {
        shards.turn(0);
        while let Received::Bytes(bytes) = end.read() {
            response.extend(bytes);
        }
    }
    String::from_utf8(response).expect("text")
}

#[test]
fn s72_refused_tokens_of_an_address_are_limited_and_loopback_is_exempt() {
    let mut shards = limited(2, RateLimits { address_logins: 3, ..RateLimits::default() });
    let address = Some(IpAddr::from([192, 0, 2, 1]));
    let invalid = ("TOKEN_INVALID".to_owned(), Duration::ZERO);
    let limited = |wait: Duration| ("RATE_LIMITED".to_owned(), wait);
    for n in 0..3 {
        assert_eq!(refused_login(&mut shards, n % 2, "forged", address), invalid);
        shards.now = shards.now + 10 * MS;
    }
    assert_eq!(refused_login(&mut shards, 0, "forged", address), limited(971 * MS));
    for _ in 0..10 {
        assert_eq!(refused_login(&mut shards, 0, "forged", None), invalid, "loopback");
    }
    shards.now = shards.now + 970 * MS;
    assert_eq!(refused_login(&mut shards, 1, "forged", address), limited(MS));
    shards.now = shards.now + MS;
    assert_eq!(refused_login(&mut shards, 1, "forged", address), invalid, "after the wait");
}

#[test]
fn s72_stranger_leaves_the_logins_of_others_at_its_address_alone() {
    let mut shards = limited(1, RateLimits { address_logins: 3, user_logins: 3, ..RateLimits::default() });
    let address = Some(IpAddr::from([192, 0, 2, 1]));
    let expired = shards.expired_token("ann");
    let mut clients = Vec::new();
    for n in 0..50 {
        refused_login(&mut shards, 0, "forged", address);
        clients.push(login(&mut shards, 0, (&format!("user-{n}"), "d"), address).expect("a valid token"));
        // It says that the client needs another token.
        assert_eq!(refused_login(&mut shards, 0, &expired, address).0, "TOKEN_EXPIRED");
    }
    assert_eq!(refused_login(&mut shards, 0, "forged", address).0, "RATE_LIMITED");
    for _ in 1..3 {
        clients.push(login(&mut shards, 0, ("user-0", "d"), address).expect("below the limit of the user"));
    }
    assert!(
        login(&mut shards, 0, ("user-0", "d"), address).is_err(),
        "a valid token counts against its user"
    );
}

#[test]
fn s72_refused_tokens_of_assign_count_as_those_of_logins() {
    let mut shards = limited(1, RateLimits { address_logins: 3, ..RateLimits::default() });
    let address = Some(IpAddr::from([192, 0, 2, 1]));
    let valid = shards.token("ann");
    for _ in 0..3 {
        assert!(assign(&mut shards, Some(&valid), address).starts_with("HTTP/1.1 200 "));
        assert!(assign(&mut shards, None, address).starts_with("HTTP/1.1 204 "));
        let refused = assign(&mut shards, Some("forged"), address);
        assert!(refused.starts_with("HTTP/1.1 401 ") && refused.contains("TOKEN_INVALID"), "{refused}");
    }
    let limited = assign(&mut shards, Some("forged"), address);
    assert!(limited.starts_with("HTTP/1.1 429 ") && limited.contains("RATE_LIMITED"), "{limited}");
    assert!(limited.contains("\r\nRetry-After: 2\r\n"), "{limited}");
    assert_eq!(refused_login(&mut shards, 0, "forged", address).0, "RATE_LIMITED");
    assert!(assign(&mut shards, Some(&valid), address).starts_with("HTTP/1.1 200 "));
    assert!(assign(&mut shards, Some("forged"), None).starts_with("HTTP/1.1 401 "), "loopback");
}

#[test]
fn x2_logins_of_a_user_are_limited_on_all_shards_together() {
    let mut shards = limited(2, RateLimits { user_logins: 3, ..RateLimits::default() });
    let device = |n: usize| format!("device-{n}");
    let mut clients: Vec<Client> = (0..3)
        .map(|n| login(&mut shards, n % 2, ("ann", &device(n)), None).expect("below the limit"))
        .collect();
    let Err(wait) = login(&mut shards, 1, ("ann", "another"), None) else { panic!("a fourth login") };
    clients.push(login(&mut shards, 1, ("bob", "d"), None).expect("another user"));
    shards.now = shards.now + (wait - MS);
    assert_eq!(login(&mut shards, 0, ("ann", "another"), None).err(), Some(MS));
    shards.now = shards.now + MS;
    clients.push(login(&mut shards, 0, ("ann", "another"), None).expect("after the wait"));
}

#[test]
fn x3_joins_of_a_device_are_limited() {
    let rates = RateLimits { joins: 4, ..RateLimits::default() };
    let (mut shards, [mut phone, mut laptop], _other) = two_shards(rates);
    let room = |n: usize| ask::join(&format!("room-{n}"));
    for n in 0..4 {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, room(n)), Ok(()));
    }
    assert_eq!(ask_for(&mut shards, 0, &mut phone, room(0)), Ok(()), "it is in that room");
    let Err(wait) = ask_for(&mut shards, 0, &mut phone, room(4)) else { panic!("a fifth join") };
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, room(4)), Ok(()), "another device");
    shards.now = shards.now + (wait - MS);
    assert_eq!(ask_for(&mut shards, 0, &mut phone, room(4)), Err(MS));
    shards.now = shards.now + MS;
    assert_eq!(ask_for(&mut shards, 0, &mut phone, room(4)), Ok(()), "the refused joins left no trace");
}

#[test]
fn x6_queries_of_a_user_are_limited_on_all_shards_together() {
    let rates = RateLimits { queries: 6, ..RateLimits::default() };
    let (mut shards, [mut phone, mut laptop], mut other) = two_shards(rates);
    let queries = || [ask::sync(&[]), ask::ping_with(&[("d:ann:bob", 1)])];
    for _ in 0..2 {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, ask::sync(&[])), Ok(()));
        assert_eq!(ask_for(&mut shards, 1, &mut laptop, ask::sync(&[])), Ok(()));
        assert_eq!(ask_for(&mut shards, 1, &mut laptop, ask::ping_with(&[("d:ann:bob", 1)])), Ok(()));
    }
    // Changes other than messages count too: each reads the store, and some append to the log (S80).
    let changes = [ask::read("d:ann:bob", 1), ask::hide("d:ann:bob", &[1]), ask::recall("d:ann:bob", 1)];
    for query in queries().into_iter().chain([ask::after("d:ann:bob", 0, 10)]).chain(changes) {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, query), Err(1_001 * MS));
    }
    assert_eq!(ask_for(&mut shards, 1, &mut other, ask::sync(&[])), Ok(()), "another user");
    assert_eq!(ask_for(&mut shards, 0, &mut phone, ask::join("hall")), Ok(()), "no query");
    shards.now = shards.now + 1_001 * MS;
    for query in queries() {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, query), Ok(()), "the refused ones do not count");
    }
}

#[test]
fn limiter_refuses_messages_over_the_limit_of_their_user() {
    let rates = RateLimits { sends: 3, ..RateLimits::default() };
    let (mut shards, [mut phone, mut laptop], mut other) = two_shards(rates);
    let message = |n: usize| ask::send(send("carl", &format!("m{n}"), "hi"));
    for n in 0..2 {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, message(n)), Ok(()));
    }
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, message(2)), Ok(()));
    for _ in 0..2 {
        assert_eq!(ask_for(&mut shards, 1, &mut laptop, message(3)), Err(1_001 * MS));
    }
    assert_eq!(ask_for(&mut shards, 1, &mut other, message(0)), Ok(()), "another user");
    shards.now = shards.now + 1_000 * MS;
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, message(3)), Err(MS));
    shards.now = shards.now + MS;
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, message(3)), Ok(()));
}

#[test]
fn limiter_refuses_room_messages_over_the_limit_of_their_user() {
    let rates = RateLimits { sends: 1, ..RateLimits::default() };
    let (mut shards, [mut phone, _laptop], _other) = two_shards(rates);
    assert_eq!(ask_for(&mut shards, 0, &mut phone, ask::join("hall")), Ok(()));
    let say = |shards: &mut ManualShards<Memory>, phone: &mut Client, msg_id: &str| {
        let id = phone.say(ask::send(send("r:hall", msg_id, "hi")));
        (0..2).for_each(|_| shards.turn(0));
        phone.reply(id)
    };
    assert!(matches!(say(&mut shards, &mut phone, "m1"), ServerBody::SendAck(_)));
    let ServerBody::Error(error) = say(&mut shards, &mut phone, "m2") else { panic!("a second message") };
    wait_of(&error);
    shards.now = shards.now + 1_001 * MS;
    assert!(matches!(say(&mut shards, &mut phone, "m2"), ServerBody::SendAck(_)));
}

#[test]
fn x1_new_conversations_of_a_user_are_limited() {
    let rates = RateLimits { new_conversations: 3, ..RateLimits::default() };
    let (mut shards, [mut phone, mut laptop], _other) = two_shards(rates);
    let to = |user: &str, n: usize| ask::send(send(user, &format!("m-{user}-{n}"), "hi"));
    for user in ["carl", "dora"] {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, to(user, 0)), Ok(()));
    }
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, to("emil", 0)), Ok(()));
    assert!(ask_for(&mut shards, 0, &mut phone, to("fred", 0)).is_err());
    for n in 1..20 {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, to("emil", n)), Ok(()), "begun on another shard");
    }
    // Silence longer than the heartbeat would end the connections.
    for _ in 0..4 {
        shards.now = shards.now + 15_001 * MS;
        assert_eq!(ask_for(&mut shards, 0, &mut phone, ask::join("hall")), Ok(()));
    }
    assert_eq!(ask_for(&mut shards, 0, &mut phone, to("fred", 0)), Ok(()));
}

#[test]
fn x21_signals_of_a_user_are_limited_on_all_shards_together() {
    let rates = RateLimits { signals: 3, ..RateLimits::default() };
    let (mut shards, [mut phone, mut laptop], mut other) = two_shards(rates);
    let signal = || ask::signal("bob", "typing", "");
    // It is dropped: this node has not read the block lists, so it looks up whether bob blocks the user.
    assert_eq!(ask_for(&mut shards, 0, &mut phone, signal()), Ok(()));
    shards.now = shards.now + 1_001 * MS;
    for _ in 0..2 {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, signal()), Ok(()));
    }
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, signal()), Ok(()));
    for _ in 0..2 {
        assert_eq!(ask_for(&mut shards, 1, &mut laptop, signal()), Err(1_001 * MS));
        assert_eq!(ask_for(&mut shards, 0, &mut phone, signal()), Err(1_001 * MS));
    }
    let received = |frame: &pb::ServerFrame| matches!(frame.body, Some(ServerBody::Signal(_)));
    assert_eq!(ask_for(&mut shards, 1, &mut other, ask::signal("ann", "typing", "")), Ok(()), "another user");
    assert_eq!(other.inbox.iter().filter(|frame| received(frame)).count(), 3, "the others were dropped");
    shards.now = shards.now + 1_001 * MS;
    assert_eq!(ask_for(&mut shards, 0, &mut phone, signal()), Ok(()));
}
