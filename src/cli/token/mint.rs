//! `tidegate token mint`: signs a token with any claims and a key of any supported kind.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{
    auth::{self, SigningKey},
    clock::wall_ms,
    private,
};

/// Arguments of `tidegate token mint`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// User that the token names (sub)
    user: String,
    /// Key that signs: 64 hex digits (HS256), or a private key as PEM (RSA: RS256, P-256: ES256, Ed25519: EdDSA)
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Id of the key in the header
    #[arg(long)]
    kid: Option<String>,
    /// Bind the token to this device (dev)
    #[arg(long)]
    device: Option<String>,
    /// Lifetime of the token, in seconds
    #[arg(long, default_value_t = 3_600, value_name = "SECONDS")]
    ttl: u64,
    /// Issuer
    #[arg(long)]
    iss: Option<String>,
    /// Audience; may be repeated
    #[arg(long)]
    aud: Vec<String>,
    /// Room that may be joined, exact or with a trailing *; may be repeated
    #[arg(long)]
    room: Vec<String>,
    /// Recipient that may be written to: a user, g:GROUP or r:ROOM, exact or with a trailing *; may be repeated
    #[arg(long)]
    to: Vec<String>,
    /// Any other claim as NAME=JSON; may be repeated
    #[arg(long, value_name = "NAME=JSON")]
    claim: Vec<String>,
}

/// Prints a token.
///
/// # Errors
/// The key can't be read, or a claim is no JSON.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let file = &args.key;
    let named = || format!("--key {}", file.display());
    let text = private::read(file).with_context(named)?;
    let key = match text.trim_ascii_start().starts_with(b"-----") {
        true => SigningKey::from_pem(&text).map_err(anyhow::Error::msg).with_context(named)?,
        false => SigningKey::Secret(auth::read_key(file).with_context(named)?),
    };
    let now = wall_ms() / 1_000;
    let mut claims = json!({"sub": args.user, "iat": now, "exp": now.saturating_add(args.ttl)});
    let mut set = |name: &str, value: Value| claims[name] = value;
    for (name, value) in [("dev", &args.device), ("iss", &args.iss)] {
        if let Some(value) = value {
            set(name, value.as_str().into());
        }
    }
    for (name, list) in [("aud", &args.aud), ("rooms", &args.room), ("to", &args.to)] {
        if !list.is_empty() {
            set(name, list.as_slice().into());
        }
    }
    for claim in &args.claim {
        let (name, value) =
            claim.split_once('=').with_context(|| format!("--claim {claim}: write NAME=JSON"))?;
        set(
            name,
            serde_json::from_str(value).with_context(|| format!("--claim {claim}: the value is no JSON"))?,
        );
    }
    println!("{}", key.sign(args.kid.as_deref(), &claims).map_err(anyhow::Error::msg)?);
    Ok(())
}
