//! Lookup of the devices that users have connected, by the routes of nodes with a live lease.

use std::collections::HashSet;

use tidegate_protocol::id::{DeviceId, UserId};

use crate::routes::{Lease, NodeBoot, NodeRow, Routes, RoutesError, Token};

/// Connected devices of some users.
#[derive(Debug, PartialEq)]
pub struct DeviceLookup {
    /// Devices of each user, in order, with their routes.
    pub of_users: Vec<Vec<(DeviceId, Token)>>,
    /// Whether no node re-asserts its routes, so that none is missing.
    pub is_complete: bool,
    /// Runs of nodes with a live lease.
    live: HashSet<NodeBoot>,
}

impl DeviceLookup {
    /// Returns whether this run of a node has a live lease: one that has not renewed it after a loss is not listed, and its
    /// devices are missing.
    pub fn has_live(&self, run: &NodeBoot) -> bool {
        self.live.contains(run)
    }
}

/// Looks up the connected devices of users.
///
/// # Errors
/// The routes are unavailable.
pub async fn connected_devices(routes: &dyn Routes, users: &[UserId]) -> Result<DeviceLookup, RoutesError> {
    let rows = routes.lookup(users).await?;
    // Fetched now: routes left by a dead node must not count, and those of a new node must.
    Ok(of_live_nodes(rows, &routes.nodes().await?))
}

fn of_live_nodes(mut of_users: Vec<Vec<(DeviceId, Token)>>, nodes: &[NodeRow]) -> DeviceLookup {
    let live = nodes.iter().filter(|row| row.lease == Lease::Live);
    let is_complete = live.clone().all(|row| !row.info.asserting);
    let live: HashSet<NodeBoot> = live.map(|row| row.info.boot.clone()).collect();
    for devices in &mut of_users {
        devices.retain(|(_, token)| live.contains(&token.at));
    }
    DeviceLookup { of_users, is_complete, live }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::routes::NodeInfo;

    fn at(node: &str, boot: u64) -> NodeBoot {
        NodeBoot { node: NodeId::new(node).unwrap(), boot }
    }

    fn device(name: &str, at: NodeBoot) -> (DeviceId, Token) {
        (DeviceId::new(name).unwrap(), Token { at, epoch: 1 })
    }

    #[test]
    fn device_on_a_node_without_a_live_lease_is_offline() {
        let nodes = [
            NodeRow::new(NodeInfo::new(at("n1", 7)), Lease::Live),
            NodeRow::new(NodeInfo::new(at("n2", 1)), Lease::Lapsed),
        ];
        let phone = device("phone", at("n1", 7));
        let rows = vec![vec![phone.clone(), device("desk", at("n2", 1))], vec![device("old", at("n1", 6))]];
        let live = HashSet::from([at("n1", 7)]);
        let expected = DeviceLookup { of_users: vec![vec![phone], vec![]], is_complete: true, live };
        let found = of_live_nodes(rows, &nodes);
        assert_eq!(found, expected, "another run of the node counts as little");
        assert!(found.has_live(&at("n1", 7)) && !found.has_live(&at("n2", 1)));
    }

    #[test]
    fn lookup_is_incomplete_while_a_live_node_re_asserts_its_routes() {
        let row = |lease| {
            let info = NodeInfo { asserting: true, ..NodeInfo::new(at("n2", 1)) };
            [NodeRow::new(NodeInfo::new(at("n1", 7)), Lease::Live), NodeRow::new(info, lease)]
        };
        assert!(!of_live_nodes(Vec::new(), &row(Lease::Live)).is_complete);
        assert!(of_live_nodes(Vec::new(), &row(Lease::Lapsed)).is_complete);
    }
}
