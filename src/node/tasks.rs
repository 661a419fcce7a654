//! Starts the use-cases of a node on its services runtime: the way to the log, the owners of partitions, the answers to
//! logins, what goes beside the log, and what is done for peers.

use std::sync::Arc;

use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::ports;
use crate::{
    chat::{
        admin::Pending,
        answered::Answered,
        asking,
        beside::Beside,
        courier::Couriers,
        deliver::Outbound,
        hands::{self, Owning},
        login, owner,
        peer::Peer,
        reach::Reach,
        send::{self, Intake, Outlets},
    },
    config::Config,
    directory::Directory,
    link::{Listener, StrayLanes},
    mail::ShardHandles,
    metrics::Metrics,
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
    metrics: Metrics,
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
        Self { ports, directory, handles, pending, answered: Arc::default(), metrics: metrics.clone() }
    }

    fn outbound(&self) -> Outbound {
        let (directory, handles) = (Arc::clone(&self.directory), Arc::clone(&self.handles));
        Outbound::new(self.ports.me.clone(), directory, handles, Arc::clone(&self.pending))
    }

    /// Starts what goes beside the log; `among_others` = there are other nodes.
    pub(super) fn beside_the_log(
        &self,
        runtime: &Handle,
        numbers: Arc<dyn Numbers>,
        among_others: bool,
    ) -> BesideLog {
        if !among_others {
            return BesideLog { rooms: Arc::new(Rooms::alone(numbers)), words: None };
        }
        let (ports, metrics) = (&self.ports, self.metrics.clone());
        let lanes = StrayLanes::new(Arc::clone(&ports.link), runtime.clone(), metrics.clone());
        let rooms = Arc::new(Rooms::among_others(
            numbers,
            Arc::clone(ports),
            Arc::clone(&self.directory),
            Arc::clone(&lanes),
        ));
        runtime.spawn(Arc::clone(&rooms).keep());
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
        let end = end
            .tracing(Arc::clone(&self.ports.trace))
            .answering(Arc::clone(&self.answered), Arc::clone(&self.ports));
        ports::listen(services, config, &self.ports.me, Arc::new(end), &self.metrics)
    }

    /// Starts everything; `among_others` = there are other nodes. In the services runtime.
    pub(super) fn start(
        self,
        (intake, outlets): (&Arc<Intake>, Outlets),
        settings: owner::Settings,
        among_others: bool,
    ) -> Running {
        let leaving = CancellationToken::new();
        let ports = Arc::clone(&self.ports);
        let append =
            send::append_all(outlets.records, Arc::clone(intake), Arc::clone(&ports), self.outbound());
        let append = tokio::spawn(append);
        let floor = Arc::new(self);
        // One owner of everything knows memberships in log order; among others nobody does.
        let mut logins = Some(outlets.logins);
        if among_others && let Some(logins) = logins.take() {
            let floor = Arc::clone(&floor);
            tokio::spawn(login::answer_all(logins, Arc::clone(&ports), move || floor.outbound()));
        }
        if among_others {
            let (pending, answered) = (Arc::clone(&floor.pending), Arc::clone(&floor.answered));
            let asking = asking::ask_again(
                Arc::clone(&ports),
                pending,
                answered,
                floor.outbound(),
                floor.metrics.clone(),
            );
            tokio::spawn(asking);
        }
        let answered = among_others.then(|| Arc::clone(&floor.answered));
        let couriers = among_others.then(|| Couriers::new(&ports, floor.metrics.clone()));
        let metrics = floor.metrics.clone();
        let outbound = move || match &couriers {
            Some(couriers) => floor.outbound().with_reach(Reach::start(&floor.ports, Arc::clone(couriers))),
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
        let own = tokio::spawn(hands::own_all(owning));
        Running { tasks: [("the way to the log", append), ("the owner", own)], leaving }
    }
}
