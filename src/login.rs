//! Login: become the route of the device, and learn where its chain stands (DESIGN 6.4, 7).

use std::{sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, DeviceId, ID_BYTES_MAX, UserId},
    settings::UserSettings,
};
use tokio::{
    sync::{Semaphore, mpsc},
    time,
};

use crate::{
    delivery::local::Outbound,
    large_group::subscriber::Crowds,
    link::{LinkError, Session},
    mail::{ConnKey, LoginDone, LoginError, Mail, Reassert, ShardHandles},
    ports::Ports,
    routes::{NodeBoot, Registered, Registration, Route, Routes, RoutesError, Token},
    store::{Store, StoreError},
};

/// Memberships read from the store at a time.
const PAGE: usize = 1_000;

/// Logins whose groups are read at once: the store asks for many in one turn, and where it takes 200 ms for that, a node that another one
/// leaves its clients to lets in some hundred of them a second all the same.
const LOGINS_MAX: usize = 128;

/// How long a login waits for its groups; longer than its session waits for them.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Between two tries to stop a session elsewhere; how many while its successor waits, and how many after.
const STOP_AGAIN: Duration = Duration::from_millis(250);
const STOP_TRIES: u32 = 3;
const STOP_TRIES_LATER: u32 = 60;

/// How long its successor waits at most: a node that is frozen lets each try take its time (DESIGN 6.3).
const STOP_MAX: Duration = Duration::from_secs(1);
/// How long a registration whose answer was lost may still come to stand once the routes answer again: as long as its connection may take
/// to send it again.
const SET_MAX: Duration = Duration::from_secs(15);

/// Between two tries of a port that is away.
const AGAIN: Duration = Duration::from_millis(200);

/// How long a login tries to be registered before it is refused. On a busy machine the routes may be late for a moment; thousands who
/// are refused in that moment come back at once, and each login costs more than one that waits, so that the moment does not end.
const ROUTES_MAX: Duration = Duration::from_secs(2);

/// Keeps what the user wishes, registers the device's route and loads its chain; the newest login wins at once, whatever
/// was there.
pub async fn login(
    ports: Arc<Ports>,
    user: UserId,
    device: DeviceId,
    now: UserSettings,
    shards: ShardHandles,
) -> Result<LoginDone, LoginError> {
    // First what may wait for a disk: from the moment the route stands until its shard has the answer nothing may wait, or
    // the mail of a newer login that replaces it comes before it and finds nobody. Lost wishes are no reason to refuse.
    let mut steps = Steps::begin();
    let wishes = ports.store.wishes(&user, now).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the settings of a login could not be kept");
        now
    });
    steps.done("wishes");
    let wish = Registration {
        user: user.clone(),
        device: device.clone(),
        at: ports.me.clone(),
        above: 0,
        only_if: None,
    };
    let doubt = |token| {
        settle(&ports, Route { user: user.clone(), device: device.clone(), token }, Arc::clone(&shards));
    };
    let registered = register(&*ports.routes, wish, doubt).await.map_err(|error| {
        tracing::warn!(%error, "a login could not be registered");
        LoginError { code: Code::Overloaded, reason: "logins are not possible right now; try again" }
    })?;
    steps.done("route");
    let here = registered.replaced.as_ref().is_some_and(|old| old.at == ports.me);
    if let Some(old) = registered.replaced.filter(|_| !here) {
        let session = Session { user: user.clone(), device: device.clone(), epoch: old.epoch };
        stop_elsewhere(&ports, old.at, session).await;
        steps.done("replaced");
    }
    // A lost chain is no reason to refuse: the client declares its own next id, and retries of done ids are acked.
    let chain = ports.scratch.load_chain(&user, &device).await.unwrap_or_default();
    steps.done("chain");
    let route = Route { user, device, token: registered.token };
    steps.tell(&route, "registered");
    Ok(LoginDone { route, replaced: here, chain, wishes })
}

/// Tries for [`ROUTES_MAX`]. A registration whose answer was lost is told to `doubt`, and made again above its epoch: whichever
/// comes to stand first, the later one is newer.
async fn register(
    routes: &dyn Routes,
    mut wish: Registration,
    doubt: impl Fn(Token),
) -> Result<Registered, RoutesError> {
    let until = time::Instant::now() + ROUTES_MAX;
    loop {
        let error = match routes.register(wish.clone()).await {
            Err(error @ (RoutesError::Unavailable(_) | RoutesError::Unknown(_))) => error,
            Err(RoutesError::InDoubt { why, token }) => {
                wish.above = wish.above.max(token.epoch);
                doubt(token.clone());
                RoutesError::InDoubt { why, token }
            }
            other => return other,
        };
        if time::Instant::now() >= until {
            return Err(error);
        }
        time::sleep(AGAIN).await;
    }
}

