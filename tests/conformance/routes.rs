//! The suite of `Routes`: flaws S1-S5, and S9 for epochs.

use tidegate::routes::{
    DevicePolicy, Interest, Lease, NodeBoot, NodeInfo, Registration, Retire, Route, RoutesError, Token,
};
use tidegate_protocol::id::ConversationId;

use super::{at_once, device, group, node, redis::Version, user};

mod policy;
mod world;

use policy::{
    of_racing_logins_the_newest_replaces_all_others, oldest_session_is_replaced_at_the_limit,
    one_session_of_a_class_stays, one_session_of_a_user_stays_and_tabs_stay_together,
};
use world::{LEASES, World, faultless, memory, on_a_cluster, on_redis};

/// Runs the cases for each adapter, and all of them in turn over one cluster, which takes a second to form.
macro_rules! cases {
    ($($case:ident)+) => {
        suite! {
            {
                memory => super::memory();
                faultless => super::faultless();
                redis_7 => super::on_redis(super::Version::V7);
                redis_62 => super::on_redis(super::Version::V62);
            }
            { $($case)+ }
        }

        #[tokio::test]
        async fn over_a_cluster() {
            for version in [Version::V7, Version::V62] {
                let world = on_a_cluster(version);
                $(
                    $case(&world).await;
                    world.lose_everything().await;
                )+
            }
        }
    };
}

cases! {
    s1_late_close_of_the_old_conn_keeps_the_new_route
    s2_reconnect_to_the_same_node_keeps_the_new_route
    s2_restarted_node_is_another_run
    s3_reaper_racing_a_reconnect_keeps_the_new_route
    s3_sweep_finds_exactly_the_rows_of_its_node
    s4_row_and_its_nodes_list_stay_consistent
    s5_second_device_keeps_the_row_of_the_first
    s5_retired_node_can_not_write
    s5_node_is_not_reaped_before_its_lease_expires
    s9_epochs_rise_after_a_total_loss
    epochs_rise_above_those_in_the_ledger
    conn_takes_a_newer_epoch_only_from_itself
    reasserted_rows_yield_to_newer_connections
    renewal_counter_reveals_lost_routes
    lookup_replies_in_the_order_of_the_query
    requested_recheck_is_found_by_its_run_alone
    interest_is_valid_while_it_and_its_node_are_leased
    interest_expires_although_another_is_renewed
    newer_generation_of_an_interest_is_kept
    swept_node_is_not_listed
    racing_logins_are_each_replaced_once
    repeated_calls_are_idempotent
    x2_devices_of_a_user_are_bounded
    one_session_of_a_class_stays
    one_session_of_a_user_stays_and_tabs_stay_together
    oldest_session_is_replaced_at_the_limit
    of_racing_logins_the_newest_replaces_all_others
    x2_removed_devices_leave_little
}

fn registration(name: &str, on: &str, at: &NodeBoot) -> Registration {
    Registration {
        user: user(name),
        device: device(on),
        at: at.clone(),
        above: 0,
        only_if: None,
        policy: DevicePolicy::default(),
    }
}

fn row(name: &str, on: &str, token: &Token) -> Route {
    Route { user: user(name), device: device(on), token: token.clone() }
}

pub(crate) fn info(at: &NodeBoot) -> NodeInfo {
    NodeInfo { peer_address: "127.0.0.1:7801".to_owned(), capacity: 100, ..NodeInfo::new(at.clone()) }
}

async fn s1_late_close_of_the_old_conn_keeps_the_new_route(world: &World) {
    let old = world.login("ann", "phone", &node("a", 1)).await;
    let new = world.login("ann", "phone", &node("b", 1)).await;
    assert_eq!(new.replaced, Some(old.token.clone()));
    assert!(!world.remove(&row("ann", "phone", &old.token)).await, "the old connection does not own the row");
    world.assert_registered("ann", &new.token).await;
    assert!(world.remove(&row("ann", "phone", &new.token)).await);
    assert!(!world.remove(&row("ann", "phone", &new.token)).await, "deleted once");
    assert_eq!(world.tokens("ann").await, []);
}

