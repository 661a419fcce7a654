//! Newest messages over all conversations: pages equal a naive merge, whatever the times are.

use std::{cmp::Reverse, sync::Arc};

use proptest::prelude::*;
use tidegate::{
    conversation::{
        hide, mark_read,
        newest::{NEWEST_MAX, NewestPosition, NewestRequest, newest},
        read_position::{BeyondHead, OwnConversation},
        reader::Reader,
        unread::View,
    },
    fault::{FaultPlan, Faulty},
    store::{Direction, MemoryStore, PageQuery, Store},
};
use tidegate_protocol::{
    id::ConversationId,
    record::{Body, MemberAction, Prune, Recall},
};

use super::super::{
    group,
    store::owner::{Owner, change, message},
    user,
};

/// Time of messages that are sent between two pages: later than any before.
const LATER: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    /// Conversation, whether ann sends, and the time.
    Say(usize, bool, u64),
    Kick(usize),
    Join(usize),
    /// Conversation, and a fraction of it in tenths.
    Recall(usize, u64),
    Prune(usize, u64),
    Read(usize, u64),
    Hide(usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0..5usize, any::<bool>(), 0..12u64).prop_map(|(at, own, time)| Op::Say(at, own, time)),
        1 => (3..5usize).prop_map(Op::Kick),
        1 => (3..5usize).prop_map(Op::Join),
        1 => (0..5usize, 0..11u64).prop_map(|(at, tenths)| Op::Recall(at, tenths)),
        1 => (0..5usize, 0..5u64).prop_map(|(at, tenths)| Op::Prune(at, tenths)),
        2 => (0..5usize, 0..11u64).prop_map(|(at, tenths)| Op::Read(at, tenths)),
        2 => (0..5usize, 0..11u64).prop_map(|(at, tenths)| Op::Hide(at, tenths)),
    ]
}

/// Returns the conversation of a number: three direct ones and two groups.
fn place(at: usize) -> ConversationId {
    if at < 3 { ConversationId::direct(&user("ann"), &user(PEERS[at])) } else { group(&format!("g{at}")) }
}

const PEERS: [&str; 3] = ["abe", "bob", "cid"];

fn peer(at: usize) -> &'static str {
    PEERS[at.min(2)]
}

struct World {
    store: Arc<dyn Store>,
    owner: Owner,
    requests: u32,
}

impl World {
    async fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let mut owner = Owner::take_over(&store, 0, 1).await;
        for name in ["g3", "g4"] {
            owner.run(&[change(name, MemberAction::Create, &["ann", "cid"], &format!("r-{name}"))]).await;
        }
        Self { store, owner, requests: 0 }
    }

    async fn seq(&self, at: usize, tenths: u64) -> u64 {
        let found = self.store.summary(&place(at), None).await.unwrap();
        found.map_or(0, |found| found.head.last_seq) * tenths / 10
    }

    async fn say(&mut self, at: usize, own: bool, time: u64) {
        self.requests += 1;
        self.owner.time = time;
        let sender = if own { "ann" } else { peer(at) };
        self.owner.run(&[message(&place(at), sender, &format!("m{}", self.requests), 0, "text")]).await;
    }

    async fn apply(&mut self, op: &Op) {
        self.requests += 1;
        let request = format!("r{}", self.requests);
        let ann = user("ann");
        match *op {
            Op::Say(at, own, time) => self.say(at, own, time).await,
            Op::Kick(at) => {
                self.owner.run(&[change(&format!("g{at}"), MemberAction::Kick, &["ann"], &request)]).await;
            }
            Op::Join(at) => {
                self.owner.run(&[change(&format!("g{at}"), MemberAction::Join, &["ann"], &request)]).await;
            }
            Op::Recall(at, tenths) => {
                let seq = self.seq(at, tenths).await.max(1);
                let recall = Recall { conversation: place(at), seq, by: None };
                self.owner.run(&[Body::Recall(recall)]).await;
            }
            Op::Prune(at, tenths) => {
                let up_to = self.seq(at, tenths).await;
                self.owner.run(&[Body::Prune(Prune { conversation: place(at), up_to })]).await;
            }
            Op::Read(at, tenths) => {
                let seq = self.seq(at, tenths).await;
                let place = place(at);
                let own = OwnConversation::new(&*self.store, &ann, &place, BeyondHead::Nothing);
                mark_read::read(own, seq).await.ok();
            }
            Op::Hide(at, tenths) => {
                let seq = self.seq(at, tenths).await.max(1);
                let place = place(at);
                let own = OwnConversation::new(&*self.store, &ann, &place, BeyondHead::Nothing);
                hide::hide(own, &[seq]).await.ok();
            }
        }
    }

    /// Merges all rows that ann may see by sorting them.
    async fn naive(&self, only_unread: bool) -> Vec<(ConversationId, u64)> {
        let mut rows = Vec::new();
        for it in self.store.memberships(&user("ann"), None, 99).await.unwrap() {
            let view = View::new(&it.conversation, &it.head, &it.member_view);
            let query = PageQuery {
                cursor: u64::MAX,
                direction: Direction::Backward,
                limit: 9_999,
                max_bytes: usize::MAX,
            };
            let mut time = u64::MAX;
            for row in self.store.page(&it.conversation, query).await.unwrap().rows {
                let seq = row.row.seq;
                if !view.sees(seq) || seq <= view.user_state().cleared.seq {
                    continue;
                }
                time = time.min(row.row.time);
                let Body::Message(sent) = &row.row.body else { continue };
                let is_unread =
                    seq > view.mark().seq && sent.sender != user("ann") && view.was_in(row.row.ordinal);
                if row.recalled.is_none() && view.shows(seq) && (!only_unread || is_unread) {
                    rows.push((Reverse(time), it.conversation.clone(), Reverse(seq)));
                }
            }
        }
        rows.sort();
        rows.into_iter().map(|(_, conversation, seq)| (conversation, seq.0)).collect()
    }

    async fn page(
        &self,
        after: Option<&NewestPosition>,
        limit: usize,
        only_unread: bool,
    ) -> (Vec<(ConversationId, u64)>, Option<NewestPosition>) {
        let request = NewestRequest { limit, max_bytes: 1 << 20, only_unread };
        let page = newest(&*self.store, &Reader::new(user("ann")), after, request).await.unwrap();
        let of = |body: &Body| match body {
            Body::Message(message) => message.conversation.clone(),
            other => panic!("{other:?}"),
        };
        (page.rows.iter().map(|row| (of(&row.row.body), row.row.seq)).collect(), page.next)
    }
}

