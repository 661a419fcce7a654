//! Tests of automatic decisions, over a store in memory with faults.

mod erasures;

use tidegate_protocol::id::{DeviceId, NodeId, UserId};

use super::*;
use crate::{
    bans::BanKind,
    cluster::PeerSnapshot,
    cluster::{BanHandler, SuspensionHandler},
    evidence::{EvidenceBoard, EvidenceSource},
    fault::{Fault, FaultPlan, Faulty},
    link::LocalLink,
    mail::ShardHandles,
    metrics,
    ports::Ports,
    routes::{Lease, NodeBoot, NodeInfo, NodeRow},
    store::{GuardBatch, MemoryStore, Store},
};

struct World {
    faults: Arc<FaultPlan>,
    cluster: Arc<Cluster>,
    sentinel: Sentinel,
}

impl World {
    fn new() -> Self {
        let (store, faults) = (Arc::new(MemoryStore::default()), FaultPlan::none());
        let store = Faulty::<dyn Store>::new(store as Arc<dyn Store>, Arc::clone(&faults));
        let ports = Ports { store: Arc::new(store), ..Ports::in_memory(Arc::new(LocalLink)) };
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let (mut cluster, metrics) = (Cluster::new(me, ports), metrics::install().0);
        // No score decays while a test runs.
        let clock = Box::new(|| Time::ZERO);
        cluster.evidence = Arc::new(EvidenceBoard::with_clock(Arc::clone(&cluster.bans), clock));
        let cluster = Arc::new(cluster);
        cluster.evidence.set_bans(true);
        cluster.guard.add_handler(BanHandler::new(
            Arc::clone(&cluster.bans),
            Arc::clone(&cluster.peers),
            Arc::clone(&cluster.evidence),
            metrics.clone(),
        ));
        let suspensions = SuspensionHandler::new(Arc::clone(&cluster.suspensions), metrics.clone());
        cluster.guard.add_handler(suspensions);
        let connections = Connections::new(Arc::clone(&cluster), ShardHandles::default(), metrics.clone());
        let sentinel = Sentinel::new(Arc::clone(&cluster), Arc::new(connections), metrics);
        Self { faults, cluster, sentinel }
    }

    fn note(&self, kind: EvidenceKind, user: Option<&str>, address: &str, count: usize) {
        let user = user.map(|user| UserId::new(user).unwrap());
        let device = user.as_ref().map(|_| DeviceId::new("phone").unwrap());
        let source = EvidenceSource { address: Some(address.parse().unwrap()), user, device };
        (0..count).for_each(|_| self.cluster.evidence.note(kind, source.clone()));
    }

    async fn put(&self, kind: GuardKind, subject: &str, length_ms: Option<u64>) {
        let until_ms = length_ms.map(|length| self.cluster.guard.now_ms() + length);
        let record = BanRecord { reason: "by hand".into(), by: "k1".into(), since_ms: 0 };
        let key = GuardKey::new(kind, subject).unwrap();
        let entry = GuardEntry::new(key, record.encoded().into(), until_ms).unwrap();
        let batch = GuardPut { entry, expected: None }.into();
        assert!(self.cluster.put_guard(&batch).await.unwrap().is_in_force);
    }

    fn author(&self, subject: &str) -> Option<String> {
        let ban = self.cluster.bans.get(BanKind::Ban, &subject.parse().unwrap())?;
        Some(ban.record.by)
    }

    fn former(&self, subject: &str) -> u32 {
        self.cluster.evidence.score_of(&subject.parse().unwrap()).former
    }
}

#[tokio::test]
async fn evidence_during_an_outage_of_the_store_leads_to_one_ban() {
    let mut world = World::new();
    (0..4).for_each(|_| world.faults.plan("guard_get", Fault::Fail));
    for _ in 0..4 {
        world.note(EvidenceKind::FrameMalformed, Some("ann"), "192.0.2.1", 5);
        world.sentinel.look().await;
    }
    assert_eq!((world.author("user:ann"), world.former("user:ann")), (None, 1));
    world.sentinel.look().await;
    assert_eq!(world.author("user:ann").as_deref(), Some("automatic"));
    world.note(EvidenceKind::FrameMalformed, Some("ann"), "192.0.2.1", 50);
    world.sentinel.look().await;
    assert_eq!(world.former("user:ann"), 1, "what a banned user does counts no more");
    let ann = "user:ann".parse().unwrap();
    assert_eq!(world.cluster.evidence.score_of(&ann).score, 0);
}

#[tokio::test]
async fn several_devices_of_a_user_in_one_look_lead_to_one_ban() {
    let mut world = World::new();
    for device in ["phone", "desk", "web"] {
        let source = EvidenceSource {
            address: "192.0.2.1".parse().ok(),
            user: UserId::new("ann").ok(),
            device: DeviceId::new(device).ok(),
        };
        (0..6).for_each(|_| world.cluster.evidence.note(EvidenceKind::FrameMalformed, source.clone()));
    }
    world.sentinel.look().await;
    assert_eq!(world.former("user:ann"), 1);
}

