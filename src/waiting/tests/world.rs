//! World of the tests: that of the deliverer of webhooks, with members, read marks, and a second node that has devices.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use prost::Message as _;
use serde_json::Value;
use tidegate_protocol::{
    content::Content,
    id::{ConversationId, ConversationKind, DeviceId, NodeId, UserId},
    machine::ledger::{Delta, Head, Member, Recalled},
    record::{Body, Message, Recall, Role, mode},
    settings::{Push, UserSettings},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    clock::wall_ms,
    cluster::{Cluster, PeerSnapshot},
    connections::Connections,
    link::recording::{RecordingPeer, RecordingPeers},
    mail::ShardHandles,
    metrics,
    ports::Ports,
    routes::{DevicePolicy, Lease, NodeBoot, NodeInfo, NodeRow, Registration},
    store::{ConsumerName, Hidden, Mark, Personal, Store},
    waiting::{WaitingNotices, notifier::Notifier},
    webhooks::{
        NoticeStatus, WaitingForm, WaitingPlan, WebhookPlan, WebhookReceiver, WebhookStart,
        delivery_world::World,
    },
};

/// Largest group whose members get notices of all messages.
pub(super) const SMALL_MAX: usize = 4;

/// World with the notices of one endpoint.
pub(super) struct Notices {
    pub(super) world: World,
    pub(super) form: WaitingForm,
    /// Node that has the devices.
    pub(super) peer: Arc<RecordingPeer>,
    cluster: Arc<Cluster>,
    members: HashMap<ConversationId, Vec<(UserId, Role)>>,
    settings: HashMap<ConversationId, BTreeMap<String, String>>,
    pub(super) plans: watch::Sender<Arc<WebhookPlan>>,
    pub(super) status: watch::Sender<NoticeStatus>,
    task: Option<JoinHandle<()>>,
}

pub(super) fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn node(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
}

impl Notices {
    /// Creates a world whose endpoint wants notices as the form says, and starts them.
    pub(super) async fn start(form: WaitingForm) -> Self {
        let (world, peer) = (World::new().await, Arc::new(RecordingPeer::default()));
        let link = RecordingPeers([(node("n2"), Arc::clone(&peer))].into());
        let ports = Ports { store: world.faulty(), ..Ports::in_memory(Arc::new(link)) };
        let cluster = Arc::new(Cluster::new(node("n1"), ports));
        let others = Arc::new([NodeRow::new(NodeInfo::new(node("n2")), Lease::Live)]);
        cluster.peers.set(PeerSnapshot { others, ..PeerSnapshot::default() });
        let plans = watch::Sender::new(Arc::new(world.plan(&["tidegate.webhook.none"])));
        let mut it = Self {
            world,
            form,
            peer,
            cluster,
            members: HashMap::new(),
            settings: HashMap::new(),
            plans,
            status: watch::Sender::default(),
            task: None,
        };
        it.change(|_| {});
        it.run();
        it
    }

    /// Starts the notices, as an owner does that begins.
    pub(super) fn run(&mut self) {
        let shards = ShardHandles::default();
        let connections = Connections::new(Arc::clone(&self.cluster), shards, metrics::install().0);
        let parts = WaitingNotices::new(Arc::clone(&self.cluster), Arc::new(connections), SMALL_MAX);
        let (plan, permits) = (Arc::clone(&self.plans.borrow()), Arc::clone(&self.world.permits));
        let notifier = Notifier::new(Arc::new(parts), plan, permits, self.status.clone());
        let running = notifier.run(self.world.feeds.subscribe(), self.plans.subscribe());
        self.task = Some(tokio::spawn(running));
        self.world.own(false);
    }

    /// Ends the notices as a crash does.
    pub(super) fn kill(&mut self) {
        self.task.take().unwrap().abort();
    }

    /// Changes the plan.
    pub(super) fn change(&self, change: impl FnOnce(&mut WebhookPlan)) {
        let mut plan = self.world.plan(&["tidegate.webhook.none"]);
        plan.receiver = Arc::clone(&self.world.script) as Arc<dyn WebhookReceiver>;
        plan.waiting = Some(WaitingPlan {
            consumer: ConsumerName::new("n.crm").unwrap(),
            form: self.form,
            start: WebhookStart::Oldest,
            resumed: 0,
        });
        change(&mut plan);
        self.plans.send_replace(Arc::new(plan));
    }

    /// Names the members of a group, the first of whom is its owner, from its next message on.
    pub(super) fn members(&mut self, key: &str, names: &[&str]) {
        let role = |at: usize| if at == 0 { Role::Owner } else { Role::Member };
        let members = names.iter().enumerate().map(|(at, name)| (user(name), role(at))).collect();
        self.members.insert(ConversationId::parse(key).unwrap(), members);
    }

    /// Sets `push` of a group, from its next message on.
    pub(super) fn push(&mut self, key: &str, word: &str) {
        let settings = [("push".to_owned(), word.to_owned())].into();
        self.settings.insert(ConversationId::parse(key).unwrap(), settings);
    }

    /// Archives a message, as it is received now.
    pub(super) async fn say(&mut self, key: &str, sender: &str, change: impl FnOnce(&mut Message)) {
        let (conversation, mut row) = self.world.message_of(key, sender, Content::text("hello"));
        row.time = wall_ms();
        let Body::Message(message) = &mut row.body else { panic!("a message") };
        change(message);
        if let ConversationKind::Direct(one, other) = conversation.kind() {
            let members = [one, other].map(|name| (user(name), Role::Member)).to_vec();
            self.members.entry(conversation.clone()).or_insert(members);
        }
        let (members, heads) = (self.member_rows(&conversation), self.heads());
        self.world
            .archive(vec![(conversation, row)], |delta: &mut Delta| {
                (delta.members, delta.heads) = (members, heads)
            })
            .await;
    }

