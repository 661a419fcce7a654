//! `tidegate tail`: what a user receives, one JSON line a frame, acked as it comes.

use std::{io::Write, time::Duration};

use anyhow::bail;
use tidegate_protocol::{
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

/// Prints until the connection ends.
///
/// # Errors
/// Says why the broker closed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = Client::login(&args.login, &args.device).await?;
        for (id, room) in (2..).zip(&args.room) {
            client.ask(id, Ask::Join(pb::Join { room: room.trim_start_matches("r:").to_owned() })).await?;
        }
        eprintln!("listening as {} on {}", args.login.user, client.welcome.node);
        let mut beat =
            tokio::time::interval(Duration::from_millis(client.welcome.heartbeat_ms.max(100).into()));
        let mut left = args.count.unwrap_or(u64::MAX);
        while left > 0 {
            let frame = tokio::select! {
                frame = client.next() => frame?,
                _ = beat.tick() => {
                    client.ask(0, Ask::Ping(pb::Ping::default())).await?;
                    continue;
                }
            };
            match &frame.body {
                Some(Say::Pong(_) | Say::Done(_)) => continue,
                Some(Say::Push(push)) => {
                    left -= 1;
                    if !push.conversation.starts_with("r:") {
                        let ack = pb::Ack { conversation: push.conversation.clone(), seq: push.seq };
                        client.ask(0, Ask::Ack(ack)).await?;
                    }
                }
                Some(Say::Close(_)) => bail!(explain(frame.body)),
                _ => {}
            }
            let mut line = Vec::new();
            codec::encode_server(&frame, Framing::Json, &mut line);
            line.push(b'\n');
            let mut out = std::io::stdout().lock();
            if out.write_all(&line).and_then(|()| out.flush()).is_err() {
                // Whoever read this has seen enough.
                return Ok(());
            }
        }
        Ok(())
    })
}
