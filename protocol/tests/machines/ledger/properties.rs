//! Property tests of the ledger against the naive model, over random histories with evictions, archives and take-overs.
//!
//! The seed is `TIDEGATE_SEED`. A failure prints it; `TIDEGATE_PROP_SEED=n` repeats it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::{
    collection::{btree_map, vec},
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tidegate_protocol::{
    Code,
    code::AppCode,
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::{LEDGER_NEWEST, Ledger},
    record::{
        Body, Edit, MemberAction, MemberChange, Message, MessageMode, Origin, Position, Prune, Recall,
        Record, Role, RuleChange, Rules, SenderOrder, body_hash,
    },
};

use super::{model, store};
use crate::seed::seed;

const USERS: [&str; 3] = ["ann", "bob", "cy"];
const CONVERSATIONS: [&str; 5] = ["g:a", "g:b", "d:ann:bob", "d:ann:cy", "d:bob:bob"];

#[derive(Clone, Debug)]
enum Op {
    Append(Box<Record>),
    Poison,
    Archive,
    Evict { newest: u64, bytes_max: usize },
    TakeOver { seed: u64 },
}

fn user() -> impl Strategy<Value = UserId> {
    prop::sample::select(&USERS[..]).prop_map(|name| UserId::new(name).unwrap())
}

fn conversation(from: &'static [&'static str]) -> impl Strategy<Value = ConversationId> {
    prop::sample::select(from).prop_map(|text| ConversationId::parse(text).unwrap())
}

/// Denials, mostly none; those with a code of the application need newer rules than the others.
fn denials() -> Vec<Option<Code>> {
    vec![None, None, None, Some(Code::Forbidden), AppCode::new(5_001).map(Code::Application)]
}

/// Mode of a message: mostly none.
fn mode() -> impl Strategy<Value = MessageMode> {
    let some = (0..4u32, any::<bool>(), prop::sample::select(denials()));
    let some = some.prop_map(|(flags, is_operator, denied)| MessageMode {
        is_operator,
        denied,
        ..MessageMode::of_flags(flags)
    });
    prop_oneof![3 => Just(MessageMode::default()), 1 => some]
}

fn edit() -> impl Strategy<Value = Body> {
    let of = (conversation(&CONVERSATIONS), 0..6u64, prop::option::of(user()));
    let denied = prop::sample::select(denials());
    (of, 0..6u8, 0..3u8, denied).prop_map(|((conversation, seq, by), id, body, denied)| {
        let content = Bytes::from(vec![body]);
        Body::Edit(Edit {
            conversation,
            seq,
            by,
            device: DeviceId::new("p").unwrap(),
            msg_id: MsgId::new(&format!("e{id}")).unwrap(),
            body_hash: body_hash(&content),
            content,
            denied,
        })
    })
}

fn message() -> impl Strategy<Value = Body> {
    let order = (0..3u64, 0..3u64, any::<bool>());
    let id = (conversation(&CONVERSATIONS), user(), prop::sample::select(&["p", "q"][..]), 0..5u8);
    (id, order, 0..2u32, 0..8u8, mode()).prop_map(
        |((conversation, sender, device, id), order, attempt, body, mode)| {
            let content = Bytes::from(if body == 0 { "other" } else { "body" });
            Body::Message(Message {
                conversation,
                sender,
                device: DeviceId::new(device).unwrap(),
                msg_id: MsgId::new(&format!("m{id}")).unwrap(),
                attempt,
                body_hash: body_hash(&content),
                content,
                order: SenderOrder { epoch: order.0, n: order.1, chained: order.2 },
                flags: mode.shown_flags(0),
                mode,
            })
        },
    )
}

fn action() -> impl Strategy<Value = MemberAction> {
    prop_oneof![
        3 => Just(MemberAction::Create),
        4 => Just(MemberAction::Join),
        2 => Just(MemberAction::Leave),
        3 => Just(MemberAction::Kick),
        2 => Just(MemberAction::Role),
        2 => Just(MemberAction::Settings),
        1 => Just(MemberAction::Delete),
        1 => Just(MemberAction::Mute),
        1 => Just(MemberAction::Unmute),
    ]
}

