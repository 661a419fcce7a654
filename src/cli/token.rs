//! `tidegate token`: prints a development token, signs one with any claims, or checks one.

use std::{io, time::Duration};

use anyhow::Context;
use tidegate_protocol::id::check_id;

mod check;
mod mint;

use super::admin::find;
use crate::{auth, private};

/// Arguments of `tidegate token`.
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<TokenCommand>,
    /// User that the token names
    #[arg(required = true)]
    user: Option<String>,
    /// Bind the token to this device
    #[arg(long)]
    device: Option<String>,
    /// Lifetime of the token, in seconds
    #[arg(long, default_value_t = 86_400, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=315_360_000))]
    ttl: u64,
    #[command(flatten)]
    data: super::DataArg,
}

#[derive(clap::Subcommand, Debug)]
enum TokenCommand {
    /// Sign a token with any claims, with a key file
    Mint(mint::Args),
    /// Say what a node with this configuration would answer to a token, and why
    Check(check::Args),
}

/// Prints a token, and creates the key at first use.
///
/// # Errors
/// A name is no id, or the key can't be read or created.
pub fn run(args: &Args) -> anyhow::Result<()> {
    private::close_new_files();
    match &args.command {
        Some(TokenCommand::Mint(args)) => return mint::run(args),
        Some(TokenCommand::Check(args)) => return check::run(args),
        None => {}
    }
    let user = args.user.as_deref().unwrap_or_default();
    check_id(user).with_context(|| format!("user {user:?}"))?;
    if let Some(device) = &args.device {
        check_id(device).with_context(|| format!("device {device:?}"))?;
    }
    let data = &args.data.data;
    let key = match find::key(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => auth::load_or_create_key(data),
        other => other,
    };
    let key = key.with_context(|| format!("the data directory {} (--data) can't be used", data.display()))?;
    println!("{}", auth::sign(&key, user, args.device.as_deref(), Duration::from_secs(args.ttl)));
    Ok(())
}
