//! Calls of the store that the reads of clients make: few, whatever the client sends and however much it has.

use std::sync::Arc;

use tidegate::{
    conversation::{
        hide, history,
        read_position::{BeyondHead, OwnConversation},
        reader::Reader,
        sync::{self, Positions},
    },
    fault::{FaultPlan, Faulty},
    store::{MemoryStore, Store},
};
use tidegate_protocol::{
    id::ConversationId,
    machine::session::{POSITIONS_MAX, Pull, Which},
    record::MemberAction,
    settings::{Retention, Viewing},
};

use super::{
    group,
    store::owner::{Owner, change, message},
    user,
};

/// Methods of the store that read.
const READS: [&str; 9] =
    ["memberships", "members", "summary", "page", "rows_at", "newest", "times", "summaries", "group_members"];

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

struct Counted {
    inner: Arc<dyn Store>,
    store: Arc<dyn Store>,
    plan: Arc<FaultPlan>,
}

impl Counted {
    fn new() -> Self {
        let (inner, plan): (Arc<dyn Store>, _) = (Arc::new(MemoryStore::default()), FaultPlan::none());
        Self { store: Arc::new(Faulty::new(Arc::clone(&inner), Arc::clone(&plan))), inner, plan }
    }

    async fn owner(&self) -> Owner {
        Owner::take_over(&self.inner, 0, 1).await
    }

    /// Returns the output of `work`, and the number of reads that it made.
    async fn count<T>(&self, work: impl Future<Output = T>) -> (T, u64) {
        let calls = || READS.iter().map(|method| self.plan.calls(method)).sum::<u64>();
        let before = calls();
        let output = work.await;
        (output, calls() - before)
    }
}

fn friend(n: usize) -> ConversationId {
    ConversationId::direct(&user("ann"), &user(&format!("u{n:05}")))
}

/// Has ann write to many users.
async fn write_to(owner: &mut Owner, count: usize) {
    for n in 0..count {
        owner.run(&[message(&friend(n), "ann", "m", 0, "text")]).await;
    }
}

/// Has ann write to a group of her and bob, at these times.
async fn write_at(owner: &mut Owner, times: impl Iterator<Item = u64>) {
    owner.run(&[change("g", MemberAction::Create, &["ann", "bob"], "r0")]).await;
    for (n, time) in times.enumerate() {
        owner.time = time;
        owner.run(&[message(&group("g"), "ann", &format!("m{n}"), 0, "text")]).await;
    }
}

async fn pull(store: &dyn Store, which: Which) -> Vec<u64> {
    let pull = Pull { conversation: group("g"), which, limit: 200 };
    let page = history::pull(store, &Reader::new(user("bob")), &pull).await.unwrap();
    page.messages.iter().map(|push| push.seq).collect()
}

#[tokio::test]
async fn x6_sync_of_128_conversations_makes_two_calls() {
    let world = Counted::new();
    write_to(&mut world.owner().await, 128).await;
    let (reader, nothing) = (Reader::new(user("ann")), Positions::default());
    let sync = sync::states(&*world.store, &reader, &nothing, None, sync::STATES_MAX);
    let (states, calls) = world.count(sync).await;
    let states = states.unwrap().states;
    assert_eq!((states.len(), calls), (128, 2));
    assert!(states.iter().all(|state| state.last.as_ref().is_some_and(|push| push.seq == state.max_seq)));
    let all: Positions = states
        .iter()
        .map(|state| (ConversationId::parse(&state.conversation).unwrap(), state.max_seq))
        .collect();
    let sync = sync::states(&*world.store, &reader, &all, None, sync::STATES_MAX);
    assert_eq!(world.count(sync).await.1, 1, "the client has everything");
}

#[tokio::test]
async fn x6_sync_with_retention_makes_few_calls() {
    let world = Counted::new();
    let mut owner = world.owner().await;
    for n in 0..40 {
        for (day, count) in [(1, n), (9, 3)] {
            owner.time = day * DAY_MS;
            for nth in 0..count {
                owner.run(&[message(&friend(n), "ann", &format!("m{day}-{nth}"), 0, "text")]).await;
            }
        }
    }
    let viewing = Viewing { retention: Retention::SevenDays, ..Viewing::default() };
    let reader = Reader { user: user("ann"), viewing, now_ms: 10 * DAY_MS };
    let nothing = Positions::default();
    let sync = sync::states(&*world.store, &reader, &nothing, None, sync::STATES_MAX);
    let (states, calls) = world.count(sync).await;
    let mins: Vec<u64> = states.unwrap().states.iter().map(|state| state.min_seq).collect();
    assert_eq!(mins, (1..=40).collect::<Vec<u64>>());
    assert!(calls <= 6, "{calls}");
}

