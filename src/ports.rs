//! The five ports of a node, as everything above sees them.

use std::sync::Arc;

use crate::{
    bus::Bus,
    link::Link,
    routes::{NodeBoot, Routes},
    scratch::Scratch,
    store::Store,
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
}
