//! Messages that a user has sent: found in steps, each once, over several stays, former groups and removed rows.

use std::sync::Arc;

use tidegate::{
    conversation::history::sent,
    embedded::EmbeddedStore,
    store::{ConversationSeq, MemoryStore, Store},
};
use tidegate_protocol::{
    id::ConversationId,
    machine::ledger::Outcome,
    record::{Body, MemberAction, Prune, Recall},
};

use super::super::{
    group,
    store::owner::{Owner, change, message},
    user,
};

suite! {
    {
        memory => super::memory();
        embedded => super::embedded();
        postgres => crate::postgres::store().await;
    }
    {
        sent_messages_are_found_each_once_in_order
        position_in_a_conversation_of_others_continues_with_the_next
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

fn embedded() -> Arc<dyn Store> {
    Arc::new(EmbeddedStore::new(crate::embedded::engine(2)))
}

/// Applies records, and notes where the messages of ann are.
async fn run<const N: usize>(owner: &mut Owner, bodies: &[Body; N], sent: &mut Vec<ConversationSeq>) {
    for (body, outcome) in bodies.iter().zip(owner.run(bodies).await) {
        let (Body::Message(message), Outcome::Accepted { seq, .. }) = (body, outcome) else { continue };
        if message.sender == user("ann") {
            sent.push(ConversationSeq { conversation: message.conversation.clone(), seq });
        }
    }
}

async fn found(store: &dyn Store, of: &str) -> (Vec<ConversationSeq>, usize) {
    let (mut found, mut conversations, mut at) = (Vec::new(), Vec::new(), None);
    let mut steps = 0;
    while let Some(step) = sent::step(store, &user(of), at.as_ref()).await.unwrap() {
        let conversation = step.membership.conversation.clone();
        assert_eq!(step.is_first, conversations.last() != Some(&conversation));
        assert!(step.visited <= 500);
        if step.is_first {
            conversations.push(conversation.clone());
        }
        let place = |seq| ConversationSeq { conversation: conversation.clone(), seq };
        found.extend(step.rows.iter().map(|it| place(it.row.seq)));
        at = Some(step.next);
        steps += 1;
    }
    assert!(conversations.is_sorted());
    (found, steps)
}

async fn sent_messages_are_found_each_once_in_order(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let direct = |other: &str| ConversationId::direct(&user("ann"), &user(other));
    let mut sent = Vec::new();
    let say = |to: &ConversationId, from: &str, n: usize| message(to, from, &format!("{from}{n}"), 0, "text");
    let long: [Body; 700] =
        std::array::from_fn(|n| say(&direct("bob"), if n % 3 == 0 { "ann" } else { "bob" }, n));
    run(&mut owner, &long, &mut sent).await;
    run(&mut owner, &[say(&direct("cid"), "cid", 0)], &mut sent).await;
    let g = group("g");
    let others: [Body; 30] = std::array::from_fn(|n| say(&g, "bob", n + 10));
    run(&mut owner, &[change("g", MemberAction::Create, &["ann", "bob"], "r1")], &mut sent).await;
    run(&mut owner, &[say(&g, "ann", 1), say(&g, "bob", 1), say(&g, "ann", 2)], &mut sent).await;
    run(&mut owner, &[change("g", MemberAction::Kick, &["ann"], "r2")], &mut sent).await;
    run(&mut owner, &others, &mut sent).await;
    run(&mut owner, &[change("g", MemberAction::Join, &["ann"], "r3"), say(&g, "ann", 3)], &mut sent).await;
    run(&mut owner, &[change("g", MemberAction::Leave, &["ann"], "r4"), say(&g, "bob", 2)], &mut sent).await;
    let h = group("h");
    let made = [change("h", MemberAction::Create, &["ann"], "r5"), say(&h, "ann", 1), say(&h, "ann", 2)];
    run(&mut owner, &made, &mut sent).await;
    run(&mut owner, &[change("h", MemberAction::Delete, &[], "r6")], &mut sent).await;
    run(&mut owner, &[change("i", MemberAction::Create, &["bob"], "r7")], &mut sent).await;
    let recall = Recall { conversation: g.clone(), seq: 2, by: None };
    run(&mut owner, &[Body::Recall(recall)], &mut sent).await;
    assert_eq!(sent.len(), 234 + 5);
    let (all, steps) = found(&**store, "ann").await;
    assert_eq!(all, sent, "recalled ones as well, and those of deleted groups");
    assert!(steps <= 2 + 1 + 2 + 1, "the time between two stays is not read: {steps}");
    assert_eq!(found(&**store, "nobody").await, (vec![], 0));
    let prune = Prune { conversation: direct("bob"), up_to: 650 };
    run(&mut owner, &[Body::Prune(prune)], &mut sent).await;
    sent.retain(|it| it.conversation != direct("bob") || it.seq > 650);
    assert_eq!(found(&**store, "ann").await.0, sent);
}

async fn position_in_a_conversation_of_others_continues_with_the_next(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let made = [
        change("a", MemberAction::Create, &["bob"], "r1"),
        change("b", MemberAction::Create, &["ann", "bob"], "r2"),
        message(&group("a"), "bob", "m1", 0, "text"),
        message(&group("b"), "ann", "m2", 0, "text"),
    ];
    owner.run(&made).await;
    for conversation in [group("a"), group("none")] {
        let is_before = conversation < group("b");
        let at = ConversationSeq { conversation, seq: 0 };
        let step = sent::step(&**store, &user("ann"), Some(&at)).await.unwrap();
        let found = step.map(|it| (it.membership.conversation, it.is_first, it.rows.len()));
        assert_eq!(found, is_before.then(|| (group("b"), true, 1)));
    }
}
