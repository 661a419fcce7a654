//! Redis that hangs, restarts, loses its scripts, fails over or requires TLS: calls end in time and recover by
//! themselves.

use std::{
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tidegate::{
    config, private,
    routes::{Leases, NodeBoot, RedisRoutes, Registration, Routes, RoutesError, Token},
};

use crate::{
    device, node,
    redis::{Server, Version, tls_cluster},
    routes::info,
    time::{Stopwatch, WAIT_MAX, eventually_async},
    user,
};

const CALL_TIMEOUT: Duration = Duration::from_millis(200);

fn routes(config: &config::RedisConfig) -> Arc<RedisRoutes> {
    Arc::new(RedisRoutes::connect(config, Leases::default()).unwrap())
}

fn registration(name: &str, at: &NodeBoot) -> Registration {
    Registration {
        user: user(name),
        device: device("phone"),
        at: at.clone(),
        above: 0,
        only_if: None,
        policy: tidegate::routes::DevicePolicy::default(),
    }
}

async fn lookup(routes: &RedisRoutes, name: &str) -> Result<usize, RoutesError> {
    routes.lookup(&[user(name)]).await.map(|rows| rows[0].len())
}

/// Waits until the routes work again; returns the time that took.
async fn eventually(routes: &RedisRoutes) -> Duration {
    let begun = Stopwatch::start();
    eventually_async(WAIT_MAX, "the routes work again", async || lookup(routes, "ann").await.ok()).await;
    begun.elapsed()
}

/// Returns the number of ann's rows, with retries on a slow machine.
async fn rows_of_ann(routes: &RedisRoutes) -> usize {
    let begun = Stopwatch::start();
    loop {
        eventually(routes).await;
        match lookup(routes, "ann").await {
            Ok(rows) => return rows,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(10), "{error}"),
        }
    }
}

/// Registers ann, with retries on a slow machine.
async fn register_ann(routes: &RedisRoutes, at: &NodeBoot) -> Token {
    let begun = Stopwatch::start();
    loop {
        eventually(routes).await;
        match routes.register(registration("ann", at)).await {
            Ok(registered) => return registered.token,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(10), "{error}"),
        }
    }
}

#[tokio::test]
async fn hanging_server_costs_one_deadline() {
    let server = Server::start(Version::V7);
    let (routes, a) = (routes(&server.config()), node("a", 1));
    let before = register_ann(&routes, &a).await;
    server.signal(Signal::STOP);
    for _ in 0..3 {
        let begun = Instant::now();
        assert!(matches!(lookup(&routes, "ann").await, Err(RoutesError::Unknown(_))));
        assert!(begun.elapsed() >= CALL_TIMEOUT, "the first call waits for the server");
    }
    // Now the server is known to be unavailable: calls fail at once, except for an occasional probe.
    let (begun, mut refused) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(1) {
        let call = Instant::now();
        match lookup(&routes, "ann").await {
            Err(RoutesError::Unavailable(_)) if call.elapsed() < CALL_TIMEOUT / 4 => refused += 1,
            Err(_) => {}
            Ok(rows) => panic!("{rows} rows from a server that is stopped"),
        }
        tokio::task::yield_now().await;
    }
    assert!(refused > 100, "{refused}");
    server.signal(Signal::CONT);
    let back = eventually(&routes).await;
    assert!(back < Duration::from_millis(1_500), "{back:?}");
    // The lease learns that the server is slow until the outage is known.
    server.signal(Signal::STOP);
    let late = routes.nodes().await;
    server.signal(Signal::CONT);
    assert!(matches!(late, Err(RoutesError::Late(_))), "{late:?}");
    eventually(&routes).await;
    assert_eq!(rows_of_ann(&routes).await, 1);
    assert!(register_ann(&routes, &a).await.epoch > before.epoch);
}

