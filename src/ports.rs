//! Ports of a node: its adapters as the layers above see them, and the state that its lease shares with them.

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

mod barrier;
mod interest;

/// One adapter per port, chosen by `node` alone, and state shared by all layers.
pub struct Ports {
    /// Run of this node.
    pub me: NodeBoot,
    /// Durable log and node topics.
    pub bus: Arc<dyn Bus>,
    /// Archive.
    pub store: Arc<dyn Store>,
    /// Leased routes from devices to nodes.
    pub routes: Arc<dyn Routes>,
    /// State that may be lost: chains, windows and numbers.
    pub scratch: Arc<dyn Scratch>,
    /// Calls from node to node.
    pub link: Arc<dyn Link>,
    /// Partitions that this node owns; owners update them, and the lease announces them.
    pub owned: Arc<Owned>,
    /// Other nodes, as the lease last fetched them; kept while the routes are unavailable.
    pub peers: Arc<Peers>,
    /// Steps of messages on this node, as far as they are recorded.
    pub trace: Arc<Tracer>,
    /// Events of this node: online and offline devices, read marks, blocked chains.
    pub events: Arc<Events>,
}
