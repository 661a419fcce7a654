//! Pages around a seq and from a time on, compared with a naive model while messages arrive: flaw S17.

use std::sync::Arc;

use proptest::prelude::*;
use prost::Message;
use tidegate::{
    conversation::{history, read_position::BeyondHead, reader::Reader, sync},
    embedded::EmbeddedStore,
    store::{MemoryStore, Store},
};
use tidegate_protocol::{
    Code,
    content::Content,
    id::ConversationId,
    machine::session::{Pull, Which},
    pb,
    record::{Body, MemberAction},
};

use super::{
    group,
    store::owner::{Owner, change, message},
    user,
};

/// Limit of how far a time is before that of an earlier seq.
const DISORDER: u64 = 2_000;

struct World {
    store: Arc<dyn Store>,
    owner: Owner,
    /// Time of each seq, from 1.
    times: Vec<u64>,
}

impl World {
    async fn new(store: Arc<dyn Store>) -> Self {
        let owner = Owner::take_over(&store, 0, 1).await;
        let mut world = Self { store, owner, times: Vec::new() };
        world.append(&[change("g", MemberAction::Create, &["ann", "bob"], "r0")], 1).await;
        world
    }

    async fn append<const N: usize>(&mut self, bodies: &[Body; N], time: u64) {
        self.owner.time = time;
        self.owner.run(bodies).await;
        self.times.extend([time; N]);
    }

    async fn say(&mut self, time: u64) {
        let id = format!("m{}", self.times.len());
        self.append(&[message(&group("g"), "ann", &id, 0, "text")], time).await;
    }

    async fn pull(&self, which: Which, limit: usize) -> Result<pb::Page, Code> {
        let pull = Pull { conversation: group("g"), which, limit };
        history::pull(&*self.store, &Reader::new(user("bob")), &pull).await.map_err(|(code, _)| code)
    }

    /// Returns everything from `time` on, page by page, while messages arrive between the pages.
    async fn all_since(&mut self, time: u64, limit: usize, arrivals: u64) -> Vec<u64> {
        let (mut seen, mut which, mut arrivals) = (Vec::new(), Which::Since(time), arrivals);
        loop {
            let page = match self.pull(which, limit).await {
                Ok(page) => page,
                Err(Code::NotYet) => return seen,
                Err(other) => panic!("{other:?}"),
            };
            assert!((1..=limit).contains(&page.messages.len()), "{page:?}");
            seen.extend(page.messages.iter().map(|push| push.seq));
            which = Which::After(*seen.last().unwrap());
            if arrivals > 0 {
                arrivals -= 1;
                let newest = *self.times.iter().max().unwrap();
                self.say(newest).await;
            }
        }
    }

    fn since(&self, time: u64) -> Vec<u64> {
        let first = self.times.iter().position(|it| *it >= time).unwrap_or(self.times.len());
        (first as u64 + 1..=self.times.len() as u64).collect()
    }

    async fn check_around(&self, seq: u64, limit: usize) {
        let last = self.times.len() as u64;
        let found = self.pull(Which::Around(seq), limit).await;
        if seq > last {
            return assert_eq!(found, Err(Code::NotYet));
        }
        let side = limit as u64;
        let truth: Vec<u64> = (seq.saturating_sub(side).max(1)..=(seq + side).min(last)).collect();
        let page = found.unwrap();
        assert_eq!(page.messages.iter().map(|push| push.seq).collect::<Vec<_>>(), truth);
        assert_eq!((page.complete_to, page.expired.len()), (last, 0));
    }
}

fn block_on(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work);
}

/// A step of the clock, and how far the message's time is before it, for each message.
fn talk() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let step = prop_oneof![6 => Just(0u64), 2 => 0..5u64, 1 => 0..10_000u64];
    let back = prop_oneof![3 => Just(0u64), 1 => 0..=DISORDER];
    prop::collection::vec((step, back), 0..120)
}