fn change() -> impl Strategy<Value = Body> {
    let roles = prop::sample::select(&[Role::Member, Role::Admin, Role::Owner][..]);
    let who = (prop::sample::subsequence(&USERS[..], 1..=3), prop::option::of(user()));
    let settings = btree_map("[ab]", "[xy]?", 0..2);
    (conversation(&CONVERSATIONS[..2]), action(), who, roles, settings, 0..12u8).prop_map(
        |(conversation, action, (users, by), role, settings, request)| {
            Body::Member(MemberChange {
                conversation,
                action,
                users: users.into_iter().map(|name| UserId::new(name).unwrap()).collect(),
                role: Some(role),
                by,
                settings,
                request_id: MsgId::new(&format!("q{request}")).unwrap(),
            })
        },
    )
}

pub(super) fn body() -> impl Strategy<Value = Body> {
    let recall = (conversation(&CONVERSATIONS), 0..6u64, prop::option::of(user()))
        .prop_map(|(conversation, seq, by)| Body::Recall(Recall { conversation, seq, by }));
    let prune = (conversation(&CONVERSATIONS), 0..5u64)
        .prop_map(|(conversation, up_to)| Body::Prune(Prune { conversation, up_to }));
    let windows = prop::option::of(prop::sample::select(&[0, 3, 9][..]));
    let rules =
        (1..=LEDGER_NEWEST, windows, 0..20u64).prop_map(|(ledger_version, dedup_window, keys_from)| {
            Body::Rules(RuleChange { ledger_version, dedup_window, keys_from })
        });
    prop_oneof![20 => message(), 6 => change(), 2 => recall, 3 => edit(), 1 => prune, 1 => rules]
}

fn op() -> impl Strategy<Value = Op> {
    let record =
        (body(), prop::sample::select(&[0, 3_600_000, u64::MAX][..])).prop_map(|(body, received_at)| {
            let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 2, request: 3 };
            Op::Append(Box::new(Record { origin, received_at, body, trace: None }))
        });
    prop_oneof![
        30 => record,
        1 => Just(Op::Poison),
        4 => Just(Op::Archive),
        5 => (0..12u64, prop::sample::select(&[0, 1_000, 5_000, usize::MAX][..]))
            .prop_map(|(newest, bytes_max)| Op::Evict { newest, bytes_max }),
        2 => any::<u64>().prop_map(|seed| Op::TakeOver { seed }),
    ]
}

struct Run {
    model: model::Model,
    store: store::Store,
    ledger: Ledger,
    end: Position,
}

impl Run {
    fn new() -> Self {
        Self {
            model: model::Model::default(),
            store: store::Store::new(true, true),
            ledger: Ledger::resume(Position::START, Rules::default(), 0),
            end: Position::START,
        }
    }

    fn archive(&mut self) {
        let delta = self.ledger.take_delta(self.end).unwrap();
        let outcome = self.store.commit(0, &delta).unwrap();
        assert_ne!(outcome, store::Commit::Refused);
        self.ledger.archived(self.end).unwrap();
    }

    fn append(&mut self, record: &Record) {
        let offset = self.model.answers.len() as u64;
        let bytes = record.encode();
        let record = Record::decode(bytes.clone()).expect("what is encoded can be decoded");
        let mut needs = BTreeSet::new();
        self.ledger.needs(&record, &mut needs);
        if !needs.is_empty() {
            let rows = self.store.now.read(&needs);
            self.ledger.load(self.store.now.position, rows).unwrap();
        }
        let got = self.ledger.apply(offset, &record).unwrap();
        assert_eq!(Some(got), self.model.push(Some(&record)), "offset {offset}: {record:?}");
        self.end = Position::behind(offset, &bytes);
    }

