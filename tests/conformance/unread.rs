//! Unread counts, marks and pages compared with a naive model after any history: flaws S17 (paging) and S23, S24
//! (counts that drift).

use std::{collections::BTreeSet, sync::Arc};

use proptest::prelude::*;
use tidegate::{
    conversation::{
        clear, hide, history, mark_read,
        read_position::{BeyondHead, OwnConversation},
        reader::Reader,
        sync,
    },
    embedded::EmbeddedStore,
    fault::{Fault, FaultPlan, Faulty, Gate},
    store::{Mark, MemoryStore, Store},
};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::{
        ledger::Outcome,
        session::{Pull, Which},
    },
    pb,
    record::{Body, MemberAction, Message, MessageMode, Prune, Recall, mode::SILENT},
};

use super::{
    group,
    store::owner::{Owner, change, message, newest_rules},
    user,
};

const USERS: [&str; 3] = ["ann", "bob", "cid"];

/// Returns the conversation of a user, of which the store has everything.
fn own<'a>(store: &'a dyn Store, user: &'a UserId, conversation: &'a ConversationId) -> OwnConversation<'a> {
    OwnConversation::new(store, user, conversation, BeyondHead::Nothing)
}

#[derive(Clone, Debug)]
enum Op {
    Say(usize),
    /// Silent message.
    Whisper(usize),
    Join(usize),
    Kick(usize),
    /// Reader, and the fraction of the conversation in tenths.
    Read(usize, u64),
    /// User, and the fraction of the conversation in tenths.
    Clear(usize, u64),
    /// User, and the fraction of the conversation in tenths; `None` removes the bound.
    Bound(usize, Option<u64>),
    /// User, and the entries in hundredths of the conversation.
    Hide(usize, Vec<u64>),
    Recall(u64),
    Prune(u64),
    /// Whether later members see the whole history.
    History(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..3usize).prop_map(Op::Say),
        3 => (0..3usize).prop_map(Op::Whisper),
        2 => (0..3usize).prop_map(Op::Join),
        2 => (0..3usize).prop_map(Op::Kick),
        5 => (0..3usize, 0..12u64).prop_map(|(who, tenths)| Op::Read(who, tenths)),
        1 => (0..3usize, 0..12u64).prop_map(|(who, tenths)| Op::Clear(who, tenths)),
        2 => (0..3usize, prop::option::weighted(0.7, 0..12u64)).prop_map(|(who, tenths)| Op::Bound(who, tenths)),
        4 => (0..3usize, prop::collection::vec(0..110u64, 1..4)).prop_map(|(who, places)| Op::Hide(who, places)),
        1 => (0..11u64).prop_map(Op::Recall),
        1 => (0..6u64).prop_map(Op::Prune),
        1 => any::<bool>().prop_map(Op::History),
    ]
}

fn silent(to: &ConversationId, sender: &str, id: &str) -> Body {
    match message(to, sender, id, 0, "text") {
        Body::Message(message) => Body::Message(Message { mode: MessageMode::of_flags(SILENT), ..message }),
        other => other,
    }
}

/// Sender of a message; members at that time; users who may see it.
type NaiveRow = (Option<usize>, [bool; 3], [bool; 3]);

/// Returns the last seq of these rows that the user may see; 0 without one.
fn last_of(rows: &[NaiveRow], who: usize) -> u64 {
    rows.iter().rposition(|(_, _, sees)| sees[who]).map_or(0, |at| at as u64 + 1)
}

/// Naive model of a conversation.
#[derive(Default)]
struct Naive {
    rows: Vec<NaiveRow>,
    all: bool,
    is_in: [bool; 3],
    ever: [bool; 3],
    read: [u64; 3],
    cleared: [u64; 3],
    hidden: [BTreeSet<u64>; 3],
    bound: [Option<u64>; 3],
    pruned_to: u64,
}

impl Naive {
    fn row(&mut self, sender: Option<usize>, also: &[usize]) {
        let mut saw = self.is_in;
        also.iter().for_each(|who| saw[*who] = true);
        self.rows.push((sender, saw, saw));
    }

    /// Returns the last seq that is stored for the user, whatever the bound.
    fn end(&self, who: usize) -> u64 {
        last_of(&self.rows, who)
    }

