//! Encoding of tokens, runs and node announcements in Redis.

use serde::{Deserialize, Serialize};
use tidegate_protocol::id::{DeviceId, NodeId, UserId};

use super::{Interest, NodeBoot, NodeInfo, Route, Token};
use crate::routes::{NodeDescription, NodeState, PartitionLag};

/// Parses a node run in its `Display` form: `node/boot`, with the boot in hex.
pub(super) fn run(text: &str) -> Option<NodeBoot> {
    let (node, boot) = text.split_once('/')?;
    Some(NodeBoot { node: NodeId::new(node).ok()?, boot: u64::from_str_radix(boot, 16).ok()? })
}

/// Parses a token in its `Display` form: `node/boot/epoch`.
pub(super) fn token(text: &str) -> Option<Token> {
    let (at, epoch) = text.rsplit_once('/')?;
    Some(Token { at: run(at)?, epoch: epoch.parse().ok()? })
}

/// Parses the fields of `route:{user}`. Skips those of deleted rows, which begin with `#`.
pub(super) fn devices(fields: Vec<(String, String)>) -> Vec<(DeviceId, Token)> {
    let row = |(device, text): (String, String)| Some((DeviceId::new(&device).ok()?, token(&text)?));
    let mut rows: Vec<_> = fields.into_iter().filter_map(row).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

/// Returns a row's entry in the list of its run, without the epoch. `!` sorts below every character of an id, so the
/// list is in the order of (user, device).
pub(super) fn entry_prefix(user: &UserId, device: &DeviceId) -> String {
    format!("{user}!{device}")
}

/// Returns a row's entry in the list of its run: `user!device!epoch`.
pub(super) fn entry(row: &Route) -> String {
    format!("{}!{}", entry_prefix(&row.user, &row.device), row.token.epoch)
}

/// Parses an entry in the list of the run `of`.
pub(super) fn row(of: &NodeBoot, text: &str) -> Option<Route> {
    let mut parts = text.splitn(3, '!');
    let (user, device, epoch) = (parts.next()?, parts.next()?, parts.next()?);
    let token = Token { at: of.clone(), epoch: epoch.parse().ok()? };
    Some(Route { user: UserId::new(user).ok()?, device: DeviceId::new(device).ok()?, token })
}

/// Parses alternating runs and generations.
pub(super) fn interests(pairs: &[String]) -> Vec<Interest> {
    let interest = |pair: &[String]| {
        let [node, generation] = pair else { return None };
        Some(Interest { node: run(node)?, generation: generation.parse().ok()? })
    };
    pairs.chunks(2).filter_map(interest).collect()
}

#[derive(Deserialize, Serialize)]
struct Info {
    peer: String,
    clients: Vec<String>,
    state: String,
    conns: u32,
    capacity: u32,
    owns: Vec<u32>,
    /// Partition, position, end, ms and bytes of lag. Earlier versions omit it.
    #[serde(default)]
    stands: Vec<[u64; 5]>,
    #[serde(default)]
    asserting: bool,
    #[serde(default)]
    about: NodeDescription,
    #[serde(default = "first_rules")]
    rules: u32,
}

/// Returns the rules version of a node that announces none, because it knows no other.
fn first_rules() -> u32 {
    1
}

pub(super) fn info_text(info: &NodeInfo) -> String {
    let state = match info.state {
        NodeState::Ready => "ready",
        NodeState::Cordoned => "cordoned",
        NodeState::Draining => "draining",
    };
    let info = Info {
        peer: info.peer_address.clone(),
        clients: info.client_addresses.clone(),
        state: state.to_owned(),
        conns: info.conns,
        capacity: info.capacity,
        owns: info.owns.clone(),
        stands: info.partition_lags.iter().map(numbers).collect(),
        asserting: info.asserting,
        about: info.description.clone(),
        rules: info.rules,
    };
    serde_json::to_string(&info).unwrap_or_default()
}

/// Parses the announcement of a run. `None` if it has made none, or if this version does not understand it.
pub(super) fn info(boot: &NodeBoot, text: &str) -> Option<NodeInfo> {
    let info: Info = serde_json::from_str(text).ok()?;
    let state = match info.state.as_str() {
        "ready" => NodeState::Ready,
        "draining" => NodeState::Draining,
        // An unknown state, of a later version: assign no new clients to the node.
        _ => NodeState::Cordoned,
    };
    Some(NodeInfo {
        boot: boot.clone(),
        peer_address: info.peer,
        client_addresses: info.clients,
        state,
        conns: info.conns,
        capacity: info.capacity,
        owns: info.owns,
        partition_lags: info.stands.into_iter().filter_map(partition_lag).collect(),
        asserting: info.asserting,
        description: info.about,
        rules: info.rules,
    })
}

fn numbers(it: &PartitionLag) -> [u64; 5] {
    [it.partition.into(), it.position, it.end, it.behind_ms, it.behind_bytes]
}

fn partition_lag([partition, position, end, behind_ms, behind_bytes]: [u64; 5]) -> Option<PartitionLag> {
    Some(PartitionLag { partition: u32::try_from(partition).ok()?, position, end, behind_ms, behind_bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn remembered_epochs_of_deleted_rows_are_no_devices() {
        let fields = [("phone", "n1/1/5"), ("#web", "4@9"), ("#", "3@9")];
        let fields = fields.map(|(field, text)| (field.to_owned(), text.to_owned()));
        let found = devices(fields.to_vec());
        assert_eq!(found, [(DeviceId::new("phone").unwrap(), token("n1/1/5").unwrap())]);
    }

    proptest! {
        #[test]
        fn tokens_runs_and_rows_round_trip(
            node in "[A-Za-z0-9_.-]{1,64}",
            user in "[A-Za-z0-9_.-]{1,64}",
            device in "[A-Za-z0-9_.-]{1,64}",
            boot: u64,
            epoch: u64,
        ) {
            let at = NodeBoot { node: NodeId::new(&node).unwrap(), boot };
            let written = Token { at: at.clone(), epoch };
            prop_assert_eq!(token(&written.to_string()), Some(written.clone()));
            prop_assert_eq!(run(&at.to_string()), Some(at.clone()));
            let route = Route {
                user: UserId::new(&user).unwrap(),
                device: DeviceId::new(&device).unwrap(),
                token: written,
            };
            prop_assert_eq!(row(&at, &entry(&route)), Some(route));
        }

        #[test]
        fn node_info_round_trips(numbers: [u64; 5], partition: u32) {
            let boot = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
            let [position, end, behind_ms, behind_bytes, _] = numbers;
            let written = NodeInfo {
                boot: boot.clone(),
                peer_address: "127.0.0.1:7802".into(),
                client_addresses: vec!["127.0.0.1:7800".into()],
                state: NodeState::Ready,
                conns: 3,
                capacity: 9,
                owns: vec![partition],
                partition_lags: vec![PartitionLag { partition, position, end, behind_ms, behind_bytes }],
                asserting: partition % 2 == 0,
                description: NodeDescription {
                    share: Some(7),
                    zone: "z".into(),
                    ..NodeDescription::default()
                },
                rules: 1 + partition % 3,
            };
            prop_assert_eq!(info(&boot, &info_text(&written)), Some(written.clone()));
            // An earlier version announces neither lags nor a description.
            let earlier = r#"{"peer":"","clients":[],"state":"ready","conns":1,"capacity":2,"owns":[4]}"#;
            let read = info(&boot, earlier).map(|it| (it.owns, it.partition_lags, it.description));
            prop_assert_eq!(read, Some((vec![4], Vec::new(), NodeDescription::default())));
            // A later version may add fields.
            let later = r#"{"peer":"","clients":[],"state":"ready","conns":1,"capacity":2,"owns":[],"about":{"zone":"z","moon":1}}"#;
            prop_assert_eq!(info(&boot, later).map(|it| it.description.zone), Some("z".to_owned()));
        }

        #[test]
        fn list_is_ordered_by_user_and_device(
            a in ("[A-Za-z0-9_.-]{1,3}", "[A-Za-z0-9_.-]{1,3}"),
            b in ("[A-Za-z0-9_.-]{1,3}", "[A-Za-z0-9_.-]{1,3}"),
        ) {
            let ids = |(user, device): &(String, String)| {
                (UserId::new(user).unwrap(), DeviceId::new(device).unwrap())
            };
            let (a, b) = (ids(&a), ids(&b));
            let entry = |(user, device): &(UserId, DeviceId)| entry_prefix(user, device) + "!";
            prop_assert_eq!(entry(&a).cmp(&entry(&b)), a.cmp(&b));
        }

        #[test]
        fn arbitrary_text_does_not_break_the_parsers(text in "\\PC{0,40}") {
            let at = NodeBoot { node: NodeId::new("n").unwrap(), boot: 1 };
            let _ = (run(&text), token(&text), row(&at, &text), info(&at, &text));
        }
    }
}
