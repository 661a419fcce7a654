//! `tidegate tail`: prints what a user receives, a line for each frame, and acks it; or prints the events of nodes.

use std::{
    collections::BTreeMap,
    io::Write,
    time::{Duration, Instant},
};

use tidegate_protocol::{
    Code,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use tokio::task::JoinSet;

use super::{
    DataArg,
    admin::{AdminTarget, target},
    client::{Client, LoginArgs, explain},
    http::TlsArgs,
    key::KeyArg,
};

mod events;
mod lines;

pub(super) use self::lines::of_event;

/// Arguments of `tidegate tail`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// User to log in as
    #[arg(long, required_unless_present = "events", conflicts_with = "context")]
    user: Option<String>,
    /// Show node events instead: online, offline, read markers, blocked chains, audit (docs/events.md)
    #[arg(long, conflicts_with_all = ["user", "room", "device", "server", "assign", "tls", "server_name"])]
    events: bool,
    /// With --events: start with the events that the nodes still keep
    #[arg(long, requires = "events")]
    kept: bool,
    /// With --events: admin address of a node, with https:// before it if the port speaks TLS; may be repeated; default: those of all nodes on --data
    #[arg(long, value_name = "ADDRESS", requires = "events", value_parser = target)]
    admin: Vec<AdminTarget>,
    /// Live room to join; may be repeated
    #[arg(long, value_name = "ROOM")]
    room: Vec<String>,
    /// Device to listen on
    #[arg(long, default_value = "cli-tail")]
    device: String,
    /// Print frames as the JSON that a client gets, or whole events, one per line, for programs
    #[arg(long)]
    json: bool,
    /// Stop after this many pushes or events
    #[arg(long)]
    count: Option<u64>,
    /// Address of the node, if it does not run on the data directory; with wss:// before it for TLS
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    /// Client port, as http://host:port or https://host:port, that is asked which node to log in to; may be repeated, the
    /// first that answers is used
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    assign: Vec<String>,
    /// Speak TLS to the node, whose authority --ca names; an address with wss://, tls:// or https:// before it does the
    /// same
    #[arg(long)]
    tls: bool,
    /// Name that the node's certificate has to be valid for, with TLS; default: the host of the address
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    #[command(flatten)]
    key: KeyArg,
    #[command(flatten)]
    data: DataArg,
}

impl Args {
    fn login(&self, user: String) -> anyhow::Result<LoginArgs> {
        let addresses: Vec<String> = self.server.iter().chain(&self.assign).cloned().collect();
        let authority = self.key.authority()?;
        let tls = TlsArgs::new(self.tls, authority, self.server_name.clone(), &addresses);
        Ok(LoginArgs::new(user, self.server.clone(), self.assign.clone(), tls, self.data.clone()))
    }
}

/// Login, rooms and device of the followed user.
struct FollowOptions {
    login: LoginArgs,
    room: Vec<String>,
    device: String,
    json: bool,
}

/// How long a lost connection is retried; longer than a node needs to restart.
pub(super) const RECONNECT_MAX: Duration = Duration::from_secs(30);
/// Interval between two attempts to connect.
pub(super) const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);
/// Request id of pulls.
const PULL_REQUEST_ID: u64 = 1;
/// Most messages of one pull.
const PULL_MESSAGES: u32 = 100;

