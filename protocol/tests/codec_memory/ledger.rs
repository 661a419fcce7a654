//! Heap of the ledger's cache: its own estimate, which its limit is compared with, is close to what is allocated.

use std::collections::BTreeSet;

use allocation_counter::measure;
use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::{Ledger, Loaded, Need},
    record::{
        Body, MemberAction, MemberChange, Message, Origin, Position, Record, Rules, SenderOrder, body_hash,
    },
};

const RECORDS: u64 = 20_000;

fn user(nth: u64) -> UserId {
    UserId::new(&format!("user{nth}")).unwrap()
}

fn message(conversation: ConversationId, sender: UserId, nth: u64) -> Body {
    let content = Bytes::from_static(b"hi");
    Body::Message(Message {
        conversation,
        sender,
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(&format!("m{nth}")).unwrap(),
        attempt: 0,
        body_hash: body_hash(&content),
        content,
        order: SenderOrder::default(),
        flags: 0,
        mode: Default::default(),
    })
}

fn absent(need: Need) -> Loaded {
    match need {
        Need::Head(id) => Loaded::Head(id, None),
        Need::Member(id, user) => Loaded::Member(id, user, None),
        Need::Device(id, user, device) => Loaded::Device(id, user, device, None),
        Need::Key(hash) => Loaded::Key(hash, None),
        Need::Row(id, seq) => Loaded::Row(id, seq, None),
    }
}

/// Runs a ledger over the records, and returns its estimate and the bytes allocated for it.
fn heap(bodies: impl Iterator<Item = Body>) -> (usize, usize) {
    let mut ledger = None;
    let allocated = measure(|| ledger = Some(ledger_after(bodies)));
    (ledger.unwrap().cached_bytes(), usize::try_from(allocated.bytes_current).unwrap())
}

fn ledger_after(bodies: impl Iterator<Item = Body>) -> Ledger {
    let mut ledger = Ledger::resume(Position::START, Rules::default(), 1);
    for (offset, body) in (0..).zip(bodies) {
        let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 2, request: offset };
        let record = Record { origin, received_at: 1, body, trace: None };
        // Decoded, as an owner reads it: each record has ids of its own.
        let record = Record::decode(record.encode()).unwrap();
        let mut needs = BTreeSet::new();
        ledger.needs(&record, &mut needs);
        ledger.load(ledger.archived_position(), needs.into_iter().map(absent)).unwrap();
        ledger.apply(offset, &record).unwrap();
        if offset % 256 == 255 {
            let to = Position::behind(offset, b"any");
            drop(ledger.take_delta(to).unwrap());
            ledger.archived(to).unwrap();
        }
    }
    let to = Position::behind(ledger.next_offset() - 1, b"any");
    drop(ledger.take_delta(to).unwrap());
    ledger
}

#[test]
fn x1_the_estimate_of_the_cache_is_close_to_its_heap() {
    let check = |what: &str, (estimate, allocated): (usize, usize)| {
        println!("{what}: estimate {estimate}, allocated {allocated}");
        assert!(
            estimate >= allocated * 4 / 5 && estimate <= allocated * 3 / 2,
            "{what}: {estimate}, {allocated}"
        );
    };
    let strangers =
        (1..RECORDS).map(|nth| message(ConversationId::direct(&user(0), &user(nth)), user(0), nth));
    check("a message to each of many users", heap(strangers));
    let pair = ConversationId::direct(&user(1), &user(2));
    check("many messages of a pair", heap((0..RECORDS).map(|nth| message(pair.clone(), user(1), nth))));
    let group = ConversationId::parse("g:team").unwrap();
    let change = |nth: u64| MemberChange {
        conversation: group.clone(),
        action: if nth == 0 { MemberAction::Create } else { MemberAction::Join },
        users: (nth * 10..nth * 10 + 10).map(user).collect(),
        role: None,
        by: None,
        settings: [("name".to_owned(), "x".repeat(4_000))].into(),
        request_id: MsgId::new(&format!("q{nth}")).unwrap(),
    };
    let joins = (0..RECORDS / 10).map(|nth| Body::Member(change(nth)));
    check(
        "a large group whose members write once",
        heap(joins.chain((0..RECORDS).map(|nth| message(group.clone(), user(nth), nth)))),
    );
    let groups = (0..RECORDS / 10).map(|nth| {
        let conversation = ConversationId::parse(&format!("g:{nth}")).unwrap();
        Body::Member(MemberChange { conversation, action: MemberAction::Create, ..change(nth) })
    });
    check("groups with long settings", heap(groups));
}