/// Takes an epoch above `newest` for the connection that has this route, unless a newer connection has it (DESIGN 6.3): what
/// the ledger says when the clock by which epochs are given was set back.
///
/// # Errors
/// [`RoutesError::NotCurrent`] names the newer connection; with any other the route is as it was, or one epoch further on.
pub async fn renew(
    ports: Arc<Ports>,
    route: Route,
    newest: u64,
    shards: ShardHandles,
) -> Result<Route, RoutesError> {
    let wish = Registration {
        user: route.user.clone(),
        device: route.device.clone(),
        at: ports.me.clone(),
        above: newest,
        only_if: Some(route.token.clone()),
    };
    let registered = match ports.routes.register(wish.clone()).await {
        // Lost with everything else, and not put back yet.
        Err(RoutesError::NotCurrent(None)) => {
            ports.routes.reassert(std::slice::from_ref(&route)).await?;
            ports.routes.register(wish).await
        }
        other => other,
    };
    match registered {
        Ok(registered) => Ok(Route { token: registered.token, ..route }),
        Err(RoutesError::InDoubt { token, why }) => {
            let lost = Route { token, ..route };
            for _ in 0..STOP_TRIES {
                if let Ok(now) = row_of(&ports, &lost).await {
                    if now.as_ref() == Some(&lost.token) {
                        return Ok(lost);
                    }
                    break;
                }
                time::sleep(STOP_AGAIN).await;
            }
            settle(&ports, lost.clone(), shards);
            Err(RoutesError::InDoubt { why, token: lost.token })
        }
        Err(error) => Err(error),
    }
}

/// Which connection has the row of that device.
async fn row_of(ports: &Ports, route: &Route) -> Result<Option<Token>, RoutesError> {
    let rows = ports.routes.lookup(std::slice::from_ref(&route.user)).await?;
    let row = rows.into_iter().flatten().find(|(device, _)| *device == route.device);
    Ok(row.map(|(_, token)| token))
}

/// Has the session that was replaced stopped on its node, which this one may not have heard of yet. Goes on beside the login
/// when it takes long: until then the ledger voids what an older connection sends.
async fn stop_elsewhere(ports: &Arc<Ports>, at: NodeBoot, session: Session) {
    if matches!(time::timeout(STOP_MAX, try_stop(ports, &at, &session, STOP_TRIES)).await, Ok(true)) {
        return;
    }
    let ports = Arc::clone(ports);
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            if !try_stop(&ports, &at, &session, STOP_TRIES_LATER).await {
                tracing::warn!(peer = %at, "a replaced session was not stopped");
            }
        });
    }
}

/// A registration whose answer was lost may have replaced a session that nobody knows any more, for the next login finds this
/// one's route: so all nodes stop what is older than the route that stands. Where that is still this one's, which has no
/// connection, it is taken back (flaws S1, S2).
fn settle(ports: &Arc<Ports>, lost: Route, shards: ShardHandles) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let ports = Arc::clone(ports);
    runtime.spawn(async move {
        // Since there was an answer again: what is stuck on its way stays stuck as long as that.
        let (mut since, mut stopped) = (None, None);
        loop {
            match row_of(&ports, &lost).await {
                Ok(Some(token)) if token.epoch >= lost.token.epoch => {
                    if stopped.replace(token.epoch) != Some(token.epoch) {
                        stop_older(&ports, &lost, token.epoch, &shards).await;
                    }
                    // By its whole token: whoever took over meanwhile stays.
                    if token != lost.token || ports.routes.remove(std::slice::from_ref(&lost)).await.is_ok() {
                        return;
                    }
                }
                // An older one has it, or nobody, who puts it back that lost it: this one was not set so far.
                Ok(_) if since.get_or_insert_with(time::Instant::now).elapsed() >= SET_MAX => return,
                Ok(_) => {}
                Err(_) => since = None,
            }
            time::sleep(STOP_AGAIN).await;
        }
    });
}

