//! Tests of the events and scores of a node.

use std::collections::HashSet;

use super::*;

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn of_user(name: &str, address: &str) -> EvidenceSource {
    EvidenceSource { address: Some(address.parse().unwrap()), user: Some(user(name)), device: None }
}

fn of_address(address: &str) -> EvidenceSource {
    EvidenceSource::of_address(address.parse().unwrap())
}

fn row(kind: EvidenceKind, source: EvidenceSource, count: u32) -> EvidenceRow {
    EvidenceRow { at_ms: 0, kind, source, count, scope: ScoreScope::All }
}

#[test]
fn equal_events_are_one_row_and_too_many_rows_are_counted() {
    let board = EvidenceBoard::default();
    for _ in 0..3 {
        board.note(EvidenceKind::Probe, of_user("ann", "192.0.2.1"));
    }
    board.note(EvidenceKind::HelloTimeout, of_address("2001:db8::1:2:3:4"));
    board.note(EvidenceKind::HelloTimeout, of_address("2001:db8::5:6:7:8"));
    let batch = board.take();
    let counts: Vec<_> = batch.rows.iter().map(|row| (row.kind, row.count)).collect();
    assert_eq!(counts, [(EvidenceKind::HelloTimeout, 2), (EvidenceKind::Probe, 3)]);
    assert_eq!(board.recent_counts(&BanSubject::User(user("ann"))), [(EvidenceKind::Probe, 3)]);
    for n in 0..ROWS_MAX as u32 + 7 {
        board.note(EvidenceKind::ConnectFlood, EvidenceSource::of_address(n.to_be_bytes().into()));
    }
    let batch = board.take();
    assert_eq!((batch.rows.len(), batch.dropped), (ROWS_MAX, 7));
    assert_eq!(batch.counts, [(EvidenceKind::ConnectFlood, ROWS_MAX as u64 + 7)]);
    assert_eq!(board.recent.lock().len(), RECENT_MAX);
    assert_eq!(board.take().rows, []);
}

#[test]
fn user_is_banned_at_100_and_a_network_once_its_users_are_known() {
    let board = EvidenceBoard::default();
    board.set_bans(true);
    let (ann, network) = (BanSubject::User(user("ann")), scored_network([192, 0, 2, 1].into()));
    let probes = row(EvidenceKind::Probe, of_user("ann", "192.0.2.1"), 19);
    assert_eq!(board.score(&ann, &probes, true), ScoreVerdict::Watched);
    assert_eq!(board.score(&network, &probes, true), ScoreVerdict::Watched);
    let more = row(EvidenceKind::Probe, of_user("ann", "192.0.2.1"), 2);
    assert!(matches!(board.score(&ann, &more, true), ScoreVerdict::Banned { former: 0, .. }));
    assert_eq!(board.score_of(&ann).former, 1);
    assert_eq!(board.score(&network, &more, true), ScoreVerdict::Undecided(1));
    let both: HashSet<UserId> = ["ann", "bob"].map(user).into();
    assert_eq!(board.decide(&network, &both), ScoreVerdict::Spared, "bob did nothing");
    let spared = board.score_of(&network).spared;
    assert_eq!(spared.map(|it| (it.offenders, it.healthy)), Some((1, 1)));
    let alone: HashSet<UserId> = ["ann"].map(user).into();
    assert!(matches!(board.decide(&network, &alone), ScoreVerdict::Banned { former: 0, .. }));
    assert_eq!(board.score_of(&network).spared, None);
}

#[test]
fn strangers_cannot_shut_out_the_users_of_a_network() {
    let board = EvidenceBoard::default();
    board.set_bans(true);
    let network = scored_network([192, 0, 2, 1].into());
    let forged = row(EvidenceKind::TokenForged, of_address("192.0.2.1"), 1_000);
    assert_eq!(board.score(&network, &forged, true), ScoreVerdict::Undecided(0));
    let cafe: HashSet<UserId> = (0..3).map(|n| user(&format!("u{n}"))).collect();
    assert_eq!(board.decide(&network, &cafe), ScoreVerdict::Spared);
    assert_eq!(board.top(5).first().map(|(subject, _)| subject.clone()), Some(network));
    assert_eq!(board.score_of(&BanSubject::User(user("u0"))).score, 0, "no score without a token");
}