#[tokio::test]
async fn s33_missing_scripts_are_loaded_again() {
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let (routes, a) = (routes(&server.patient()), node("a", 1));
        for n in 0..3 {
            let names: Vec<_> = (0..40).map(|n| format!("u{n}")).collect();
            let mut rows = Vec::new();
            for name in &names {
                let token = routes.register(registration(name, &a)).await.unwrap().token;
                rows.push(tidegate::routes::Route { user: user(name), device: device("phone"), token });
            }
            let _: String = server.ask(&["SCRIPT", "FLUSH"]);
            assert_eq!(routes.reassert(&rows).await.unwrap(), vec![true; 40], "a whole pipeline, {n}");
            let _: String = server.ask(&["SCRIPT", "FLUSH"]);
            assert_eq!(routes.remove(&rows).await.unwrap(), vec![true; 40]);
        }
    }
}

#[tokio::test]
async fn departure_stays_listed_until_its_second_removal() {
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let (routes, a) = (routes(&server.patient()), node("a", 1));
        let token = routes.register(registration("ann", &a)).await.unwrap().token;
        let rows = [tidegate::routes::Route { user: user("ann"), device: device("phone"), token }];
        assert_eq!(routes.remove(&rows).await, Ok(vec![true]));
        assert_eq!(routes.rows_of(&a, None, 9).await.unwrap(), rows, "the departure is not published yet");
        assert_eq!(routes.remove(&rows).await, Ok(vec![false]));
        assert_eq!(routes.rows_of(&a, None, 9).await.unwrap(), []);
    }
}

#[tokio::test]
async fn restarted_server_is_used_again_within_a_second() {
    let server = Server::start(Version::V7);
    let (routes, a) = (routes(&server.config()), node("a", 1));
    let first = register_ann(&routes, &a).await;
    server.kill();
    for _ in 0..4 {
        let begun = Stopwatch::start();
        assert!(lookup(&routes, "ann").await.is_err());
        assert!(begun.elapsed() <= CALL_TIMEOUT * 2);
    }
    assert!(matches!(routes.register(registration("ann", &a)).await, Err(RoutesError::Unavailable(_))));
    assert!(server.run());
    let back = eventually(&routes).await;
    assert!(back < Duration::from_secs(1), "{back:?}");
    assert_eq!(rows_of_ann(&routes).await, 0, "the restarted server is empty");
    assert!(register_ann(&routes, &a).await.epoch > first.epoch, "S9");
}

