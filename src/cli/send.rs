//! `tidegate send`: sends one message and prints its seq.

use std::time::{Duration, Instant};

use anyhow::bail;
use tidegate_protocol::{
    content::Content,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

use super::client::{Client, LoginArgs, explain};

/// Arguments of `tidegate send`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    login: LoginArgs,
    /// Recipient: a user, or a conversation as g:GROUP or r:ROOM
    #[arg(long)]
    to: String,
    /// Text of the message
    #[arg(required = true)]
    text: Vec<String>,
    /// Id of the message, chosen by the sender; sending the same id again repeats the same message
    #[arg(long)]
    msg_id: Option<String>,
    /// Device to send from
    #[arg(long, default_value = "cli-send")]
    device: String,
}

/// How long a message with an unknown or temporarily refused outcome is resent; longer than a take-over from a dead
/// node.
const RESEND_MAX: Duration = Duration::from_secs(20);

/// Sends a message and prints its ack; resends it under the same id while the refusal is temporary.
///
/// # Errors
/// The message is refused.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut client = Client::login(&args.login, &args.device).await?;
        let is_key = args.to.contains(':');
        if let Some(room) = args.to.strip_prefix("r:") {
            client.send(2, ClientBody::Join(pb::Join { room: room.to_owned() })).await?;
        }
        let mut send = pb::Send {
            conversation: if is_key { args.to.clone() } else { String::new() },
            to_user: if is_key { String::new() } else { args.to.clone() },
            msg_id: args.msg_id.clone().unwrap_or_else(|| uuid::Uuid::now_v7().simple().to_string()),
            // The message of a chosen id may have been sent before.
            attempt: u32::from(args.msg_id.is_some()),
            content: Some(Content::text(args.text.join(" "))),
            ..Default::default()
        };
        let until = Instant::now() + RESEND_MAX;
        loop {
            client.send(3, ClientBody::Send(send.clone())).await?;
            match reply(&mut client).await? {
                ServerBody::SendAck(ack) => {
                    let again = if ack.duplicate && args.msg_id.is_some() { " (again)" } else { "" };
                    println!("{} seq {}{again}", ack.conversation, ack.seq);
                    return Ok(());
                }
                ServerBody::Error(error) if error.temporary && Instant::now() < until => {
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

/// Waits for the broker's reply to the send, skipping other frames.
async fn reply(client: &mut Client) -> anyhow::Result<ServerBody> {
    loop {
        let body = client.next_in_time().await?.body;
        if let Some(reply @ (ServerBody::SendAck(_) | ServerBody::Error(_) | ServerBody::Close(_))) = body {
            return Ok(reply);
        }
    }
}