/// On this node and on all others.
async fn stop_older(ports: &Arc<Ports>, lost: &Route, than: u64, shards: &ShardHandles) {
    for shard in shards.get().into_iter().flatten() {
        // A shard is gone only when the node stops, and then its clients are told so.
        shard.post(Mail::Replaced(lost.user.clone(), lost.device.clone(), than, None)).await.ok();
    }
    let Some(epoch) = than.checked_sub(1) else { return };
    for peer in ports.peers.others().iter() {
        let session = Session { user: lost.user.clone(), device: lost.device.clone(), epoch };
        stop_elsewhere(ports, peer.info.boot.clone(), session).await;
    }
}

/// True: it is stopped, or its node is gone.
async fn try_stop(ports: &Ports, at: &NodeBoot, session: &Session, tries: u32) -> bool {
    for _ in 0..tries {
        match ports.link.stop_sessions(at, vec![session.clone()]).await {
            Ok(_) | Err(LinkError::NotHere) => return true,
            Err(error) => tracing::debug!(%error, peer = %at, "a replaced session is not stopped yet"),
        }
        if !ports.peers.is_live(at) {
            ports.peers.look_again();
        }
        time::sleep(STOP_AGAIN).await;
    }
    false
}

/// How long each step of a login took, for who looks for the slow one; told at level `debug`.
struct Steps {
    since: time::Instant,
    all: Vec<(&'static str, Duration)>,
}

impl Steps {
    fn begin() -> Self {
        Self { since: time::Instant::now(), all: Vec::new() }
    }

    fn done(&mut self, what: &'static str) {
        let now = time::Instant::now();
        self.all.push((what, now - self.since));
        self.since = now;
    }

    fn tell(&self, route: &Route, done: &'static str) {
        tracing::debug!(user = %route.user, device = %route.device, steps = ?self.all, "a login is {done}");
    }
}

/// Answers logins where no owner has the whole log: each is told its groups, and whether its route still is its own.
/// Runs until the shards are gone.
pub async fn answer_all(
    mut logins: mpsc::Receiver<Vec<(ConnKey, Route)>>,
    ports: Arc<Ports>,
    crowds: Arc<Crowds>,
    outbound: impl Fn() -> Outbound,
) {
    let turns = Arc::new(Semaphore::new(LOGINS_MAX));
    while let Some(batch) = logins.recv().await {
        for (key, route) in batch {
            let mut steps = Steps::begin();
            // Nobody closes it.
            let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
            steps.done("turn");
            let (ports, crowds, out) = (Arc::clone(&ports), Arc::clone(&crowds), outbound());
            tokio::spawn(async move {
                answer(key, &route, &ports, &crowds, (out, &mut steps)).await;
                steps.tell(&route, "answered");
                drop(turn);
            });
        }
    }
}

/// The route of a connection is another's, with this epoch.
fn replaced(route: &Route, epoch: u64) -> Mail {
    Mail::Replaced(route.user.clone(), route.device.clone(), epoch, None)
}

/// The connection is indexed by now. One that was replaced before it was has not been found by who looked for it, so it
/// looks itself (flaws S1, S2).
async fn answer(
    key: ConnKey,
    route: &Route,
    ports: &Ports,
    crowds: &Crowds,
    (mut out, steps): (Outbound, &mut Steps),
) {
    let row = row_of(ports, route).await;
    steps.done("look");
    match row {
        Ok(Some(token)) if token.epoch > route.token.epoch => {
            return out.tell(key, replaced(route, token.epoch)).await;
        }
        Ok(Some(_)) | Err(_) => {}
        // Taken away while nobody had indexed it yet.
        Ok(None) => match ports.routes.reassert(std::slice::from_ref(route)).await {
            // A newer one had it, and is gone again.
            Ok(stands) if stands == [false] => {
                return out.tell(key, replaced(route, route.token.epoch.saturating_add(1))).await;
            }
            // Or it was taken away because its connection is gone: then nobody else does so again (flaws S2, S5).
            Ok(_) => {
                let settled = vec![(key, route.clone(), true)];
                out.tell(key, Mail::Reassert(Reassert::Settle(settled))).await;
            }
            Err(error) => tracing::debug!(%error, "a route that was lost was not put back"),
        },
    }
    // The session's own deadline ends it, and then nobody waits for this.
    let until = time::Instant::now() + ANSWER_MAX;
    while time::Instant::now() < until {
        let groups = groups_of(&*ports.store, &route.user).await;
        steps.done("groups");
        match groups {
            // What changed since is in the store.
            Ok(groups) => {
                if crowds.login(key, &route.user, groups).await {
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "a login waits for the store"),
        }
        time::sleep(AGAIN).await;
    }
}

/// A group in which a user is, as the store had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) group: ConversationId,
    /// Its last seq then.
    pub(crate) as_of: u64,
    /// How many members it had.
    pub(crate) members: u64,
}

/// The groups in which the user is, as of what is archived.
///
/// # Errors
/// When the store can't be read.
pub(crate) async fn groups_of(store: &dyn Store, user: &UserId) -> Result<Vec<Membership>, StoreError> {
    let mut groups = Vec::new();
    // Direct conversations come first, may be thousands, and are none of this.
    let mut after = last_direct();
    loop {
        let page = store.memberships(user, after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(groups) };
        after = Some(last.conversation.clone());
        let whole = page.len() < PAGE;
        let is_group = |id: &ConversationId| matches!(id.kind(), ConversationKind::Group(_));
        let mine = page.into_iter().filter(|row| row.standing.member.is_in() && row.head.deleted_seq == 0);
        let mine = mine.filter(|row| is_group(&row.conversation));
        groups.extend(mine.map(|row| Membership {
            group: row.conversation,
            as_of: row.head.last_seq,
            members: row.members,
        }));
        if whole {
            return Ok(groups);
        }
    }
}

/// The last key that a direct conversation can have.
fn last_direct() -> Option<ConversationId> {
    let user = UserId::new(&"z".repeat(ID_BYTES_MAX)).ok()?;
    Some(ConversationId::direct(&user, &user))
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::{Time, id::NodeId};

    use super::*;
    use crate::{
        fault::{Fault, FaultPlan, Faulty},
        routes::{Leases, MemoryRoutes},
    };

    fn wish() -> Registration {
        Registration {
            user: UserId::new("ann").unwrap(),
            device: DeviceId::new("phone").unwrap(),
            at: NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 },
            above: 0,
            only_if: None,
        }
    }

