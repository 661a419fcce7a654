//! Routes of each kind, with a way to let time pass and a way to lose everything.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate::{
    fault::{FaultPlan, Faulty},
    routes::{Leases, MemoryRoutes, NodeBoot, RedisRoutes, Registered, Route, Routes, RoutesError, Token},
};

use super::{
    super::{
        HandClock,
        redis::{self, Server, Version},
        user,
    },
    info, registration,
};

pub(super) const LEASES: Leases = Leases { node: Duration::from_secs(10), interest: Duration::from_secs(30) };

/// Routes of one adapter, with control over time and loss.
pub(super) struct World {
    routes: Mutex<Arc<dyn Routes>>,
    engine: Engine,
}

enum Engine {
    Memory { clock: HandClock, wrap: fn(Arc<dyn Routes>) -> Arc<dyn Routes> },
    Redis(Vec<Server>),
}

fn in_memory(wrap: fn(Arc<dyn Routes>) -> Arc<dyn Routes>) -> World {
    let clock = HandClock::default();
    World { routes: Mutex::new(wrap(fresh(&clock))), engine: Engine::Memory { clock, wrap } }
}

fn fresh(clock: &HandClock) -> Arc<dyn Routes> {
    let seen = clock.clone();
    Arc::new(MemoryRoutes::new(1_763_712_000_000 + clock.now().as_millis(), LEASES, move || seen.now()))
}

pub(super) fn memory() -> World {
    in_memory(|routes| routes)
}

pub(super) fn faultless() -> World {
    in_memory(|routes| Arc::new(Faulty::new(routes, FaultPlan::none())))
}

pub(super) fn on_redis(version: Version) -> World {
    let server = Server::start(version);
    let routes = RedisRoutes::connect(&server.patient(), LEASES).unwrap();
    World { routes: Mutex::new(Arc::new(routes)), engine: Engine::Redis(vec![server]) }
}

pub(super) fn on_a_cluster(version: Version) -> World {
    let servers = redis::cluster(version);
    let routes = RedisRoutes::connect(&redis::cluster_config(&servers), LEASES).unwrap();
    World { routes: Mutex::new(Arc::new(routes)), engine: Engine::Redis(servers) }
}

impl World {
    pub(super) fn port(&self) -> Arc<dyn Routes> {
        Arc::clone(&self.routes.lock().unwrap())
    }

    pub(super) async fn pass(&self, time: Duration) {
        match &self.engine {
            Engine::Memory { clock, .. } => clock.pass(time),
            Engine::Redis(servers) => servers.iter().for_each(|server| server.age(time)),
        }
    }

    /// Margin by which a moment is surely before another: a server's clock continues while a case runs.
    pub(super) fn slack(&self) -> Duration {
        match &self.engine {
            Engine::Memory { .. } => Duration::from_millis(1),
            Engine::Redis(_) => Duration::from_secs(4),
        }
    }

    /// Loses everything, as a restart without persistence does.
    pub(super) async fn lose_everything(&self) {
        match &self.engine {
            Engine::Memory { clock, wrap } => {
                clock.pass(Duration::from_millis(20));
                *self.routes.lock().unwrap() = wrap(fresh(clock));
            }
            Engine::Redis(servers) => {
                for server in servers {
                    let _: String = server.ask(&["FLUSHALL"]);
                }
            }
        }
    }

    /// Returns the number of fields that the servers store for a user.
    pub(super) fn stored_fields(&self, name: &str) -> usize {
        let Engine::Redis(servers) = &self.engine else { return 0 };
        let fields = |server: &Server| -> usize {
            let keys: Vec<String> = server.ask(&["KEYS", &format!("*route:{{{name}}}")]);
            keys.iter().map(|key| server.ask::<usize>(&["HLEN", key])).sum()
        };
        servers.iter().map(fields).sum()
    }

    pub(super) async fn login(&self, name: &str, on: &str, at: &NodeBoot) -> Registered {
        self.port().register(registration(name, on, at)).await.unwrap()
    }

    pub(super) async fn tokens(&self, name: &str) -> Vec<Token> {
        let rows = self.port().lookup(&[user(name)]).await.unwrap();
        rows[0].iter().map(|(_, token)| token.clone()).collect()
    }

    /// Asserts that the user's only row has this token.
    pub(super) async fn assert_registered(&self, name: &str, token: &Token) {
        assert_eq!(self.tokens(name).await.as_slice(), std::slice::from_ref(token));
    }

    /// Removes the row, and once more if it existed, as after its departure was published.
    pub(super) async fn remove(&self, row: &Route) -> bool {
        let rows = std::slice::from_ref(row);
        let gone = self.port().remove(rows).await.unwrap() == [true];
        assert!(!gone || self.port().remove(rows).await.unwrap() == [false], "deleted once");
        gone
    }

    pub(super) async fn renew(&self, at: &NodeBoot) -> Result<u64, RoutesError> {
        self.port().renew(&info(at)).await
    }
}