/// Prints frames as they arrive. Reconnects after a lost or temporarily closed connection, to another node if
/// necessary, and pulls the missed messages of the conversations that it has shown.
///
/// # Errors
/// The broker closes the connection permanently, or can't be reached in time.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // Without --events clap requires a user.
    let Some(user) = args.user.clone().filter(|_| !args.events) else { return events::follow(args) };
    let login = args.login(user)?;
    let left = args.count.unwrap_or(u64::MAX);
    let args =
        &FollowOptions { login, room: args.room.clone(), device: args.device.clone(), json: args.json };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut printer = Printer { left, json: args.json, last_seqs: BTreeMap::new() };
        let mut client = Client::login(&args.login, &args.device).await?;
        loop {
            eprintln!("listening as {} on {}", args.login.user, client.welcome.node);
            client = match printer.follow(&mut client, args).await {
                Ok(()) => return Ok(()),
                Err(Disconnect::Final(why)) => return Err(why),
                Err(Disconnect::Moved(successor)) => {
                    eprintln!("{}: it is draining; moved", client.welcome.node);
                    *successor
                }
                Err(Disconnect::Lost(why)) => {
                    eprintln!("{}: {why}; connecting again", client.welcome.node);
                    drop(client);
                    reconnect(&args.login, &args.device).await?
                }
            };
        }
    })
}

/// Reason for the end of a connection.
enum Disconnect {
    /// The broker closed it, and must not be connected to again.
    Final(anyhow::Error),
    /// The node is draining, and the client is connected to another node.
    Moved(Box<Client>),
    /// Connection broken, or closed temporarily.
    Lost(anyhow::Error),
}

/// State of the output, which outlives connections.
struct Printer {
    /// Pushes that are still to be shown.
    left: u64,
    /// Whether the lines are for programs.
    json: bool,
    /// Last shown seq of each conversation.
    last_seqs: BTreeMap<String, u64>,
}

impl Printer {
    /// Shows the frames of a connection until enough pushes were shown.
    async fn follow(&mut self, client: &mut Client, args: &FollowOptions) -> Result<(), Disconnect> {
        for (id, room) in (2..).zip(&args.room) {
            let join = pb::Join { room: room.trim_start_matches("r:").to_owned() };
            client.send(id, ClientBody::Join(join)).await.map_err(Disconnect::Lost)?;
        }
        let heartbeat = Duration::from_millis(client.welcome.heartbeat_ms.max(100).into());
        let mut heartbeat = tokio::time::interval(heartbeat);
        for (conversation, seq) in &self.last_seqs {
            pull(client, conversation, *seq).await.map_err(Disconnect::Lost)?;
        }
        let mut migration = Migration::default();
        while self.left > 0 {
            let frame = tokio::select! {
                frame = client.next() => match frame {
                    Ok(frame) => frame,
                    Err(why) => return Err(migration.resolve(why).await),
                },
                successor = migration.completed() => match successor {
                    Some(successor) => return Err(Disconnect::Moved(successor)),
                    None => continue,
                },
                _ = heartbeat.tick() => {
                    client.send(0, ClientBody::Ping(pb::Ping::default())).await.map_err(Disconnect::Lost)?;
                    continue;
                }
            };
            match frame.body {
                Some(ServerBody::Pong(_) | ServerBody::Done(_)) => {}
                // There is nothing to pull.
                Some(ServerBody::Error(error))
                    if frame.id == PULL_REQUEST_ID && error.code == u32::from(Code::NotYet.number()) => {}
                Some(ServerBody::Push(push)) => self.show_push(client, push).await?,
                Some(ServerBody::Page(page)) => {
                    let full = page.messages.len() >= PULL_MESSAGES as usize;
                    for push in page.messages {
                        self.show_push(client, push).await?;
                    }
                    if let (true, Some(seq)) = (full, self.last_seqs.get(&page.conversation)) {
                        pull(client, &page.conversation, *seq).await.map_err(Disconnect::Lost)?;
                    }
                }
                Some(ServerBody::GoAway(away)) => migration.begin(away, args),
                Some(ServerBody::Close(close)) => {
                    let never = close.reconnect() == pb::Reconnect::Never;
                    let why = anyhow::anyhow!(explain(Some(ServerBody::Close(close))));
                    return Err(match migration.resolve(why).await {
                        Disconnect::Lost(why) if never => Disconnect::Final(why),
                        other => other,
                    });
                }
                body => self.show(&pb::ServerFrame { body, ..frame }),
            }
        }
        Ok(())
    }

