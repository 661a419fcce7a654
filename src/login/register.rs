//! Registration of a login: settings, the route of the device, the replaced session and the saved chain.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
    settings::{UserSettings, Visibility},
};
use tokio::time;

use super::{
    PORT_RETRY_INTERVAL,
    step_times::StepTimes,
    takeover::{resolve_doubt, stop_elsewhere},
};
use crate::{
    auth::TokenTerm,
    cluster::Cluster,
    link::RoutedSession,
    log_limit::log_limited,
    mail::{ConnKey, LoginDone, LoginError, ShardHandles},
    routes::{DevicePolicy, Registered, Registration, Route, Routes, RoutesError, Token},
    store::Store,
};

/// How long a login tries to register before it is refused (ADR 17). On a busy machine the routes may be late for a
/// moment. Thousands of clients that are refused then return at once, and each new login costs more than one that
/// waits, so the overload would not end.
const ROUTES_MAX: Duration = Duration::from_secs(2);

/// Age at which a login is refused instead of registered. Its client may have given it up and logged in elsewhere, and the
/// late registration would replace that newer login, or late settings those of it.
const LOGIN_AGE_MAX: Duration = Duration::from_secs(5);

/// Reason of the refusal of a login that is too late.
pub const TOO_LATE: &str = "the login was delayed for too long on this node; log in again";

/// Reason of the refusal of a login that asks not to be shown as online, if that can't be stored.
const NOT_HIDDEN: &str = "the setting `presence` can't be stored at present; log in again";

/// Hello that a login belongs to.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedHello {
    /// Connection that sent it.
    pub connection: ConnKey,
    /// Time at which it was handled.
    pub at: time::Instant,
}

/// Stores the user's settings, registers the device's route and loads its chain; the newest login wins at once, over
/// the sessions that the policy lets it replace.
///
/// A login is not registered later than [`LOGIN_AGE_MAX`] after its hello.
pub async fn login(
    cluster: Arc<Cluster>,
    user: UserId,
    device: DeviceId,
    now: UserSettings,
    policy: DevicePolicy,
    shards: ShardHandles,
    hello: ReceivedHello,
) -> Result<LoginDone, LoginError> {
    // The settings come first, because the store may wait for a disk. From the registration until the shard has the
    // result nothing may wait: otherwise the mail of a newer login that replaces this one would arrive first and find
    // no session. Of lost settings only the wish not to be seen is a reason to refuse.
    let mut steps = StepTimes::begin();
    let settings = merged_settings(&*cluster.ports.store, &user, now, hello.at + LOGIN_AGE_MAX).await?;
    steps.done("settings");
    let registration = Registration {
        user: user.clone(),
        device: device.clone(),
        at: cluster.me.clone(),
        above: 0,
        only_if: None,
        policy,
    };
    let doubt = |token| {
        resolve_doubt(
            &cluster,
            Route { user: user.clone(), device: device.clone(), token },
            Arc::clone(&shards),
        );
    };
    let registered = register(&*cluster.ports.routes, registration, doubt).await.map_err(|error| {
        if error == RoutesError::TooManyDevices {
            return LoginError { code: Code::TooManyDevices, reason: "" };
        }
        log_limited!(warn, %error, "registration failed; login refused");
        LoginError { code: Code::Overloaded, reason: "logins are temporarily unavailable; try again" }
    })?;
    steps.done("route");
    let own = registered.replaced.map(|old| (device.clone(), old));
    let old = own.into_iter().chain(registered.evicted);
    let old = old.map(|(device, it)| (it.at, RoutedSession { user: user.clone(), device, epoch: it.epoch }));
    let (here, elsewhere): (Vec<_>, Vec<_>) = old.partition(|(at, _)| *at == cluster.me);
    if !elsewhere.is_empty() {
        join_all(elsewhere.into_iter().map(|(at, session)| stop_elsewhere(&cluster, at, session))).await;
        steps.done("replaced");
    }
    let replaced = here.into_iter().map(|(_, session)| session).collect();
    // A lost chain is no reason to refuse: the client declares its own next id, and retries of done ids are acked.
    let chain = cluster.ports.scratch.load_chain(&user, &device).await.unwrap_or_default();
    steps.done("chain");
    let route = Route { user, device, token: registered.token };
    steps.log(hello.connection, &route, "registered");
    Ok(LoginDone { route, replaced, chain, grants: None, term: TokenTerm::default(), settings })
}