    /// Returns the rows of a conversation that ends at the bound of the user.
    fn cut(&self, who: usize) -> &[NaiveRow] {
        let count = self.bound[who].map_or(self.rows.len(), |bound| self.rows.len().min(bound as usize));
        &self.rows[..count]
    }

    fn max(&self, who: usize) -> u64 {
        last_of(self.cut(who), who)
    }

    fn unread(&self, who: usize) -> u64 {
        let above = (1..).zip(self.cut(who)).skip(self.read[who].max(self.cleared[who]) as usize);
        let shown = above.filter(|(seq, _)| !self.hidden[who].contains(seq));
        let news = shown.filter(|(_, (_, was_in, _))| was_in[who]);
        news.filter(|(_, (sender, ..))| sender.is_some_and(|it| it != who)).count() as u64
    }

    /// Returns the mark at a seq with the count up to there, pruned rows included.
    fn mark(&self, who: usize, seq: u64) -> Mark {
        let up_to = &self.rows[..seq as usize];
        let count =
            |of: &dyn Fn(usize) -> bool| up_to.iter().filter(|it| it.0.is_some_and(of)).count() as u64;
        Mark { seq, messages: count(&|_| true), own: count(&|it| it == who) }
    }

    /// Returns the seqs that the user may see, without pruned and cleared ones.
    fn kept(&self, who: usize) -> impl Iterator<Item = u64> {
        self.kept_up_to(who, self.max(who))
    }

    fn kept_up_to(&self, who: usize, last: u64) -> impl Iterator<Item = u64> {
        let gone = self.pruned_to.max(self.cleared[who]);
        (1..=last).filter(move |seq| *seq > gone && self.rows[*seq as usize - 1].2[who])
    }

    fn pullable(&self, who: usize) -> Vec<u64> {
        self.kept(who).filter(|seq| !self.hidden[who].contains(seq)).collect()
    }

    /// Returns the seqs that the user can hide, whatever the bound.
    fn hideable(&self, who: usize) -> BTreeSet<u64> {
        self.kept_up_to(who, self.end(who)).filter(|seq| !self.hidden[who].contains(seq)).collect()
    }
}

struct World {
    store: Arc<dyn Store>,
    owner: Owner,
    naive: Naive,
    requests: u32,
}

impl World {
    async fn new(store: Arc<dyn Store>) -> Self {
        let mut owner = Owner::take_over(&store, 0, 1).await;
        owner.run(&[newest_rules(), change("g", MemberAction::Create, &["ann", "bob"], "r0")]).await;
        let mut naive = Naive { is_in: [true, true, false], ever: [true, true, false], ..Naive::default() };
        naive.row(None, &[]);
        Self { store, owner, naive, requests: 0 }
    }

    async fn record(&mut self, body: Body) -> bool {
        matches!(self.owner.run(&[body]).await[0], Outcome::Accepted { .. } | Outcome::Noted)
    }

    /// Sends a silent message, which to counts is like a change of members.
    async fn whisper(&mut self, to: &ConversationId, who: usize, id: &str) {
        if self.record(silent(to, USERS[who], id)).await {
            self.naive.row(None, &[]);
        }
    }

