//! `tidegate send`: one message, answered with its seq.

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

/// Sends and prints the ack.
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
        let send = pb::Send {
            conversation: if is_key { args.to.clone() } else { String::new() },
            to_user: if is_key { String::new() } else { args.to.clone() },
            msg_id: args.msg_id.clone().unwrap_or_else(|| uuid::Uuid::now_v7().simple().to_string()),
            // A chosen id may have been sent before.
            attempt: u32::from(args.msg_id.is_some()),
            content: Some(Content::text(args.text.join(" "))),
            ..Default::default()
        };
        client.ask(3, Ask::Send(send)).await?;
        loop {
            match client.answer().await?.body {
                Some(Say::SendAck(ack)) => {
                    let again = if ack.duplicate { " (again)" } else { "" };
                    println!("{} seq {}{again}", ack.conversation, ack.seq);
                    return Ok(());
                }
                refused @ Some(Say::Error(_) | Say::Close(_)) => bail!(explain(refused)),
                _ => {}
            }
        }
    })
}
