//! The five ports of a node: what the layers above see of its adapters.

use std::sync::Arc;

use crate::{bus::Bus, link::Link, routes::Routes, scratch::Scratch, store::Store};

#[cfg(test)]
mod tests;

/// One adapter per port, chosen by `node` alone.
pub struct Ports {
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
}