async fn s2_reconnect_to_the_same_node_keeps_the_new_route(world: &World) {
    let a = node("a", 1);
    let old = world.login("ann", "phone", &a).await.token;
    let new = world.login("ann", "phone", &a).await.token;
    assert!(new.epoch > old.epoch);
    assert!(!world.remove(&row("ann", "phone", &old)).await);
    world.assert_registered("ann", &new).await;
    let rows = world.port().rows_of(&a, None, 9).await.unwrap();
    assert_eq!(rows, [row("ann", "phone", &new)]);
}

async fn s2_restarted_node_is_another_run(world: &World) {
    let old = world.login("ann", "phone", &node("a", 1)).await.token;
    let stale = Token { at: node("a", 2), epoch: old.epoch };
    assert!(!world.remove(&row("ann", "phone", &stale)).await, "the same epoch of another boot");
    let new = world.login("ann", "phone", &node("a", 2)).await.token;
    assert!(!world.remove(&row("ann", "phone", &old)).await);
    assert_eq!(world.tokens("ann").await, [new]);
}

async fn s3_reaper_racing_a_reconnect_keeps_the_new_route(world: &World) {
    let (a, b) = (node("a", 1), node("b", 1));
    world.login("ann", "phone", &a).await;
    world.login("bob", "phone", &a).await;
    assert_eq!(world.port().retire(&a, Retire::Lapsed).await, Ok(true));
    let page = world.port().rows_of(&a, None, 9).await.unwrap();
    let moved = world.login("ann", "phone", &b).await.token;
    assert_eq!(world.port().remove(&page).await.unwrap(), [false, true], "ann has moved, bob has not");
    world.assert_registered("ann", &moved).await;
    assert_eq!(world.tokens("bob").await, []);
    let rows = world.port().rows_of(&b, None, 9).await.unwrap();
    assert_eq!(rows, [row("ann", "phone", &moved)], "a sweep of b finds the row");
}

async fn s3_sweep_finds_exactly_the_rows_of_its_node(world: &World) {
    let (a, b) = (node("a", 1), node("b", 1));
    for n in 0..25 {
        world.login(&format!("u{n:02}"), "phone", if n % 5 == 4 { &b } else { &a }).await;
    }
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = world.port().rows_of(&a, after, 7).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 7);
        after = Some((last.user.clone(), last.device.clone()));
        found.extend(page);
    }
    assert!(found.iter().all(|row| row.token.at == a));
    let users: Vec<_> = found.iter().map(|row| row.user.to_string()).collect();
    let expected: Vec<_> = (0..25).filter(|n| n % 5 != 4).map(|n| format!("u{n:02}")).collect();
    assert_eq!(users, expected);
}

async fn s4_row_and_its_nodes_list_stay_consistent(world: &World) {
    let nodes = [node("a", 1), node("b", 1), node("a", 2)];
    for n in 0..60_usize {
        let at = &nodes[n * 7 % 3];
        let name = format!("u{}", n % 4);
        let token = world.login(&name, if n % 3 == 0 { "web" } else { "phone" }, at).await.token;
        if n % 5 == 0 {
            world.remove(&row(&name, if n % 3 == 0 { "web" } else { "phone" }, &token)).await;
        }
        let mut listed = Vec::new();
        for at in &nodes {
            listed.extend(world.port().rows_of(at, None, 99).await.unwrap().into_iter().map(|row| row.token));
        }
        let mut routed = Vec::new();
        for n in 0..4 {
            routed.extend(world.tokens(&format!("u{n}")).await);
        }
        listed.sort();
        routed.sort();
        assert_eq!(listed, routed);
    }
}

async fn s5_second_device_keeps_the_row_of_the_first(world: &World) {
    let phone = world.login("ann", "phone", &node("a", 1)).await;
    let web = world.login("ann", "web", &node("b", 1)).await;
    assert_eq!(web.replaced, None);
    let rows = world.port().lookup(&[user("ann")]).await.unwrap();
    assert_eq!(rows[0], [(device("phone"), phone.token.clone()), (device("web"), web.token.clone())]);
    assert!(world.remove(&row("ann", "phone", &phone.token)).await);
    assert_eq!(world.tokens("ann").await, [web.token]);
}

