//! Stage: the two bots over real sockets. A task drives each bot's connection by the wish of the play.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tidegate_protocol::pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::{
    bot::Bot,
    record::{Record, User},
};
use crate::{auth, cli::client::Client};

/// Conversation of the two bots, by the rule of the broker (protocol/SPEC.md, section 2).
pub(super) const CONVERSATION: &str = "d:ada:ben";
/// Device of the bots.
pub(super) const DEVICE: &str = "demo";
/// How long the broker waits for the ack of a push; the shortest that a user may set, so that a frozen client is seen
/// soon.
const ACK_TIMEOUT_MS: u32 = 1_250;
/// How often the broker sends a push again.
const ACK_TRIES: u32 = 1;
/// Time for a connection and its login.
const LOGIN_MAX: Duration = Duration::from_secs(5);
/// Time for the broker's answer to `bye`.
const BYE_MAX: Duration = Duration::from_millis(500);
/// Interval at which a bot looks at the clock.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait before the first attempt to connect again; it doubles with each further one.
const RECONNECT_FIRST: Duration = Duration::from_millis(500);
/// Longest wait before any attempt to connect again, shorter than SPEC's, because somebody watches.
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// Time after which a connection counts as stable.
const STABLE_AFTER: Duration = Duration::from_secs(10);
const TOKEN_TTL: Duration = Duration::from_secs(3_600);

/// What the play wants of a bot's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Be connected.
    Online,
    /// Be connected, but read nothing.
    Deaf,
    /// Reset the connection, and stay away.
    Cut,
    /// Say bye, and stay away.
    Offline,
}

/// `close` frame that a bot received.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    pub(super) name: String,
    pub(super) at: Duration,
}

/// State of both bots.
pub(super) struct Scene {
    pub(super) bots: [Bot; 2],
    pub(super) record: Record,
    /// First close by the broker since the last look at it, for each bot.
    pub(super) closed: [Option<Closed>; 2],
    /// Reason for which a bot must not connect again.
    pub(super) failed: Option<String>,
}

/// Both bots, and what their tasks share with the play.
pub(super) struct Stage {
    began: Instant,
    address: SocketAddr,
    key: Vec<u8>,
    scene: Mutex<Scene>,
    changed: watch::Sender<()>,
    wishes: [watch::Sender<Wish>; 2],
    nudges: [Notify; 2],
}

impl Scene {
    /// Returns a bot.
    pub(super) fn bot(&self, user: User) -> &Bot {
        &self.bots[user as usize]
    }

    /// Returns the end of the conversation, as far as any bot has it.
    pub(super) fn end(&self) -> u64 {
        self.bots.iter().filter_map(Bot::complete).max().unwrap_or(0)
    }

    /// Returns whether both bots are connected, have all answers and have everything.
    pub(super) fn is_calm(&self) -> bool {
        let end = self.end();
        self.bots.iter().all(|bot| bot.is_calm(end))
    }

    /// Returns the end of the conversation, if both bots are calm and await no further answer to what they sent.
    pub(super) fn settled(&self) -> Option<u64> {
        let is_settled = self.is_calm() && !self.bots.iter().any(Bot::awaits_answer);
        is_settled.then(|| self.end())
    }

    /// Returns what the bots still wait for, with the last errors.
    pub(super) fn waits_for(&self) -> String {
        let end = self.end();
        let waits: Vec<String> = self.bots.iter().filter_map(|bot| bot.waits_for(end)).collect();
        waits.join("; ")
    }
}

impl Stage {
    /// Creates the stage of two bots that are to connect to `address`.
    pub(super) fn new(address: SocketAddr, key: Vec<u8>) -> Self {
        let scene = Scene {
            bots: User::BOTH.map(|user| Bot::new(user, CONVERSATION)),
            record: Record::default(),
            closed: [None, None],
            failed: None,
        };
        Self {
            began: Instant::now(),
            address,
            key,
            scene: Mutex::new(scene),
            changed: watch::Sender::new(()),
            wishes: [(); 2].map(|()| watch::Sender::new(Wish::Online)),
            nudges: [(); 2].map(|()| Notify::new()),
        }
    }