#[tokio::test]
async fn read_only_server_is_distinguished_from_a_lost_reply() {
    let (server, master) = (Server::start(Version::V7), Server::start(Version::V7));
    let routes = routes(&server.patient());
    let _: String = server.ask(&["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    let refused = routes.register(registration("ann", &node("a", 1))).await;
    assert!(matches!(refused, Err(RoutesError::Unavailable(_))), "{refused:?}");
    let _: String = server.ask(&["REPLICAOF", "NO", "ONE"]);
    eventually(&routes).await;
    assert_eq!(routes.register(registration("ann", &node("a", 1))).await.unwrap().replaced, None);
}

/// Writes a file that only this account may read.
fn write_secret(file: &Path, text: &str) {
    let mut file = private::options().create(true).truncate(true).open(file).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[tokio::test]
async fn password_is_read_from_its_file_and_a_wrong_one_reported() {
    let of_a_user = ["ACL", "SETUSER", "tide", "on", ">secret", "~*", "+@all"];
    let of_all = ["CONFIG", "SET", "requirepass", "secret"];
    for version in [Version::V7, Version::V62] {
        for (username, words) in [("tide", &of_a_user[..]), ("", &of_all)] {
            let server = Server::start(version);
            let _: String = server.ask(words);
            let file = server.folder.join("password");
            let config = config::RedisConfig {
                username: username.to_owned(),
                password_file: file.clone(),
                ..server.patient()
            };
            let missing = RedisRoutes::connect(&config, Leases::default()).err().unwrap().to_string();
            assert!(missing.contains("redis.password_file"), "{missing}");
            fs::write(&file, "secret\n").unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
            let open = RedisRoutes::connect(&config, Leases::default()).err().unwrap().to_string();
            assert!(open.contains("redis.password_file") && open.contains("chmod 600"), "{open}");
            fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
            write_secret(&file, "wrong\n");
            let wrong = lookup(&routes(&config), "ann").await;
            assert!(
                matches!(&wrong, Err(RoutesError::Unavailable(why)) if !why.contains("wrong")),
                "{wrong:?}"
            );
            write_secret(&file, "secret\n");
            assert_eq!(lookup(&routes(&config), "ann").await, Ok(0), "{version:?} {words:?}");
        }
    }
}

#[tokio::test]
async fn acl_user_limited_to_the_prefix_is_enough() {
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let rules = ["on", ">secret", "~tg:*", "+@all", "-@admin", "-@dangerous"];
        let _: String = server.ask(&[&["ACL", "SETUSER", "tide"], &rules[..]].concat());
        let _: String = server.ask(&["ACL", "SETUSER", "default", "-@all", "+ping"]);
        let file = server.folder.join("password");
        write_secret(&file, "secret\n");
        let open = server.patient();
        let config = config::RedisConfig { username: "tide".to_owned(), password_file: file, ..open.clone() };
        let (mine, a) = (routes(&config), node("a", 1));
        assert_eq!(mine.renew(&info(&a)).await, Ok(1), "{version:?}");
        mine.register(registration("ann", &a)).await.unwrap();
        assert_eq!((lookup(&mine, "ann").await, mine.nodes().await.unwrap().len()), (Ok(1), 1));
        let others = config::RedisConfig { prefix: "other".to_owned(), ..config };
        for denied in [routes(&open), routes(&others)] {
            let refused = lookup(&denied, "ann").await;
            assert!(matches!(refused, Err(RoutesError::Unavailable(_))), "{version:?}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn resp3_is_used_with_both_versions() {
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        assert_eq!(lookup(&routes(&server.patient()), "ann").await, Ok(0));
        let known: String = server.ask(&["INFO", "commandstats"]);
        assert!(known.contains("cmdstat_hello:calls=1,"), "{version:?} was not asked for it: {known}");
    }
}

#[tokio::test]
async fn master_named_by_sentinels_is_used_and_followed() {
    for version in [Version::V7, Version::V62] {
        follows_sentinels_of(version).await;
    }
}

/// The time of a call is too short to find out that the first sentinel hangs and to ask the next: the connection is
/// opened in the background.
#[tokio::test]
async fn hanging_first_sentinel_blocks_no_client() {
    let master = Server::start(Version::V7);
    let sentinels: Vec<Server> = (0..3).map(|_| Server::sentinel(&master)).collect();
    let urls = sentinels.iter().flat_map(|sentinel| sentinel.config().urls).collect();
    let config = config::RedisConfig { mode: "sentinel".to_owned(), urls, ..master.config() };
    sentinels[0].signal(Signal::STOP);
    let routes = routes(&config);
    let begun = Stopwatch::start();
    assert!(matches!(lookup(&routes, "ann").await, Err(RoutesError::Unavailable(_))));
    assert!(begun.elapsed() <= CALL_TIMEOUT * 2, "a call has its deadline: {:?}", begun.elapsed());
    // The driver gives the first sentinel a second.
    let found = eventually(&routes).await;
    assert!(found < Duration::from_secs(3), "{found:?}");
    // The connection is lost again, while the first sentinel still hangs.
    let _: i64 = master.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    let again = eventually(&routes).await;
    assert!(again < Duration::from_secs(3), "{again:?}");
    sentinels[0].signal(Signal::CONT);
}

async fn follows_sentinels_of(version: Version) {
    let (master, replica) = (Server::start(version), Server::start(version));
    let port = master.port.to_string();
    let _: String = replica.ask(&["REPLICAOF", "127.0.0.1", &port]);
    let sentinel = Server::sentinel(&master);
    let config = config::RedisConfig { mode: "sentinel".to_owned(), ..sentinel.patient() };
    let (routes, a) = (routes(&config), node("a", 1));
    let old = routes.register(registration("ann", &a)).await.unwrap().token;
    assert_eq!(routes.renew(&info(&a)).await, Ok(1));
    let knows = |server: &Server| server.try_ask::<String>(&["INFO", "replication"]).unwrap_or_default();
    crate::time::eventually("the replica is in step", || {
        let seen: Vec<redis::Value> = sentinel.ask(&["SENTINEL", "REPLICAS", "tidegate"]);
        (knows(&replica).contains("master_link_status:up") && !seen.is_empty()).then_some(())
    });
    crate::time::eventually("the sentinel lists the replica", || {
        sentinel.try_ask::<String>(&["SENTINEL", "FAILOVER", "tidegate"]).ok()
    });
    crate::time::eventually("the replica is promoted", || {
        knows(&replica).contains("role:master").then_some(())
    });
    // The connection breaks, and the sentinel names the new master.
    master.kill();
    let begun = Stopwatch::start();
    let new = loop {
        match routes.register(registration("ann", &a)).await {
            Ok(registered) => break registered,
            // The sentinel polls once a second, and up to 0.8 s pass between two attempts.
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(3), "{error}"),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(new.replaced, Some(old), "the row was replicated");
    let row: String = replica.ask(&["HGET", "tg:route:{ann}", "phone"]);
    assert_eq!(row, new.token.to_string());
    // The renewal counter was replicated too; what was acked after it may be lost.
    assert!(matches!(routes.renew(&info(&a)).await, Err(RoutesError::Unknown(_))), "another server replies");
    assert_eq!(routes.renew(&info(&a)).await, Ok(3), "the loss is reported once");
}

#[tokio::test]
async fn reconnect_to_the_same_server_is_no_loss() {
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let file = server.folder.join("password");
        write_secret(&file, "secret\n");
        for (name, may_ask, beats) in [("knows", "+info", [1, 2]), ("asks", "-info", [1, 3])] {
            let rules = ["on", ">secret", "~tg:*", "+@all", "-@dangerous", may_ask];
            let _: String = server.ask(&[&["ACL", "SETUSER", name], &rules[..]].concat());
            let config = config::RedisConfig {
                username: name.to_owned(),
                password_file: file.clone(),
                ..server.patient()
            };
            let (routes, a) = (routes(&config), node(name, 1));
            assert_eq!(routes.renew(&info(&a)).await, Ok(beats[0]), "{version:?}");
            let _: i64 = server.ask(&["CLIENT", "KILL", "USER", name]);
            eventually(&routes).await;
            let renewed = routes.renew(&info(&a)).await;
            match may_ask {
                "+info" => assert_eq!(renewed, Ok(beats[1]), "{version:?}"),
                _ => {
                    assert!(matches!(renewed, Err(RoutesError::Unknown(_))), "{version:?}: {renewed:?}");
                    assert_eq!(routes.renew(&info(&a)).await, Ok(beats[1]), "{version:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn certificate_is_verified_with_tls() {
    // Version 7 only: the packaged 6.2 was built without TLS.
    let server = Server::tls();
    let config =
        config::RedisConfig { tls: true, tls_ca_file: server.folder.join("ca.pem"), ..server.patient() };
    assert_eq!(lookup(&routes(&config), "ann").await, Ok(0));
    let strange = config::RedisConfig { tls_ca_file: std::path::PathBuf::new(), ..config };
    let refused = lookup(&routes(&strange), "ann").await;
    assert!(matches!(refused, Err(RoutesError::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn cluster_masters_are_reached_and_verified_over_tls() {
    let servers = tls_cluster();
    let ca = servers[0].folder.join("ca.pem");
    // Each keeps only its TLS port.
    for server in &servers {
        let _: String = server.ask(&["CONFIG", "SET", "port", "0"]);
        assert!(server.try_ask::<String>(&["PING"]).is_err());
    }
    let config = config::RedisConfig { tls: true, tls_ca_file: ca, ..crate::redis::cluster_config(&servers) };
    // One server is enough to find the others.
    for urls in [config.urls.clone(), config.urls[1..2].to_vec()] {
        let routes = routes(&config::RedisConfig { urls, ..config.clone() });
        for nth in 0..30 {
            let name = format!("u{nth}");
            routes.register(registration(&name, &node("a", 1))).await.unwrap();
            assert_eq!(lookup(&routes, &name).await, Ok(1), "{name}");
        }
    }
    let strange = config::RedisConfig { tls_ca_file: std::path::PathBuf::new(), ..config.clone() };
    let bare = config::RedisConfig { tls: false, tls_ca_file: std::path::PathBuf::new(), ..config };
    for mistaken in [strange, bare] {
        let refused = lookup(&routes(&mistaken), "u0").await;
        assert!(matches!(refused, Err(RoutesError::Unavailable(_))), "{refused:?}");
    }
}
