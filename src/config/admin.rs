//! Section `[admin]`: the console, and whether the node is for development.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;

/// Console on the admin port, and rights that only a node for development has.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct AdminConfig {
    /// Console on `listen.admin`: `off`; `read`: its page changes nothing, except that it traces messages; `full`;
    /// `auto`: `full` on a node for development, `read` elsewhere. Programs are not affected.
    pub console: String,
    /// Whether the node is for development: `yes`, `no` or `auto`. Such a node creates tokens for its console, cuts
    /// connections on request, and lets web pages on loopback connect. `yes` needs a loopback `listen.client`. `auto`:
    /// yes if `listen.client` is loopback and `listen.origins`, `listen.allow_public`, `assign.addresses`,
    /// `auth.key_file`, `auth.key_files`, `auth.jwks_url` and `node.profile` have their defaults.
    pub development: String,
    /// Whether the console may crash the node; for `tidegate up`.
    #[serde(skip)]
    pub may_abort: bool,
}

/// Rights of the console's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleMode {
    /// No page.
    Off,
    /// The page changes nothing.
    Read,
    /// The page may use the whole admin API.
    Full,
}

impl ConsoleMode {
    /// Returns the value of `admin.console`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Full => "full",
        }
    }
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { console: "auto".into(), development: "auto".into(), may_abort: false }
    }
}

impl Config {
    /// Returns whether the node is for development. A program of the node's account can get a token for any user of such
    /// a node, so `auto` does not take a node for one that operators have given a key, addresses or services.
    pub fn is_development(&self) -> bool {
        let listen = &self.listen;
        let is_on_loopback = listen.client.ip().is_loopback() && listen.admin.ip().is_loopback();
        let is_wanted = match self.admin.development.as_str() {
            "yes" => true,
            "auto" => {
                self.node.profile == "single"
                    && self.auth.has_own_secret()
                    && self.assign.addresses.is_empty()
                    && !listen.allow_public
                    && listen.origins.is_empty()
            }
            _ => false,
        };
        is_wanted && is_on_loopback
    }

    /// Returns the rights of the console's page.
    pub fn console(&self) -> ConsoleMode {
        match self.admin.console.as_str() {
            "off" => ConsoleMode::Off,
            "full" => ConsoleMode::Full,
            "auto" if self.is_development() => ConsoleMode::Full,
            _ => ConsoleMode::Read,
        }
    }

    pub(super) fn check_admin(&self, need: &mut impl FnMut(bool, &str)) {
        let admin = &self.admin;
        need(
            ["auto", "off", "read", "full"].contains(&admin.console.as_str()),
            "admin.console: `auto`, `off`, `read` or `full`",
        );
        need(
            ["auto", "yes", "no"].contains(&admin.development.as_str()),
            "admin.development: `auto`, `yes` or `no`",
        );
        need(
            admin.development != "yes" || self.is_development(),
            "admin.development: `yes` needs a loopback address in listen.client, because any program that reaches the node \
             gets tokens; set `auto`, or listen on loopback",
        );
    }
}