/// Merges the settings of a login into those of the user, unless that takes until `late_at`.
async fn merged_settings(
    store: &dyn Store,
    user: &UserId,
    now: UserSettings,
    late_at: time::Instant,
) -> Result<UserSettings, LoginError> {
    let refused = |reason| LoginError { code: Code::Overloaded, reason };
    let in_time = || if time::Instant::now() < late_at { Ok(()) } else { Err(refused(TOO_LATE)) };
    in_time()?;
    let merged = time::timeout_at(late_at, store.merge_settings(user, now)).await;
    let settings = match merged.map_err(|_| refused(TOO_LATE))? {
        Ok(merged) => merged,
        // Others would see the user, who asked not to be seen.
        Err(_) if now.presence == Some(Visibility::Off) => return Err(refused(NOT_HIDDEN)),
        Err(error) => {
            log_limited!(warn, %error, "failed to store the settings of a login; using those it sent");
            now
        }
    };
    in_time()?;
    Ok(settings)
}

/// Registers the route, retrying for [`ROUTES_MAX`]. A registration whose reply is lost is passed to `doubt` and
/// repeated with a higher epoch, so the retry wins in either order.
async fn register(
    routes: &dyn Routes,
    mut registration: Registration,
    doubt: impl Fn(Token),
) -> Result<Registered, RoutesError> {
    let until = time::Instant::now() + ROUTES_MAX;
    loop {
        let error = match routes.register(registration.clone()).await {
            Err(error @ (RoutesError::Unavailable(_) | RoutesError::Unknown(_))) => error,
            Err(RoutesError::InDoubt { why, token }) => {
                registration.above = registration.above.max(token.epoch);
                doubt(token.clone());
                RoutesError::InDoubt { why, token }
            }
            other => return other,
        };
        if time::Instant::now() >= until {
            return Err(error);
        }
        time::sleep(PORT_RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tidegate_protocol::{Time, id::NodeId};

    use super::*;
    use crate::{
        fault::{Fault, FaultPlan, Faulty, Gate},
        link::LocalLink,
        ports::Ports,
        routes::{Leases, MemoryRoutes, NodeBoot},
    };

    fn cluster() -> Arc<Cluster> {
        Arc::new(Cluster::new(registration().at, Ports::in_memory(Arc::new(LocalLink))))
    }

    #[tokio::test(start_paused = true)]
    async fn s81_login_that_waited_too_long_is_not_registered() {
        let cluster = cluster();
        for (waited, is_registered) in
            [(LOGIN_AGE_MAX, false), (LOGIN_AGE_MAX - Duration::from_millis(1), true)]
        {
            let connection = ConnKey { shard: 0, slot: 0, generation: 0 };
            let hello = ReceivedHello { connection, at: time::Instant::now() };
            time::advance(waited).await;
            let Registration { user, device, .. } = registration();
            let (settings, policy) = (UserSettings::default(), DevicePolicy::default());
            let done =
                login(Arc::clone(&cluster), user.clone(), device, settings, policy, Arc::default(), hello)
                    .await;
            assert_eq!(done.map_err(|error| error.code).err(), (!is_registered).then_some(Code::Overloaded));
            let rows = cluster.ports.routes.lookup(&[user]).await.unwrap();
            assert_eq!(rows.concat().len(), usize::from(is_registered));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn settings_of_a_login_that_is_too_late_undo_no_later_ones() {
        let (plan, gate) = (FaultPlan::none(), Gate::new());
        plan.plan("merge_settings", Fault::Hold(gate.clone()));
        let mut ports = Ports::in_memory(Arc::new(LocalLink));
        ports.store = Arc::new(Faulty::<dyn Store>::new(ports.store, plan));
        let cluster = Arc::new(Cluster::new(registration().at, ports));
        let Registration { user, device, policy, .. } = registration();
        let connection = ConnKey { shard: 0, slot: 0, generation: 0 };
        let hello = ReceivedHello { connection, at: time::Instant::now() };
        let asked = |presence| UserSettings { presence: Some(presence), ..UserSettings::default() };
        let (late, later) = (asked(Visibility::Off), asked(Visibility::On));
        let mut login =
            Box::pin(login(Arc::clone(&cluster), user.clone(), device, late, policy, Arc::default(), hello));
        assert!(login.as_mut().now_or_never().is_none());
        time::advance(LOGIN_AGE_MAX).await;
        let done = login.as_mut().now_or_never().expect("it waits no longer");
        assert_eq!(done.map_err(|error| error.code).err(), Some(Code::Overloaded));
        assert_eq!(cluster.ports.store.merge_settings(&user, later).await, Ok(later));
        gate.open();
        assert_eq!(cluster.ports.store.settings_of(&[user]).await, Ok(vec![later]));
    }

    fn registration() -> Registration {
        Registration {
            user: UserId::new("ann").unwrap(),
            device: DeviceId::new("phone").unwrap(),
            at: NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 },
            above: 0,
            only_if: None,
            policy: DevicePolicy::default(),
        }
    }

    /// Registers over routes of which `times` calls fail. Returns the result, the number of calls, the time taken and
    /// the doubtful epochs.
    async fn after(fault: Fault, times: usize) -> (Result<Registered, RoutesError>, u64, Duration, Vec<u64>) {
        let (plan, begun) = (FaultPlan::none(), time::Instant::now());
        (0..times).for_each(|_| plan.plan("register", fault.clone()));
        let memory = Arc::new(MemoryRoutes::new(0, Leases::default(), || Time::ZERO));
        let routes = Faulty::<dyn Routes>::new(memory as Arc<dyn Routes>, Arc::clone(&plan));
        let doubts = parking_lot::Mutex::new(Vec::new());
        let registered = register(&routes, registration(), |token| doubts.lock().push(token.epoch)).await;
        (registered, plan.calls("register"), begun.elapsed(), doubts.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn login_retries_unavailable_routes_for_a_limited_time() {
        let (registered, calls, took, doubts) = after(Fault::Fail, 5).await;
        assert!(registered.is_ok(), "{registered:?}");
        assert_eq!((calls, took, doubts.len()), (6, 5 * PORT_RETRY_INTERVAL, 0));
        let (registered, _, took, _) = after(Fault::Fail, 100).await;
        assert!(matches!(registered, Err(RoutesError::Unavailable(_))), "{registered:?}");
        assert!((ROUTES_MAX..=ROUTES_MAX + PORT_RETRY_INTERVAL).contains(&took), "{took:?}");
    }

    /// Covers flaws S1 and S2.
    #[tokio::test(start_paused = true)]
    async fn lost_registration_is_reported_and_repeated_above_its_epoch() {
        let (registered, calls, took, doubts) = after(Fault::LoseAnswer, 2).await;
        let token = registered.unwrap().token;
        assert_eq!((calls, took, doubts.len()), (3, 2 * PORT_RETRY_INTERVAL, 2));
        assert!(doubts[0] < doubts[1] && doubts[1] < token.epoch, "{doubts:?} {token}");
        let (registered, calls, _, doubts) = after(Fault::LoseAnswer, 100).await;
        assert!(matches!(registered, Err(RoutesError::InDoubt { .. })), "{registered:?}");
        assert_eq!(doubts.len() as u64, calls, "each may take effect, the last one too");
    }
}
