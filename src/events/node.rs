//! Changes of the cluster as one node sees them, as events.

use serde::Serialize;

use crate::routes::NodeBoot;

/// Approximate memory of a notice.
pub(super) const NOTICE_BYTES: usize = 256;

/// Change of the cluster, as a node noticed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNotice {
    /// Run of the node that noticed it.
    pub by: NodeBoot,
    /// Number of the notice in that run.
    pub number: u64,
    /// Change.
    pub change: NodeChange,
}

/// Change of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Run is live: it has begun, or has renewed an expired lease.
    Joined(NodeBoot),
    /// Run is live again that this node had reported as lapsed. Its event is the one of [`Self::Joined`].
    Returned(NodeBoot),
    /// Run drains: it gets no new clients.
    Draining(NodeBoot),
    /// Run has aborted its drain.
    Ready(NodeBoot),
    /// Run has ended.
    Left(NodeBoot),
    /// Lease of the run has expired: its node is dead, frozen or cut off.
    Lapsed(NodeBoot),
    /// Partition has another owner.
    Moved {
        /// Number of the partition.
        partition: u32,
        /// Run that owned it before.
        from: NodeBoot,
        /// Run that owns it now.
        to: NodeBoot,
    },
}

/// Types of the events of changes of the cluster.
pub const NODE_EVENT_TYPES: [&str; 6] = [
    "tidegate.node.joined",
    "tidegate.node.draining",
    "tidegate.node.ready",
    "tidegate.node.left",
    "tidegate.node.lapsed",
    "tidegate.partition.moved",
];

/// Notice as data of an event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeData<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<u32>,
    #[serde(flatten)]
    run: RunData<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<RunData<'a>>,
    by: &'a str,
}

/// Run in the data of an event.
#[derive(Serialize)]
struct RunData<'a> {
    node: &'a str,
    boot: String,
}

impl<'a> RunData<'a> {
    fn of(run: &'a NodeBoot) -> Self {
        Self { node: run.node.as_str(), boot: format!("{:x}", run.boot) }
    }
}

impl NodeChange {
    /// Returns the run that the change is of: the new owner, if a partition moved.
    pub const fn run(&self) -> &NodeBoot {
        match self {
            Self::Joined(run)
            | Self::Returned(run)
            | Self::Draining(run)
            | Self::Ready(run)
            | Self::Left(run)
            | Self::Lapsed(run) => run,
            Self::Moved { to, .. } => to,
        }
    }

    /// Returns the type of its event.
    pub const fn kind(&self) -> &'static str {
        let [joined, draining, ready, left, lapsed, moved] = NODE_EVENT_TYPES;
        match self {
            Self::Joined(_) | Self::Returned(_) => joined,
            Self::Draining(_) => draining,
            Self::Ready(_) => ready,
            Self::Left(_) => left,
            Self::Lapsed(_) => lapsed,
            Self::Moved { .. } => moved,
        }
    }
}

impl NodeNotice {
    /// Returns whether this node publishes it on the topic: what it reports of itself, what a dead node can't report, and that
    /// such a report is no longer true.
    pub(super) fn is_published(&self) -> bool {
        matches!(self.change, NodeChange::Lapsed(_) | NodeChange::Returned(_))
            || *self.change.run() == self.by
    }

    /// Returns the id of the event.
    pub(super) fn id(&self) -> String {
        format!("node/{}/{}", self.by, self.number)
    }

    /// Returns the data of the event.
    pub(super) fn data(&self) -> NodeData<'_> {
        let (partition, from) = match &self.change {
            NodeChange::Moved { partition, from, .. } => (Some(*partition), Some(RunData::of(from))),
            _ => (None, None),
        };
        NodeData { partition, run: RunData::of(self.change.run()), from, by: self.by.node.as_str() }
    }
}