#[tokio::test]
async fn x6_scattered_seqs_are_pulled_and_hidden_in_two_calls() {
    let world = Counted::new();
    write_at(&mut world.owner().await, 1..=600).await;
    let odd: Vec<u64> = (1..=200).map(|n| n * 3).collect();
    let (seqs, calls) = world.count(pull(&*world.store, Which::Seqs(odd.clone()))).await;
    assert_eq!((seqs, calls), (odd.clone(), 2));
    let bob = user("bob");
    let place = group("g");
    let own = OwnConversation::new(&*world.store, &bob, &place, BeyondHead::Nothing);
    let hide = hide::hide(own, &odd);
    let (hidden, calls) = world.count(hide).await;
    assert_eq!((hidden.unwrap(), calls), (odd, 2));
}

#[tokio::test]
async fn x6_pull_by_time_makes_few_calls() {
    let world = Counted::new();
    // Thousands of rows lie within the slack before the time that is searched.
    let times = (0..3_000).map(|n| if n < 1_000 { n } else { 10_000 });
    write_at(&mut world.owner().await, times.chain([11_500, 11_600])).await;
    let (seqs, calls) = world.count(pull(&*world.store, Which::Since(11_500))).await;
    assert_eq!(seqs, [3_002, 3_003]);
    assert!(calls <= 8, "{calls}");
}

#[tokio::test]
async fn x6_heartbeat_of_a_user_with_many_conversations_makes_two_calls() {
    let world = Counted::new();
    let count = 3_000;
    write_to(&mut world.owner().await, count).await;
    let ann = user("ann");
    // None of them is the user's.
    let foreign = Positions::from([(ConversationId::direct(&user("x"), &user("y")), 1)]);
    let (found, calls) = world.count(sync::changed(&*world.store, &ann, &foreign, None)).await;
    assert_eq!((found.unwrap().positions.len(), calls), (POSITIONS_MAX, 2));
    // A named one is answered wherever it is.
    let last = friend(count - 1);
    let named = Positions::from([(last.clone(), 0)]);
    let (found, calls) = world.count(sync::changed(&*world.store, &ann, &named, None)).await;
    assert_eq!((found.unwrap().positions[0].conversation.clone(), calls), (last.to_string(), 2));
}

#[tokio::test]
async fn x6_heartbeats_find_each_conversation_that_the_client_did_not_name() {
    let world = Counted::new();
    write_to(&mut world.owner().await, 3_000).await;
    let (mut found, mut after, mut heartbeats) = (Positions::new(), None, 0);
    loop {
        // The client names as many as it may.
        let named: Positions = found
            .iter()
            .take(POSITIONS_MAX)
            .map(|(id, seq): (&ConversationId, &u64)| (id.clone(), *seq))
            .collect();
        let changed = sync::changed(&*world.store, &user("ann"), &named, after.as_ref()).await.unwrap();
        found.extend(
            changed.positions.iter().map(|it| (ConversationId::parse(&it.conversation).unwrap(), it.seq)),
        );
        (after, heartbeats) = (changed.next, heartbeats + 1);
        if after.is_none() {
            break;
        }
    }
    assert!(heartbeats <= 3, "{heartbeats}");
    assert!(found.len() > 2_900, "{}: all but those that did not fit", found.len());
}

#[tokio::test]
async fn x6_too_large_last_entry_is_left_out_and_none_shown_instead() {
    let world = Counted::new();
    let mut owner = world.owner().await;
    owner.run(&[message(&friend(0), "ann", "m1", 0, "text")]).await;
    owner.run(&[message(&friend(0), "ann", "m2", 0, &"x".repeat(5_000))]).await;
    let nothing = Positions::default();
    let reader = Reader::new(user("ann"));
    let states = sync::states(&*world.store, &reader, &nothing, None, sync::STATES_MAX);
    let states = states.await.unwrap().states;
    assert_eq!(states[0].max_seq, 2);
    assert_eq!(states[0].last, None, "m1 is not the newest");
}