    async fn apply(&mut self, op: &Op) {
        self.requests += 1;
        let (g, request) = (group("g"), format!("r{}", self.requests));
        let last = self.naive.rows.len() as u64;
        match *op {
            Op::Say(who) => {
                let accepted = self.record(message(&g, USERS[who], &request, 0, "text")).await;
                assert_eq!(accepted, self.naive.is_in[who]);
                if accepted {
                    self.naive.row(Some(who), &[]);
                }
            }
            Op::Whisper(who) => self.whisper(&g, who, &request).await,
            Op::Join(who) => {
                assert!(self.record(change("g", MemberAction::Join, &[USERS[who]], &request)).await);
                if self.naive.all && !self.naive.is_in[who] {
                    self.naive.rows.iter_mut().for_each(|(_, _, sees)| sees[who] = true);
                }
                self.naive.is_in[who] = true;
                self.naive.ever[who] = true;
                self.naive.row(None, &[]);
            }
            Op::Kick(who) => {
                if self.record(change("g", MemberAction::Kick, &[USERS[who]], &request)).await {
                    self.naive.is_in[who] = false;
                    self.naive.row(None, &[who]);
                }
            }
            Op::Read(who, tenths) => {
                let seq = last * tenths / 10;
                let reader = user(USERS[who]);
                let read = mark_read::read(own(&*self.store, &reader, &g), seq).await;
                if self.naive.ever[who] {
                    let seq = seq.max(self.naive.pruned_to).min(self.naive.max(who));
                    let moved = seq > self.naive.read[who];
                    assert_eq!(read.unwrap(), moved.then(|| self.naive.mark(who, seq)));
                    self.naive.read[who] = self.naive.read[who].max(seq);
                } else {
                    assert_eq!(read, Err((Code::NotAMember, "")));
                }
            }
            Op::Clear(who, tenths) => self.clear(who, last * tenths / 10).await,
            Op::Bound(who, tenths) => self.bound(who, tenths.map(|it| (last * it / 10).max(1))).await,
            Op::Hide(who, ref places) => {
                self.hide(who, places.iter().map(|place| 1 + last * place / 100).collect()).await;
            }
            Op::Recall(tenths) => {
                let seq = (last * tenths / 10).max(1);
                if self.record(Body::Recall(Recall { conversation: g, seq, by: None })).await {
                    self.naive.row(None, &[]);
                }
            }
            Op::History(all) => {
                let word = if all { "all" } else { "join" };
                let Body::Member(mut set) = change("g", MemberAction::Settings, &[], &request) else {
                    unreachable!()
                };
                set.settings.insert("history".into(), word.into());
                assert!(self.record(Body::Member(set)).await);
                self.naive.all = all;
                self.naive.row(None, &[]);
            }
            Op::Prune(tenths) => {
                let up_to = last * tenths / 10;
                self.record(Body::Prune(Prune { conversation: g, up_to })).await;
                self.naive.pruned_to = self.naive.pruned_to.max(up_to);
            }
        }
    }

    async fn clear(&mut self, who: usize, seq: u64) {
        let (user, g) = (user(USERS[who]), group("g"));
        let cleared = clear::clear(own(&*self.store, &user, &g), seq).await;
        if !self.naive.ever[who] {
            return assert_eq!(cleared, Err((Code::NotAMember, "")));
        }
        let seq = seq.max(self.naive.pruned_to).min(self.naive.end(who));
        let moved = seq > self.naive.cleared[who];
        assert_eq!(cleared.unwrap(), moved.then(|| self.naive.mark(who, seq)));
        self.naive.cleared[who] = self.naive.cleared[who].max(seq);
    }

    async fn bound(&mut self, who: usize, seq: Option<u64>) {
        let (store, bob, g) = (&*self.store, user(USERS[who]), group("g"));
        let bound = clear::bound(own(store, &bob, &g), seq).await;
        if !self.naive.ever[who] {
            return assert_eq!(bound, Err((Code::NotAMember, "")));
        }
        bound.unwrap();
        let kept = seq.map(|seq| seq.max(self.naive.pruned_to).min(self.naive.end(who)));
        self.naive.bound[who] = kept;
        let level = store.summary(&g, Some(&bob)).await.unwrap().unwrap().member_view.unwrap().level;
        assert_eq!(level.bound, kept.map(|seq| self.naive.mark(who, seq)));
    }

    async fn hide(&mut self, who: usize, seqs: BTreeSet<u64>) {
        let asked: Vec<u64> = seqs.iter().copied().collect();
        let (user, g) = (user(USERS[who]), group("g"));
        let hidden = hide::hide(own(&*self.store, &user, &g), &asked).await;
        if !self.naive.ever[who] {
            return assert_eq!(hidden, Err((Code::NotAMember, "")));
        }
        let new: Vec<u64> = seqs.intersection(&self.naive.hideable(who)).copied().collect();
        assert_eq!(hidden, Ok(new.clone()));
        self.naive.hidden[who].extend(new);
    }

    async fn check_states(&self) {
        for (who, name) in USERS.iter().enumerate() {
            let nothing = sync::Positions::default();
            let found =
                sync::states(&*self.store, &Reader::new(user(name)), &nothing, None, sync::STATES_MAX)
                    .await
                    .unwrap();
            assert_eq!((found.states.len(), found.next), (usize::from(self.naive.ever[who]), None));
            let Some(state) = found.states.first() else { continue };
            let counts = (state.max_seq, state.read_seq, state.unread);
            let read = self.naive.bound[who].unwrap_or(u64::MAX).min(self.naive.read[who]);
            let truth = (self.naive.max(who), read, self.naive.unread(who));
            assert_eq!(counts, truth, "{name}: max, read, unread");
            if let Some(min) = self.naive.kept(who).next() {
                assert_eq!(state.min_seq, min, "{name}");
            }
        }
    }

