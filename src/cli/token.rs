//! `tidegate token`: prints a development token.

use std::{io, time::Duration};

use anyhow::Context;
use tidegate_protocol::id::check_id;

use super::find;
use crate::{auth, private};

/// Arguments of `tidegate token`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// User that the token names
    user: String,
    /// Bind the token to this device
    #[arg(long)]
    device: Option<String>,
    /// Lifetime of the token, in seconds
    #[arg(long, default_value_t = 86_400, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=315_360_000))]
    ttl: u64,
    #[command(flatten)]
    data: super::DataArg,
}

/// Prints a token, and creates the key at first use.
///
/// # Errors
/// A name is no id, or the key can't be read or created.
pub fn run(args: &Args) -> anyhow::Result<()> {
    private::close_new_files();
    check_id(&args.user).with_context(|| format!("user {:?}", args.user))?;
    if let Some(device) = &args.device {
        check_id(device).with_context(|| format!("device {device:?}"))?;
    }
    let data = &args.data.data;
    let key = match find::key(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => auth::load_or_create_key(data),
        other => other,
    };
    let key = key.with_context(|| format!("the data directory {} (--data) can't be used", data.display()))?;
    println!("{}", auth::sign(&key, &args.user, args.device.as_deref(), Duration::from_secs(args.ttl)));
    Ok(())
}