    /// Archives a plain message of ann.
    pub(super) async fn text(&mut self, key: &str) {
        self.say(key, "ann", |_| {}).await;
    }

    pub(super) async fn recall(&mut self, key: &str, seq: u64) {
        let row = self.world.row(key, |conversation| Body::Recall(Recall { conversation, seq, by: None }));
        let recalled = Recalled { conversation: row.0.clone(), seq, by: (row.1.seq, row.1.time) };
        let heads = self.heads();
        self.world
            .archive(vec![row], |delta| {
                delta.recalled.push(recalled);
                delta.heads = heads;
            })
            .await;
    }

    /// Sets the head of a conversation to a seq, as a store has it that fell back.
    pub(super) async fn fall_back(&mut self, key: &str, seq: u64) {
        let mut heads = self.heads();
        for (_, head) in heads.iter_mut().filter(|(conversation, _)| conversation.as_str() == key) {
            (head.last_seq, head.messages) = (seq, seq);
        }
        self.world.archive(Vec::new(), |delta| delta.heads = heads).await;
    }

    fn heads(&self) -> Vec<(ConversationId, Head)> {
        let head = |(key, seq): (&ConversationId, &u64)| {
            let settings = Arc::new(self.settings.get(key).cloned().unwrap_or_default());
            (key.clone(), Head { last_seq: *seq, messages: *seq, settings, ..Head::default() })
        };
        self.world.seqs.iter().map(head).collect()
    }

    fn member_rows(&self, key: &ConversationId) -> Vec<(ConversationId, UserId, Member)> {
        let row = |(name, role): &(UserId, Role)| {
            let member = Member {
                role: *role,
                joined_seq: 1,
                left_seq: 0,
                sent: 0,
                joined_messages: 0,
                left_messages: 0,
                stays: 0,
                muted: false,
            };
            (key.clone(), name.clone(), member)
        };
        self.members.get(key).into_iter().flatten().map(row).collect()
    }

    /// Moves a read mark.
    pub(super) async fn read(&self, name: &str, key: &str, seq: u64) {
        self.save(name, key, Personal::Read(Mark { seq, messages: seq, own: 0 })).await;
    }

    /// Bounds what a user can read of a conversation.
    pub(super) async fn bound(&self, name: &str, key: &str, seq: Option<u64>) {
        let bound = seq.map(|seq| Mark { seq, messages: seq, own: 0 });
        self.save(name, key, Personal::Bound(bound)).await;
    }

    /// Hides a message of another user.
    pub(super) async fn hide(&self, name: &str, key: &str, seq: u64) {
        let seqs = vec![Hidden { seq, counts: true }];
        self.save(name, key, Personal::Hidden { seqs, forget: 0 }).await;
    }

    /// Sets the preference of a user for push notices, in one conversation or in all.
    pub(super) async fn prefer(&self, name: &str, key: Option<&str>, push: Push) {
        let Some(key) = key else {
            let settings = UserSettings { push: Some(push), ..UserSettings::default() };
            self.world.store.merge_settings(&user(name), settings).await.unwrap();
            return;
        };
        self.save(name, key, Personal::Push(Some(push))).await;
    }

    async fn save(&self, name: &str, key: &str, change: Personal) {
        let change = (user(name), ConversationId::parse(key).unwrap(), change);
        self.world.store.save_marks(&[change]).await.unwrap();
    }

    /// Connects the phone of a user to the other node, which has acked up to that seq; `None` if it does not answer.
    pub(super) async fn connect(&self, name: &str, acked_to: Option<u64>) {
        *self.peer.acked_to.lock() = acked_to;
        let (user, device) = (user(name), DeviceId::new("phone").unwrap());
        let policy = DevicePolicy::default();
        let wish = Registration { user, device, at: node("n2"), above: 0, only_if: None, policy };
        self.cluster.ports.routes.register(wish).await.unwrap();
    }

    /// Returns the notices that were sent, in the order of their requests: user, conversation, seq and count.
    pub(super) fn sent(&self) -> Vec<String> {
        let requests = self.world.script.requests.lock().clone();
        let ids = requests.into_iter().flat_map(|(ids, _)| ids);
        let shown = ids.map(|id| {
            let data = self.world.script.data(&id);
            assert_eq!(self.world.script.kind(&id), "tidegate.message.waiting");
            format!(
                "{} {}/{} {}",
                text(&data["user"]),
                text(&data["conversation"]),
                data["seq"],
                data["count"]
            )
        });
        shown.collect()
    }

    /// Returns the notices of [`Self::sent`], sorted.
    pub(super) fn sent_sorted(&self) -> Vec<String> {
        let mut sent = self.sent();
        sent.sort();
        sent
    }

    /// Returns what the last notice has.
    pub(super) fn last(&self) -> Value {
        self.world.script.data(self.world.script.ids().last().unwrap())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Returns a form with a delay of five seconds, and defaults.
pub(super) fn form() -> WaitingForm {
    WaitingForm::default()
}

/// Gives a message these mentions.
pub(super) fn mention(users: &[&str]) -> impl FnOnce(&mut Message) {
    let mentions = users.iter().map(|name| (*name).to_owned()).collect();
    |message| {
        let content = Content { mentions, ..Content::text("hello") };
        message.content = content.encode_to_vec().into();
    }
}

/// Marks a message as silent.
pub(super) fn silent(message: &mut Message) {
    (message.flags, message.mode.is_silent) = (mode::SILENT, true);
}

/// Lets time pass on the paused clock.
pub(super) async fn pass(seconds: u64) {
    tokio::time::timeout(Duration::from_secs(seconds), std::future::pending::<()>()).await.ok();
}