async fn check(store: Arc<dyn Store>, talk: &[(u64, u64)], at: usize, by: u64, limit: usize, arrivals: u64) {
    let mut world = World::new(store).await;
    let mut clock = 10_000;
    for (step, back) in talk {
        clock += step;
        world.say(clock - back).await;
    }
    let time = (world.times[at % world.times.len()] + by).max(1);
    let seen = world.all_since(time, limit, arrivals).await;
    assert_eq!(seen, world.since(time), "from {time} by {limit}: {:?}", world.times);
    for seq in 1..=world.times.len() as u64 + 1 {
        world.check_around(seq, limit).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]
    #[test]
    fn s17_pages_by_time_and_seq_equal_the_naive_model(
        talk in talk(), at in 0..200usize, by in 0..3u64, limit in 1..12usize, arrivals in 0..6u64,
    ) {
        block_on(check(Arc::new(MemoryStore::default()), &talk, at, by, limit, arrivals));
    }
}

#[test]
fn sync_is_split_into_bounded_parts() {
    block_on(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let mut owner = Owner::take_over(&store, 0, 1).await;
        for n in 0..300 {
            let place = ConversationId::direct(&user("ann"), &user(&format!("u{n:03}")));
            let Body::Message(mut said) = message(&place, "ann", "m", 0, "") else { panic!("a message") };
            said.content = Content::text("x".repeat(n * 20)).encode_to_vec().into();
            owner.run(&[Body::Message(said)]).await;
        }
        let (mut after, mut limit, mut state_count, mut parts) = (None, sync::STATES_MAX, 0, 0);
        loop {
            let nothing = sync::Positions::default();
            let reader = Reader::new(user("ann"));
            let part = sync::states(&*store, &reader, &nothing, after.as_ref(), limit).await.unwrap();
            limit = sync::next_limit(part.states.len());
            let bytes: usize = part.states.iter().map(Message::encoded_len).sum();
            assert!(bytes <= 40 * 1024 && part.states.len() <= 128, "{bytes} bytes");
            (state_count, parts) = (state_count + part.states.len(), parts + 1);
            after = part.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(state_count, 300);
        assert!(parts > 3, "{parts}");
    });
}

#[test]
fn s17_fifty_messages_of_one_millisecond_are_all_returned() {
    let stores: [Arc<dyn Store>; 2] =
        [Arc::new(MemoryStore::default()), Arc::new(EmbeddedStore::new(super::embedded::engine(1)))];
    for store in stores {
        block_on(async {
            let mut world = World::new(store).await;
            world.say(4_000).await;
            for _ in 0..50 {
                world.say(5_000).await;
            }
            assert_eq!(world.all_since(5_000, 7, 9).await, (3..=61).collect::<Vec<_>>());
            assert_eq!(world.all_since(5_001, 7, 0).await, Vec::<u64>::new());
            let page = world.pull(Which::Since(1), 200).await.unwrap();
            assert_eq!(page.messages.len(), 61, "a time before all messages starts at the first");
        });
    }
}

/// A copy of the store may lack the group, or that the user was added.
#[test]
fn k2_pull_from_a_store_that_may_lag_is_not_refused() {
    block_on(async {
        let mut world = World::new(Arc::new(MemoryStore::default())).await;
        world.append(&[change("g", MemberAction::Kick, &["bob"], "r1")], 2).await;
        let archived = world.store.archived_without(0, &group("later")).await.unwrap().unwrap();
        let may_lack = |below| BeyondHead::NothingIfArchived { partition: 0, below };
        for (who, name, cursor) in [("bob", "later", 0), ("eve", "g", 0), ("bob", "g", 2)] {
            let pull = Pull { conversation: group(name), which: Which::After(cursor), limit: 9 };
            let code = async |above| {
                let page = history::pull_where(&*world.store, &Reader::new(user(who)), &pull, above).await;
                page.map_err(|(code, _)| code).unwrap_err()
            };
            assert_eq!(code(BeyondHead::Nothing).await, Code::NotAMember, "{who} in {name}");
            assert_eq!(code(may_lack(archived)).await, Code::NotAMember, "{who} in {name}");
            assert_eq!(code(may_lack(archived + 1)).await, Code::NotYet, "{who} in {name}");
            assert_eq!(code(BeyondHead::Unknown).await, Code::NotYet, "{who} in {name}");
        }
        let pull = Pull { conversation: group("g"), which: Which::After(0), limit: 9 };
        let bob = Reader::new(user("bob"));
        let page = history::pull_where(&*world.store, &bob, &pull, BeyondHead::Unknown).await.unwrap();
        assert_eq!(page.messages.len(), 2, "what the store has is returned");
    });
}
