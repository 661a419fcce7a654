//! `tidegate token check`: says what a node with a configuration would answer to a token, and why.

use std::{
    io::{self, Read as _},
    sync::Arc,
};

use anyhow::{Context as _, bail};

use crate::{auth::Verifier, cli::plan::ConfigSource, clock::wall_ms, metrics, node::keys};

/// Arguments of `tidegate token check`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Token; without it the token is read from standard input, which keeps it out of the list of processes
    token: Option<String>,
    #[command(flatten)]
    source: ConfigSource,
}

/// Prints the identity of an accepted token.
///
/// # Errors
/// The configuration is invalid, a key can't be loaded, or the token is refused; the error names the cure.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let token = match &args.token {
        Some(token) => token.clone(),
        None => {
            let mut text = String::new();
            io::stdin().take(1 << 20).read_to_string(&mut text).context("standard input")?;
            text
        }
    };
    let config = args.source.load()?;
    let secret = keys::existing_secret(&config)?;
    let keyring = keys::keyring(&config.auth, &secret)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(refresher) = keys::refresher(&config, &keyring, &metrics::install().0)?
        && !runtime.block_on(refresher.refresh())
    {
        eprintln!("auth.jwks_url {} can't be loaded; checking with the last good set", config.auth.jwks_url);
    }
    let names = keyring.names().join(", ");
    let verifier = Verifier::new(Arc::clone(&keyring), keys::rules(&config.auth));
    match verifier.verify(token.trim(), wall_ms()) {
        Ok(identity) => {
            let device =
                identity.device.map_or_else(|| "any device".to_owned(), |device| format!("device {device}"));
            println!("accepted: user {}, {device}", identity.user);
            if let Some(grants) = identity.grants {
                println!("grants: {grants:?}");
            }
            Ok(())
        }
        Err(fault) => {
            let code = fault.code();
            let what = if fault.text().is_empty() { code.what() } else { fault.text() };
            bail!("refused with {}: {what}\n  cure: {}\n  keys: {names}", code.name(), fault.cure())
        }
    }
}
