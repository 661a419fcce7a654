//! Tests of bans: against a list that is searched as a whole, by time, and of what is new.

use std::time::Instant;

use proptest::prelude::*;

use super::*;

fn subject(text: &str) -> BanSubject {
    text.parse().unwrap()
}

fn ban(until_ms: Option<u64>) -> Ban {
    Ban { record: BanRecord::default(), until_ms }
}

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

/// Bans a subject; returns what is new.
fn put(board: &BanBoard, text: &str, until_ms: Option<u64>) -> NewBans {
    let seen = board.version();
    board.note(BanKind::Ban, subject(text), Some(ban(until_ms)));
    board.publish(true);
    board.new_since(seen).0
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Networks of few addresses, so that they overlap.
fn any_network() -> impl Strategy<Value = Network> {
    let v4 = (0_u32..4, 8_u8..=32).prop_map(|(n, prefix)| {
        Network::around(IpAddr::from((0x0a00_0000 | n << 22 | n << 8 | n).to_be_bytes()), prefix)
    });
    let v6 =
        (0_u128..4, prop_oneof![(6_u8..=16).prop_map(|it| it * 4), Just(128)]).prop_map(|(n, prefix)| {
            Network::around(IpAddr::from((0x2001_0db8 << 96 | n << 94 | n << 70 | n).to_be_bytes()), prefix)
        });
    prop_oneof![v4, v6]
}

/// Change of an entry: kind, network, and its end or removal.
type Change = (bool, Network, Option<u64>, bool);

fn any_change() -> impl Strategy<Value = Change> {
    let end = prop_oneof![Just(None), (50_u64..150).prop_map(|at| Some(at * 1_000_000))];
    (any::<bool>(), any_network(), end, prop::bool::weighted(0.3))
}

proptest! {
    #[test]
    fn board_refuses_the_addresses_that_a_list_refuses(
        changes in prop::collection::vec(any_change(), 0..60),
        asked in prop::collection::vec(any_network(), 1..20),
        pages in 1_usize..9,
    ) {
        let board = BanBoard::default();
        let mut list: Vec<(BanKind, Network, Option<u64>)> = Vec::new();
        let now_ms = 100_000_000;
        board.note_clock(now_ms);
        board.restart();
        for (at, (is_ban, network, until_ms, is_removal)) in changes.into_iter().enumerate() {
            let kind = if is_ban { BanKind::Ban } else { BanKind::Allow };
            list.retain(|(other, it, _)| (*other, *it) != (kind, network));
            let entry = (!is_removal).then(|| ban(until_ms));
            list.extend(entry.iter().map(|entry| (kind, network, entry.until_ms)));
            board.note(kind, BanSubject::Network(network), entry);
            if at % pages == 0 {
                board.publish(true);
            }
        }
        board.publish(true);
        for network in asked {
            let address = network.address();
            let end = |kind| {
                let of = list.iter().filter(|(other, it, _)| *other == kind && it.contains(address));
                of.map(|(.., end)| end.unwrap_or(u64::MAX)).filter(|end| *end > now_ms + 1_000).max()
            };
            let refused = end(BanKind::Ban).filter(|_| end(BanKind::Allow).is_none());
            let found = board.refusal_of_address(address);
            prop_assert_eq!(found.is_some(), refused.is_some(), "{} {:?}", address, list);
            let is_lasting = found.is_some_and(|it| it.left.is_none());
            prop_assert_eq!(is_lasting, refused == Some(u64::MAX));
        }
    }
}

#[test]
fn more_changes_than_the_small_table_holds_are_merged() {
    let board = BanBoard::default();
    let network = |n: u32| Network::around(IpAddr::from((0x0a00_0000 + n).to_be_bytes()), 32);
    let count = 3 * networks::CHANGES_MAX as u32;
    for n in 0..count {
        board.note(BanKind::Ban, BanSubject::Network(network(n)), Some(ban(None)));
        if n % 7 == 0 {
            board.publish(false);
        }
    }
    board.note(BanKind::Ban, BanSubject::Network(network(5)), None);
    board.publish(true);
    for n in 0..count {
        assert_eq!(board.refusal_of_address(network(n).address()).is_some(), n != 5, "{n}");
    }
    assert!(board.refusal_of_address(network(count).address()).is_none());
    assert_eq!(board.count(BanKind::Ban), count as usize - 1);
}

#[test]
fn bans_end_by_the_clock_of_the_store() {
    let board = BanBoard::default();
    board.note_clock(1_000_000);
    assert!(put(&board, "network:192.0.2.0/24", Some(2_000_000)).is_wide);
    put(&board, "user:ann", Some(2_000_000));
    put(&board, "device:bob/phone", Some(2_000_000));
    let (ann, bob) = (user("ann"), user("bob"));
    let (phone, desk) = (DeviceId::new("phone").unwrap(), DeviceId::new("desk").unwrap());
    let home = address("198.51.100.1");
    let left = board.refusal_of_address(address("::ffff:192.0.2.9")).unwrap().left.unwrap();
    assert!((Duration::from_secs(990)..=Duration::from_secs(1_000)).contains(&left), "{left:?}");
    assert!(board.refusal_of_login(home, &ann, &phone).is_some());
    assert!(board.refusal_of_login(home, &bob, &phone).is_some());
    assert!(board.refusal_of_login(home, &bob, &desk).is_none());
    assert!(board.refusal_of_login(address("192.0.2.1"), &bob, &desk).is_some());
    assert_eq!(board.list(BanKind::Ban, None, 10).len(), 3);
    board.note_clock(2_000_000);
    assert!(board.refusal_of_address(address("192.0.2.9")).is_none());
    assert!(board.refusal_of_login(home, &ann, &phone).is_none());
    assert!(board.refusal_of_login(home, &bob, &phone).is_none());
    assert_eq!((board.list(BanKind::Ban, None, 10).len(), board.count(BanKind::Ban)), (0, 3));
    board.publish(true);
    assert_eq!(board.count(BanKind::Ban), 0, "removed");
    assert_eq!(put(&board, "user:ann", Some(3_000_000)).named, [subject("user:ann")], "banned again");
    assert_eq!(put(&board, "user:ann", Some(2_500_000)), NewBans::default(), "shorter than before");
}

#[test]
fn loopback_proxies_and_allowed_networks_are_never_banned() {
    let board = BanBoard::default();
    for banned in ["network:127.0.0.0/8", "network:::1", "network:10.0.0.0/8", "network:192.0.2.0/24"] {
        put(&board, banned, None);
    }
    board.set_exempt(Networks::parse(&["10.1.0.0/16".into()]).unwrap());
    board.note(BanKind::Allow, subject("network:192.0.2.128/25"), Some(ban(None)));
    board.publish(true);
    for free in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3", "192.0.2.200"] {
        assert!(board.refusal_of_address(address(free)).is_none(), "{free}");
    }
    for refused in ["10.2.0.1", "192.0.2.1"] {
        assert!(board.refusal_of_address(address(refused)).is_some(), "{refused}");
    }
    let by = |text: &str| board.allowed_by(&text.parse().unwrap());
    assert_eq!(by("192.0.2.130"), Some(subject("network:192.0.2.128/25")));
    assert_eq!(by("192.0.2.0/24"), None, "a part of it may be banned");
    board.note(BanKind::Allow, subject("network:192.0.2.128/25"), None);
    board.publish(true);
    assert!(board.refusal_of_address(address("192.0.2.200")).is_some());
}

