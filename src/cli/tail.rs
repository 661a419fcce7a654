//! `tidegate tail`: what a user receives, one JSON line a frame, acked as it comes; or the events of nodes.

use std::{
    collections::BTreeMap,
    io::Write,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tidegate_protocol::{
    Code,
    codec::{self, Framing},
    pb::{self, client_frame::Body as Ask, server_frame::Body as Say},
};
use tokio::task::JoinSet;

use super::{
    DataArg,
    client::{Client, LoginArgs, explain},
};

mod events;

/// Arguments of `tidegate tail`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The user to log in as
    #[arg(long, required_unless_present = "events")]
    user: Option<String>,
    /// Show the events of nodes instead: who comes and goes, what is read, which chain waits (docs/events.md)
    #[arg(long, conflicts_with_all = ["user", "room", "device", "server", "assign"])]
    events: bool,
    /// With --events: begin with the events that the nodes still keep
    #[arg(long, requires = "events")]
    kept: bool,
    /// With --events: admin address of a node, for each of them; default: those of all nodes on --data
    #[arg(long, value_name = "ADDRESS", requires = "events")]
    admin: Vec<SocketAddr>,
    /// Live rooms to join; may be repeated
    #[arg(long, value_name = "ROOM")]
    room: Vec<String>,
    /// Device to listen on
    #[arg(long, default_value = "cli-tail")]
    device: String,
    /// End after this many pushes, or events
    #[arg(long)]
    count: Option<u64>,
    /// Where the node is, if not on this data directory
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    /// Ask there which node to log in at, as http://host:port of any client port; may be repeated: the first that answers is
    /// asked
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    assign: Vec<String>,
    #[command(flatten)]
    data: DataArg,
}

/// Who listens.
struct Listener {
    login: LoginArgs,
    room: Vec<String>,
    device: String,
}

/// How long a new connection is tried for when one was lost: longer than a node needs to start again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_millis(500);
/// The id of such questions.
const PULL: u64 = 1;
/// Messages that are asked for at once of what was said meanwhile.
const PAGE: u32 = 100;

/// Prints what comes; a connection that is lost, or closed for a while, is made again, to another node if need be, and what was
/// said meanwhile in the conversations that were seen is asked for.
///
/// # Errors
/// Says why the broker closed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // Without --events clap has seen to it that there is one.
    let Some(user) = args.user.clone().filter(|_| !args.events) else { return events::follow(args) };
    let login = LoginArgs::new(user, args.server.clone(), args.assign.clone(), args.data.clone());
    let left = args.count.unwrap_or(u64::MAX);
    let args = &Listener { login, room: args.room.clone(), device: args.device.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut tail = Tail { left, seen: BTreeMap::new() };
        let mut client = Client::login(&args.login, &args.device).await?;
        loop {
            eprintln!("listening as {} on {}", args.login.user, client.welcome.node);
            client = match tail.listen(&mut client, args).await {
                Ok(()) => return Ok(()),
                Err(Ended::ForGood(why)) => return Err(why),
                Err(Ended::Moved(there)) => {
                    eprintln!("{}: it leaves; moved", client.welcome.node);
                    *there
                }
                Err(Ended::Lost(why)) => {
                    eprintln!("{}: {why}; connecting again", client.welcome.node);
                    drop(client);
                    again(&args.login, &args.device).await?
                }
            };
        }
    })
}

/// Why a connection is over.
enum Ended {
    ForGood(anyhow::Error),
    /// The node leaves, and the connection to another one stands.
    Moved(Box<Client>),
    Lost(anyhow::Error),
}

/// What was shown.
struct Tail {
    left: u64,
    /// The last seq of each conversation.
    seen: BTreeMap<String, u64>,
}