fn run(ops: &[Op], limit: usize, only_unread: bool, sent_between: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new().await;
        for op in ops {
            world.apply(op).await;
        }
        let expected = world.naive(only_unread).await;
        let (mut found, mut after) = (Vec::new(), None);
        for nth in 0.. {
            let (rows, next) = world.page(after.as_ref(), limit, only_unread).await;
            assert!(rows.len() <= limit, "{}", rows.len());
            found.extend(rows);
            after = next;
            if after.is_none() {
                break;
            }
            if sent_between {
                world.say(nth % 5, false, LATER + nth as u64).await;
            }
        }
        assert_eq!(found, expected);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn pages_of_newest_messages_equal_the_naive_merge(
        ops in prop::collection::vec(op(), 1..120),
        limit in 1..12usize,
        only_unread in any::<bool>(),
        sent_between in any::<bool>(),
    ) {
        run(&ops, limit, only_unread, sent_between);
    }
}

#[tokio::test]
async fn newest_messages_end_at_a_depth_and_are_read_with_few_calls() {
    let mut world = World::new().await;
    for n in 0..1_100 {
        world.say(n % 3, n % 2 == 0, n as u64).await;
    }
    let (mut after, mut count): (Option<NewestPosition>, usize) = (None, 0);
    loop {
        let (rows, next) = world.page(after.as_ref(), 200, false).await;
        count += rows.len();
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(count, NEWEST_MAX);
    let plan = FaultPlan::none();
    let counted: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&world.store), Arc::clone(&plan)));
    let request = NewestRequest { limit: 200, max_bytes: 1 << 20, only_unread: false };
    let first = newest(&*counted, &Reader::new(user("ann")), None, request).await.unwrap();
    newest(&*counted, &Reader::new(user("ann")), first.next.as_ref(), request).await.unwrap();
    let calls: u64 = ["memberships", "times", "newest", "page"].iter().map(|it| plan.calls(it)).sum();
    assert!(calls <= 30, "{calls}");
}

#[tokio::test]
async fn conversation_with_very_many_new_messages_is_left_out_and_said_so() {
    let mut world = World::new().await;
    world.say(0, false, 1).await;
    world.say(1, false, 2).await;
    world.say(2, false, 3).await;
    let (_, next) = world.page(None, 1, false).await;
    for n in 0..17_000 {
        world.say(0, false, LATER + n).await;
    }
    let request = NewestRequest { limit: 9, max_bytes: 1 << 20, only_unread: false };
    let page = newest(&*world.store, &Reader::new(user("ann")), next.as_ref(), request).await.unwrap();
    let seqs: Vec<u64> = page.rows.iter().map(|row| row.row.seq).collect();
    assert!(page.is_cut && page.next.is_none(), "{:?}", page.next);
    assert_eq!(seqs, [1], "the others continue");
}

#[tokio::test]
async fn groups_without_messages_cost_few_calls() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[message(&place(0), "abe", "m", 0, "text")]).await;
    for n in 0..900 {
        owner.time = 10 + n;
        owner.run(&[change(&format!("n{n}"), MemberAction::Create, &["ann"], &format!("r-{n}"))]).await;
    }
    let plan = FaultPlan::none();
    let counted: Arc<dyn Store> = Arc::new(Faulty::new(store, Arc::clone(&plan)));
    let request = NewestRequest { limit: 10, max_bytes: 1 << 20, only_unread: false };
    let page = newest(&*counted, &Reader::new(user("ann")), None, request).await.unwrap();
    assert_eq!((page.rows.len(), page.next), (1, None));
    assert!(plan.calls("newest") <= 16 && plan.calls("page") == 0, "{}", plan.calls("page"));
}

#[tokio::test]
async fn page_ends_after_many_calls_and_the_next_one_continues() {
    let mut world = World::new().await;
    // A message below a long run of ann's own, so that a page reads more than it may.
    for n in 0..5_000 {
        world.say(0, n != 0, n).await;
    }
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let (rows, next) = world.page(after.as_ref(), 10, true).await;
        found.extend(rows);
        (after, pages) = (next, pages + 1);
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, world.naive(true).await);
    assert!(pages > 1, "{pages}");
}