async fn s5_retired_node_can_not_write(world: &World) {
    let a = node("a", 1);
    world.renew(&a).await.unwrap();
    let token = world.login("ann", "phone", &a).await.token;
    world.pass(LEASES.node).await;
    assert_eq!(world.port().retire(&a, Retire::Lapsed).await, Ok(true));
    assert_eq!(world.port().retire(&a, Retire::Lapsed).await, Ok(true), "still");
    // The node was frozen, not dead: it wakes up with its sockets open.
    assert_eq!(world.renew(&a).await, Err(RoutesError::LeaseLost));
    assert_eq!(world.port().register(registration("bob", "web", &a)).await, Err(RoutesError::LeaseLost));
    let again = world.port().reassert(&[row("ann", "phone", &token)]).await;
    assert_eq!(again, Err(RoutesError::LeaseLost));
    assert_eq!(world.port().declare(&a, &[(group("g"), 1)]).await, Err(RoutesError::LeaseLost));
    assert!(world.remove(&row("ann", "phone", &token)).await, "a retired run may delete rows by their token");
    assert_eq!(world.renew(&node("a", 2)).await, Ok(1), "the next run may renew");
}

async fn s5_node_is_not_reaped_before_its_lease_expires(world: &World) {
    let a = node("a", 1);
    world.renew(&a).await.unwrap();
    world.pass(LEASES.node - world.slack()).await;
    assert_eq!(world.port().retire(&a, Retire::Lapsed).await, Ok(false));
    assert_eq!(world.renew(&a).await, Ok(2));
    world.pass(LEASES.node).await;
    assert_eq!(world.port().nodes().await.unwrap()[0].lease, Lease::Lapsed);
    assert_eq!(world.renew(&a).await, Ok(3), "an expired run that was not retired may renew");
    assert_eq!(world.port().nodes().await.unwrap()[0].lease, Lease::Live);
    assert_eq!(world.port().retire(&a, Retire::Leaving).await, Ok(true), "a node that leaves does not wait");
    assert_eq!(world.renew(&a).await, Err(RoutesError::LeaseLost));
}

async fn s9_epochs_rise_after_a_total_loss(world: &World) {
    let a = node("a", 1);
    let mut last = 0;
    for _ in 0..3 {
        for _ in 0..50 {
            let epoch = world.login("ann", "phone", &a).await.token.epoch;
            assert!(epoch > last, "{epoch} after {last}");
            last = epoch;
        }
        world.lose_everything().await;
        assert_eq!(world.tokens("ann").await, []);
    }
    assert!(last < 1 << 53);
}

async fn epochs_rise_above_those_in_the_ledger(world: &World) {
    let a = node("a", 1);
    let seen = world.login("ann", "phone", &a).await.token.epoch + 1_000_000_000;
    let above = Registration { above: seen, ..registration("ann", "phone", &a) };
    assert!(world.port().register(above).await.unwrap().token.epoch > seen);
    assert!(world.login("ann", "phone", &a).await.token.epoch > seen + 1, "and the next above that");
}

async fn conn_takes_a_newer_epoch_only_from_itself(world: &World) {
    let (a, b) = (node("a", 1), node("b", 1));
    let old = world.login("ann", "phone", &a).await.token;
    let renew = |at: &NodeBoot, from: &Token| Registration {
        only_if: Some(from.clone()),
        ..registration("ann", "phone", at)
    };
    let newer = world.port().register(renew(&a, &old)).await.unwrap();
    assert_eq!(newer.replaced, Some(old.clone()));
    assert!(newer.token.epoch > old.epoch);
    let elsewhere = world.login("ann", "phone", &b).await.token;
    let refused = world.port().register(renew(&a, &newer.token)).await;
    assert_eq!(refused, Err(RoutesError::NotCurrent(Some(elsewhere.clone()))));
    world.assert_registered("ann", &elsewhere).await;
    assert!(world.remove(&row("ann", "phone", &elsewhere)).await);
    assert_eq!(world.port().register(renew(&a, &newer.token)).await, Err(RoutesError::NotCurrent(None)));
}

