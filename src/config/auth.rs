//! Section `[auth]`: verification of client tokens.

use std::path::PathBuf;

use hyper::Uri;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Verification of client tokens.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct AuthConfig {
    /// File with the key that tokens are signed with: 64 hex digits, mode 600, the same on all nodes of a cluster.
    /// Create it with `openssl rand -hex 32`. Empty: `token.key` in node.data, created at the first start; only for
    /// node.profile = `single`, and only without auth.key_files and auth.jwks_url.
    pub key_file: PathBuf,
    /// Further key files, each as `file` or `kid=file`: 64 hex digits (HS256, mode 600), a public key as PEM (RSA:
    /// RS256, P-256: ES256, Ed25519: EdDSA), or a set of public keys (JWKS), which names its own `kid`s.
    pub key_files: Vec<String>,
    /// URL of a set of public keys (JWKS), such as that of an identity provider; `https`, or `http` on loopback.
    /// Empty: none.
    pub jwks_url: String,
    /// PEM file of the authority that signed the certificate of auth.jwks_url, read again with each refresh. Empty: the
    /// authorities of the system.
    pub jwks_ca_file: PathBuf,
    /// Whether auth.jwks_url may be `http` to another machine. Who can change that traffic can log in as any user.
    pub jwks_insecure: bool,
    /// Time between refreshes of the set.
    pub jwks_refresh_s: u64,
    /// Shortest time between refreshes that tokens with an unknown `kid` cause.
    pub jwks_cooldown_s: u64,
    /// Time for which a key stays valid after it vanished from the set, unless the node restarts.
    pub jwks_keep_s: u64,
    /// Longest time of one download of the set.
    pub jwks_timeout_ms: u64,
    /// Whether the last good set is stored as `jwks.json` in node.data, for a start while the URL is unavailable.
    pub jwks_copy: bool,
    /// Accepted issuers (`iss`). Empty: `iss` is ignored.
    pub issuers: Vec<String>,
    /// Accepted audiences (`aud`). Empty: `aud` is ignored.
    pub audiences: Vec<String>,
    /// Longest time for which a token may be valid, from `iat`, or from now without it, to `exp`. 0: no limit.
    pub max_lifetime_s: u64,
    /// Tolerated difference between the clocks of the issuer and the node.
    pub leeway_s: u64,
    /// Largest token in bytes, at least 256 less than limits.hello_bytes_max: a hello carries it.
    pub token_bytes_max: usize,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            key_file: PathBuf::new(),
            key_files: Vec::new(),
            jwks_url: String::new(),
            jwks_ca_file: PathBuf::new(),
            jwks_insecure: false,
            jwks_refresh_s: 300,
            jwks_cooldown_s: 10,
            jwks_keep_s: 3_600,
            jwks_timeout_ms: 5_000,
            jwks_copy: true,
            issuers: Vec::new(),
            audiences: Vec::new(),
            max_lifetime_s: 0,
            leeway_s: 30,
            token_bytes_max: 3_584,
        }
    }
}

/// Most entries of each list.
const ENTRIES_MAX: usize = 32;

impl AuthConfig {
    /// Returns whether tokens are verified with other keys than the secret of the node or the cluster.
    pub fn has_other_keys(&self) -> bool {
        !self.key_files.is_empty() || !self.jwks_url.is_empty()
    }

    /// Returns whether the node verifies tokens with the secret of its data directory, created at the first start.
    pub fn has_own_secret(&self) -> bool {
        self.key_file.as_os_str().is_empty() && !self.has_other_keys()
    }

    /// Splits an entry of [`Self::key_files`] into the `kid`, if it has one, and the file.
    pub fn key_entry(entry: &str) -> (Option<&str>, PathBuf) {
        match entry.split_once('=') {
            Some((id, file)) => (Some(id), file.into()),
            None => (None, entry.into()),
        }
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        let is_whole = |entry: &String| {
            let (id, file) = Self::key_entry(entry);
            id.is_none_or(|id| !id.is_empty() && id.len() <= 256) && !file.as_os_str().is_empty()
        };
        need(
            self.key_files.len() <= ENTRIES_MAX && self.key_files.iter().all(is_whole),
            "auth.key_files: at most 32 entries, each FILE or KID=FILE",
        );
        if !self.jwks_url.is_empty() {
            let uri: Option<Uri> = self.jwks_url.parse().ok();
            let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
            let scheme = uri.as_ref().and_then(Uri::scheme_str).unwrap_or_default();
            need(
                !host.is_empty() && ["https", "http"].contains(&scheme) && !self.jwks_url.contains('@'),
                "auth.jwks_url: a URL that begins with https:// or http://, without a password",
            );
            let is_loopback = ["localhost", "127.0.0.1", "[::1]"].contains(&host);
            need(
                scheme != "http" || is_loopback || self.jwks_insecure,
                "auth.jwks_url: http to another machine, so who can change that traffic can log in as any user; use \
                 https, or set auth.jwks_insecure=true to accept that",
            );
        }
        need(
            (1..=86_400).contains(&self.jwks_refresh_s),
            "auth.jwks_refresh_s: between one second and one day",
        );
        need(
            (1..=3_600).contains(&self.jwks_cooldown_s),
            "auth.jwks_cooldown_s: between one second and one hour",
        );
        need(self.jwks_keep_s <= 2_592_000, "auth.jwks_keep_s: at most 30 days");
        need(
            (10..=60_000).contains(&self.jwks_timeout_ms),
            "auth.jwks_timeout_ms: between 10 ms and one minute",
        );
        let is_named = |name: &String| !name.is_empty() && name.len() <= 256;
        for (key, list) in [("issuers", &self.issuers), ("audiences", &self.audiences)] {
            need(
                list.len() <= ENTRIES_MAX && list.iter().all(is_named),
                &format!("auth.{key}: at most 32 entries of 1 to 256 bytes"),
            );
        }
        need(self.max_lifetime_s <= 315_360_000, "auth.max_lifetime_s: at most 10 years");
        need(self.leeway_s <= 60, "auth.leeway_s: at most 60; set the clocks of the machines instead");
        need(
            (256..=64 * 1024).contains(&self.token_bytes_max),
            "auth.token_bytes_max: between 256 and 65536 bytes",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_reported_at_once() {
        let problems = |change: fn(&mut AuthConfig)| {
            let (mut auth, mut problems) = (AuthConfig::default(), Vec::new());
            change(&mut auth);
            auth.check(&mut |ok, what| {
                if !ok {
                    problems.push(what.split(':').next().unwrap_or_default().to_owned());
                }
            });
            problems
        };
        assert_eq!(problems(|_| {}), [""; 0]);
        let all = problems(|auth| {
            auth.key_files = vec!["=file".into()];
            auth.jwks_url = "ftp://keys".into();
            auth.leeway_s = 61;
            auth.issuers = vec![String::new()];
            auth.token_bytes_max = 1;
        });
        let named = ["key_files", "jwks_url", "issuers", "leeway_s", "token_bytes_max"];
        assert_eq!(all, named.map(|key| format!("auth.{key}")));
        assert_eq!(problems(|auth| auth.jwks_url = "http://keys/".into()), ["auth.jwks_url"]);
        for accepted in
            ["https://keys/jwks.json", "http://127.0.0.1:80/", "http://[::1]/", "http://localhost/x"]
        {
            let mut auth = AuthConfig { jwks_url: accepted.into(), ..AuthConfig::default() };
            auth.check(&mut |ok, what| assert!(ok, "{accepted}: {what}"));
            auth.jwks_insecure = true;
        }
    }
}
