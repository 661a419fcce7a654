//! Starts the use-cases of a node on its services runtime: the way to the log, the owners of partitions, the answers to
//! logins, what goes beside the log, and what is done for peers.

use std::sync::Arc;

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::ports;
use crate::{
    bus::NodeFeed,
    config::Config,
    delivery::{
        answer_cache::Answered, best_effort::Beside, local::Outbound, peer_queue::Couriers, router::Reach,
    },
    directory::Directory,
    ingest::{
        admin::Pending,
        intake::{self, Intake, Outlets},
        recovery,
    },
    large_group::{publisher::Spread, subscriber::Crowds},
    link::{Listener, StrayLanes},
    login,
    mail::ShardHandles,
    metrics::Metrics,
    partition::{
        assignment::{self, Owning},
        owner,
    },
    peer::Peer,
    ports::Ports,
    room::Rooms,
    scratch::Numbers,
};

/// What the use-cases of a node share.
pub(super) struct Floor {
    ports: Arc<Ports>,
    directory: Arc<Directory>,
    handles: ShardHandles,
    pending: Arc<Pending>,
    /// What the owners of this node have said lately.
    answered: Arc<Answered>,
    /// None = there are no other nodes.
    large: Option<Large>,
    metrics: Metrics,
}

/// Large groups of a node among others, and the way to the peers for what their topics do not take.
struct Large {
    crowds: Arc<Crowds>,
    lanes: Arc<StrayLanes>,
}

/// What goes beside the log: live rooms, and the way of signals and marks to other nodes, where there are any.
pub(super) struct BesideLog {
    pub(super) rooms: Arc<Rooms>,
    pub(super) words: Option<Arc<Beside>>,
}

/// What runs until the node stops.
pub(super) struct Running {
    /// What must not end by itself, with its name.
    pub(super) tasks: [(&'static str, JoinHandle<()>); 2],
    /// Cancelled, the owners give their partitions up and end.
    pub(super) leaving: CancellationToken,
    /// What they tell of large groups; none = there are no other nodes.
    pub(super) spread: Option<Arc<Spread>>,
}

impl Floor {
    pub(super) fn new(
        ports: &Arc<Ports>,
        directory: &Arc<Directory>,
        handles: &ShardHandles,
        pending: Arc<Pending>,
        metrics: &Metrics,
    ) -> Self {
        let (ports, directory, handles) = (Arc::clone(ports), Arc::clone(directory), Arc::clone(handles));
        let (answered, metrics) = (Arc::default(), metrics.clone());
        Self { ports, directory, handles, pending, answered, large: None, metrics }
    }

    fn outbound(&self) -> Outbound {
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        Outbound::new(self.ports.me.clone(), directory, handles, Arc::clone(&self.pending))
    }

    /// Starts what goes beside the log; `feed` is the node's topic, opened, where there are other nodes.
    pub(super) fn beside_the_log(
        &mut self,
        runtime: &Handle,
        numbers: Arc<dyn Numbers>,
        feed: Option<Box<dyn NodeFeed>>,
        small_group_max: usize,
    ) -> BesideLog {
        let Some(feed) = feed else {
            return BesideLog { rooms: Arc::new(Rooms::alone(numbers)), words: None };
        };
        let (ports, metrics) = (&self.ports, self.metrics.clone());
        let lanes = StrayLanes::new(Arc::clone(&ports.link), runtime.clone(), metrics.clone());
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        let here =
            Peer::new(ports.me.clone(), directory, handles, Arc::clone(&self.pending), metrics.clone());
        let rooms = Arc::new(Rooms::among_others(
            numbers,
            Arc::clone(ports),
            Arc::clone(&self.directory),
            Arc::clone(&lanes),
            move |rooms| here.may_lack(rooms),
        ));
        runtime.spawn(Arc::clone(&rooms).keep());
        let crowds = {
            let _guard = runtime.enter();
            let (out, metrics) = (self.outbound(), metrics.clone());
            Crowds::start(ports, &self.directory, small_group_max, feed, out, metrics)
        };
        self.large = Some(Large { crowds, lanes: Arc::clone(&lanes) });
        BesideLog { rooms, words: Some(Beside::start(runtime, ports, lanes, metrics)) }
    }

    /// Has peers reach this node, where there are any.
    ///
    /// # Errors
    /// The address can't be listened on, the secret or a certificate can't be used.
    pub(super) fn listen(&self, services: &Handle, config: &Config) -> anyhow::Result<Option<Listener>> {
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        let (pending, metrics) = (Arc::clone(&self.pending), self.metrics.clone());
        let end = Peer::new(self.ports.me.clone(), directory, handles, pending, metrics);
        let mut end = end
            .tracing(Arc::clone(&self.ports.trace))
            .answering(Arc::clone(&self.answered), Arc::clone(&self.ports));
        if let Some(large) = &self.large {
            end = end.with_crowds(Arc::clone(&large.crowds));
        }
        ports::listen(services, config, &self.ports.me, Arc::new(end), &self.metrics)
    }

    /// Starts everything. In the services runtime.
    pub(super) fn start(
        self,
        (intake, outlets): (&Arc<Intake>, Outlets),
        settings: owner::Settings,
    ) -> Running {
        let leaving = CancellationToken::new();
        let ports = Arc::clone(&self.ports);
        let append =
            intake::append_all(outlets.records, Arc::clone(intake), Arc::clone(&ports), self.outbound());
        let append = tokio::spawn(append);
        let (among_others, mut spread) = (self.large.is_some(), None);
        let floor = Arc::new(self);
        // One owner of everything knows memberships in log order; among others nobody does.
        let mut logins = Some(outlets.logins);
        if let Some((large, logins)) = floor.large.as_ref().zip(logins.take_if(|_| among_others)) {
            let (crowds, lanes) = (Arc::clone(&large.crowds), Arc::clone(&large.lanes));
            spread = Some(Spread::start(&ports, Arc::clone(&crowds), lanes, floor.metrics.clone()));
            let floor = Arc::clone(&floor);
            tokio::spawn(login::answer_all(logins, Arc::clone(&ports), crowds, move || floor.outbound()));
        }
        if among_others {
            let (pending, answered) = (Arc::clone(&floor.pending), Arc::clone(&floor.answered));
            let asking = recovery::ask_again(
                Arc::clone(&ports),
                pending,
                answered,
                floor.outbound(),
                floor.metrics.clone(),
            );
            tokio::spawn(asking);
        }
        let answered = among_others.then(|| Arc::clone(&floor.answered));
        let metrics = floor.metrics.clone();
        let ways = spread.clone().map(|spread| (Couriers::new(&ports, metrics.clone()), spread));
        let outbound = move || match &ways {
            Some((couriers, spread)) => floor
                .outbound()
                .with_reach(Reach::start(&floor.ports, Arc::clone(couriers)))
                .with_spread(Arc::clone(spread)),
            None => floor.outbound(),
        };
        let owning = Owning {
            ports,
            logins,
            outbound: Box::new(outbound),
            answered,
            settings,
            metrics,
            leaving: leaving.clone(),
        };
        let own = tokio::spawn(assignment::own_all(owning));
        Running { tasks: [("the way to the log", append), ("the owner", own)], leaving, spread }
    }
}