#[test]
fn entries_that_a_complete_read_does_not_find_are_lifted() {
    let board = BanBoard::default();
    put(&board, "user:ann", None);
    put(&board, "user:bob", None);
    board.restart();
    board.note(BanKind::Ban, subject("user:bob"), Some(ban(None)));
    board.note(BanKind::Ban, subject("user:cem"), Some(ban(None)));
    let seen = board.version();
    board.publish(false);
    assert!(board.refusal_of_user(&user("cem"), None).is_some(), "in force with its page");
    assert!(board.refusal_of_user(&user("ann"), None).is_some(), "not lifted before the last page");
    board.publish(true);
    let (new, _) = board.new_since(seen);
    assert_eq!(new, NewBans { named: vec![subject("user:cem")], is_wide: false }, "bob was banned before");
    assert!(board.refusal_of_user(&user("ann"), None).is_none());
    assert!(board.refusal_of_user(&user("bob"), None).is_some());
}

#[test]
fn bans_of_a_subject_include_those_of_wider_networks_and_of_the_user() {
    let board = BanBoard::default();
    for banned in ["network:192.0.2.0/24", "network:192.0.2.7", "user:ann", "device:ann/phone", "user:bob"] {
        put(&board, banned, None);
    }
    let of = |text: &str| board.bans_of(&subject(text)).into_iter().map(|(it, _)| it).collect::<Vec<_>>();
    assert_eq!(of("network:192.0.2.7"), ["network:192.0.2.0/24", "network:192.0.2.7"].map(subject));
    assert_eq!(of("network:192.0.2.8"), [subject("network:192.0.2.0/24")]);
    assert_eq!(of("device:ann/phone"), ["user:ann", "device:ann/phone"].map(subject));
    assert_eq!(of("device:ann/desk"), [subject("user:ann")]);
    assert_eq!(of("user:cem"), []);
}

