//! The five ports of a node, as everything above sees them, and what its lease knows beside them.

use std::sync::Arc;

use crate::{
    bus::Bus,
    cluster::{Owned, Peers},
    events::Events,
    link::Link,
    routes::{NodeBoot, Routes},
    scratch::Scratch,
    store::Store,
    trace::Tracer,
};

/// One adapter for each port; which ones is decided in `node` alone.
pub struct Ports {
    /// This run of this node.
    pub me: NodeBoot,
    /// The durable log and the node topics.
    pub bus: Arc<dyn Bus>,
    /// What is archived.
    pub store: Arc<dyn Store>,
    /// Who is where; leased.
    pub routes: Arc<dyn Routes>,
    /// What may be lost.
    pub scratch: Arc<dyn Scratch>,
    /// Node to node.
    pub link: Arc<dyn Link>,
    /// What this node owns: the owners say it, the lease tells the others.
    pub owned: Arc<Owned>,
    /// Which nodes there are: the lease keeps it, also while the routes are away.
    pub peers: Arc<Peers>,
    /// What happened to messages here, as far as it is noted.
    pub trace: Arc<Tracer>,
    /// Who came and went here, and what else others are told of.
    pub events: Arc<Events>,
}
