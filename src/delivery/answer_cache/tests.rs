//! Replies to repeated queries: from memory, from the store, or that another node owns the partition.

use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::{Ledger, message_key},
    record::{Body, Message, Position, SenderOrder, body_hash},
};
use tokio::time;

use super::*;
use crate::{bus::TopicId, link::LocalLink, ports::Ports};

const FENCE: Fence = Fence(9);

fn run(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
}

fn cluster() -> Cluster {
    Cluster::new(run("n1"), Ports::in_memory(Arc::new(LocalLink)))
}

fn record(of: &NodeBoot, request: u64, text: &'static str) -> Record {
    let message = Message {
        conversation: ConversationId::parse("d:ann:bob").unwrap(),
        sender: UserId::new("ann").unwrap(),
        device: DeviceId::new("d").unwrap(),
        msg_id: MsgId::new(&format!("m{request}")).unwrap(),
        attempt: 0,
        content: text.into(),
        order: SenderOrder::default(),
        flags: 0,
        mode: Default::default(),
        body_hash: body_hash(text.as_bytes()),
    };
    let origin = Origin { node: of.node.clone(), boot: of.boot, conn: 5, request };
    Record { origin, received_at: 7, body: Body::Message(message), trace: None }
}

fn ask(record: &Record, offset: u64) -> Ask {
    let Body::Message(message) = &record.body else { panic!("a message") };
    let key = AskKey { hash: message_key(message), body_hash: message.body_hash };
    Ask { partition: 0, offset, conn: record.origin.conn, request: record.origin.request, key: Some(key) }
}

fn accepted(seq: u64) -> Outcome {
    Outcome::Accepted { seq, ordinal: seq, time: 7 }
}

#[tokio::test(start_paused = true)]
async fn same_answer_is_repeated_only_to_its_origin() {
    let (answered, cluster) = (Arc::new(AnswerCache::default()), cluster());
    let mine = record(&run("n2"), 1, "hi");
    let asks = [ask(&mine, 3)];
    let words = async |from: &str| super::words(&answered, &cluster, &run(from), &asks).await;
    assert_eq!(words("n2").await, [AnswerStatus::NotOwner]);
    cluster.ports.store.take_over(0, FENCE, TopicId(1)).await.unwrap();
    answered.begin(0, FENCE, 3);
    assert_eq!(words("n2").await, [AnswerStatus::NotYet]);
    answered.record(0, FENCE, &[(mine.clone(), accepted(4))], 4);
    assert_eq!(words("n2").await, [AnswerStatus::Answered(accepted(4))]);
    assert_eq!(
        words("n3").await,
        [AnswerStatus::Forgotten],
        "another node has other connections and requests"
    );
    time::advance(ANSWER_RETENTION).await;
    answered.record(0, FENCE, &[], 5);
    assert_eq!(words("n2").await, [AnswerStatus::Forgotten]);
    // An owner with another fence began or ended in the meantime.
    answered.record(0, Fence(8), &[(mine.clone(), accepted(9))], 9);
    assert_eq!(words("n2").await, [AnswerStatus::Forgotten]);
    answered.end(0, Fence(8));
    assert_eq!(words("n2").await, [AnswerStatus::Forgotten]);
    answered.end(0, FENCE);
    assert_eq!(words("n2").await, [AnswerStatus::NotOwner]);
}

#[tokio::test(start_paused = true)]
async fn unpublished_outcome_of_an_earlier_owner_is_found_by_key() {
    let (answered, cluster) = (Arc::new(AnswerCache::default()), cluster());
    let (mine, never) = (record(&run("n2"), 1, "hi"), record(&run("n2"), 2, "ho"));
    let taken = cluster.ports.store.take_over(0, FENCE, TopicId(1)).await.unwrap();
    let mut ledger = Ledger::resume(taken.position, taken.rules, 1);
    let mut needs = std::collections::BTreeSet::new();
    ledger.needs(&mine, &mut needs);
    let needs: Vec<Need> = needs.into_iter().collect();
    let rows = cluster.ports.store.load(0, FENCE, &needs).await.unwrap();
    ledger.load(rows.position, rows.rows).unwrap();
    assert_eq!(ledger.apply(0, &mine).unwrap(), accepted(1));
    let delta = ledger.take_delta(Position::behind(0, &mine.encode())).unwrap();
    cluster.ports.store.archive(0, FENCE, &delta).await.unwrap();
    // The owner crashed. Its successor begins after the record.
    cluster.ports.store.take_over(0, Fence(10), TopicId(1)).await.unwrap();
    answered.begin(0, Fence(10), 2);
    let other = AskKey { body_hash: body_hash(b"another text"), ..ask(&mine, 0).key.unwrap() };
    let asks = [
        ask(&never, 1),
        ask(&mine, 0),
        Ask { key: Some(other), ..ask(&mine, 0) },
        Ask { key: None, ..ask(&mine, 0) },
    ];
    let words = super::words(&answered, &cluster, &run("n2"), &asks).await;
    let found = AnswerStatus::Answered(Outcome::Duplicate { seq: 1, time: 7 });
    assert_eq!(words, [AnswerStatus::Forgotten, found, AnswerStatus::Forgotten, AnswerStatus::Forgotten]);
    // A store that belongs to another owner by now gives no answer.
    cluster.ports.store.take_over(0, Fence(11), TopicId(1)).await.unwrap();
    assert_eq!(super::words(&answered, &cluster, &run("n2"), &asks[1..2]).await, [AnswerStatus::NotYet]);
}

#[tokio::test(start_paused = true)]
async fn answers_are_bounded_and_an_idle_owner_keeps_none() {
    let answered = AnswerCache::default();
    answered.begin(0, FENCE, 0);
    let of = run("n2");
    let batch: Vec<(Record, Outcome)> = (0..ANSWERS_MAX as u64 + 5)
        .map(|n| (record(&of, n, "hi"), Outcome::Refused { code: Code::NotAMember }))
        .collect();
    answered.record(0, FENCE, &batch, batch.len() as u64);
    let known = |request| answered.lookup(&of, &[ask(&record(&of, request, "hi"), 0)])[0].0;
    assert_eq!(known(4), AnswerStatus::Forgotten);
    assert_eq!(known(5), AnswerStatus::Answered(Outcome::Refused { code: Code::NotAMember }));
    time::advance(ANSWER_RETENTION).await;
    answered.record(0, FENCE, &[], batch.len() as u64);
    assert_eq!(answered.partitions()[&0].outcomes.capacity(), 0);
}