#[tokio::test]
async fn entries_of_operators_that_end_later_stay_and_earlier_ones_are_replaced() {
    let mut world = World::new();
    // The ban of the user is stored, but this node does not know it yet.
    world.put(GuardKind::Ban, "user:ann", None).await;
    world.put(GuardKind::Ban, "user:bob", Some(1_000)).await;
    for user in ["ann", "bob"] {
        let subject = BanSubject::User(UserId::new(user).unwrap());
        let length = Duration::from_secs(600);
        world.sentinel.decide(GuardKind::Ban, subject, length, String::new());
    }
    world.sentinel.carry_out().await;
    assert_eq!(world.author("user:ann").as_deref(), Some("k1"));
    assert_eq!(world.author("user:bob").as_deref(), Some("automatic"));
}

#[tokio::test]
async fn lifted_ban_forgets_scores_and_the_decisions_that_wait() {
    let mut world = World::new();
    world.put(GuardKind::Ban, "network:192.0.2.0/24", Some(60_000)).await;
    // It came before the ban, so its decision waits.
    (0..2).for_each(|_| world.faults.plan("guard_get", Fault::Fail));
    let subject: BanSubject = "network:192.0.2.1/32".parse().unwrap();
    let row = EvidenceRow {
        at_ms: 0,
        kind: EvidenceKind::TokenForged,
        source: EvidenceSource::of_address([192, 0, 2, 1].into()),
        count: 5,
        scope: ScoreScope::All,
    };
    world.cluster.evidence.score(&subject, &row, true);
    world.sentinel.decide(GuardKind::Ban, subject.clone(), Duration::from_secs(600), String::new());
    world.sentinel.look().await;
    assert_eq!(world.cluster.evidence.score_of(&subject).score, 50);
    let key = GuardKey::new(GuardKind::Ban, "network:192.0.2.0/24").unwrap();
    world.cluster.remove_guard(&key, None).await.unwrap();
    assert_eq!(world.cluster.evidence.score_of(&subject).score, 0);
    world.sentinel.look().await;
    world.sentinel.look().await;
    assert_eq!(world.author("network:192.0.2.1/32"), None);
}

#[tokio::test]
async fn full_store_of_suspensions_does_not_hold_up_a_ban() {
    let mut world = World::new();
    let max = usize::try_from(GuardKind::Suspend.entries_max()).unwrap();
    let entries: Vec<GuardPut> = (0..max)
        .map(|n| {
            let key = GuardKey::new(GuardKind::Suspend, format!("user:u{n}")).unwrap();
            GuardPut { entry: GuardEntry::new(key, Bytes::new(), None).unwrap(), expected: None }
        })
        .collect();
    for batch in entries.chunks(256) {
        let batch = GuardBatch::new(batch.to_vec()).unwrap();
        world.cluster.ports.store.put_guard(&batch).await.unwrap();
    }
    world.note(EvidenceKind::OrderBlocked, Some("mallory"), "192.0.2.1", 3);
    world.note(EvidenceKind::FrameMalformed, Some("ann"), "192.0.2.2", 5);
    world.sentinel.look().await;
    assert_eq!(world.author("user:ann").as_deref(), Some("automatic"));
    assert_eq!(world.sentinel.decisions.waiting(), 0);
}

#[tokio::test]
async fn users_of_a_network_keep_their_score_while_there_are_too_many_bans() {
    let mut world = World::new();
    for n in 0..101 {
        world.note(EvidenceKind::FrameMalformed, Some(&format!("u{n}")), "192.0.2.1", 5);
    }
    world.note(EvidenceKind::TokenForged, None, "198.51.100.1", 11);
    world.sentinel.look().await;
    let users = (0..101).map(|n| format!("user:u{n}"));
    let put_off: Vec<String> = users.filter(|user| world.author(user).is_none()).collect();
    assert_eq!(put_off.len(), 1);
    assert_eq!(world.former(&put_off[0]), 0);
    assert_eq!(world.cluster.evidence.score_of(&put_off[0].parse().unwrap()).score, 100);
    assert_eq!(world.author("network:198.51.100.1/32").as_deref(), Some("automatic"));
}

#[tokio::test]
async fn one_notice_of_a_second_has_the_rows_with_the_most_weight() {
    let mut world = World::new();
    for n in 0..400_u32 {
        world.note(EvidenceKind::LimitHit, None, &format!("10.0.{}.{}", n / 256, n % 256), 1);
    }
    world.note(EvidenceKind::TokenForged, None, "192.0.2.1", 1);
    let end = world.cluster.events.ring().end();
    world.sentinel.look().await;
    let page = world.cluster.events.ring().page(Some(end), 10);
    let [event] = &page.events[..] else { panic!("{} events", page.events.len()) };
    let crate::events::What::Security(notice) = &event.what else { panic!("{event:?}") };
    assert_eq!((notice.rows.len(), notice.dropped), (SECURITY_ROWS_MAX, 401 - SECURITY_ROWS_MAX as u64));
    assert_eq!(notice.rows[0].kind, EvidenceKind::TokenForged);
}