impl Tail {
    /// Until enough was shown.
    async fn listen(&mut self, client: &mut Client, args: &Listener) -> Result<(), Ended> {
        for (id, room) in (2..).zip(&args.room) {
            let join = pb::Join { room: room.trim_start_matches("r:").to_owned() };
            client.ask(id, Ask::Join(join)).await.map_err(Ended::Lost)?;
        }
        let beat = Duration::from_millis(client.welcome.heartbeat_ms.max(100).into());
        let mut beat = tokio::time::interval(beat);
        for (conversation, seq) in &self.seen {
            pull(client, conversation, *seq).await.map_err(Ended::Lost)?;
        }
        let mut moving = Moving::default();
        while self.left > 0 {
            let frame = tokio::select! {
                frame = client.next() => match frame {
                    Ok(frame) => frame,
                    Err(why) => return Err(moving.instead_of(why).await),
                },
                there = moving.arrived() => match there {
                    Some(there) => return Err(Ended::Moved(there)),
                    None => continue,
                },
                _ = beat.tick() => {
                    client.ask(0, Ask::Ping(pb::Ping::default())).await.map_err(Ended::Lost)?;
                    continue;
                }
            };
            match frame.body {
                Some(Say::Pong(_) | Say::Done(_)) => {}
                // Nothing was said meanwhile.
                Some(Say::Error(error))
                    if frame.id == PULL && error.code == u32::from(Code::NotYet.number()) => {}
                Some(Say::Push(push)) => self.show_push(client, push).await?,
                Some(Say::Page(page)) => {
                    let full = page.messages.len() >= PAGE as usize;
                    for push in page.messages {
                        self.show_push(client, push).await?;
                    }
                    if let (true, Some(seq)) = (full, self.seen.get(&page.conversation)) {
                        pull(client, &page.conversation, *seq).await.map_err(Ended::Lost)?;
                    }
                }
                Some(Say::GoAway(away)) => moving.begin(away, args),
                Some(Say::Close(close)) => {
                    let never = close.reconnect() == pb::Reconnect::Never;
                    let why = anyhow::anyhow!(explain(Some(Say::Close(close))));
                    return Err(match moving.instead_of(why).await {
                        Ended::Lost(why) if never => Ended::ForGood(why),
                        ended => ended,
                    });
                }
                body => self.show(&pb::ServerFrame { body, ..frame }),
            }
        }
        Ok(())
    }

    /// Acks it, and shows it unless that was done before.
    async fn show_push(&mut self, client: &mut Client, push: pb::Push) -> Result<(), Ended> {
        if self.left == 0 {
            return Ok(());
        }
        if !push.conversation.starts_with("r:") {
            let ack = pb::Ack { conversation: push.conversation.clone(), seq: push.seq };
            client.ask(0, Ask::Ack(ack)).await.map_err(Ended::Lost)?;
            let seen = self.seen.entry(push.conversation.clone()).or_default();
            if push.seq <= *seen {
                return Ok(());
            }
            *seen = push.seq;
        }
        self.left -= 1;
        self.show(&pb::ServerFrame { id: 0, body: Some(Say::Push(push)) });
        Ok(())
    }

    fn show(&mut self, frame: &pb::ServerFrame) {
        let mut line = Vec::new();
        codec::encode_server(frame, Framing::Json, &mut line);
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        if out.write_all(&line).and_then(|()| out.flush()).is_err() {
            // Whoever read this has seen enough.
            self.left = 0;
        }
    }
}

/// The way to another node while the present one serves on: connected before it is left.
#[derive(Default)]
struct Moving {
    task: JoinSet<Option<Client>>,
}

impl Moving {
    /// Goes at the slot that the node has given, to one of those that it names. Without any, where all nodes have one address, it goes to
    /// that (SPEC "Leaving"); who was given none stays until it is closed.
    fn begin(&mut self, away: pb::GoAway, args: &Listener) {
        if away.alternates.is_empty() && args.login.server.is_none() && args.login.assign.is_empty() {
            return;
        }
        let wait = u64::from(away.after_ms) + rand::random_range(0..=u64::from(away.window_ms) / 2);
        let (login, device) = (args.login.clone(), args.device.clone());
        // Another word replaces the one before; what was under way ends.
        self.task = JoinSet::new();
        self.task.spawn(async move {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let there = away.alternates.iter().map(String::as_str);
            let came = match away.alternates.is_empty() {
                true => Client::login(&login, &device).await,
                false => Client::login_first(there, &login, &device).await,
            };
            match came {
                Ok(client) => Some(client),
                Err(why) => {
                    eprintln!("none of the other nodes can be used yet: {why:#}");
                    None
                }
            }
        });
    }

    /// What becomes of a connection that ended for that reason: closed at its slot, or because the new one has taken its place,
    /// it moves; the new connection may come in a moment later.
    async fn instead_of(&mut self, why: anyhow::Error) -> Ended {
        if self.task.is_empty() {
            return Ended::Lost(why);
        }
        match self.arrived().await {
            Some(there) => Ended::Moved(there),
            None => Ended::Lost(why),
        }
    }

    /// The new connection once it is logged in; none when the way failed. Waits for ever while there is none.
    async fn arrived(&mut self) -> Option<Box<Client>> {
        match self.task.join_next().await {
            Some(there) => there.ok().flatten().map(Box::new),
            None => std::future::pending().await,
        }
    }
}

/// Asks for what comes behind a seq.
async fn pull(client: &mut Client, conversation: &str, seq: u64) -> anyhow::Result<()> {
    let direction = pb::Direction::Forward.into();
    let conversation = conversation.to_owned();
    let pull = pb::Pull { conversation, cursor: seq, limit: PAGE, direction, ..Default::default() };
    client.ask(PULL, Ask::Pull(pull)).await
}

/// A new connection, to whichever node answers.
async fn again(login: &LoginArgs, device: &str) -> anyhow::Result<Client> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Client::login(login, device).await {
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => tokio::time::sleep(TRY_EVERY).await,
            Ok(client) => return Ok(client),
        }
    }
}