async fn reasserted_rows_yield_to_newer_connections(world: &World) {
    let (a, b) = (node("a", 1), node("b", 1));
    let ann = world.login("ann", "phone", &a).await.token;
    let bob = world.login("bob", "phone", &a).await.token;
    world.lose_everything().await;
    let moved = world.login("bob", "phone", &b).await.token;
    let rows = [row("ann", "phone", &ann), row("bob", "phone", &bob)];
    for _ in 0..2 {
        assert_eq!(world.port().reassert(&rows).await.unwrap(), [true, false]);
    }
    world.assert_registered("ann", &ann).await;
    assert_eq!(world.tokens("bob").await, [moved]);
    assert_eq!(world.port().rows_of(&a, None, 9).await.unwrap(), rows[..1]);
    assert!(world.login("ann", "phone", &b).await.token.epoch > ann.epoch);
}

async fn renewal_counter_reveals_lost_routes(world: &World) {
    let a = node("a", 1);
    for beat in 1..=3 {
        assert_eq!(world.renew(&a).await, Ok(beat));
    }
    world.lose_everything().await;
    assert_eq!(world.renew(&a).await, Ok(1), "the counter restarts below the expected 4");
    assert_eq!(world.port().nodes().await.unwrap()[0].info, info(&a));
}

async fn lookup_replies_in_the_order_of_the_query(world: &World) {
    let zed = world.login("zed", "phone", &node("a", 1)).await.token;
    let ann = world.login("ann", "phone", &node("a", 1)).await.token;
    let rows = world.port().lookup(&[user("zed"), user("nobody"), user("ann"), user("zed")]).await.unwrap();
    let rows: Vec<Vec<_>> =
        rows.into_iter().map(|rows| rows.into_iter().map(|(_, token)| token).collect()).collect();
    assert_eq!(rows, [vec![zed.clone()], vec![], vec![ann], vec![zed]]);
}

async fn requested_recheck_is_found_by_its_run_alone(world: &World) {
    let (a, again, b) = (node("a", 1), node("a", 2), node("b", 1));
    for run in [&a, &again, &b] {
        world.renew(run).await.unwrap();
        assert_eq!(world.port().recheck_requested(run).await, Ok(None));
    }
    world.port().request_recheck(&a).await.unwrap();
    let first = world.port().recheck_requested(&a).await.unwrap();
    assert!(
        first.is_some() && world.port().recheck_requested(&a).await == Ok(first),
        "until the next request"
    );
    world.port().request_recheck(&a).await.unwrap();
    assert_ne!(world.port().recheck_requested(&a).await, Ok(first));
    for run in [&again, &b] {
        assert_eq!(world.port().recheck_requested(run).await, Ok(None));
    }
}

async fn interested(world: &World, conversation: &ConversationId) -> Vec<Interest> {
    let mut all = world.port().interested(std::slice::from_ref(conversation)).await.unwrap().remove(0);
    all.sort_by(|a, b| a.node.cmp(&b.node));
    all
}

async fn interest_is_valid_while_it_and_its_node_are_leased(world: &World) {
    let (a, b, g) = (node("a", 1), node("b", 1), group("g"));
    let interest = |node: &NodeBoot| Interest { node: node.clone(), generation: 1 };
    for at in [&a, &b] {
        world.renew(at).await.unwrap();
        world.port().declare(at, &[(g.clone(), 1)]).await.unwrap();
    }
    let asked = world.port().interested(&[group("other"), g.clone()]).await.unwrap();
    assert_eq!((asked[0].len(), asked[1].len()), (0, 2));
    world.pass(LEASES.node / 2).await;
    world.renew(&b).await.unwrap();
    world.pass(LEASES.node / 2).await;
    assert_eq!(interested(world, &g).await, [interest(&b)], "the lease of a has expired");
    world.renew(&a).await.unwrap();
    assert_eq!(interested(world, &g).await, [interest(&a), interest(&b)], "a's lease is renewed");
    world.pass(LEASES.interest - LEASES.node).await;
    world.renew(&a).await.unwrap();
    world.renew(&b).await.unwrap();
    assert_eq!(interested(world, &g).await, [], "the interests have expired");
}

