//! Tests of rules in cluster scope: several nodes over one server of permits, step by step.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate_protocol::{
    Time,
    machine::permit::{ANSWER_TIMEOUT, Grant, GrantLog, LimitSource},
};

use super::{
    LimitCall, LimitLevel, LimitRefusal, LimitSubjects, LimitWaits, RuleGuard, RuleSet, TakenAsk,
    permits::PermitBoard,
};
use crate::metrics;

/// Clock of the server at time 0 of the nodes, in µs.
const SERVER_START_US: u64 = 1_795_921_380_123_456;

/// Time from an ask to its grant, and from there to the answer, in ms.
const ONE_WAY: u64 = 1;

fn rule(window: &str, limit: u32) -> String {
    format!(
        "[[rule]]\nid = \"all\"\nlevel = \"org\"\ncalls = [\"send\"]\nwindow = \"{window}\"\nlimit = {limit}\nscope = \"cluster\"\n"
    )
}

fn set(text: &str) -> RuleSet {
    RuleSet::parse(text, Duration::from_secs(2)).unwrap()
}

const ACME: LimitSubjects<'static> = LimitSubjects {
    organisation: Some("acme"),
    channel: None,
    user: Some("ann"),
    device: None,
    conversation: None,
    is_stranger: false,
    address: None,
    content: None,
    key: None,
    connection: None,
};

/// Asks on their way, and answers on their way back.
struct Batch {
    node: usize,
    granted_at: u64,
    asks: Vec<TakenAsk>,
    grants: Option<(Vec<Grant>, u64)>,
}

/// Nodes over one server.
struct Mesh {
    clock: Arc<AtomicU64>,
    nodes: Vec<RuleGuard>,
    /// Requests that wait for an answer, by node.
    waiting: Vec<Vec<LimitWaits>>,
    batches: Vec<Batch>,
    logs: HashMap<u128, GrantLog>,
    /// Number of the server; `None` while it is unavailable.
    server: Option<u64>,
    /// Whether the answers of the server are lost.
    loses_answers: bool,
    /// Times at which requests were admitted.
    admitted: Vec<u64>,
}

