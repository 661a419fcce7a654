//! How tokens, runs and what a node says of itself are written in Redis.

use serde::{Deserialize, Serialize};
use tidegate_protocol::id::{DeviceId, NodeId, UserId};

use super::{Interest, NodeBoot, NodeInfo, Route, Token};
use crate::routes::{About, NodeState, Standing};

/// A run of a node as `Display` writes it: `node/boot`, the boot in hex.
pub(super) fn run(text: &str) -> Option<NodeBoot> {
    let (node, boot) = text.split_once('/')?;
    Some(NodeBoot { node: NodeId::new(node).ok()?, boot: u64::from_str_radix(boot, 16).ok()? })
}

/// A token as `Display` writes it: `node/boot/epoch`.
pub(super) fn token(text: &str) -> Option<Token> {
    let (at, epoch) = text.rsplit_once('/')?;
    Some(Token { at: run(at)?, epoch: epoch.parse().ok()? })
}

/// The fields of a `route:{user}`; those of owners that left begin with `#`.
pub(super) fn devices(fields: Vec<(String, String)>) -> Vec<(DeviceId, Token)> {
    let row = |(device, text): (String, String)| Some((DeviceId::new(&device).ok()?, token(&text)?));
    let mut rows: Vec<_> = fields.into_iter().filter_map(row).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}

/// A row's place in the list of its run, without the epoch. `!` is below all that ids are made of, so the list is in
/// the order of (user, device).
pub(super) fn place(user: &UserId, device: &DeviceId) -> String {
    format!("{user}!{device}")
}

/// A place with the epoch.
pub(super) fn listed(row: &Route) -> String {
    format!("{}!{}", place(&row.user, &row.device), row.token.epoch)
}

/// The row of a place with the epoch.
pub(super) fn row(of: &NodeBoot, text: &str) -> Option<Route> {
    let mut parts = text.splitn(3, '!');
    let (user, device, epoch) = (parts.next()?, parts.next()?, parts.next()?);
    let token = Token { at: of.clone(), epoch: epoch.parse().ok()? };
    Some(Route { user: UserId::new(user).ok()?, device: DeviceId::new(device).ok()?, token })
}

/// Pairs of run and generation.
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
    /// Partition, position, end, ms and bytes behind; earlier versions say nothing.
    #[serde(default)]
    stands: Vec<[u64; 5]>,
    #[serde(default)]
    asserting: bool,
    #[serde(default)]
    about: About,
    #[serde(default = "first_rules")]
    rules: u32,
}

/// Those of a node that does not know that there are others.
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
        stands: info.stands.iter().map(numbers).collect(),
        asserting: info.asserting,
        about: info.about.clone(),
        rules: info.rules,
    };
    serde_json::to_string(&info).unwrap_or_default()
}

/// None: it has not announced itself, or says what this version does not understand.
pub(super) fn info(boot: &NodeBoot, text: &str) -> Option<NodeInfo> {
    let info: Info = serde_json::from_str(text).ok()?;
    let state = match info.state.as_str() {
        "ready" => NodeState::Ready,
        "draining" => NodeState::Draining,
        // A state of a later version: certainly not one to send newcomers to.
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
        stands: info.stands.into_iter().filter_map(standing).collect(),
        asserting: info.asserting,
        about: info.about,
        rules: info.rules,
    })
}

fn numbers(it: &Standing) -> [u64; 5] {
    [it.partition.into(), it.position, it.end, it.behind_ms, it.behind_bytes]
}

fn standing([partition, position, end, behind_ms, behind_bytes]: [u64; 5]) -> Option<Standing> {
    Some(Standing { partition: u32::try_from(partition).ok()?, position, end, behind_ms, behind_bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
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
            prop_assert_eq!(row(&at, &listed(&route)), Some(route));
        }

        #[test]
        fn what_a_node_says_is_read_again(numbers: [u64; 5], partition: u32) {
            let boot = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
            let [position, end, behind_ms, behind_bytes, _] = numbers;
            let said = NodeInfo {
                boot: boot.clone(),
                peer_address: "127.0.0.1:7802".into(),
                client_addresses: vec!["127.0.0.1:7800".into()],
                state: NodeState::Ready,
                conns: 3,
                capacity: 9,
                owns: vec![partition],
                stands: vec![Standing { partition, position, end, behind_ms, behind_bytes }],
                asserting: partition % 2 == 0,
                about: About { share: Some(7), zone: "z".into(), ..About::default() },
                rules: 1 + partition % 3,
            };
            prop_assert_eq!(info(&boot, &info_text(&said)), Some(said.clone()));
            // An earlier version does not say how far it is.
            let earlier = r#"{"peer":"","clients":[],"state":"ready","conns":1,"capacity":2,"owns":[4]}"#;
            let read = info(&boot, earlier).map(|it| (it.owns, it.stands, it.about));
            prop_assert_eq!(read, Some((vec![4], Vec::new(), About::default())));
            let later = r#"{"peer":"","clients":[],"state":"ready","conns":1,"capacity":2,"owns":[],"about":{"zone":"z","moon":1}}"#;
            prop_assert_eq!(info(&boot, later).map(|it| it.about.zone), Some("z".to_owned()));
        }

        #[test]
        fn a_list_is_in_the_order_of_user_and_device(
            a in ("[A-Za-z0-9_.-]{1,3}", "[A-Za-z0-9_.-]{1,3}"),
            b in ("[A-Za-z0-9_.-]{1,3}", "[A-Za-z0-9_.-]{1,3}"),
        ) {
            let ids = |(user, device): &(String, String)| {
                (UserId::new(user).unwrap(), DeviceId::new(device).unwrap())
            };
            let (a, b) = (ids(&a), ids(&b));
            let place = |(user, device): &(UserId, DeviceId)| place(user, device) + "!";
            prop_assert_eq!(place(&a).cmp(&place(&b)), a.cmp(&b));
        }

        #[test]
        fn nothing_that_is_there_breaks_the_reader(text in "\\PC{0,40}") {
            let at = NodeBoot { node: NodeId::new("n").unwrap(), boot: 1 };
            let _ = (run(&text), token(&text), row(&at, &text), info(&at, &text));
        }
    }
}
