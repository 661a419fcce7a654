//! Rules at the edges of a shard: all of them pass a request or none counts it, and a refusal names what is the client's own.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use serde_json::json;
use tidegate::{
    auth::SigningKey,
    limiter::{Limiter, RateLimits},
    limits::{LimitLevel, RuleGuard, RuleSet},
    mail::Mail,
    shard::Context,
};
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
    machine::permit::Grant,
    pb,
};

use crate::{
    id as id_of,
    manual_shards::{KEY, ManualShards, push},
    network::{Memory, answer_to},
    pipes::Received,
    rooms::remove_from_hall,
    support::{Client, ClientBody, ServerBody, ask, code, eventually, hello, send},
};

const MS: Duration = Duration::from_millis(1);

/// Address of all clients that name no other one.
const ADDRESS: [u8; 4] = [192, 0, 2, 7];

fn rule(id: &str, level: &str, calls: &str, limit: u32) -> String {
    format!(
        "[[rule]]\nid = \"{id}\"\nlevel = \"{level}\"\ncalls = {calls}\nwindow = \"10s\"\nlimit = {limit}\n"
    )
}

/// Creates two shards with these rules, and returns their guard.
fn ruled(text: &str, rates: RateLimits) -> (ManualShards<Memory>, Arc<RuleGuard>) {
    let rules = RuleSet::parse(text, Duration::from_secs(2)).expect("good rules");
    let mut guard = None;
    let shards = ManualShards::new(2, |context, _| {
        context.limiter = Arc::new(Limiter::new(rates, context.metrics.clone()));
        context.rules = Arc::new(RuleGuard::new(&rules, context.metrics.clone(), Instant::now()));
        guard = Some(Arc::clone(&context.rules));
    });
    (shards, guard.expect("the context was built"))
}

/// Logs in with the claims `org` and `chan`; returns the error of a refusal.
fn login(
    shards: &mut ManualShards<Memory>,
    shard: usize,
    user: &str,
    device: &str,
) -> Result<Client, pb::Error> {
    let claims = json!({"sub": user, "exp": 4_000_000_000_u64, "org": "acme", "chan": "app"});
    let token = SigningKey::Secret(KEY.to_vec()).sign(None, &claims).expect("a secret signs");
    match shards.log_in(shard, &token, device, Some(ADDRESS.into())) {
        (client, ServerBody::Welcome(_)) => Ok(client),
        (_, ServerBody::Error(error)) => Err(error),
        (_, other) => panic!("{other:?}"),
    }
}