    fn take_over(&mut self, seed: u64, log: &[Op]) {
        self.ledger = Ledger::resume(self.store.now.position, self.store.now.rules, seed);
        self.end = self.store.now.position;
        let replay: Vec<_> = log[self.end.offset as usize..].to_vec();
        self.model = model::Model::default();
        for op in &log[..self.end.offset as usize] {
            match op {
                Op::Append(record) => self.model.push(Some(record)),
                _ => self.model.push(None),
            };
        }
        replay.iter().for_each(|op| self.put(op));
    }

    fn put(&mut self, op: &Op) {
        if let Op::Append(record) = op {
            self.append(record);
        } else {
            let offset = self.model.answers.len() as u64;
            self.ledger.skip(offset).unwrap();
            self.model.push(None);
            self.end = Position::behind(offset, b"poison");
        }
    }
}

fn history(ops: &[Op]) {
    let mut run = Run::new();
    let mut log = Vec::new();
    for op in ops {
        match op {
            Op::Append(_) | Op::Poison => {
                run.put(op);
                log.push(op.clone());
            }
            Op::Archive => run.archive(),
            Op::Evict { newest, bytes_max } => {
                run.ledger.evict(run.ledger.next_offset().saturating_sub(*newest), *bytes_max);
            }
            Op::TakeOver { seed } => run.take_over(*seed, &log),
        }
    }
    run.archive();
    assert_eq!(run.store.now.heads, run.model.heads);
    assert_eq!(run.store.now.members, run.model.members);
    assert_eq!(run.store.now.devices, run.model.devices);
    assert_eq!(run.store.now.rows, run.model.rows);
    assert_eq!(run.store.now.recalled, run.model.recalled);
    assert_eq!(run.store.now.edited, run.model.edited);
    run.ledger.evict(u64::MAX, 0);
    assert_eq!((run.ledger.cached(), run.ledger.cached_bytes()), ((0, 0), 0), "each row weighs what it was");
}

pub(super) fn check<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value)) {
    let named = std::env::var("TIDEGATE_PROP_SEED").ok();
    let seed: u64 = named.map_or_else(seed, |text| text.parse().expect("a seed is a number"));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let result = TestRunner::new_with_rng(config, rng).run(&strategy, |value| {
        test(value);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("TIDEGATE_PROP_SEED={seed}: {failure}");
    }
}

#[test]
fn ledger_equals_the_naive_model() {
    check(400, vec(op(), 1..120), |ops| history(&ops));
}

#[test]
fn any_bytes_decode_or_fail_without_harm() {
    check(2_000, vec(any::<u8>(), 0..200), |bytes| {
        if let Ok(record) = Record::decode(bytes.into()) {
            assert_eq!(Record::decode(record.encode()).unwrap(), record);
        }
    });
}

#[test]
fn a_record_with_bytes_changed_decodes_or_fails_without_harm() {
    let damage = vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    check(2_000, (body(), damage), |(body, damage)| {
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 2, request: 3 };
        let mut bytes = Record { origin, received_at: 1, body, trace: None }.encode().to_vec();
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if let Ok(record) = Record::decode(bytes.into()) {
            let mut ledger = Ledger::resume(Position::START, Rules::default(), 1);
            let mut needs = BTreeSet::new();
            ledger.needs(&record, &mut needs);
            ledger.load(Position::START, needs.into_iter().map(store::absent)).unwrap();
            let unknown = matches!(&record.body, Body::Rules(rules) if rules.ledger_version > LEDGER_NEWEST);
            assert_eq!(ledger.apply(u64::MAX - 1, &record).is_err(), unknown);
        }
    });
}

#[test]
fn equal_changes_have_equal_hashes() {
    let settings: BTreeMap<_, _> = [("b", "1"), ("a", "2")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let change = MemberChange {
        conversation: ConversationId::parse("g:a").unwrap(),
        action: MemberAction::Settings,
        users: Vec::new(),
        role: None,
        by: None,
        settings,
        request_id: MsgId::new("q").unwrap(),
    };
    assert_eq!(change.body_hash(), change.clone().body_hash());
    let other = MemberChange { role: Some(Role::Admin), ..change.clone() };
    assert_ne!(change.body_hash(), other.body_hash());
}
