//! Node of the simulation: a broker that appends, owns partitions and receives calls, without shards and sockets.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use tidegate::{
    broker::{Broker, Parts, Peering, RunningTasks, Settings},
    bus::Bus,
    cluster::{Cluster, PeerSnapshot},
    fault::{Fault, FaultPlan, Faulty, Gate, Rates},
    ingest::admin::Admin,
    link::Link,
    metrics,
    partition::{
        owner,
        retention::{self, Keep},
        rules,
    },
    ports::Ports,
    routes::{Lease, NodeBoot, NodeInfo, NodeRow, Routes},
    scratch::{ClockNumbers, MemoryScratch},
    store::Store,
};
use tidegate_protocol::{id::NodeId, machine::session::SubmitAnswer, record::Body};

use super::{World, bus::NodeBus};

/// Faults per thousand calls.
const RATES: Rates = Rates { fail: 20, lose_answer: 20, delay: 200 };

/// How long all nodes must have agreed before the rules are switched.
const RULES_SETTLE_TIME: Duration = Duration::from_secs(2);

/// Most members of a small group; no group of the simulation is larger.
const SMALL_GROUP_MAX: usize = 500;

/// Running node. Dropping it amounts to a crash.
pub(crate) struct SimNode {
    me: NodeBoot,
    broker: Arc<Broker>,
    bus: Arc<NodeBus>,
    plans: Vec<Arc<FaultPlan>>,
    end: Arc<FaultPlan>,
    tasks: RunningTasks,
    rules: rules::Settings,
    lease: Cell<Lease>,
}

/// Client's access to the log through a node, which may have ended.
pub(crate) struct Way(Admin);

impl Way {
    pub(crate) async fn append(&self, body: Body) -> SubmitAnswer {
        self.0.append(body, 1).await
    }
}

/// Settings of the owners of all nodes.
fn owner_settings(rules: rules::Settings, answers_first: bool) -> owner::Settings {
    owner::Settings {
        small_group_max: SMALL_GROUP_MAX,
        retention: keep_forever(),
        rules,
        answers_first: answers_first.then_some(Duration::ZERO),
        cache: Arc::default(),
        panic_on_msg_id: String::new(),
    }
}

/// Retention that deletes nothing.
fn keep_forever() -> retention::Settings {
    retention::Settings {
        node: Keep::parse("forever").expect("it is sound"),
        every: Duration::from_secs(86_400),
        keys: Duration::from_secs(86_400 * 30),
        feed: retention::FeedRetention { keep: Duration::from_secs(86_400), bytes_max: 1 << 30 },
        wall_ms: || 1,
    }
}

impl SimNode {
    /// A node of a version that knows the ledger's rules up to `known`.
    pub(crate) fn start(world: &Rc<World>, nth: usize, boot: u64, seed: u64, known: u32) -> Self {
        let me = NodeBoot { node: NodeId::new(&format!("n{nth}")).expect("it is sound"), boot };
        let plans: Vec<Arc<FaultPlan>> = (0..4).map(|of| FaultPlan::seeded(seed ^ of, RATES)).collect();
        let bus = world.log.node();
        let cluster = Arc::new(Cluster::new(
            me.clone(),
            Ports {
                bus: Arc::new(Faulty::<dyn Bus>::new(bus.clone(), Arc::clone(&plans[0]))),
                store: Arc::new(Faulty::<dyn Store>::new(world.slow.clone(), Arc::clone(&plans[1]))),
                routes: Arc::new(Faulty::<dyn Routes>::new(world.routes.clone(), Arc::clone(&plans[2]))),
                scratch: Arc::new(MemoryScratch::new(1 << 20, || 1)),
                link: Arc::new(Faulty::<dyn Link>::new(Arc::new(world.link.clone()), Arc::clone(&plans[3]))),
            },
        ));
        if world.answers_first {
            cluster.owned.unarchived().allow();
        }
        let (broker, outlets) = Broker::assemble(Parts {
            cluster,
            peering: Peering::LogOnly,
            numbers: Arc::new(ClockNumbers::new(|| 1)),
            settings: Settings::new(SMALL_GROUP_MAX),
            metrics: metrics::install().0,
        });
        let end = FaultPlan::none();
        let faulty_end = Faulty::<dyn Link>::new(Arc::new(broker.peer()), Arc::clone(&end));
        world.link.add(me.clone(), Arc::new(faulty_end));
        let rules = rules::Settings { known, settle: RULES_SETTLE_TIME, ..rules::Settings::default() };
        let tasks = broker.start(outlets, Some(owner_settings(rules, world.answers_first)));
        Self { me, broker, bus, plans, end, tasks, rules, lease: Cell::new(Lease::Live) }
    }

