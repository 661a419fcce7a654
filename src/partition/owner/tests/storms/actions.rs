//! Actions of owners on storms: notices, entries, slow mode and posts by admins only, over crashes and take-overs.

mod lag;

use prost::Message as _;
use tidegate_protocol::{
    machine::storm::{StormAction, StormRule},
    pb::{self, server_frame::Body as Frame},
};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    cluster::StormHandler,
    delivery::notices::NoticeSender,
    fault::Gate,
    ingest::{admin::Admin, appender::append_all, intake::Intake},
    mail::Audience,
    partition::storm_actions::StormPorts,
    store::{GuardBatch, GuardEntry, GuardKey, GuardKind, GuardPut, GuardRow, GuardStore as _},
    storms::{GroupPast, GroupStormRule},
};

const SLOW: StormAction = StormAction::Slow(Duration::from_secs(5));

/// Owner that runs, with clocks that go on together.
struct Stage {
    plan: Arc<FaultPlan>,
    memory: Arc<MemoryStore>,
    cluster: Arc<Cluster>,
    settings: Settings,
    ports: Arc<StormPorts>,
    dispatcher: Box<dyn Fn() -> Dispatcher>,
    mailbox: Mailbox,
    owner: Option<JoinHandle<()>>,
    began: Instant,
    notices: Vec<pb::Notice>,
    /// Recipients of the last notice.
    notified: Vec<UserId>,
    _ownership: Box<dyn Ownership>,
}

impl Stage {
    /// Starts an owner of the group of these users, whose owner is the first, with this action on storms.
    async fn start(action: Option<StormAction>, members: &[usize]) -> Self {
        let world = World::start().await;
        let World { plan, memory, pending, directory, shards, cluster, owner, mailbox, _ownership, .. } =
            world;
        cluster.guard.add_handler(Arc::new(StormHandler::new(Arc::clone(&cluster.storms))));
        let (intake, outlets) = Intake::new(1 << 20);
        let me = cluster.me.clone();
        let admin = Admin::new(me.clone(), Arc::clone(&intake), Arc::clone(&pending));
        let (users, handles) = (Arc::clone(&directory), Arc::clone(&shards));
        let local = move || {
            LocalDispatcher::new(me.clone(), Arc::clone(&users), Arc::clone(&handles), Arc::clone(&pending))
        };
        tokio::spawn(append_all(outlets.records, intake, Arc::clone(&cluster), local()));
        members.iter().for_each(|n| directory.add_user(&user(*n), 0));
        let notices = NoticeSender::new(directory, shards, None, owner.metrics.clone());
        cluster.storms.set_rule(StormRule::new(100, Duration::from_secs(60)), action);
        let mut stage = Self {
            plan,
            memory,
            cluster,
            settings: owner.settings.clone(),
            ports: Arc::new(StormPorts { admin, notices }),
            dispatcher: Box::new(move || Dispatcher::new(local())),
            mailbox,
            owner: None,
            began: Instant::now(),
            notices: Vec::new(),
            notified: Vec::new(),
            _ownership,
        };
        drop(owner);
        stage.pass(0).await;
        let created = match change(MemberAction::Create, members) {
            Body::Member(it) => Body::Member(MemberChange { by: Some(user(members[0])), ..it }),
            other => other,
        };
        stage.append(vec![created]).await;
        stage.take_over().await;
        stage.pass(121_000).await;
        stage
    }