    /// Returns the time since the start.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Reads the scene.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Scene) -> T) -> T {
        look(&self.scene.lock())
    }

    /// Changes the scene, and wakes whatever waits for it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Scene, Duration) -> T) -> T {
        let now = self.now();
        let result = change(&mut self.scene.lock(), now);
        self.changed.send_replace(());
        self.nudges.iter().for_each(Notify::notify_one);
        result
    }

    /// Changes what a bot's connection is to do.
    pub(super) fn wish(&self, user: User, wish: Wish) {
        self.wishes[user as usize].send_replace(wish);
    }

    /// Waits until the scene fits, at most for `limit`; returns whether it does.
    pub(super) async fn until(&self, limit: Duration, fits: impl Fn(&Scene) -> bool) -> bool {
        let mut changes = self.changed.subscribe();
        let wait = async {
            while !self.look(&fits) {
                if changes.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        timeout(limit, wait).await.is_ok()
    }

    /// Waits until both bots are connected, have all answers and have everything.
    pub(super) async fn calm(&self, limit: Duration) -> bool {
        self.until(limit, Scene::is_calm).await
    }

    /// Notes why a login failed; returns the time to wait before the next one.
    fn not_logged_in(&self, user: User, why: String) -> Duration {
        self.change(|scene, _| scene.bots[user as usize].last_error = Some(why));
        Duration::ZERO
    }

    /// Handles an event of a bot. Unlike [`Stage::change`] it wakes no driver: the one that calls it sends what is
    /// ready.
    fn handle(&self, user: User, handle: impl FnOnce(&mut Bot, Duration, &mut Record)) {
        let now = self.now();
        let mut scene = self.scene.lock();
        let Scene { bots, record, .. } = &mut *scene;
        handle(&mut bots[user as usize], now, record);
        drop(scene);
        self.changed.send_replace(());
    }
}

/// Reason for the end of a connection.
enum Ended {
    /// The play wished it.
    Wished,
    /// The connection is lost, or closed for at least this time.
    Lost(Duration),
    /// The bot must not connect again.
    Never(String),
}

/// Drives the connection of a bot; returns only if it must not connect again.
pub(super) async fn drive(stage: Arc<Stage>, user: User) {
    let mut wish = stage.wishes[user as usize].subscribe();
    let mut longest = RECONNECT_FIRST;
    while wish.wait_for(|wish| matches!(wish, Wish::Online | Wish::Deaf)).await.is_ok() {
        let began = stage.now();
        let wait = match timeout(LOGIN_MAX, login(&stage, user)).await {
            Ok(Ok(client)) => {
                let ended = connection(&stage, user, client, &mut wish).await;
                stage.handle(user, |bot, _, _| bot.disconnected());
                match ended {
                    Ended::Wished => continue,
                    Ended::Lost(wait) => wait,
                    Ended::Never(why) => return stage.change(|scene, _| scene.failed = Some(why)),
                }
            }
            Ok(Err(error)) => stage.not_logged_in(user, format!("{error:#}")),
            Err(_) => stage.not_logged_in(user, format!("no answer to the login within {LOGIN_MAX:?}")),
        };
        if stage.now() >= began + STABLE_AFTER {
            longest = RECONNECT_FIRST;
        }
        tokio::time::sleep(wait + longest.mul_f64(rand::random())).await;
        longest = (longest * 2).min(RECONNECT_MAX);
    }
}

async fn login(stage: &Stage, user: User) -> anyhow::Result<Client> {
    let settings =
        pb::Settings { ack_timeout_ms: ACK_TIMEOUT_MS, ack_tries: ACK_TRIES, ..Default::default() };
    let hello = pb::Hello {
        version: 1,
        token: auth::sign(&stage.key, user.name(), None, TOKEN_TTL),
        device: DEVICE.to_owned(),
        settings: Some(settings),
        ..Default::default()
    };
    Client::connect(&stage.address.to_string(), None, hello).await
}

/// Serves a connection until it ends.
async fn connection(
    stage: &Stage,
    user: User,
    mut client: Client,
    wish: &mut watch::Receiver<Wish>,
) -> Ended {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    stage.handle(user, Bot::connected);
    loop {
        let ready = stage.scene.lock().bots[user as usize].take_ready();
        for frame in ready {
            let Some(body) = frame.body else { continue };
            if client.send(frame.id, body).await.is_err() {
                return Ended::Lost(Duration::ZERO);
            }
        }
        let wished = *wish.borrow_and_update();
        match wished {
            Wish::Online | Wish::Deaf => {}
            Wish::Cut => {
                client.reset();
                return Ended::Wished;
            }
            Wish::Offline => {
                bye(stage, user, &mut client).await;
                return Ended::Wished;
            }
        }
        tokio::select! {
            changed = wish.changed() => if changed.is_err() {
                return Ended::Wished;
            },
            frame = client.next(), if wished == Wish::Online => match frame {
                Ok(pb::ServerFrame { body: Some(ServerBody::Close(close)), .. }) => {
                    return closed(stage, user, &close);
                }
                Ok(frame) => stage.handle(user, |bot, now, record| bot.receive(frame, now, record)),
                Err(_) => return Ended::Lost(Duration::ZERO),
            },
            () = stage.nudges[user as usize].notified() => {}
            _ = ticks.tick() => stage.handle(user, Bot::tick),
        }
    }
}

/// Says bye, and takes what still comes until the broker closes.
async fn bye(stage: &Stage, user: User, client: &mut Client) {
    let leave = async {
        client.send(0, ClientBody::Bye(pb::Bye::default())).await?;
        loop {
            let frame = client.next().await?;
            if matches!(frame.body, Some(ServerBody::Close(_))) {
                return anyhow::Ok(());
            }
            stage.handle(user, |bot, now, record| bot.receive(frame, now, record));
        }
    };
    // Without an answer in time the connection is dropped all the same.
    drop(timeout(BYE_MAX, leave).await);
}

fn closed(stage: &Stage, user: User, close: &pb::Close) -> Ended {
    stage.change(|scene, at| {
        scene.closed[user as usize].get_or_insert_with(|| Closed { name: close.name.clone(), at });
        scene.bots[user as usize].last_error = Some(format!("closed as {}: {}", close.name, close.reason));
    });
    match close.reconnect() {
        pb::Reconnect::Never => {
            Ended::Never(format!("{} was closed as {}: {}", user.name(), close.name, close.reason))
        }
        _ => Ended::Lost(Duration::from_millis(close.after_ms.into())),
    }
}