async fn interest_expires_although_another_is_renewed(world: &World) {
    let (a, b, g) = (node("a", 1), node("b", 1), group("g"));
    world.port().declare(&a, &[(g.clone(), 1)]).await.unwrap();
    world.pass(LEASES.interest - world.slack()).await;
    world.port().declare(&b, &[(g.clone(), 1)]).await.unwrap();
    world.pass(world.slack()).await;
    for at in [&a, &b] {
        world.renew(at).await.unwrap();
    }
    assert_eq!(interested(world, &g).await, [Interest { node: b.clone(), generation: 1 }]);
    let declared = world.port().declare(&a, &[(group("other"), 1), (g.clone(), 1)]).await;
    assert_eq!(declared.unwrap(), [false, false], "the one is new, the other had expired");
}

async fn newer_generation_of_an_interest_is_kept(world: &World) {
    let (a, g) = (node("a", 1), group("g"));
    world.renew(&a).await.unwrap();
    for (declared, kept, was_in_force) in [(3, 3, false), (5, 5, true), (4, 5, true)] {
        assert_eq!(world.port().declare(&a, &[(g.clone(), declared)]).await.unwrap(), [was_in_force]);
        assert_eq!(interested(world, &g).await, [Interest { node: a.clone(), generation: kept }]);
    }
}

async fn swept_node_is_not_listed(world: &World) {
    let a = node("a", 1);
    world.renew(&a).await.unwrap();
    let token = world.login("ann", "phone", &a).await.token;
    world.pass(LEASES.node).await;
    assert_eq!(world.port().retire(&a, Retire::Lapsed).await, Ok(true));
    assert_eq!(world.port().nodes().await.unwrap()[0].lease, Lease::Retired, "a row is left");
    assert!(world.remove(&row("ann", "phone", &token)).await);
    assert_eq!(world.port().nodes().await.unwrap(), []);
    assert_eq!(world.renew(&a).await, Err(RoutesError::LeaseLost), "gone, not forgotten");
}

async fn racing_logins_are_each_replaced_once(world: &World) {
    let (a, b) = (node("a", 1), node("b", 1));
    let logins = (0..24).map(|n| {
        let (port, at) = (world.port(), if n % 3 == 0 { a.clone() } else { b.clone() });
        tokio::spawn(async move { port.register(registration("ann", "phone", &at)).await.unwrap() })
    });
    let mut given = Vec::new();
    for login in logins.collect::<Vec<_>>() {
        given.push(login.await.unwrap());
    }
    let last = world.tokens("ann").await.remove(0);
    let mut tokens: Vec<_> = given.iter().map(|it| it.token.clone()).collect();
    let mut replaced: Vec<_> = given.iter().filter_map(|it| it.replaced.clone()).collect();
    replaced.push(last.clone());
    tokens.sort();
    replaced.sort();
    assert_eq!(tokens, replaced, "each but the last one is replaced, and once");
    assert_eq!(tokens.iter().map(|it| it.epoch).max(), Some(last.epoch), "the newest row remains");
    let mut listed = world.port().rows_of(&a, None, 99).await.unwrap();
    listed.extend(world.port().rows_of(&b, None, 99).await.unwrap());
    assert_eq!(listed, [row("ann", "phone", &last)]);
}

async fn repeated_calls_are_idempotent(world: &World) {
    let a = node("a", 1);
    let token = world.login("ann", "phone", &a).await.token;
    let rows = [row("ann", "phone", &token)];
    assert_eq!(world.port().reassert(&rows).await.unwrap(), [true], "the row exists already");
    world.assert_registered("ann", &token).await;
    assert!(world.remove(&rows[0]).await);
    assert!(!world.remove(&rows[0]).await);
    // "Not here" was the reply of a node whose connection was about to register: its owner puts the row back.
    assert_eq!(world.port().reassert(&rows).await.unwrap(), [true]);
    world.assert_registered("ann", &token).await;
    assert_eq!(world.port().rows_of(&a, None, 9).await.unwrap(), rows);
    for _ in 0..2 {
        world.port().declare(&a, &[(group("g"), 1), (group("h"), 1)]).await.unwrap();
        assert_eq!(world.port().retire(&node("b", 1), Retire::Leaving).await, Ok(true));
    }
    assert_eq!(world.port().reassert(&[]).await.unwrap(), Vec::<bool>::new());
    assert_eq!(world.port().remove(&[]).await.unwrap(), Vec::<bool>::new());
    assert_eq!(world.port().lookup(&[]).await.unwrap(), Vec::<Vec<_>>::new());
    assert_eq!(world.port().interested(&[]).await.unwrap(), Vec::<Vec<_>>::new());
}

