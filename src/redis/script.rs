//! Lua script: its text, and the hash by which a server runs it once loaded.

use std::sync::OnceLock;

use redis::Cmd;

/// Script from a file of `redis/*.lua`.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, hash: OnceLock::new() }
    }

    /// Returns the command that runs the script by its hash. A server that lacks it, for instance after a restart,
    /// failover or flush, replies NOSCRIPT (flaw S33).
    pub(super) fn by_hash(&self) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.hash.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned()));
        cmd
    }

    /// Returns the command that runs the script by its text, which also loads it.
    pub(super) fn by_text(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.text);
        cmd
    }
}
