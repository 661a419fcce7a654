//! Cases of the device policy: which sessions of a user a registration replaces.

use tidegate::routes::{DevicePolicy, NodeBoot, OnePer, Registered, Registration, Route, RoutesError, Token};
use tidegate_protocol::id::DeviceId;

use super::{
    super::{device, node, user},
    registration, row,
    world::World,
};

fn one_per(one_per: OnePer) -> DevicePolicy {
    DevicePolicy { one_per, ..DevicePolicy::default() }
}

async fn login(world: &World, on: &str, at: &NodeBoot, policy: DevicePolicy) -> Registered {
    world.port().register(Registration { policy, ..registration("ann", on, at) }).await.unwrap()
}

async fn rows(world: &World) -> Vec<(DeviceId, Token)> {
    world.port().lookup(&[user("ann")]).await.unwrap().remove(0)
}

fn names(evicted: &[(DeviceId, Token)]) -> Vec<&str> {
    let mut names: Vec<&str> = evicted.iter().map(|(device, _)| device.as_str()).collect();
    names.sort_unstable();
    names
}

pub(super) async fn one_session_of_a_class_stays(world: &World) {
    let (a, b, policy) = (node("a", 1), node("b", 1), one_per(OnePer::Class));
    let first = login(world, "phone-1a2b", &a, policy).await;
    let desktop = login(world, "desktop-1a2b", &b, policy).await;
    assert_eq!((&first.evicted[..], &desktop.evicted[..]), (&[][..], &[][..]), "other classes");
    let second = login(world, "phone-9z8y", &b, policy).await;
    assert_eq!(second.evicted, [(device("phone-1a2b"), first.token.clone())]);
    assert!(second.token.epoch > first.token.epoch, "the newest epoch wins");
    assert_eq!(second.replaced, None, "it is another device");
    assert_eq!(rows(world).await.len(), 3, "a row stays until its own connection is closed");
    let again = login(world, "phone-9z8y", &a, policy).await;
    assert_eq!((again.replaced, names(&again.evicted)), (Some(second.token), vec!["phone-1a2b"]));
    assert!(
        world.remove(&row("ann", "phone-1a2b", &first.token)).await,
        "by its own connection, which tells of it"
    );
    assert_eq!(login(world, "phone-9z8y", &a, policy).await.evicted, []);
}

pub(super) async fn one_session_of_a_user_stays_and_tabs_stay_together(world: &World) {
    let (a, policy) = (node("a", 1), one_per(OnePer::User));
    login(world, "web-7f3a-1", &a, policy).await;
    assert_eq!(login(world, "web-7f3a-2", &a, policy).await.evicted, [], "another tab of the browser");
    assert_eq!(login(world, "web-7f3a", &a, policy).await.evicted, []);
    let phone = login(world, "phone", &a, policy).await;
    assert_eq!(names(&phone.evicted), ["web-7f3a", "web-7f3a-1", "web-7f3a-2"]);
    let web = login(world, "web-7f3a-1", &a, policy).await;
    assert_eq!(names(&web.evicted), ["phone", "web-7f3a", "web-7f3a-2"], "what the phone had replaced");
    let bob = Registration { policy, ..registration("bob", "phone", &a) };
    assert_eq!(world.port().register(bob).await.unwrap().evicted, [], "another user");
}

pub(super) async fn oldest_session_is_replaced_at_the_limit(world: &World) {
    let a = node("a", 1);
    let policy = DevicePolicy { max: 2, replaces_oldest: true, ..DevicePolicy::default() };
    let phone = login(world, "phone", &a, policy).await.token;
    login(world, "desktop", &a, policy).await;
    let phone_again = login(world, "phone", &a, policy).await;
    assert_eq!((phone_again.replaced, names(&phone_again.evicted)), (Some(phone), vec![]), "it is newer now");
    assert_eq!(names(&login(world, "watch", &a, policy).await.evicted), ["desktop"]);
    assert_eq!(names(&login(world, "car", &a, policy).await.evicted), ["desktop", "phone"]);
    // A session that is replaced by its class does not count.
    let by_class = DevicePolicy { one_per: OnePer::Class, max: 5, ..DevicePolicy::default() };
    assert_eq!(names(&login(world, "car-2b", &a, by_class).await.evicted), ["car"]);
    let further = Registration { policy: by_class, ..registration("ann", "tablet", &a) };
    assert_eq!(names(&world.port().register(further).await.unwrap().evicted), ["car"]);
    let sixth = Registration { policy: by_class, ..registration("ann", "tv", &a) };
    assert_eq!(world.port().register(sixth).await, Err(RoutesError::TooManyDevices));
}

pub(super) async fn of_racing_logins_the_newest_replaces_all_others(world: &World) {
    let (a, b) = (node("a", 1), node("b", 1));
    let oldest = DevicePolicy { max: 3, replaces_oldest: true, ..DevicePolicy::default() };
    for (policy, staying) in [(one_per(OnePer::User), 1), (one_per(OnePer::Class), 2), (oldest, 3)] {
        let logins = (0..16).map(|n| {
            let (port, at) = (world.port(), if n % 3 == 0 { a.clone() } else { b.clone() });
            let on = if n % 2 == 0 { format!("phone-{n:04}") } else { format!("web-{n:04}") };
            let registration = Registration { policy, ..registration("ann", &on, &at) };
            tokio::spawn(async move { (device(&on), port.register(registration).await.unwrap()) })
        });
        let mut evicted = Vec::new();
        for login in logins.collect::<Vec<_>>() {
            evicted.extend(login.await.unwrap().1.evicted);
        }
        let mut rows = rows(world).await;
        rows.sort_by_key(|(_, token)| token.epoch);
        let is_replaced = |(on, token): &(DeviceId, Token)| {
            let route = Route { user: user("ann"), device: on.clone(), token: token.clone() };
            policy.is_replaced(&route, &rows)
        };
        let left: Vec<_> = rows.iter().filter(|row| !is_replaced(row)).collect();
        assert_eq!(left.len(), staying, "{policy:?} {rows:?}");
        assert_eq!(left.last(), Some(&&rows[15]), "the newest stays");
        for row in &rows {
            assert_eq!(evicted.contains(row), is_replaced(row), "{row:?}: exactly the others were stopped");
        }
        for (on, token) in rows.clone() {
            assert!(world.remove(&Route { user: user("ann"), device: on, token }).await);
        }
    }
}