impl Mesh {
    fn new(count: u64, rules: &str) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let ids: Vec<u64> = (0..count).collect();
        let node = |id: &u64| {
            let of_node = Arc::clone(&clock);
            let board =
                PermitBoard::new(*id, Box::new(move || Time::from_millis(of_node.load(Ordering::SeqCst))));
            let guard = RuleGuard::with(&set(rules), metrics::install().0, Instant::now(), Some(board));
            guard.set_nodes(&ids);
            guard
        };
        Self {
            nodes: ids.iter().map(node).collect(),
            waiting: ids.iter().map(|_| Vec::new()).collect(),
            clock,
            batches: Vec::new(),
            logs: HashMap::new(),
            server: Some(0),
            loses_answers: false,
            admitted: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    /// Returns how a node decides about a request of an organisation.
    fn decide(&self, node: usize, organisation: &str, waits: LimitWaits) -> Result<(), LimitRefusal> {
        let (now, subjects) =
            (Time::from_millis(self.now()), LimitSubjects { organisation: Some(organisation), ..ACME });
        self.nodes[node].admit(LimitCall::Send, &subjects, now, waits, || Ok(()))
    }

    /// Decides about a request at a node; one that has to wait does so.
    fn offer(&mut self, node: usize, waits: LimitWaits) -> Option<LimitRefusal> {
        match self.decide(node, "acme", waits) {
            Ok(()) => self.admitted.push(self.now()),
            Err(LimitRefusal { asking: Some(asking), .. }) => self.waiting[node].push(asking.waits),
            Err(refusal) => return Some(refusal),
        }
        None
    }

    fn retry(&mut self, node: usize) {
        for waits in std::mem::take(&mut self.waiting[node]) {
            self.offer(node, waits);
        }
    }

    /// Moves asks and answers, and the clock by a millisecond.
    fn step(&mut self) {
        let now = self.clock.fetch_add(1, Ordering::SeqCst) + 1;
        for mut batch in std::mem::take(&mut self.batches) {
            if batch.granted_at == now {
                let Some(server) = self.server else {
                    self.nodes[batch.node].handle_unavailable();
                    self.retry(batch.node);
                    continue;
                };
                let grant = |ask: &TakenAsk| {
                    let request = ask.limit().request(ask.ask(), SERVER_START_US + now * 1_000);
                    self.logs.entry(ask.subject()).or_default().grant(&request)
                };
                batch.grants = Some((batch.asks.iter().map(grant).collect(), server));
            }
            match batch.grants {
                Some((grants, server)) if batch.granted_at + ONE_WAY == now => {
                    if !self.loses_answers {
                        self.nodes[batch.node].handle_grants(batch.asks, &grants, server);
                    }
                    self.retry(batch.node);
                }
                _ => self.batches.push(batch),
            }
        }
        for node in 0..self.nodes.len() {
            let timeout = Time::from_millis(now);
            let is_over = |it: &LimitWaits| it.asking_since.unwrap() + ANSWER_TIMEOUT <= timeout;
            if self.waiting[node].iter().any(is_over) {
                self.retry(node);
            }
            self.nodes[node].poll_source();
            let asks = self.nodes[node].take_asks(100);
            if !asks.is_empty() || now % 100 == node as u64 {
                self.batches.push(Batch { node, granted_at: now + ONE_WAY, asks, grants: None });
            }
        }
    }

    /// Offers requests to all nodes until `end`, `each` per millisecond in turn.
    fn flood(&mut self, end: u64, each: usize) {
        while self.now() < end {
            for n in 0..each {
                let node = (self.now() as usize * each + n) % self.nodes.len();
                self.offer(node, LimitWaits::default());
            }
            self.step();
        }
    }

    /// Returns the most requests that were admitted in any window that lies in the range.
    fn most(&self, window: u64, from: u64, to: u64) -> usize {
        let times: Vec<u64> = self.admitted.iter().copied().filter(|at| (from..=to).contains(at)).collect();
        let of =
            |(first, at): (usize, &u64)| times[first..].iter().take_while(|it| **it <= at + window).count();
        times.iter().enumerate().map(of).max().unwrap_or(0)
    }
}

#[test]
fn three_nodes_admit_the_limit_and_never_one_more() {
    for (limit, each) in [(1, 1), (3, 1), (16, 3), (100, 1), (1_000, 6)] {
        let mut mesh = Mesh::new(3, &rule("1s", limit));
        mesh.flood(6_000, each);
        let most = mesh.most(1_000, 0, 6_000) as u32;
        assert!(most <= limit && most * 10 >= limit * 9, "{most} of {limit}");
        assert!(limit > 16 || most == limit, "{most} of {limit}");
        // At 1 s a place comes back up to a twelfth late.
        let least = f64::from(limit) * 5.0 * 0.9;
        assert!(mesh.admitted.len() as f64 >= least, "limit {limit}: {}", mesh.admitted.len());
    }
}

#[test]
fn nodes_without_the_server_admit_their_shares() {
    for (limit, each) in [(2, 1), (10, 1), (300, 3)] {
        let mut mesh = Mesh::new(3, &rule("1s", limit));
        mesh.flood(3_000, each);
        mesh.server = None;
        mesh.flood(6_000, each);
        assert!(mesh.nodes.iter().all(|it| it.poll_source() == Some(LimitSource::Shares)));
        let view =
            &mesh.nodes[0].states(LimitLevel::Organisation, "acme", Time::from_millis(6_000)).unwrap()[0];
        assert_eq!(view.permits.unwrap().source, LimitSource::Shares);
        // It comes back empty.
        (mesh.server, mesh.logs) = (Some(1), HashMap::new());
        mesh.flood(9_000, each);
        assert!(mesh.nodes.iter().all(|it| it.poll_source() == Some(LimitSource::Permits)));
        let most = |from, to| mesh.most(1_000, from, to);
        assert_eq!(most(0, 3_000), limit as usize);
        let in_outage = most(4_100, 6_000);
        assert!(
            in_outage <= limit as usize && in_outage * 10 >= limit as usize * 8,
            "{in_outage} of {limit}"
        );
        assert!(most(0, 9_000) <= 2 * limit as usize, "{} of {limit}", most(0, 9_000));
        assert!(most(8_000, 9_000) <= limit as usize, "after it");
    }
}

#[test]
fn request_that_waits_for_a_permit_counts_nowhere() {
    let own = "[[rule]]\nid = \"own\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 1\n";
    let mut mesh = Mesh::new(2, &(rule("1s", 5) + own));
    let used = |mesh: &Mesh| {
        let states = mesh.nodes[0].states(LimitLevel::User, "ann", Time::from_millis(mesh.now())).unwrap();
        states[0].used
    };
    assert!(mesh.offer(0, LimitWaits::default()).is_none());
    assert_eq!((mesh.waiting[0].len(), used(&mesh), mesh.admitted.len()), (1, 0, 0));
    (0..3).for_each(|_| mesh.step());
    assert_eq!((mesh.waiting[0].len(), used(&mesh), mesh.admitted.len()), (0, 1, 1));
    let refusal = mesh.offer(0, LimitWaits::default()).unwrap();
    assert_eq!(&*refusal.rule.unwrap().id, "own", "refused here, so nothing is asked");
    assert!(mesh.nodes[0].take_asks(9).is_empty());
}

#[test]
fn full_table_refuses_new_subjects_until_one_is_free() {
    let mut mesh = Mesh::new(1, &(rule("1s", 5) + "keys_max = 1\n"));
    mesh.offer(0, LimitWaits::default());
    (0..3).for_each(|_| mesh.step());
    assert_eq!(mesh.admitted.len(), 1);
    let offer = |mesh: &Mesh| mesh.decide(0, "other", LimitWaits::default()).unwrap_err();
    mesh.offer(0, LimitWaits::default());
    assert!(offer(&mesh).asking.is_none(), "the other one waits for an answer");
    (0..200).for_each(|_| mesh.step());
    assert!(offer(&mesh).asking.is_some());
}

#[test]
fn full_table_keeps_what_was_used_by_share() {
    let mut mesh = Mesh::new(1, &(rule("10s", 4) + "keys_max = 1\n"));
    mesh.nodes[0].handle_unavailable();
    (0..4).for_each(|_| assert!(mesh.offer(0, LimitWaits::default()).is_none()));
    (0..20).for_each(|_| mesh.step());
    let refusal = mesh.decide(0, "other", LimitWaits::default()).unwrap_err();
    assert!(refusal.asking.is_none() && !refusal.wait.is_zero());
    assert!(mesh.offer(0, LimitWaits::default()).is_some(), "its uses are still counted");
    (0..2_000).for_each(|_| mesh.step());
    assert_eq!(mesh.nodes[0].poll_source(), Some(LimitSource::Permits));
    // Not charged yet.
    assert!(mesh.decide(0, "other", LimitWaits::default()).is_err());
    assert!(mesh.offer(0, LimitWaits::default()).is_some());
}

#[test]
fn short_failures_of_the_server_shut_no_subject() {
    // Half of the limit is used.
    let mut mesh = Mesh::new(1, &rule("10s", 100));
    let mut refused = 0;
    while mesh.now() < 24_000 {
        mesh.server = (mesh.now() % 2_500 > 10).then_some(0);
        if mesh.now().is_multiple_of(200) {
            refused += u32::from(mesh.offer(0, LimitWaits::default()).is_some());
        }
        mesh.step();
    }
    assert_eq!((refused, mesh.waiting[0].len(), mesh.admitted.len()), (0, 0, 120));
    assert!(mesh.most(10_000, 0, 24_000) <= 51);
}

#[test]
fn lost_charges_shut_a_subject_for_a_window_and_a_life() {
    let mut mesh = Mesh::new(2, &rule("10s", 10));
    mesh.nodes[0].handle_unavailable();
    (0..5).for_each(|_| assert!(mesh.offer(0, LimitWaits::default()).is_none()));
    (0..1_500).for_each(|_| mesh.step());
    let offer = |mesh: &mut Mesh, node| {
        let is_refused = mesh.offer(node, LimitWaits::default()).is_some();
        // Longer than the time after which an ask counts as lost.
        (0..60).for_each(|_| mesh.step());
        (is_refused, mesh.admitted.len())
    };
    mesh.loses_answers = true;
    for _ in 0..3 {
        assert_eq!(offer(&mut mesh, 0), (true, 5), "its share is used up");
    }
    mesh.loses_answers = false;
    assert_eq!(offer(&mut mesh, 0), (true, 5));
    let charged = mesh.now();
    assert_eq!(offer(&mut mesh, 1).1, 5, "the server has counted each charge");
    let life = 10_000 / 32;
    while mesh.now() < charged + 10_000 + life {
        mesh.step();
    }
    assert_eq!((offer(&mut mesh, 1).1, offer(&mut mesh, 0).1), (6, 7));
}

#[test]
fn request_whose_ask_is_never_sent_is_decided_by_share() {
    let mut mesh = Mesh::new(2, &rule("1s", 4));
    mesh.offer(0, LimitWaits::default());
    mesh.clock.store(49, Ordering::SeqCst);
    mesh.retry(0);
    assert!(mesh.admitted.is_empty());
    mesh.clock.store(50, Ordering::SeqCst);
    mesh.retry(0);
    assert_eq!(mesh.admitted, [50]);
    assert!(mesh.offer(0, LimitWaits::default()).is_none());
    assert_eq!(mesh.admitted, [50, 50], "no further one waits");
    assert!(mesh.offer(0, LimitWaits::default()).is_some(), "the share of two");
}

/// Creates two nodes, of which each has lost the answer to its ask for the only permit of a window; returns the one
/// without a share.
fn late_answers() -> (Mesh, usize) {
    let mut mesh = Mesh::new(2, &rule("10s", 1));
    for node in 0..2 {
        assert!(mesh.offer(node, LimitWaits::default()).is_none());
        assert_eq!(mesh.nodes[node].take_asks(9).len(), 1);
    }
    mesh.clock.store(50, Ordering::SeqCst);
    let refuses = |node: &usize| refuses(&mesh, *node).is_some();
    let refused: Vec<usize> = (0..2).filter(refuses).collect();
    assert_eq!(refused.len(), 1, "one node has the share");
    (mesh, refused[0])
}

/// Returns the refusal that a request of the organisation would get at a node.
fn refuses(mesh: &Mesh, node: usize) -> Option<LimitRefusal> {
    mesh.nodes[node].refuses(LimitCall::Send, &ACME, Time::from_millis(mesh.now()))
}

#[test]
fn check_that_refuses_by_share_asks_for_the_next_request() {
    let (mesh, node) = late_answers();
    assert!(mesh.nodes[1 - node].take_asks(9).is_empty(), "an admitted one asks when it is counted");
    assert_eq!(mesh.nodes[node].take_asks(9).len(), 1);
}

#[test]
fn wait_for_a_late_answer_is_at_most_the_life_of_a_permit() {
    let (mesh, node) = late_answers();
    let wait = || refuses(&mesh, node).map(|refusal| refusal.wait.as_millis());
    let shown = || {
        let now = Time::from_millis(mesh.now());
        mesh.nodes[node].states(LimitLevel::Organisation, "acme", now).unwrap()[0].wait
    };
    assert_eq!((wait(), shown().map(|wait| wait.as_millis())), (Some(312), Some(312)));
    mesh.nodes[node].handle_unavailable();
    assert_eq!(
        (wait(), shown().map(|wait| wait.as_millis())),
        (Some(10_000), Some(10_000)),
        "by share alone"
    );
}

#[test]
fn ended_ask_wakes_only_the_requests_of_its_subject() {
    let mesh = Mesh::new(1, &rule("1s", 4));
    let wait = |organisation| {
        let refusal = mesh.decide(0, organisation, LimitWaits::default()).unwrap_err();
        refusal.asking.expect("it waits").ended
    };
    let waiting = [wait("acme"), wait("acme"), wait("other")];
    let has_ended = || waiting.each_ref().map(|it| it.has_changed().is_err());
    let first = mesh.nodes[0].take_asks(1);
    assert_eq!(has_ended(), [false; 3]);
    mesh.nodes[0].handle_grants(first, &[Grant { granted: 2, wait_us: 0, used: 2 }], 0);
    assert_eq!(has_ended(), [true, true, false]);
    // A call that failed.
    drop(mesh.nodes[0].take_asks(1));
    assert_eq!(has_ended(), [true; 3]);
}

#[test]
fn refusal_of_a_server_ends_when_another_one_answers() {
    let mut mesh = Mesh::new(2, &rule("10s", 5));
    (0..5).for_each(|_| assert!(mesh.offer(1, LimitWaits::default()).is_none()));
    (0..5).for_each(|_| mesh.step());
    assert_eq!(mesh.admitted.len(), 5);
    mesh.offer(0, LimitWaits::default());
    (0..5).for_each(|_| mesh.step());
    assert!(mesh.offer(0, LimitWaits::default()).is_some() && mesh.waiting[0].is_empty());
    (mesh.server, mesh.logs) = (Some(1), HashMap::new());
    (0..100).for_each(|_| mesh.step());
    assert!(mesh.offer(0, LimitWaits::default()).is_none());
    (0..5).for_each(|_| mesh.step());
    assert_eq!(mesh.admitted.len(), 6);
}

#[test]
fn single_node_counts_rules_in_cluster_scope_itself() {
    let guard = RuleGuard::new(&set(&rule("1s", 2)), metrics::install().0, Instant::now());
    let send = || {
        let sent: Result<(), LimitRefusal> =
            guard.admit(LimitCall::Send, &ACME, Time::from_millis(5), false, || Ok(()));
        sent.err().map(|refusal| (refusal.asking.is_some(), refusal.wait.as_millis()))
    };
    assert_eq!([send(), send(), send()], [None, None, Some((false, 1_001))]);
    assert!(guard.poll_source().is_none());
}

#[test]
fn cluster_scope_has_conditions() {
    let problems = |text: &str| RuleSet::parse(text, Duration::from_secs(2)).unwrap_err().join("\n");
    assert!(problems(&rule("999ms", 1)).contains("window: at least 1s"));
    let of_calls = |calls: &str| rule("1s", 1).replace("\"send\"", calls).replace("org", "node");
    for wrong in ["\"send\", \"signal\"", "\"react\"", "\"connect\"", "\"*\""] {
        assert!(problems(&of_calls(wrong)).contains("scope: `cluster` is not for the calls"), "{wrong}");
    }
    let waiting = ["login", "send", "join", "pull", "sync", "recall", "change", "api:*"];
    let waiting = waiting.map(|call| format!("{call:?}")).join(", ");
    assert!(RuleSet::parse(&of_calls(&waiting), Duration::from_secs(2)).is_ok());
    assert!(problems(&rule("1s", 1).replace("cluster", "planet")).contains("scope: `node` or `cluster`"));
}
