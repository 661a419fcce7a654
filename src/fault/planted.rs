//! Planted faults: each breaks one promise of delivery, and the simulation of whole nodes must find every one of them.
//!
//! A build with debug assertions asks a variable of its thread, which only a test sets. Any other build compiles the
//! faults out.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// Fault in the delivery of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A message is pushed before the membership changes that precede it in its batch.
    PushBeforeMembership,
    /// The close of a connection removes the route of its device, whatever token the route has.
    RouteWithoutToken,
    /// The hint about omitted messages is not sent.
    BehindLost,
    /// A push is sent and not kept until its ack.
    WindowForgets,
    /// A drain closes a client without the answers to its sends in flight.
    DrainUnsettled,
    /// Messages expire by the clock of one node.
    PruneByOneClock,
    /// An owner that loses its partition does not publish what it has archived.
    ArchivedUnpublished,
    /// A planned stop does not wait for the queues to peers.
    PeersNotFlushed,
    /// A chain continues behind a message that was refused temporarily.
    ChainSkipsRefused,
    /// Dedup keys expire at once.
    KeysForgotten,
    /// Routes are not written again after a loss.
    RoutesNotReasserted,
    /// Pushes go only to the nodes that incomplete routes name.
    IncompleteRoutesTrusted,
}

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Plants a fault into all nodes that run on this thread, or removes it.
#[cfg(debug_assertions)]
pub fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
}

/// Returns whether the fault is planted on this thread.
#[cfg(debug_assertions)]
pub(crate) fn is_planted(fault: Planted) -> bool {
    PLANTED.get() == Some(fault)
}

/// Returns false: a build without debug assertions has no planted faults.
#[cfg(not(debug_assertions))]
pub(crate) const fn is_planted(_: Planted) -> bool {
    false
}