#[tokio::test]
async fn fourth_banned_part_of_an_ipv6_network_bans_the_whole_one() {
    let mut world = World::new();
    let forge = |world: &World, address: &str| world.note(EvidenceKind::TokenForged, None, address, 11);
    for n in 0..3 {
        forge(&world, &format!("2001:db8:0:{n:x}::1"));
    }
    // Another /56, and bans of operators, do not count.
    forge(&world, "2001:db8:0:100::1");
    world.put(GuardKind::Ban, "network:2001:db8:0:8::/64", Some(60_000)).await;
    for _ in 0..10 {
        world.sentinel.look().await;
        // On a slow machine the node may not have read its own change in time.
        world.cluster.read_guard().await.unwrap();
    }
    assert_eq!(world.author("network:2001:db8:0:2::/64").as_deref(), Some("automatic"));
    assert_eq!(world.author("network:2001:db8::/56"), None, "three parts");
    forge(&world, "2001:db8:0:3::1");
    world.sentinel.look().await;
    world.sentinel.look().await;
    assert_eq!(world.author("network:2001:db8::/56").as_deref(), Some("automatic"));
    let ban = world.cluster.bans.get(BanKind::Ban, &"network:2001:db8::/56".parse().unwrap()).unwrap();
    assert!(ban.record.reason.starts_with("4 networks of /64 in it are banned: 44 token_forged"), "{ban:?}");
    assert!(world.cluster.bans.refusal_of_address("2001:db8:0:ff::1".parse().unwrap()).is_some());
    assert!(world.cluster.bans.refusal_of_address("2001:db8:0:101::1".parse().unwrap()).is_none());
}

#[tokio::test]
async fn network_around_banned_ones_that_was_spared_is_looked_at_again() {
    let mut world = World::new();
    for n in 0..4 {
        world.note(EvidenceKind::TokenForged, None, &format!("2001:db8:0:{n:x}::1"), 11);
    }
    world.sentinel.look().await;
    world.cluster.read_guard().await.unwrap();
    world.sentinel.suspect_around(&"network:2001:db8::/64".parse().unwrap(), Instant::now());
    let other = NodeInfo::new(NodeBoot { node: NodeId::new("n2").unwrap(), boot: 1 });
    // The link of this node reaches no other one.
    let others: Arc<[NodeRow]> = [NodeRow::new(other, Lease::Live)].into();
    world.cluster.peers.set(PeerSnapshot { others, ..PeerSnapshot::default() });
    world.sentinel.look().await;
    world.cluster.peers.set(PeerSnapshot::default());
    world.sentinel.look().await;
    assert_eq!(world.author("network:2001:db8::/56"), None, "a node did not say who is behind it");
    world.sentinel.offer_wide(Instant::now() + Duration::from_secs(31));
    world.sentinel.look().await;
    assert_eq!(world.author("network:2001:db8::/56").as_deref(), Some("automatic"));
}

#[tokio::test]
async fn part_that_is_banned_alone_does_not_settle_the_network_around_it() {
    let mut world = World::new();
    world.put(GuardKind::Ban, "network:2001:db8::/128", Some(60_000)).await;
    world.note(EvidenceKind::TokenForged, None, "2001:db8::2", 11);
    world.sentinel.look().await;
    assert_eq!(world.author("network:2001:db8::/64").as_deref(), Some("automatic"));
}

#[tokio::test]
async fn ipv4_networks_are_never_widened() {
    let mut world = World::new();
    for n in 0..8 {
        world.note(EvidenceKind::TokenForged, None, &format!("192.0.2.{n}"), 11);
    }
    for _ in 0..4 {
        world.sentinel.look().await;
    }
    assert_eq!(world.cluster.bans.count(BanKind::Ban), 8);
}

#[tokio::test]
async fn network_is_spared_while_a_node_does_not_say_who_is_behind_it() {
    let mut world = World::new();
    let other = NodeInfo::new(NodeBoot { node: NodeId::new("n2").unwrap(), boot: 1 });
    // The link of this node reaches no other one.
    let others: Arc<[NodeRow]> = [NodeRow::new(other, Lease::Live)].into();
    for (address, others) in [("192.0.2.1", others), ("192.0.2.2", Arc::default())] {
        let is_alone = others.is_empty();
        world.cluster.peers.set(PeerSnapshot { others, ..PeerSnapshot::default() });
        world.note(EvidenceKind::TokenForged, None, address, 11);
        world.sentinel.look().await;
        let subject = format!("network:{address}/32");
        assert_eq!(world.author(&subject).is_some(), is_alone, "{subject}");
    }
    assert_eq!(world.cluster.evidence.score_of(&"network:192.0.2.1".parse().unwrap()).score, 110);
}