#[test]
fn scores_only_rise_while_automatic_bans_are_off() {
    let board = EvidenceBoard::default();
    let ann = BanSubject::User(user("ann"));
    let probes = row(EvidenceKind::Probe, of_user("ann", "192.0.2.1"), 100);
    assert_eq!(board.score(&ann, &probes, true), ScoreVerdict::Watched);
    assert!((490..=500).contains(&board.score_of(&ann).score));
    board.lift(&ann);
    assert_eq!(board.score_of(&ann).score, 0);
}

#[test]
fn row_names_who_and_what_and_nothing_else() {
    let source =
        EvidenceSource { device: Some(DeviceId::new("phone").unwrap()), ..of_user("ann", "192.0.2.1") };
    let row = EvidenceRow { at_ms: 1_763_712_000_000, ..row(EvidenceKind::Probe, source, 2) };
    assert_eq!(
        serde_json::to_string(&row.view()).unwrap(),
        r#"{"time":"2025-11-21T08:00:00.000Z","kind":"probe","count":2,"address":"192.0.2.1","user":"ann","device":"phone"}"#
    );
}

#[test]
fn whole_address_decides_whether_a_client_is_never_scored() {
    let bans = Arc::new(BanBoard::default());
    let board = EvidenceBoard::new(Arc::clone(&bans));
    bans.set_exempt(crate::networks::Networks::parse(&["2001:db8::1:2:3:4/128".into()]).unwrap());
    let scope_of = |address: &str| {
        board.note(EvidenceKind::TokenForged, of_address(address));
        board.take().rows[0].scope
    };
    assert_eq!(scope_of("::1"), ScoreScope::Nothing);
    assert_eq!(scope_of("127.0.0.1"), ScoreScope::Nothing);
    assert_eq!(scope_of("2001:db8::1:2:3:4"), ScoreScope::User);
    assert_eq!(scope_of("2001:db8::1:2:3:5"), ScoreScope::All, "another one of the same /64");
}

#[test]
fn user_without_a_budget_keeps_its_score_and_a_lift_forgets_what_it_covers() {
    let board = EvidenceBoard::default();
    board.set_bans(true);
    let (ann, network) = (BanSubject::User(user("ann")), scored_network([192, 0, 2, 1].into()));
    let probes = row(EvidenceKind::Probe, of_user("ann", "192.0.2.1"), 21);
    assert_eq!(board.score(&ann, &probes, false), ScoreVerdict::Deferred);
    assert_eq!(board.score_of(&ann).former, 0);
    assert!((101..=105).contains(&board.score_of(&ann).score));
    assert!(matches!(board.score(&ann, &probes, true), ScoreVerdict::Banned { former: 0, .. }));
    board.score(&network, &probes, true);
    let wide = "network:192.0.0.0/16".parse().unwrap();
    board.lift(&wide);
    assert_eq!((board.score_of(&network).score, board.score_of(&ann).former), (0, 1));
    assert_eq!((board.take_lifted(), board.take_lifted()), (vec![wide], vec![]));
}

#[test]
fn refused_web_requests_and_bans_raise_no_score() {
    let weight = |code, is_http| EvidenceKind::of_upgrade(code, is_http).map_or(0, EvidenceKind::weight);
    use tidegate_protocol::Code;
    assert_eq!(EvidenceKind::of_upgrade(Code::Banned, true), None);
    assert_eq!(weight(Code::OriginRefused, true) + weight(Code::BadUpgrade, true), 0);
    assert_eq!(weight(Code::TooManyFromAddress, true), 1);
    assert_eq!(weight(Code::BadUpgrade, false), 10);
}

#[test]
fn suspected_network_is_spared_while_a_user_is_in_it() {
    let board = EvidenceBoard::default();
    board.set_bans(true);
    let wide: BanSubject = "network:2001:db8::/56".parse().unwrap();
    board.suspect(&wide);
    assert_eq!(board.decide(&wide, &HashSet::from([user("ann")])), ScoreVerdict::Spared);
    assert!(matches!(board.decide(&wide, &HashSet::new()), ScoreVerdict::Banned { former: 0, .. }));
    assert_eq!(board.decide(&wide, &HashSet::new()), ScoreVerdict::Watched, "its score begins again");
}

#[test]
fn rows_of_an_address_are_in_the_order_of_its_users() {
    let board = EvidenceBoard::default();
    let names: Vec<String> = (10..50).map(|n| format!("u{n}")).collect();
    names.iter().for_each(|name| board.note(EvidenceKind::Probe, of_user(name, "192.0.2.1")));
    let users: Vec<UserId> = board.take().rows.into_iter().filter_map(|row| row.source.user).collect();
    assert_eq!(users, names.iter().map(|name| user(name)).collect::<Vec<_>>());
}