    fn now_ms(&self) -> u64 {
        RECEIVED + u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    async fn append(&self, bodies: Vec<Body>) {
        let now = self.now_ms();
        let records = bodies.into_iter().map(|body| record(now, body).encode()).collect();
        self.cluster.ports.bus.append(0, records).await.unwrap();
    }

    async fn send(&self, count: usize) {
        self.append((0..count).map(|_| message()).collect()).await;
    }

    /// Takes the partition over, as after the end of the former owner.
    async fn take_over(&mut self) {
        let metrics = metrics::install().0;
        let owner = Owner::take_over(0, &self.cluster, None, self.settings.clone(), &metrics).await.unwrap();
        let (owner, mut out) = (owner.with_storm_ports(&self.ports), (self.dispatcher)());
        self.owner = Some(tokio::spawn(async move {
            let never = CancellationToken::new();
            Box::pin(owner.run(&mut None, &mut out, &never, &never)).await;
        }));
    }

    /// Ends the owner at once.
    async fn crash(&mut self) {
        let owner = self.owner.take().unwrap();
        owner.abort();
        owner.await.ok();
    }

    /// Lets time pass, for the clock of the store too, and takes what the shard gets.
    async fn pass(&mut self, ms: u64) {
        let until = Instant::now() + Duration::from_millis(ms);
        loop {
            self.memory.set_now_ms(self.now_ms());
            while let Some(mail) = self.mailbox.take() {
                let Mail::Signal(signal) = mail else { continue };
                let frame = pb::ServerFrame::decode(signal.frame.proto()).unwrap();
                let Some(Frame::Notice(notice)) = frame.body else { panic!("a notice") };
                self.notices.push(notice);
                let Audience::Users(users) = signal.audience else { panic!("named users") };
                self.notified = users.to_vec();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let_pass(left.min(Duration::from_millis(250))).await;
        }
    }

    fn kinds(&self) -> Vec<pb::NoticeKind> {
        self.notices.iter().map(pb::Notice::kind).collect()
    }

    /// Returns whether slow mode refuses a second message of a user.
    fn is_slow(&self, n: usize) -> bool {
        self.cluster.storms.entries().slow().refuses_second(&group(), &user(n))
    }

    async fn entry(&self) -> Option<GuardRow> {
        let key = GuardKey::new(GuardKind::Storm, group().as_str()).unwrap();
        self.memory.guard_get(&key).await.unwrap()
    }

    async fn has_entry(&self) -> bool {
        self.entry().await.is_some()
    }

    /// Stores the entry of the group again, as another owner does.
    async fn put_again(&self, ms: u64) {
        let row = self.entry().await.unwrap();
        let entry = GuardEntry::new(row.key, row.value.unwrap(), Some(self.now_ms() + ms)).unwrap();
        let batch = GuardBatch::new(vec![GuardPut { entry, expected: None }]).unwrap();
        self.memory.put_guard(&batch).await.unwrap();
    }

    /// Takes the partition over with an owner that only acts on a storm, and sees no message of the log.
    async fn act_alone(&self) -> [JoinHandle<()>; 2] {
        let metrics = metrics::install().0;
        let owner = Owner::take_over(0, &self.cluster, None, self.settings.clone(), &metrics).await.unwrap();
        let owner = owner.with_storm_ports(&self.ports);
        let (table, received_ms, group) = (Arc::clone(&owner.storms), self.now_ms(), group());
        table.count((2..103).map(|seq| (&group, seq, received_ms)));
        table.next_unread(1).await;
        table.restore(&group, GroupPast { end: 2, messages: &[], store_now_ms: received_ms });
        let acting = tokio::spawn(owner.act_on_storms());
        let ticking = tokio::spawn(async move {
            loop {
                let_pass(Duration::from_secs(1)).await;
                table.tick(received_ms);
            }
        });
        [acting, ticking]
    }

    /// Sets the actions of the group as an operator does.
    fn set_actions(&self, actions: &[&str]) {
        let actions = Some(actions.iter().map(|it| (*it).to_owned()).collect());
        let rule = GroupStormRule { actions, ..GroupStormRule::default() };
        self.cluster.storms.set_group_rules(vec![(group(), Some(rule))]);
    }

    /// Returns the settings of the group for posts, and from before a storm.
    async fn settings(&self) -> [Option<String>; 2] {
        let head = self.memory.summary(&group(), None).await.unwrap().unwrap().head;
        ["post", "storm.post"].map(|name| head.settings.get(name).cloned())
    }
}

fn set(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[tokio::test(start_paused = true)]
async fn storm_is_notified_once_and_slow_mode_ends_with_it() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    stage.send(101).await;
    stage.pass(2_000).await;
    let [started] = &stage.notices[..] else { panic!("one notice: {:?}", stage.notices) };
    assert_eq!((started.kind(), started.conversation.as_str()), (pb::NoticeKind::Storm, "g:tea"));
    assert_eq!((started.count, started.threshold, started.window_ms), (101, 100, 60_000));
    assert_eq!((started.action.as_str(), started.interval_ms), ("slow", 5_000));
    assert!(stage.has_entry().await);
    assert!(stage.is_slow(1), "a member waits");
    assert!(!stage.is_slow(0), "the owner is exempt");
    stage.pass(116_000).await;
    assert_eq!(stage.kinds(), [pb::NoticeKind::Storm]);
    assert!(stage.is_slow(1), "the entry is renewed");
    stage.pass(10_000).await;
    assert_eq!(stage.kinds(), [pb::NoticeKind::Storm, pb::NoticeKind::StormOver]);
    assert_eq!(stage.notices[0].since, stage.notices[1].since);
    assert!(!stage.has_entry().await && !stage.is_slow(1));
    assert_eq!(reported(&stage.cluster), [started_id(), over_id()]);
}

fn started_id() -> (String, bool) {
    started("g:tea/102")
}

fn over_id() -> (String, bool) {
    ("g:tea/102".to_owned(), true)
}

#[tokio::test(start_paused = true)]
async fn only_owners_and_admins_of_a_large_group_are_notified() {
    let mut stage = Box::pin(Stage::start(None, &[3, 0, 1, 2])).await;
    stage.send(101).await;
    stage.pass(2_000).await;
    assert_eq!(stage.kinds(), [pb::NoticeKind::Storm]);
    assert_eq!((stage.notices[0].action.as_str(), stage.notified.clone()), ("", vec![user(3)]));
}

#[tokio::test(start_paused = true)]
async fn new_owner_ends_a_storm_whose_group_is_silent() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    stage.send(150).await;
    stage.pass(2_000).await;
    stage.crash().await;
    stage.pass(5_000).await;
    stage.take_over().await;
    stage.pass(2_000).await;
    assert_eq!(view(&stage.cluster).map(|it| it.phase), Some(StormPhase::Storm));
    stage.pass(130_000).await;
    assert_eq!(reported(&stage.cluster), [started_id(), over_id()]);
    assert_eq!(stage.kinds(), [pb::NoticeKind::Storm, pb::NoticeKind::StormOver]);
    assert!(!stage.has_entry().await && !stage.is_slow(1));
}

#[tokio::test(start_paused = true)]
async fn new_owner_goes_on_with_a_storm_that_continues() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    stage.send(150).await;
    stage.pass(2_000).await;
    stage.crash().await;
    stage.take_over().await;
    for _ in 0..6 {
        stage.send(40).await;
        stage.pass(20_000).await;
    }
    assert_eq!(reported(&stage.cluster), [started_id()]);
    assert!(stage.is_slow(1) && stage.has_entry().await);
    stage.pass(130_000).await;
    assert_eq!(reported(&stage.cluster), [started_id(), over_id()]);
    assert_eq!(stage.kinds(), [pb::NoticeKind::Storm, pb::NoticeKind::StormOver]);
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_in_force_after_a_crash() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    stage.send(150).await;
    stage.pass(2_000).await;
    stage.crash().await;
    stage.pass(110_000).await;
    assert!(stage.is_slow(1));
    stage.pass(12_000).await;
    assert!(!stage.is_slow(1) && !stage.has_entry().await);
    // The next owner reports nothing: the storm is long over.
    stage.take_over().await;
    stage.pass(5_000).await;
    assert_eq!(reported(&stage.cluster), [started_id()]);
}

