//! A script: its text and the name by which a server that has it runs it.

use std::sync::OnceLock;

use redis::Cmd;

/// One file of `redis/*.lua`.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, hash: OnceLock::new() }
    }

    /// Runs it by its hash; a server that does not know it (S33: restarted, failed over, flushed) says NOSCRIPT.
    pub(super) fn by_hash(&self) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.hash.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned()));
        cmd
    }

    /// Runs it by its text, after which the server knows it.
    pub(super) fn by_text(&self) -> Cmd {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.text);
        cmd
    }
}
