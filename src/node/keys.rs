//! Keys of the node: builds the verifier of tokens from the configuration.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;

use crate::{
    auth::{ClaimRules, Keyring, RemoteSettings, TokenKey, Verifier, jwks, load_key, read_key, read_keys},
    config::{AuthConfig, Config},
    hooks::IDENTITY_TTL_MAX,
    metrics::Metrics,
    private,
};

/// Time for which a revocation is kept after its last token has expired.
const LIFETIME_MARGIN: Duration = Duration::from_secs(3_600);

/// Name of the copy of the last good remote set, in the data directory.
const COPY_FILE: &str = "jwks.json";

/// Builds the keyring from the secret, which is empty for none, and the configured key files.
///
/// # Errors
/// A key file can't be used; the error names all of them, each with its cure.
pub fn keyring(auth: &AuthConfig, secret: &[u8]) -> anyhow::Result<Arc<Keyring>> {
    let keys = own_keys(auth, secret)?;
    let remote = (!auth.jwks_url.is_empty()).then(|| RemoteSettings {
        keep: Duration::from_secs(auth.jwks_keep_s),
        cooldown: Duration::from_secs(auth.jwks_cooldown_s),
    });
    Ok(Arc::new(Keyring::new(keys, remote)))
}

/// Reads the keys of the configured files, and adds the secret unless it is empty.
///
/// # Errors
/// As [`keyring`].
pub(super) fn own_keys(auth: &AuthConfig, secret: &[u8]) -> anyhow::Result<Vec<TokenKey>> {
    let mut keys = Vec::new();
    if !secret.is_empty() {
        keys.push(TokenKey::hs256(secret, None));
    }
    let mut problems = Vec::new();
    for entry in &auth.key_files {
        let (id, file) = AuthConfig::key_entry(entry);
        match read_keys(&file, id) {
            Ok(read) => keys.extend(read),
            Err(error) => {
                problems.push(private::unusable("auth.key_files", &file, error));
            }
        }
    }
    if !problems.is_empty() {
        anyhow::bail!(problems.join("\n"));
    }
    Ok(keys)
}

/// Reads the secret with which a node verifies tokens; empty if it has none. Unlike a node, creates none.
///
/// # Errors
/// The file is missing, or can't be used.
pub fn existing_secret(config: &Config) -> anyhow::Result<Vec<u8>> {
    let file = &config.auth.key_file;
    if !file.as_os_str().is_empty() {
        return read_key(file).with_context(|| format!("auth.key_file: {} can't be used", file.display()));
    }
    if config.auth.has_other_keys() {
        return Ok(Vec::new());
    }
    let data = &config.node.data;
    load_key(data).with_context(|| format!("no key in {} (node.data); start the node once", data.display()))
}

/// Returns the rules for the claims of tokens.
pub fn rules(auth: &AuthConfig) -> ClaimRules {
    ClaimRules {
        issuers: auth.issuers.clone(),
        audiences: auth.audiences.clone(),
        max_lifetime: Duration::from_secs(auth.max_lifetime_s),
        leeway: Duration::from_secs(auth.leeway_s),
        token_bytes_max: auth.token_bytes_max,
    }
}

/// Returns the time after which every token and identity that was issued before has expired; `None` if tokens may be
/// valid for any time.
pub(super) fn token_lifetime(auth: &AuthConfig) -> Option<Duration> {
    let longest = Duration::from_secs(auth.max_lifetime_s);
    // The leeway counts for the lifetime and for the end; the rest is for clocks that are set. It exceeds what a reload
    // can add to the leeway. Identities of a hook count in any case, because a reload can configure one.
    let margin = 2 * Duration::from_secs(auth.leeway_s) + LIFETIME_MARGIN;
    (!longest.is_zero()).then(|| longest.max(IDENTITY_TTL_MAX) + margin)
}

/// Builds the refresher of the remote keys; `None` if there is no URL.
///
/// # Errors
/// The URL or the file of its authority can't be used.
pub fn refresher(
    config: &Config,
    keyring: &Arc<Keyring>,
    metrics: &Metrics,
) -> anyhow::Result<Option<jwks::Refresher>> {
    let auth = &config.auth;
    if auth.jwks_url.is_empty() {
        return Ok(None);
    }
    let settings = jwks::Settings {
        url: auth.jwks_url.clone(),
        ca_file: auth.jwks_ca_file.clone(),
        interval: Duration::from_secs(auth.jwks_refresh_s),
        timeout: Duration::from_millis(auth.jwks_timeout_ms),
        copy: if auth.jwks_copy { config.node.data.join(COPY_FILE) } else { PathBuf::new() },
    };
    let refresher = jwks::Refresher::new(settings, Arc::clone(keyring), metrics.clone());
    refresher.map(Some).context("auth.jwks_url, auth.jwks_ca_file")
}

/// Builds the verifier of tokens, and starts the refresh of the remote keys. Must run in the services runtime.
///
/// # Errors
/// A key file or the URL can't be used.
pub(super) fn verifier(config: &Config, secret: &[u8], metrics: &Metrics) -> anyhow::Result<Arc<Verifier>> {
    let keyring = keyring(&config.auth, secret)?;
    if let Some(refresher) = refresher(config, &keyring, metrics)? {
        crate::supervised::spawn("the refresh of the remote keys", refresher.run());
    }
    tracing::info!(keys = ?keyring.names(), url = config.auth.jwks_url, "keys that verify tokens");
    Ok(Arc::new(Verifier::new(keyring, rules(&config.auth))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revocations_outlive_tokens_and_identities_of_a_hook() {
        let lifetime = |max_lifetime_s| {
            token_lifetime(&AuthConfig { max_lifetime_s, leeway_s: 0, ..AuthConfig::default() })
                .map(|it| it.as_secs())
        };
        assert_eq!(lifetime(0), None, "tokens may be valid for any time");
        assert_eq!(lifetime(600), Some(86_400 + 3_600));
        assert_eq!(lifetime(172_800), Some(172_800 + 3_600));
    }
}