    /// Returns everything that a paging client sees, and the ranges reported as unavailable.
    async fn pull_all(&self, who: usize, forward: bool, limit: usize) -> (Vec<u64>, Vec<u64>) {
        let (mut seen, mut gone) = (Vec::new(), Vec::new());
        let mut cursor = if forward { 0 } else { u64::MAX };
        loop {
            let which = if forward { Which::After(cursor) } else { Which::Before(cursor) };
            let pull = Pull { conversation: group("g"), which, limit };
            let page = match history::pull(&*self.store, &Reader::new(user(USERS[who])), &pull).await {
                Ok(page) => page,
                Err((Code::NotYet | Code::NotAMember, _)) => break,
                Err(other) => panic!("{other:?}"),
            };
            let named = named(&page);
            let next = if forward { named.iter().max() } else { named.iter().min() };
            let max = self.naive.max(who);
            let Some(next) = next else {
                let is_below_all = cursor == 1 || max == 0;
                assert!(!forward && is_below_all, "a page without a reason at {cursor}: {page:?}");
                break;
            };
            if forward && cursor >= max {
                // Above the bound, all that is stored is named at once, and nothing is shown.
                let end = self.naive.rows.len() as u64;
                let rest = (named.len() as u64, page.expired.len(), page.complete_to);
                assert_eq!((rest, self.naive.is_in[who]), ((end - cursor, 1, end), true));
                cursor = end;
                continue;
            }
            assert_eq!(page.complete_to, max);
            cursor = *next;
            seen.extend(page.messages.iter().map(|push| push.seq).chain(page.recalled.iter().copied()));
            gone.extend(page.expired.iter().flat_map(|range| range.first..=range.last));
        }
        (seen, gone)
    }

    /// Asserts that the page has no hole from its first named seq to its last, and what of it can be pulled.
    async fn check_around(&self, who: usize, seq: u64, truth: &[u64]) {
        let pull = Pull { conversation: group("g"), which: Which::Around(seq), limit: 3 };
        let page = history::pull(&*self.store, &Reader::new(user(USERS[who])), &pull).await.unwrap();
        let mut named = named(&page);
        named.sort_unstable();
        let (first, last) = (named[0], named[named.len() - 1]);
        assert_eq!(named, (first..=last).collect::<Vec<_>>(), "{}: around {seq}", USERS[who]);
        assert!(first <= seq && seq <= last);
        let mut seen: Vec<u64> = page.messages.iter().map(|push| push.seq).collect();
        assert!(seen.is_sorted() && page.expired.is_sorted_by_key(|range| range.first));
        seen.extend(&page.recalled);
        seen.sort_unstable();
        let truth: Vec<u64> = truth.iter().copied().filter(|it| (first..=last).contains(it)).collect();
        assert_eq!(seen, truth, "{}: around {seq}", USERS[who]);
        let (below, above) = (seen.iter().filter(|it| **it < seq), seen.iter().filter(|it| **it > seq));
        assert!(below.count() <= 3 && above.count() <= 3);
    }

    /// Asserts that a page backward from above the bound names all down to its last seq, and shows nothing above the bound.
    async fn check_above(&self, who: usize, cursor: u64, truth: &[u64]) {
        let pull = Pull { conversation: group("g"), which: Which::Before(cursor), limit: 3 };
        let page = history::pull(&*self.store, &Reader::new(user(USERS[who])), &pull).await.unwrap();
        let mut named = named(&page);
        named.sort_unstable();
        assert_eq!(named, (named[0]..cursor).collect::<Vec<_>>(), "{}: before {cursor}", USERS[who]);
        assert_eq!(page.complete_to, cursor - 1);
        let mut seen: Vec<u64> = page.messages.iter().map(|push| push.seq).collect();
        seen.extend(&page.recalled);
        seen.sort_unstable();
        let truth: Vec<u64> = truth.iter().copied().filter(|seq| *seq >= named[0]).collect();
        assert_eq!(seen, truth, "{}: before {cursor}", USERS[who]);
    }