async fn x2_devices_of_a_user_are_bounded(world: &World) {
    let (a, b) = (node("a", 1), node("b", 1));
    let policy = DevicePolicy { max: 3, ..DevicePolicy::default() };
    let of_three =
        |name: &str, on: &str, at: &NodeBoot| Registration { policy, ..registration(name, on, at) };
    let mut tokens = Vec::new();
    for (nth, on) in ["phone", "web", "tablet"].into_iter().enumerate() {
        let at = if nth == 0 { &a } else { &b };
        tokens.push(world.port().register(of_three("ann", on, at)).await.unwrap().token);
    }
    let refused = world.port().register(of_three("ann", "watch", &a)).await;
    assert_eq!(refused, Err(RoutesError::TooManyDevices));
    let rows = world.port().lookup(&[user("ann")]).await.unwrap().remove(0);
    assert_eq!(rows.len(), 3, "nothing changed");
    let listed = world.port().rows_of(&a, None, 9).await.unwrap();
    assert_eq!(listed, [row("ann", "phone", &tokens[0])], "a refused login leaves no entry");
    let again = world.port().register(of_three("ann", "phone", &b)).await.unwrap();
    assert_eq!(again.replaced, Some(tokens[0].clone()), "a present device is replaced");
    assert!(
        world.port().register(of_three("bob", "watch", &a)).await.is_ok(),
        "others have their own devices"
    );
    let rows = [row("ann", "web", &tokens[1])];
    assert_eq!(world.port().reassert(&rows).await.unwrap(), [true], "a present row may be re-asserted");
    assert!(world.remove(&rows[0]).await);
    assert!(
        world.port().register(of_three("ann", "watch", &a)).await.is_ok(),
        "a removed device is not counted"
    );
    world.login("ann", "unlimited", &a).await;
}

async fn x2_removed_devices_leave_little(world: &World) {
    let a = node("a", 1);
    let kept = world.login("ann", "phone", &a).await.token;
    let mut first = None;
    for n in 0..1_000 {
        let on = format!("device-{n}");
        let token = world.login("ann", &on, &a).await.token;
        assert!(world.port().remove(&[row("ann", &on, &token)]).await.unwrap()[0]);
        first.get_or_insert(token);
    }
    let first = first.expect("a thousand");
    assert!(world.stored_fields("ann") <= 100, "{} fields", world.stored_fields("ann"));
    world.assert_registered("ann", &kept).await;
    // A device whose removal is no longer remembered by itself gets a higher epoch nevertheless, and a late
    // re-assertion of its old row is refused where it is remembered.
    assert!(!world.remove(&row("ann", "device-0", &first)).await, "deleted once");
    let second = world.login("ann", "device-0", &a).await.token;
    assert!(second.epoch > first.epoch);
    assert_eq!(world.port().reassert(&[row("ann", "device-0", &first)]).await.unwrap(), [false]);
}

#[test]
fn memory_answers_at_the_first_poll() {
    let routes = memory().port();
    let a = node("a", 1);
    let token = at_once(routes.register(registration("ann", "phone", &a))).unwrap().token;
    at_once(routes.reassert(&[row("ann", "phone", &token)])).unwrap();
    at_once(routes.lookup(&[user("ann")])).unwrap();
    at_once(routes.remove(&[row("ann", "phone", &token)])).unwrap();
    at_once(routes.renew(&info(&a))).unwrap();
    at_once(routes.nodes()).unwrap();
    at_once(routes.declare(&a, &[(group("g"), 1)])).unwrap();
    at_once(routes.interested(&[group("g")])).unwrap();
    at_once(routes.rows_of(&a, None, 1)).unwrap();
    at_once(routes.retire(&a, Retire::Leaving)).unwrap();
}