    /// Over routes of which so many calls fail: how it ended, after how many calls and how long, and what was in doubt.
    async fn after(fault: Fault, times: usize) -> (Result<Registered, RoutesError>, u64, Duration, Vec<u64>) {
        let (plan, begun) = (FaultPlan::none(), time::Instant::now());
        (0..times).for_each(|_| plan.plan("register", fault.clone()));
        let memory = Arc::new(MemoryRoutes::new(0, Leases::default(), || Time::ZERO));
        let routes = Faulty::<dyn Routes>::new(memory as Arc<dyn Routes>, Arc::clone(&plan));
        let doubts = std::sync::Mutex::new(Vec::new());
        let registered = register(&routes, wish(), |token| doubts.lock().unwrap().push(token.epoch)).await;
        (registered, plan.calls("register"), begun.elapsed(), doubts.into_inner().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_waits_for_routes_that_are_away_for_a_moment_and_not_longer() {
        let (registered, calls, took, doubts) = after(Fault::Fail, 5).await;
        assert!(registered.is_ok(), "{registered:?}");
        assert_eq!((calls, took, doubts.len()), (6, 5 * AGAIN, 0));
        let (registered, _, took, _) = after(Fault::Fail, 100).await;
        assert!(matches!(registered, Err(RoutesError::Unavailable(_))), "{registered:?}");
        assert!((ROUTES_MAX..=ROUTES_MAX + AGAIN).contains(&took), "{took:?}");
    }

    /// Flaws S1, S2.
    #[tokio::test(start_paused = true)]
    async fn a_registration_whose_answer_was_lost_is_told_of_and_made_again_above_it() {
        let (registered, calls, took, doubts) = after(Fault::LoseAnswer, 2).await;
        let token = registered.unwrap().token;
        assert_eq!((calls, took, doubts.len()), (3, 2 * AGAIN, 2));
        assert!(doubts[0] < doubts[1] && doubts[1] < token.epoch, "{doubts:?} {token}");
        let (registered, calls, _, doubts) = after(Fault::LoseAnswer, 100).await;
        assert!(matches!(registered, Err(RoutesError::InDoubt { .. })), "{registered:?}");
        assert_eq!(doubts.len() as u64, calls, "each may stand, the last one too");
    }
}