    async fn check_pages(&self) {
        for who in (0..3).filter(|who| self.naive.ever[*who]) {
            let truth = self.naive.pullable(who);
            let all = 1..=self.naive.max(who);
            let rest: Vec<u64> = all.clone().filter(|seq| !truth.contains(seq)).collect();
            for (forward, limit) in [(true, 7), (false, 7), (true, 1), (false, 200)] {
                let (mut seen, mut gone) = self.pull_all(who, forward, limit).await;
                seen.sort_unstable();
                gone.sort_unstable();
                assert_eq!((&seen, &gone), (&truth, &rest), "{}, {forward}, {limit}", USERS[who]);
            }
            for seq in 1..=self.naive.max(who) {
                self.check_around(who, seq, &truth).await;
            }
            for cursor in self.naive.max(who) + 2..=self.naive.end(who) + 1 {
                self.check_above(who, cursor, &truth).await;
            }
            if truth.is_empty() && rest.is_empty() {
                continue;
            }
            let pull = |seqs| Pull { conversation: group("g"), which: Which::Seqs(seqs), limit: 200 };
            let page = history::pull(&*self.store, &Reader::new(user(USERS[who])), &pull(all.collect()))
                .await
                .unwrap();
            let mut seen: Vec<u64> = page.messages.iter().map(|push| push.seq).collect();
            seen.extend(&page.recalled);
            seen.sort_unstable();
            assert_eq!(seen, truth, "{} by seqs", USERS[who]);
        }
    }
}

fn named(page: &pb::Page) -> Vec<u64> {
    let ranges = page.expired.iter().flat_map(|range| range.first..=range.last);
    page.messages.iter().map(|push| push.seq).chain(page.recalled.iter().copied()).chain(ranges).collect()
}

fn run(store: Arc<dyn Store>, ops: &[Op]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(store).await;
        for op in ops {
            world.apply(op).await;
            world.check_states().await;
        }
        world.check_pages().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn s23_s24_unread_and_pages_equal_the_naive_model(ops in prop::collection::vec(op(), 1..200)) {
        run(Arc::new(MemoryStore::default()), &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]
    #[test]
    fn s23_s24_unread_and_pages_equal_the_naive_model_on_disk(ops in prop::collection::vec(op(), 30..60)) {
        run(Arc::new(EmbeddedStore::new(super::embedded::engine(1))), &ops);
    }
}

/// At each read of rows, retention passes the seq to be marked; ann's own messages are on both sides of it.
#[tokio::test]
async fn retention_during_a_mark_leaves_no_wrong_count() {
    for page in 0..3 {
        let plan = FaultPlan::none();
        let (store, gate) = (Arc::new(MemoryStore::default()) as Arc<dyn Store>, Gate::new());
        let mut world = World::new(Arc::clone(&store)).await;
        for who in [0, 1, 1, 0, 1, 1, 1, 0, 1] {
            world.apply(&Op::Say(who)).await;
        }
        (0..page).for_each(|_| plan.plan("page", Fault::None));
        plan.plan("page", Fault::Hold(gate.clone()));
        let faulty: Arc<dyn Store> = Arc::new(Faulty::new(store, plan));
        let read =
            tokio::spawn(async move { mark_read::read(own(&*faulty, &user("ann"), &group("g")), 3).await });
        while gate.reached() == 0 && !read.is_finished() {
            tokio::task::yield_now().await;
        }
        world.apply(&Op::Prune(7)).await;
        gate.open();
        let mark = read.await.unwrap().unwrap();
        let seq = if gate.reached() > 0 { 7 } else { 3 };
        assert_eq!(mark, Some(world.naive.mark(0, seq)), "at page {page}");
        world.naive.read[0] = seq;
        world.check_states().await;
    }
}

#[test]
fn former_members_marks_count_no_later_message() {
    let talk = |count| vec![Op::Say(0); count];
    for pruned in [5, 10] {
        let left = [talk(8), vec![Op::Say(1), Op::Kick(1)], talk(30), vec![Op::Prune(pruned)]].concat();
        let ops = [left, vec![Op::Read(1, 11), Op::Clear(1, 11), Op::Join(1), Op::Say(0)]].concat();
        run(Arc::new(MemoryStore::default()), &ops);
        run(Arc::new(EmbeddedStore::new(super::embedded::engine(1))), &ops);
    }
}