#[tokio::test(start_paused = true)]
async fn posts_are_for_admins_only_until_the_storm_is_over() {
    let mut stage = Box::pin(Stage::start(Some(StormAction::Admins), &[0, 1])).await;
    assert_eq!(stage.settings().await, [None, None]);
    stage.send(101).await;
    stage.pass(3_000).await;
    assert_eq!(stage.settings().await, [set("admins"), set("@102")]);
    assert_eq!(stage.notices[0].action, "admins");
    stage.pass(130_000).await;
    assert_eq!(stage.settings().await, [None, None]);
    assert_eq!(reported(&stage.cluster), [started_id(), over_id()]);
}

#[tokio::test(start_paused = true)]
async fn restriction_is_undone_after_a_crash_with_and_without_an_entry() {
    for waits in [1_000, 130_000] {
        let mut stage = Box::pin(Stage::start(Some(StormAction::Admins), &[0, 1])).await;
        stage.send(101).await;
        stage.pass(3_000).await;
        stage.crash().await;
        stage.pass(waits).await;
        assert_eq!(stage.settings().await, [set("admins"), set("@102")]);
        stage.take_over().await;
        stage.pass(130_000).await;
        assert_eq!(stage.settings().await, [None, None], "after {waits} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn next_owner_restricts_if_the_former_one_crashed_before() {
    let mut stage = Box::pin(Stage::start(Some(StormAction::Admins), &[0, 1])).await;
    // The entry is stored, and the head can't be read.
    (0..3).for_each(|_| stage.plan.plan("summary", Fault::Fail));
    stage.send(101).await;
    stage.pass(1_500).await;
    stage.crash().await;
    assert!(stage.has_entry().await);
    assert_eq!(stage.settings().await, [None, None]);
    stage.take_over().await;
    stage.pass(5_000).await;
    assert_eq!(stage.settings().await, [set("admins"), set("@102")]);
    stage.pass(130_000).await;
    assert_eq!(stage.settings().await, [None, None]);
    assert_eq!(reported(&stage.cluster), [started_id(), over_id()]);
}

#[tokio::test(start_paused = true)]
async fn decision_of_a_person_is_not_undone() {
    let mut stage = Box::pin(Stage::start(Some(StormAction::Admins), &[0, 1])).await;
    stage.send(101).await;
    stage.pass(3_000).await;
    stage.append(vec![decision("all")]).await;
    stage.pass(2_000).await;
    assert_eq!(stage.settings().await, [set("all"), None]);
    // Neither a next owner nor the end of the storm changes it.
    stage.crash().await;
    stage.take_over().await;
    stage.pass(130_000).await;
    assert_eq!(stage.settings().await, [set("all"), None]);
}

#[tokio::test(start_paused = true)]
async fn store_that_fails_only_delays_the_actions() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    for (call, times) in [("members", 3), ("put_guard", 1)] {
        (0..times).for_each(|_| stage.plan.plan(call, Fault::Fail));
    }
    stage.send(101).await;
    // Pauses of 1, 2, 4 and 8 s.
    stage.pass(20_000).await;
    assert!(stage.is_slow(1) && stage.has_entry().await);
    assert_eq!(stage.kinds(), [pb::NoticeKind::Storm]);
}

#[tokio::test(start_paused = true)]
async fn former_owner_does_not_end_the_storm_of_the_next_one() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    stage.crash().await;
    let [former, ticking] = stage.act_alone().await;
    stage.pass(2_000).await;
    let before = stage.entry().await.expect("the former owner has begun the storm").version;
    stage.take_over().await;
    for second in 0..150 {
        if second % 20 == 0 {
            stage.send(101).await;
        }
        stage.pass(1_000).await;
        // Another user each time: a message repeated after the interval passes.
        assert!(stage.is_slow(second + 1), "the storm goes on after {second} s");
    }
    assert!(stage.entry().await.unwrap().version > before);
    assert!(former.is_finished(), "it has lost the partition");
    assert!(!stage.kinds().contains(&pb::NoticeKind::StormOver), "{:?}", stage.kinds());
    ticking.abort();
}