/// Sends a request; returns the error of a refusal. An admitted send has no answer here.
fn ask_for(
    shards: &mut ManualShards<Memory>,
    shard: usize,
    client: &mut Client,
    body: ClientBody,
) -> Result<(), pb::Error> {
    match shards.ask(shard, client, body) {
        Some(ServerBody::Error(error)) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the level, the rule and the wait of a refusal.
fn named(error: &pb::Error) -> (&str, Option<&str>, u32) {
    assert_eq!((error.code, error.temporary), (u32::from(Code::RateLimited.number()), true), "{error:?}");
    let part = |name: &str| error.detail.get(name).map(String::as_str);
    assert_eq!(part("rule").is_some(), part("limit").is_some() && part("windowMs") == Some("10000"));
    (part("level").unwrap_or_default(), part("rule"), error.retry_after_ms)
}

fn used(guard: &RuleGuard, level: LimitLevel, name: &str, shards: &ManualShards<Memory>) -> Vec<u32> {
    let states = guard.states(level, name, shards.now).expect("a subject");
    states.iter().map(|state| state.used).collect()
}

#[test]
fn message_counts_in_ten_rules_or_in_none() {
    let sends = "[\"send\"]";
    let text = rule("r-node", "node", sends, 100)
        + &rule("r-org", "org", sends, 9)
        + &rule("r-channel", "channel", sends, 90)
        + &rule("r-user", "user", sends, 6)
        + &rule("r-user-2", "user", "[\"*\"]", 60)
        + &rule("r-device", "device", sends, 4)
        + &rule("r-conversation", "conversation", sends, 5)
        + &rule("r-address", "address", sends, 80)
        + &rule("r-content", "content", sends, 70)
        + &rule("r-dry", "user", sends, 1)
        + "dry_run = true\n";
    let (mut shards, guard) = ruled(&text, RateLimits::default());
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let mut laptop = login(&mut shards, 1, "ann", "laptop").expect("a login");
    let mut other = login(&mut shards, 1, "eve", "phone").expect("a login");
    let to = |user: &str, n: usize| ask::send(send(user, &format!("m-{user}-{n}"), "hello to everybody"));
    for n in 0..4 {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, to("bob", n)), Ok(()));
    }
    for n in 4..9 {
        let error = ask_for(&mut shards, 0, &mut phone, to("bob", n)).expect_err("the fifth of the device");
        assert_eq!(named(&error), ("device", Some("r-device"), 10_001));
    }
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, to("bob", 9)), Ok(()));
    let error =
        ask_for(&mut shards, 1, &mut laptop, to("bob", 10)).expect_err("the sixth of the conversation");
    assert_eq!(named(&error), ("conversation", Some("r-conversation"), 10_001));
    assert_eq!(ask_for(&mut shards, 1, &mut laptop, to("carl", 0)), Ok(()));
    let error = ask_for(&mut shards, 1, &mut laptop, to("carl", 1)).expect_err("the seventh of the user");
    assert_eq!(named(&error), ("user", Some("r-user"), 10_001));
    shards.now = shards.now + 3_000 * MS;
    for n in 0..3 {
        assert_eq!(ask_for(&mut shards, 1, &mut other, to("dora", n)), Ok(()));
    }
    let error =
        ask_for(&mut shards, 1, &mut other, to("dora", 3)).expect_err("the tenth of the organisation");
    assert_eq!(named(&error), ("org", None, 7_001), "the rule is none of the client's own");
    for (level, name, counted) in [
        (LimitLevel::Node, "", vec![9]),
        (LimitLevel::Organisation, "acme", vec![9]),
        (LimitLevel::Channel, "app", vec![9]),
        (LimitLevel::Device, "ann:phone", vec![4]),
        (LimitLevel::Device, "ann:laptop", vec![2]),
        (LimitLevel::Conversation, "d:ann:bob", vec![5]),
        (LimitLevel::Address, "192.0.2.7", vec![9]),
        (LimitLevel::Content, "HELLO to everybody", vec![9]),
    ] {
        assert_eq!(used(&guard, level, name, &shards), counted, "{name}");
    }
    // Two logins and their requests count in the rule of all calls, and the dry run counted one and refused none.
    assert_eq!(used(&guard, LimitLevel::User, "eve", &shards)[0], 3);
    assert_eq!(used(&guard, LimitLevel::User, "eve", &shards)[2], 1);
    shards.now = shards.now + 7_000 * MS;
    assert!(ask_for(&mut shards, 1, &mut other, to("dora", 3)).is_err());
    shards.now = shards.now + MS;
    assert_eq!(ask_for(&mut shards, 1, &mut other, to("dora", 3)), Ok(()), "after the announced time");
}

#[test]
fn refusal_by_a_rule_uses_up_no_setting_and_the_reverse() {
    let rates = RateLimits { sends: 3, ..RateLimits::default() };
    let (mut shards, guard) = ruled(&rule("pair", "conversation", "[\"send\"]", 1), rates);
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let to = |user: &str, n: usize| ask::send(send(user, &format!("m-{user}-{n}"), "hi"));
    assert_eq!(ask_for(&mut shards, 0, &mut phone, to("bob", 0)), Ok(()));
    for n in 1..5 {
        let error = ask_for(&mut shards, 0, &mut phone, to("bob", n)).expect_err("the second to bob");
        assert_eq!(named(&error).0, "conversation");
    }
    for user in ["carl", "dora"] {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, to(user, 0)), Ok(()), "refused ones do not count");
    }
    let error = ask_for(&mut shards, 0, &mut phone, to("emil", 0)).expect_err("the fourth of the user");
    assert!(error.detail.is_empty() && error.retry_after_ms == 1_001, "{error:?}");
    assert_eq!(used(&guard, LimitLevel::Conversation, "d:ann:emil", &shards), [0]);
}

