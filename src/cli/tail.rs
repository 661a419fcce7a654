//! `tidegate tail`: what a user receives, one JSON line a frame, acked as it comes.

use std::{
    collections::BTreeMap,
    io::Write,
    time::{Duration, Instant},
};

use tidegate_protocol::{
    Code,
    codec::{self, Framing},
    pb::{self, client_frame::Body as Ask, server_frame::Body as Say},
};

use super::client::{Client, LoginArgs, explain};

/// Arguments of `tidegate tail`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    login: LoginArgs,
    /// Live rooms to join; may be repeated
    #[arg(long, value_name = "ROOM")]
    room: Vec<String>,
    /// Device to listen on
    #[arg(long, default_value = "cli-tail")]
    device: String,
    /// End after this many pushes
    #[arg(long)]
    count: Option<u64>,
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut tail = Tail { left: args.count.unwrap_or(u64::MAX), seen: BTreeMap::new() };
        let mut client = Client::login(&args.login, &args.device).await?;
        loop {
            eprintln!("listening as {} on {}", args.login.user, client.welcome.node);
            match tail.listen(&mut client, &args.room).await {
                Ok(()) => return Ok(()),
                Err(Ended::ForGood(why)) => return Err(why),
                Err(Ended::Lost(why)) => eprintln!("{}: {why}; connecting again", client.welcome.node),
            }
            drop(client);
            client = again(args).await?;
        }
    })
}

/// Why a connection is over.
enum Ended {
    ForGood(anyhow::Error),
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
    async fn listen(&mut self, client: &mut Client, rooms: &[String]) -> Result<(), Ended> {
        for (id, room) in (2..).zip(rooms) {
            let join = pb::Join { room: room.trim_start_matches("r:").to_owned() };
            client.ask(id, Ask::Join(join)).await.map_err(Ended::Lost)?;
        }
        let beat = Duration::from_millis(client.welcome.heartbeat_ms.max(100).into());
        let mut beat = tokio::time::interval(beat);
        for (conversation, seq) in &self.seen {
            pull(client, conversation, *seq).await.map_err(Ended::Lost)?;
        }
        while self.left > 0 {
            let frame = tokio::select! {
                frame = client.next() => frame.map_err(Ended::Lost)?,
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
                Some(Say::Close(close)) => {
                    let never = close.reconnect() == pb::Reconnect::Never;
                    let why = anyhow::anyhow!(explain(Some(Say::Close(close))));
                    return Err(if never { Ended::ForGood(why) } else { Ended::Lost(why) });
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

/// Asks for what comes behind a seq.
async fn pull(client: &mut Client, conversation: &str, seq: u64) -> anyhow::Result<()> {
    let direction = pb::Direction::Forward.into();
    let conversation = conversation.to_owned();
    let pull = pb::Pull { conversation, cursor: seq, limit: PAGE, direction, ..Default::default() };
    client.ask(PULL, Ask::Pull(pull)).await
}

/// A new connection, to whichever node answers.
async fn again(args: &Args) -> anyhow::Result<Client> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Client::login(&args.login, &args.device).await {
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => tokio::time::sleep(TRY_EVERY).await,
            Ok(client) => return Ok(client),
        }
    }
}
