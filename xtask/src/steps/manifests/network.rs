//! Check of the NetworkPolicy: it must allow a node's clients, peers and servers, and nothing else.

use std::collections::BTreeSet;

use serde_json::Value;

use super::render::Settings;

/// The pods that a policy is about.
pub(super) struct Pods<'a> {
    /// The labels of the pods of nodes.
    pub(super) labels: &'a Value,
    /// The number of the port of a pod that has that name.
    pub(super) port: &'a dyn Fn(&Value) -> Option<u64>,
    pub(super) settings: &'a Settings,
    pub(super) is_cluster: bool,
}

impl Pods<'_> {
    /// Returns the problems of a policy, each as a sentence.
    pub(super) fn problems(&self, policy: &Value) -> Vec<String> {
        let mut found = Vec::new();
        let spec = &policy["spec"];
        if spec["policyTypes"] != serde_json::json!(["Ingress", "Egress"]) {
            found.push("the NetworkPolicy does not keep in and out".to_owned());
        }
        self.comes_in(spec, &mut found);
        self.goes_out(spec, &mut found);
        found
    }

    fn comes_in(&self, spec: &Value, found: &mut Vec<String>) {
        let mut let_in = BTreeSet::new();
        for rule in rules(&spec["ingress"]) {
            let ports = ports_of(rule);
            if ports.is_empty() {
                found.push("the NetworkPolicy lets every port in".to_owned());
            }
            for port in ports {
                if (self.port)(&port["port"]).is_none() || !port["endPort"].is_null() {
                    found.push(format!("the NetworkPolicy lets {port} in, which is not a port of a node"));
                }
                let name = port["port"].as_str().unwrap_or_default();
                let_in.insert(name.to_owned());
                // Clients may connect from anywhere, peers are nodes, and metrics and administration stay inside.
                let right = match name {
                    "link" => self.is_for_pods(rule, "from"),
                    "monitor" | "admin" => !is_open(rule, "from"),
                    _ => true,
                };
                if !right {
                    found.push(format!("the NetworkPolicy lets others than it should in at {name}"));
                }
            }
        }
        let mut wanted = BTreeSet::from(["client", "link", "monitor"].map(str::to_owned));
        if (self.port)(&Value::from("admin")).is_some() {
            wanted.insert("admin".to_owned());
        }
        if let_in != wanted {
            found.push(format!("the NetworkPolicy lets {let_in:?} in, not {wanted:?}"));
        }
    }

    fn goes_out(&self, spec: &Value, found: &mut Vec<String>) {
        let mut let_out = BTreeSet::new();
        let link = (self.port)(&Value::from("link"));
        for rule in rules(&spec["egress"]) {
            let ports = ports_of(rule);
            if ports.is_empty() {
                found.push("the NetworkPolicy lets every port out".to_owned());
            }
            for port in ports {
                let Some(number) = port["port"].as_u64().filter(|_| port["endPort"].is_null()) else {
                    found.push(format!("the NetworkPolicy lets a node out at {port}, which is not one port"));
                    continue;
                };
                if Some(number) == link && !self.is_for_pods(rule, "to") {
                    found.push("the NetworkPolicy lets a node call others than nodes as peers".to_owned());
                }
                let_out.insert((number, port["protocol"] == "UDP"));
            }
        }
        let mut wanted = BTreeSet::from([(53, true), (53, false)]);
        if self.is_cluster {
            wanted.extend(link.map(|link| (link, false)));
            for key in ["kafka.brokers", "kafka.node_brokers", "redis.urls", "postgres.url"] {
                let value = self.settings.value(key).unwrap_or_default();
                wanted.extend(named_ports(&value).into_iter().map(|port| (port, false)));
            }
        }
        for key in ["auth.jwks_url", "hooks.login_url", "hooks.allow_url", "hooks.before_url"] {
            let url = self.settings.value(key).unwrap_or_default();
            wanted.extend(port_of_url(&url).map(|port| (port, false)));
        }
        let missing: Vec<_> = wanted.difference(&let_out).collect();
        if !missing.is_empty() {
            found.push(format!("the NetworkPolicy keeps a node from (port, udp) {missing:?}"));
        }
        let more: Vec<_> = let_out.difference(&wanted).collect();
        // Sentinels name the master, which has a port of its own.
        let named = self.settings.value("redis.mode").as_deref() != Some("sentinel");
        if !named && more.is_empty() {
            found.push("the NetworkPolicy lets a node out to the sentinels, and to no master".to_owned());
        }
        if named && self.is_cluster && !more.is_empty() {
            found
                .push(format!("the NetworkPolicy lets a node out at (port, udp) {more:?}, where nothing is"));
        }
    }

    fn is_for_pods(&self, rule: &Value, side: &str) -> bool {
        !is_open(rule, side) && peers(rule, side).all(|peer| self.is_pods(peer))
    }

    fn is_pods(&self, peer: &Value) -> bool {
        let wanted = peer["podSelector"]["matchLabels"].as_object().filter(|wanted| !wanted.is_empty());
        let all = wanted.is_some_and(|it| it.iter().all(|(key, value)| self.labels[key] == *value));
        // Pods of another namespace do not match.
        all && peer["namespaceSelector"].is_null() && peer["ipBlock"].is_null()
    }
}

fn rules(of: &Value) -> impl Iterator<Item = &Value> {
    of.as_array().into_iter().flatten()
}

fn ports_of(rule: &Value) -> Vec<&Value> {
    rules(&rule["ports"]).collect()
}

fn peers<'a>(rule: &'a Value, side: &str) -> impl Iterator<Item = &'a Value> {
    rules(&rule[side])
}

/// Returns whether the rule names no peers, or allows all of them.
fn is_open(rule: &Value, side: &str) -> bool {
    let mut named = peers(rule, side).peekable();
    named.peek().is_none()
        || named.any(|peer| {
            let selectors = [&peer["podSelector"], &peer["namespaceSelector"]];
            let is_empty = |it: &Value| it.as_object().is_some_and(serde_json::Map::is_empty);
            selectors.into_iter().any(is_empty)
                || ["0.0.0.0/0", "::/0"].iter().any(|all| peer["ipBlock"]["cidr"] == *all)
        })
}

/// The port of an HTTP server, which its scheme has if the URL names none.
fn port_of_url(url: &str) -> Option<u64> {
    let (scheme, rest) = url.split_once("://")?;
    let own = if scheme == "https" { 443 } else { 80 };
    let authority = rest.split('/').next().unwrap_or(rest);
    Some(named_ports(authority).last().copied().unwrap_or(own))
}

/// The ports in a text of addresses and URLs.
fn named_ports(text: &str) -> Vec<u64> {
    let parts = text.split(':').skip(1);
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>();
    parts.filter_map(|part| digits(part).parse().ok()).collect()
}
