//! Limits on the sessions of a user over two nodes: the older session ends once, on whatever node, and also on one that
//! can't be called.

use std::time::Duration;

use tidegate_protocol::{Code, codec::Wire};

use super::{IN_FORCE_MAX, Severable, end_of};
use crate::support::{Client, code};

/// Limit until a session ends on a node that can't be called: a call, a renewal of the lease, a page of its sessions,
/// and twice that for a busy machine.
const RECHECK_MAX: Duration = Duration::from_secs(10);

fn is_replaced(client: &mut Client, within: Duration) {
    assert_eq!(code(end_of(client, within).code), Code::Replaced);
}

#[test]
fn older_sessions_end_once_also_on_a_node_that_can_not_be_called() {
    let most = ["limits.devices_per_user=3", "login.devices_full=replace", "login.devices=class"];
    let mut it = Severable::start(&most);
    let login = |nth: usize, user: &str, device: &str| it.cluster.node(nth).login(Wire::WsText, user, device);
    let (mut first, mut pad) = (login(1, "ann", "phone-a"), login(1, "ann", "pad-a"));
    let mut second = login(0, "ann", "phone-b");
    is_replaced(&mut first, IN_FORCE_MAX);
    let mut third = login(1, "ann", "phone-c");
    is_replaced(&mut second, IN_FORCE_MAX);
    let mut tv = login(0, "ann", "tv-a");
    let mut desk = login(0, "ann", "desk-a");
    is_replaced(&mut pad, IN_FORCE_MAX);
    [&mut third, &mut tv, &mut desk].into_iter().for_each(Client::settle);

    let (mut cut_off, mut other) = (login(1, "bob", "phone-a"), login(1, "bob", "pad-a"));
    it.links[1].hang();
    let mut newer = login(0, "bob", "phone-b");
    is_replaced(&mut cut_off, RECHECK_MAX);
    [&mut newer, &mut other].into_iter().for_each(Client::settle);
    it.links[1].open();

    it.restart(&["login.devices=user"]);
    let login = |nth: usize, device: &str| it.cluster.node(nth).login(Wire::Tcp, "cid", device);
    let mut phone = login(0, "phone-a");
    let mut tabs = [login(1, "web-a-1"), login(0, "web-a-2")];
    is_replaced(&mut phone, IN_FORCE_MAX);
    tabs.iter_mut().for_each(Client::settle);
}