#[test]
fn other_requests_count_in_their_rules() {
    let text = rule("joins", "device", "[\"join\"]", 1)
        + &rule("pulls", "conversation", "[\"pull\"]", 1)
        + &rule("syncs", "user", "[\"sync\"]", 1)
        + &rule("changes", "user", "[\"change\"]", 1)
        + &rule("signals", "org", "[\"signal\"]", 1)
        + &rule("rooms", "conversation", "[\"send\"]", 1)
        + &rule("logins", "user", "[\"login\"]", 1)
        + &rule("connects", "address", "[\"connect\"]", 3);
    let (mut shards, _) = ruled(&text, RateLimits::default());
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let refused = |shards: &mut ManualShards<Memory>, phone: &mut Client, body: fn(&str) -> ClientBody| {
        assert_eq!(ask_for(shards, 0, phone, body("hall")), Ok(()));
        let error = ask_for(shards, 0, phone, body("yard")).expect_err("the second one");
        let (level, rule, wait) = named(&error);
        assert_eq!(wait, 10_001);
        (level.to_owned(), rule.map(str::to_owned))
    };
    let own = |level: &str, rule: &str| (level.to_owned(), Some(rule.to_owned()));
    assert_eq!(refused(&mut shards, &mut phone, ask::join), own("device", "joins"));
    assert_eq!(refused(&mut shards, &mut phone, |_| ask::sync(&[])), own("user", "syncs"));
    assert_eq!(
        refused(&mut shards, &mut phone, |_| ask::signal("bob", "typing", "")),
        ("org".to_owned(), None)
    );
    assert_eq!(
        refused(&mut shards, &mut phone, |_| ask::send(send("r:hall", "m", "hi"))),
        own("conversation", "rooms")
    );
    let error = login(&mut shards, 1, "ann", "laptop").err().expect("the second login");
    assert_eq!(named(&error), ("user", Some("logins"), 10_001));
    // The two connections before are from the same address.
    let mut third = shards.connect_from(0, Some(ADDRESS.into()));
    let fourth = Memory::connect_raw(&mut shards, b"");
    shards.accept_from(0, Some(IpAddr::from(ADDRESS)));
    (0..3).for_each(|_| shards.turn(0));
    let Received::Bytes(close) = fourth.read() else { panic!("a close") };
    let close = String::from_utf8(close).expect("a line of JSON");
    assert!(close.contains("RATE_LIMITED") && close.contains("\"afterMs\":10001"), "{close}");
    third.say(ask::hello(hello(&shards.token("bob"), "d")));
    for _ in 0..3 {
        shards.turn(0);
        shards.answer_logins(0, &[]);
    }
    assert!(matches!(third.reply(1), ServerBody::Welcome(_)));
}

/// Creates two shards of a node with others, with this rule in cluster scope, and returns their guard.
fn clustered(level: &str, calls: &str) -> (ManualShards<Memory>, Arc<RuleGuard>) {
    clustered_with(level, calls, |_| ())
}

fn clustered_with(
    level: &str,
    calls: &str,
    change: impl FnOnce(&mut Context),
) -> (ManualShards<Memory>, Arc<RuleGuard>) {
    // Its permits are valid for longer than a test takes.
    let rules = rule("all", level, calls, 1).replace("10s", "1h") + "scope = \"cluster\"\n";
    let rules = RuleSet::parse(&rules, Duration::from_secs(2)).expect("a good rule");
    let mut guard = None;
    let shards = ManualShards::new(2, |context, _| {
        change(context);
        context.rules = Arc::new(RuleGuard::clustered(&rules, context.metrics.clone(), Instant::now(), 7));
        guard = Some(Arc::clone(&context.rules));
    });
    (shards, guard.expect("the context was built"))
}

/// Answers the ask that a request waits for, with a permit or with the time until one is free.
fn answer_ask(
    shards: &mut ManualShards<Memory>,
    shard: usize,
    guard: &RuleGuard,
    call: &str,
    wait: Option<Duration>,
) {
    let asks = guard.take_asks(9);
    assert_eq!(asks.len(), 1, "a request waits: {call} {wait:?}");
    let grant = match wait {
        None => Grant { granted: 1, wait_us: 0, used: 1 },
        Some(wait) => Grant { granted: 0, wait_us: wait.as_micros() as u64, used: 1 },
    };
    guard.handle_grants(asks, &[grant], 0);
    assert!(guard.take_asks(9).is_empty(), "no further one waits");
    shards.settle();
    shards.turn(shard);
}