#[tokio::test(start_paused = true)]
async fn fenced_owner_neither_renews_over_another_entry_nor_ends_its_storm() {
    for has_entry in [true, false] {
        let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
        stage.crash().await;
        let [former, ticking] = stage.act_alone().await;
        stage.pass(2_000).await;
        let fence = Fence(rand::random());
        stage.memory.take_over(0, fence, TopicId(1)).await.unwrap();
        if has_entry {
            stage.put_again(300_000).await;
        }
        let by_successor = stage.entry().await.unwrap().version;
        stage.pass(40_000).await;
        let after = stage.entry().await.unwrap().version;
        assert_eq!(
            (after == by_successor, former.is_finished()),
            (has_entry, has_entry),
            "the entry is renewed"
        );
        stage.pass(130_000).await;
        assert!(former.is_finished());
        assert_eq!(stage.kinds(), [pb::NoticeKind::Storm], "the successor ends the storm");
        ticking.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn owner_without_a_successor_replaces_an_entry_that_came_in_between() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    stage.send(101).await;
    stage.pass(2_000).await;
    stage.put_again(120_000).await;
    stage.pass(125_000).await;
    assert!(!stage.has_entry().await && !stage.is_slow(1), "renewed and removed over the other version");
    assert_eq!(stage.kinds(), [pb::NoticeKind::Storm, pb::NoticeKind::StormOver]);
}

/// Returns the change of a person who sets `post`, as the admin API makes it.
fn decision(post: &str) -> Body {
    let Body::Member(it) = change(MemberAction::Settings, &[]) else { panic!("a change of the group") };
    let settings = [("post".to_owned(), post.to_owned()), ("storm.post".to_owned(), String::new())];
    Body::Member(MemberChange { settings: settings.into(), ..it })
}

#[tokio::test(start_paused = true)]
async fn action_that_an_operator_sets_replaces_the_one_in_force() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    stage.send(101).await;
    stage.pass(2_000).await;
    assert!(stage.is_slow(1));
    stage.set_actions(&["alert"]);
    stage.pass(3_000).await;
    assert!(!stage.is_slow(1) && stage.has_entry().await);
    for marker in ["@102.2", "@102.4"] {
        stage.set_actions(&["admins"]);
        stage.pass(3_000).await;
        assert_eq!(stage.settings().await, [set("admins"), set(marker)]);
        // A next owner goes on with it.
        stage.crash().await;
        stage.take_over().await;
        stage.pass(3_000).await;
        assert_eq!(stage.settings().await, [set("admins"), set(marker)]);
        stage.set_actions(&["alert"]);
        stage.pass(3_000).await;
        assert_eq!(stage.settings().await, [None, None]);
    }
    assert_eq!(reported(&stage.cluster), [started_id()]);
}

#[tokio::test(start_paused = true)]
async fn owner_that_decides_late_starts_and_ends_storms_by_receive_times() {
    let mut stage = Box::pin(Stage::start(Some(SLOW), &[0, 1])).await;
    let gate = Gate::new();
    stage.plan.plan("archive", Fault::Hold(gate.clone()));
    // Ten minutes of few messages, and then a storm, which is over when the owner decides.
    for _ in 0..10 {
        stage.send(20).await;
        stage.pass(60_000).await;
    }
    stage.send(101).await;
    stage.pass(30_000).await;
    assert_eq!(reported(&stage.cluster), [], "nothing is published");
    gate.open();
    stage.pass(3_000).await;
    assert_eq!(reported(&stage.cluster), [started("g:tea/302")], "only the last 101 are a storm");
    stage.pass(130_000).await;
    assert_eq!(reported(&stage.cluster), [started("g:tea/302"), ("g:tea/302".to_owned(), true)]);
    assert!(!stage.is_slow(1));
}