#[test]
fn many_new_names_are_one_look_through_all_connections() {
    let board = BanBoard::default();
    let add = |from: usize, count: usize| {
        for n in from..from + count {
            board.note(BanKind::Ban, subject(&format!("user:u{n}")), Some(ban(None)));
        }
        board.publish(true);
    };
    add(0, RECENT_MAX);
    let (new, version) = board.new_since(0);
    assert!(!new.is_wide && new.named.len() == RECENT_MAX && version == RECENT_MAX as u64);
    assert_eq!(board.new_since(version), (NewBans::default(), version));
    add(100, 1);
    assert!(board.new_since(0).0.is_wide, "the first one is forgotten");
    assert_eq!(board.new_since(version).0.named, [subject("user:u100")]);
    add(200, RECENT_MAX + 1);
    assert!(board.new_since(version + 1).0.is_wide);
}

/// Number without a pattern.
fn mixed(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Returns the mean time of a check among this many bans with these prefix lengths, the best of five runs: other
/// programs share the machine.
fn time_of_check(bans: usize, v4: &[u8], v6: &[u8]) -> Duration {
    let board = BanBoard::default();
    let of_v4 = |n: u64| IpAddr::from((mixed(n) as u32).to_be_bytes());
    let of_v6 = |n: u64| IpAddr::from((u128::from(mixed(n)) << 64 | 1).to_be_bytes());
    for n in 0..bans as u64 {
        let nth = mixed(n + 1_000_000_007) as usize;
        let network = match n % 2 {
            0 => Network::around(of_v4(n), v4[nth % v4.len()]),
            _ => Network::around(of_v6(n), v6[nth % v6.len()]),
        };
        board.note(BanKind::Ban, BanSubject::Network(network), Some(ban(None)));
    }
    board.publish(true);
    let of = |n: u64| if n.is_multiple_of(2) { of_v4(n) } else { of_v6(n) };
    let asked: Vec<IpAddr> = (0..10_000).map(|n| of(n + 5_000_000)).collect();
    let run = |_| {
        let begun = Instant::now();
        let refused = asked.iter().filter(|it| board.refusal_of_address(**it).is_some()).count();
        std::hint::black_box(refused);
        begun.elapsed() / asked.len() as u32
    };
    (0..5).map(run).min().unwrap()
}

#[test]
fn check_among_100_000_bans_takes_less_than_2_us() {
    let usual = time_of_check(100_000, &[16, 24, 32], &[48, 56, 64]);
    let all: (Vec<u8>, Vec<u8>) = ((8..=32).collect(), (24..=64).step_by(4).collect());
    let worst = time_of_check(100_000, &all.0, &all.1);
    println!("{usual:?} with 6 prefix lengths, {worst:?} with all");
    let limit = Duration::from_micros(if cfg!(debug_assertions) { 200 } else { 2 });
    assert!(usual < limit && worst < limit, "{usual:?} {worst:?}");
}