    /// Acks a push, and shows it unless it was shown before.
    async fn show_push(&mut self, client: &mut Client, push: pb::Push) -> Result<(), Disconnect> {
        if self.left == 0 {
            return Ok(());
        }
        if !push.conversation.starts_with("r:") {
            let ack = pb::Ack { conversation: push.conversation.clone(), seq: push.seq };
            client.send(0, ClientBody::Ack(ack)).await.map_err(Disconnect::Lost)?;
            let last_seq = self.last_seqs.entry(push.conversation.clone()).or_default();
            if push.seq <= *last_seq {
                return Ok(());
            }
            *last_seq = push.seq;
        }
        self.left -= 1;
        self.show(&pb::ServerFrame { id: 0, body: Some(ServerBody::Push(push)) });
        Ok(())
    }

    fn show(&mut self, frame: &pb::ServerFrame) {
        let line = if self.json { lines::of_json(frame) } else { lines::of_frame(frame) };
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            // The reader, such as `head`, has closed the pipe.
            self.left = 0;
        }
    }
}

/// Move to another node during a drain; the old connection serves until the new one is logged in.
#[derive(Default)]
struct Migration {
    task: JoinSet<Option<Client>>,
}

impl Migration {
    /// Connects, at the slot that the node assigned, to one of the alternates that it named. Without alternates, when
    /// all nodes share one address, it connects to that address (SPEC 9); without any address it stays until it is
    /// closed.
    fn begin(&mut self, away: pb::GoAway, args: &FollowOptions) {
        if away.alternates.is_empty() && args.login.server.is_none() && args.login.assign.is_empty() {
            return;
        }
        let wait = u64::from(away.after_ms) + rand::random_range(0..=u64::from(away.window_ms) / 2);
        let (login, device) = (args.login.clone(), args.device.clone());
        // A later GoAway replaces the former one and aborts its attempt.
        self.task = JoinSet::new();
        self.task.spawn(async move {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let alternates = away.alternates.iter().map(String::as_str);
            let result = match away.alternates.is_empty() {
                true => Client::login(&login, &device).await,
                false => Client::login_first(alternates, &login, &device).await,
            };
            match result {
                Ok(client) => Some(client),
                Err(why) => {
                    eprintln!("no other node accepts the login yet: {why:#}");
                    None
                }
            }
        });
    }

    /// Returns whether a connection that ended with `why` has moved or is lost. It has moved if it was closed at its
    /// slot, or replaced by the new connection, which may complete a moment later.
    async fn resolve(&mut self, why: anyhow::Error) -> Disconnect {
        if self.task.is_empty() {
            return Disconnect::Lost(why);
        }
        match self.completed().await {
            Some(successor) => Disconnect::Moved(successor),
            None => Disconnect::Lost(why),
        }
    }

    /// Waits for the new connection and returns it; `None` if the attempt failed. Never returns while none is under
    /// way.
    async fn completed(&mut self) -> Option<Box<Client>> {
        match self.task.join_next().await {
            Some(client) => client.ok().flatten().map(Box::new),
            None => std::future::pending().await,
        }
    }
}

/// Requests the messages after a seq.
async fn pull(client: &mut Client, conversation: &str, seq: u64) -> anyhow::Result<()> {
    let direction = pb::Direction::Forward.into();
    let conversation = conversation.to_owned();
    let pull = pb::Pull { conversation, cursor: seq, limit: PULL_MESSAGES, direction, ..Default::default() };
    client.send(PULL_REQUEST_ID, ClientBody::Pull(pull)).await
}

/// Connects again, to any node that answers.
async fn reconnect(login: &LoginArgs, device: &str) -> anyhow::Result<Client> {
    let until = Instant::now() + RECONNECT_MAX;
    loop {
        match Client::login(login, device).await {
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => tokio::time::sleep(RECONNECT_INTERVAL).await,
            Ok(client) => return Ok(client),
        }
    }
}