#[test]
fn login_waits_for_a_permit_of_the_cluster() {
    let (mut shards, guard) = clustered("user", "[\"login\"]");
    for (shard, wait) in [(0, None), (1, Some(7_000 * MS))] {
        let mut client = shards.connect_from(shard, Some(ADDRESS.into()));
        client.say(ask::hello(hello(&shards.token("ann"), &format!("d{shard}"))));
        for _ in 0..3 {
            shards.turn(shard);
            assert!(!shards.answer_logins(shard, &[]), "it waits");
        }
        answer_ask(&mut shards, shard, &guard, "login", wait);
        for _ in 0..3 {
            shards.answer_logins(shard, &[]);
            shards.turn(shard);
        }
        match (client.reply(1), wait) {
            (ServerBody::Welcome(_), None) => {}
            (ServerBody::Error(error), Some(wait)) => {
                assert_eq!(error.detail.get("rule").map(String::as_str), Some("all"), "{error:?}");
                let announced = Duration::from_millis(error.retry_after_ms.into());
                assert!(announced <= wait && !announced.is_zero(), "{announced:?}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[test]
fn reads_changes_and_joins_wait_for_a_permit_of_the_cluster() {
    type Request = fn(&str) -> ClientBody;
    let requests: [(&str, Request); 5] = [
        ("sync", |_| ask::sync(&[])),
        ("pull", |_| ask::before("d:ann:bob", 0, 5)),
        ("change", |_| ask::read("d:ann:bob", 1)),
        ("recall", |_| ask::recall("d:ann:bob", 1)),
        ("join", ask::join),
    ];
    for (call, request) in requests {
        let (mut shards, guard) = clustered("user", &format!("[\"{call}\"]"));
        let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
        for (room, wait) in [("hall", None), ("yard", Some(7_000 * MS))] {
            let id = phone.say(request(room));
            let ping = phone.say(ask::ping());
            (0..3).for_each(|_| shards.turn(0));
            let answers = [id, ping].map(|id| answer_to(&mut phone, id));
            assert_eq!(answers, [None, None], "{call} waits, and what follows it");
            answer_ask(&mut shards, 0, &guard, call, wait);
            (0..5).for_each(|_| shards.turn(0));
            phone.reply(ping);
            let answer = answer_to(&mut phone, id).expect("an answer");
            assert_eq!(code_of(&answer) == Some(Code::RateLimited), wait.is_some(), "{call}: {answer:?}");
            phone.inbox.clear();
        }
    }
}

#[test]
fn join_that_waits_for_a_permit_is_refused_after_a_removal() {
    let (mut shards, guard) = clustered("user", "[\"join\"]");
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let id = phone.say(ask::join("hall"));
    (0..3).for_each(|_| shards.turn(0));
    assert_eq!(remove_from_hall(&mut shards, "ann"), 1);
    assert_eq!(answer_to(&mut phone, id), None, "it still waits");
    answer_ask(&mut shards, 0, &guard, "join", None);
    (0..5).for_each(|_| shards.turn(0));
    let answer = answer_to(&mut phone, id).expect("an answer");
    assert_eq!(code_of(&answer), Some(Code::NotAMember), "{answer:?}");
    shards.post(0, Mail::RoomFrames(vec![push(&id_of("r:hall"), 7, "not for ann")]));
    shards.turn(0);
    phone.listen(Duration::ZERO);
    assert!(
        phone.inbox.iter().all(|frame| !matches!(frame.body, Some(ServerBody::Push(_)))),
        "it is not in it"
    );
}

fn code_of(answer: &ServerBody) -> Option<Code> {
    match answer {
        ServerBody::Error(error) => Some(code(error.code)),
        _ => None,
    }
}

#[test]
fn read_whose_answer_is_lost_is_decided_by_the_share() {
    let (mut shards, guard) = clustered("user", "[\"pull\"]");
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let pull = || ask::before("d:ann:bob", 0, 5);
    let id = phone.say(pull());
    (0..3).for_each(|_| shards.turn(0));
    let lost = guard.take_asks(9);
    assert_eq!((lost.len(), answer_to(&mut phone, id)), (1, None));
    // Longer than an answer may take, by the clock of the shard; the wait itself ends by that of the machine.
    shards.now = shards.now + 51 * MS;
    let answer = eventually("the wait ends", || {
        shards.settle();
        shards.turn(0);
        answer_to(&mut phone, id)
    });
    assert_ne!(code_of(&answer), Some(Code::RateLimited), "the share is 1: {answer:?}");
    assert_eq!(used(&guard, LimitLevel::User, "ann", &shards), [1]);
    let error = ask_for(&mut shards, 0, &mut phone, pull()).expect_err("the share is used up");
    // The life of a permit.
    assert_eq!((code(error.code), error.retry_after_ms), (Code::RateLimited, 112_500));
}

#[test]
fn request_of_a_closed_connection_takes_no_permit() {
    let (mut shards, guard) = clustered("user", "[\"pull\"]");
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let mut laptop = login(&mut shards, 1, "ann", "laptop").expect("a login");
    let pull = || ask::before("d:ann:bob", 0, 5);
    phone.say(pull());
    (0..3).for_each(|_| shards.turn(0));
    let (user, device) = (UserId::new("ann").expect("a name"), DeviceId::new("phone").expect("a name"));
    shards.post(0, Mail::Replaced(user, device, u64::MAX, None));
    shards.turn(0);
    assert_eq!(phone.expect_close(), Code::Replaced);
    answer_ask(&mut shards, 0, &guard, "pull", None);
    (0..3).for_each(|_| shards.turn(0));
    assert_eq!(used(&guard, LimitLevel::User, "ann", &shards), [0]);
    let pulled = ask_for(&mut shards, 1, &mut laptop, pull());
    assert_ne!(pulled.map_err(|error| code(error.code)), Err(Code::RateLimited));
    assert_eq!(used(&guard, LimitLevel::User, "ann", &shards), [1], "the permit was left");
    assert!(guard.take_asks(9).is_empty());
}

#[test]
fn read_and_join_without_a_permit_are_busy_while_a_send_waits() {
    let mut reads = None;
    let keep = |context: &mut Context| reads = Some(Arc::clone(&context.reads));
    let (mut shards, guard) = clustered_with("user", "[\"pull\", \"join\"]", keep);
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let (reads, user) = (reads.expect("the context was built"), UserId::new("ann").expect("a name"));
    // All turns of the user are taken, so the lookup of the recipient's block list waits.
    let turns = [0, 1].map(|_| reads.turn(&user).now_or_never().expect("a turn is free"));
    phone.say(ask::send(send("bob", "m1", "hi")));
    for request in [ask::before("d:ann:bob", 0, 5), ask::join("hall")] {
        let error = ask_for(&mut shards, 0, &mut phone, request).expect_err("it has no place to wait");
        assert_eq!((code(error.code), error.retry_after_ms), (Code::Busy, 50));
        assert!(error.detail.is_empty(), "no rule refuses it: {error:?}");
    }
    assert!(shards.take_sends().is_empty());
    drop(turns);
    shards.settle();
    (0..3).for_each(|_| shards.turn(0));
    assert_eq!(shards.take_sends().len(), 1);
    // The refused ones have asked for the next.
    answer_ask(&mut shards, 0, &guard, "join", None);
    assert_eq!(ask_for(&mut shards, 0, &mut phone, ask::join("hall")), Ok(()));
}

#[test]
fn token_of_another_organisation_counts_in_its_window_from_its_refresh_on() {
    let (mut shards, guard) = ruled(&rule("org", "org", "[\"send\"]", 9), RateLimits::default());
    let mut phone = login(&mut shards, 0, "ann", "phone").expect("a login");
    let to = |n: usize| ask::send(send("bob", &format!("m{n}"), "hi"));
    assert_eq!(ask_for(&mut shards, 0, &mut phone, to(0)), Ok(()));
    let claims = json!({"sub": "ann", "exp": 4_000_000_001_u64, "org": "other"});
    let token = SigningKey::Secret(KEY.to_vec()).sign(None, &claims).expect("a secret signs");
    assert_eq!(ask_for(&mut shards, 0, &mut phone, ClientBody::Refresh(pb::Refresh { token })), Ok(()));
    for n in 1..3 {
        assert_eq!(ask_for(&mut shards, 0, &mut phone, to(n)), Ok(()));
    }
    let of = |name| used(&guard, LimitLevel::Organisation, name, &shards);
    assert_eq!((of("acme"), of("other")), (vec![1], vec![2]));
}

#[test]
fn reaction_from_outside_a_room_uses_up_no_rule_of_it() {
    let (mut shards, _) = ruled(&rule("reacts", "conversation", "[\"react\"]", 1), RateLimits::default());
    let [mut ann, mut out] = ["ann", "out"].map(|user| login(&mut shards, 0, user, "d").expect("a login"));
    assert_eq!(ask_for(&mut shards, 0, &mut ann, ask::join("hall")), Ok(()));
    let react = || ask::react("hall", "like");
    for _ in 0..3 {
        let error = ask_for(&mut shards, 0, &mut out, react()).expect_err("not a member");
        assert_eq!(error.name, "NOT_A_MEMBER");
    }
    assert_eq!(ask_for(&mut shards, 0, &mut ann, react()), Ok(()));
    let error = ask_for(&mut shards, 0, &mut ann, react()).expect_err("the second in the room");
    assert_eq!(named(&error).0, "conversation");
}