    pub(crate) fn way(&self) -> Way {
        Way(self.broker.admin.clone())
    }

    /// Returns the row that the other nodes see.
    pub(crate) fn row(&self) -> NodeRow {
        let owned = &self.broker.cluster.owned;
        let info = NodeInfo {
            owns: owned.list(),
            partition_lags: owned.partition_lags(),
            rules: self.rules.announced(),
            ..NodeInfo::new(self.me.clone())
        };
        NodeRow { info, renewals: 1, lease: self.lease.get() }
    }

    /// Sets the state of the lease.
    pub(crate) fn set_lease(&self, lease: Lease) {
        self.lease.set(lease);
    }

    /// Its ports, as its readers have them.
    pub(crate) fn cluster(&self) -> Arc<Cluster> {
        Arc::clone(&self.broker.cluster)
    }

    /// Passes the node rows to the node, as a lease renewal does.
    pub(crate) fn hear(&self, rows: &[NodeRow]) {
        let others = rows.iter().filter(|row| row.info.boot != self.me).cloned().collect();
        self.broker.cluster.peers.set(PeerSnapshot {
            rows: rows.into(),
            others,
            stale: false,
            may_be_incomplete: false,
            losses: 0,
        });
    }

    /// The plan of faults of its store, and of its link.
    pub(crate) fn store_faults(&self) -> &FaultPlan {
        &self.plans[1]
    }

    pub(crate) fn link_faults(&self) -> &FaultPlan {
        &self.plans[3]
    }

    /// The plan of faults of what it does for its peers.
    pub(crate) fn end_faults(&self) -> &FaultPlan {
        &self.end
    }

    /// Returns the known and wanted versions of the ledger's rules.
    pub(crate) fn rules(&self) -> rules::Settings {
        self.rules
    }

    /// The partitions that it owns.
    pub(crate) fn owns(&self) -> Vec<u32> {
        self.broker.cluster.owned.list()
    }

    /// Its seat in the group of owners.
    pub(crate) fn member(&self) -> Option<u64> {
        self.bus.member()
    }

    /// Holds the reply to the next archive, which succeeds, until the gate opens.
    pub(crate) fn hold_commit(&self) -> Gate {
        let gate = Gate::new();
        self.plans[1].plan("archive", Fault::HoldAnswer(gate.clone()));
        gate
    }

    /// It takes the next partition over when the gate opens.
    pub(crate) fn hold_take_over(&self) -> Gate {
        let gate = Gate::new();
        self.plans[1].plan("take_over", Fault::Hold(gate.clone()));
        gate
    }

    /// Its next archive waits until the gate opens.
    pub(crate) fn hold_archive(&self) -> Gate {
        let gate = Gate::new();
        self.plans[1].plan("archive", Fault::Hold(gate.clone()));
        gate
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&self) {
        self.plans.iter().for_each(|plan| plan.set_rates(Rates::default()));
    }

    /// Ends at once; the seat that the group has to notice as empty.
    pub(crate) fn kill(self, world: &World) -> Option<u64> {
        world.link.remove(&self.me);
        self.member()
    }

    /// Gives its partitions up in order.
    pub(crate) async fn leave(mut self, world: &World) {
        self.tasks.release().await.expect("owners don't panic");
        world.link.remove(&self.me);
    }
}

impl Drop for SimNode {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}
