//! Section `[webhooks]`: where events of the feed may be sent.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Hosts of a development node's own machine, which get content unless the settings name others.
const OWN_HOSTS: [&str; 3] = ["127.0.0.1", "localhost", "::1"];

/// Most hosts that may get content.
const HOSTS_MAX: usize = 64;

/// Webhooks: where the endpoints of the admin API may send events; see docs/webhooks.md.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct WebhooksConfig {
    /// Whether endpoints may have URLs of `http` to private addresses. Who can read that traffic reads the events. Allowed
    /// on a node for development.
    pub allow_plain: bool,
    /// Hosts, as the URLs of endpoints name them, that may get what people wrote; without the port. A key of the admin API
    /// can then send it nowhere else. Empty: none, and on a node for development those of its own machine.
    pub content_hosts: Vec<String>,
    /// PEM file of the authorities that signed the certificates of the URLs, read again at each reload. Empty: those of the
    /// system.
    pub ca_file: PathBuf,
}

impl WebhooksConfig {
    /// Returns the hosts that may get content, of a node that is for development or not.
    pub fn hosts(&self, is_development: bool) -> Vec<String> {
        if self.content_hosts.is_empty() && is_development {
            return OWN_HOSTS.map(str::to_owned).to_vec();
        }
        self.content_hosts.clone()
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        let is_host = |host: &String| {
            (1..=253).contains(&host.len())
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:_".contains(&byte))
        };
        need(
            self.content_hosts.len() <= HOSTS_MAX && self.content_hosts.iter().all(is_host),
            "webhooks.content_hosts: at most 64 names of hosts or addresses, without scheme, port and brackets",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{super::check::problem, *};

    #[test]
    fn hosts_are_names_or_addresses() {
        assert_eq!(problem(&["webhooks.content_hosts=[crm.internal, 10.0.0.7, ::1]"]), "");
        for wrong in ["https://crm.internal", "crm.internal/x", "*"] {
            let found = problem(&[&format!("webhooks.content_hosts=[{wrong}]")]);
            assert!(found.contains("webhooks.content_hosts: at most 64"), "{wrong}: {found}");
        }
    }

    #[test]
    fn content_stays_on_the_machine_of_a_development_node() {
        let with = |hosts: &[&str]| WebhooksConfig {
            content_hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            ..WebhooksConfig::default()
        };
        assert_eq!(with(&[]).hosts(true), OWN_HOSTS);
        assert_eq!(with(&[]).hosts(false), [""; 0]);
        assert_eq!(with(&["crm.internal"]).hosts(true), ["crm.internal"]);
    }
}
