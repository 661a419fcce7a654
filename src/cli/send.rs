//! `tidegate send`: one message, answered with its seq.

use std::time::{Duration, Instant};

use anyhow::bail;
use tidegate_protocol::{
    content::Content,
    pb::{self, client_frame::Body as Ask, server_frame::Body as Say},
};

use super::client::{Client, LoginArgs, explain};

/// Arguments of `tidegate send`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    login: LoginArgs,
    /// A user, or a conversation: g:GROUP, r:ROOM
    #[arg(long)]
    to: String,
    /// The text
    #[arg(required = true)]
    text: Vec<String>,
    /// The sender's id for the message; the same id again is the same message
    #[arg(long)]
    msg_id: Option<String>,
    /// Device to send from
    #[arg(long, default_value = "cli-send")]
    device: String,
}

/// How long a message that may have been accepted, or was refused for now, is sent again: longer than another node needs to
/// take over from one that died.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends and prints the ack; sends again under the same id while the refusal is a temporary one.
///
/// # Errors
/// Says why the message was refused.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = Client::login(&args.login, &args.device).await?;
        let is_key = args.to.contains(':');
        if let Some(room) = args.to.strip_prefix("r:") {
            client.ask(2, Ask::Join(pb::Join { room: room.to_owned() })).await?;
        }
        let mut send = pb::Send {
            conversation: if is_key { args.to.clone() } else { String::new() },
            to_user: if is_key { String::new() } else { args.to.clone() },
            msg_id: args.msg_id.clone().unwrap_or_else(|| uuid::Uuid::now_v7().simple().to_string()),
            // A chosen id may have been sent before.
            attempt: u32::from(args.msg_id.is_some()),
            content: Some(Content::text(args.text.join(" "))),
            ..Default::default()
        };
        let until = Instant::now() + PATIENCE;
        loop {
            client.ask(3, Ask::Send(send.clone())).await?;
            match answer(&mut client).await? {
                Say::SendAck(ack) => {
                    let again = if ack.duplicate && args.msg_id.is_some() { " (again)" } else { "" };
                    println!("{} seq {}{again}", ack.conversation, ack.seq);
                    return Ok(());
                }
                Say::Error(error) if error.temporary && Instant::now() < until => {
                    eprintln!("{} {}: sending it again", error.code, error.name);
                    tokio::time::sleep(Duration::from_millis(error.retry_after_ms.clamp(200, 5_000).into()))
                        .await;
                    send.attempt += 1;
                }
                refused => bail!(explain(Some(refused))),
            }
        }
    })
}

/// What the broker says to the send.
async fn answer(client: &mut Client) -> anyhow::Result<Say> {
    loop {
        if let Some(said @ (Say::SendAck(_) | Say::Error(_) | Say::Close(_))) = client.answer().await?.body {
            return Ok(said);
        }
    }
}
