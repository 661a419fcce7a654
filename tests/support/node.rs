//! Node in this process, on free ports and a directory of its own, stopped when the test ends.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate::{auth, config::Config, drain::Drainer, node::Node};
use tidegate_protocol::{codec::Wire, machine::drain::DrainOutcome};

use super::{Client, hello, http, unique_name};

/// Running node.
pub struct TestNode {
    node: Option<Node>,
    data: PathBuf,
    keep: bool,
}

impl TestNode {
    /// Starts a node with two shards; `configure` changes the settings under test.
    pub fn start(configure: impl FnOnce(&mut Config)) -> Self {
        let data = std::env::temp_dir().join(format!("tidegate-test-{}", unique_name()));
        Self::start_on(&data, configure)
    }

    /// Starts a node on a data directory.
    pub fn start_on(data: &Path, configure: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        config.node.data = data.to_owned();
        config.node.shards = 2;
        config.listen.client = ([127, 0, 0, 1], 0).into();
        config.listen.admin = ([127, 0, 0, 1], 0).into();
        config.limits.conns_per_ip = 0;
        // Tests are faster than users.
        config.limits.user_logins_per_second = 0;
        config.limits.joins_per_second = 0;
        config.limits.queries_per_second = 0;
        config.limits.frames_per_second = 0;
        config.limits.new_conversations_per_minute = 0;
        configure(&mut config);
        let node = Node::start(&config, &tokio::sync::watch::Sender::new(false)).expect("the node starts");
        Self { node: Some(node), data: data.to_owned(), keep: false }
    }

    /// Stops as SIGTERM does; the data directory stays for another node.
    pub fn stop(mut self) -> PathBuf {
        self.keep = true;
        self.node.take().expect("the node runs").stop();
        self.data.clone()
    }

    /// Returns the drain control.
    pub fn drainer(&self) -> &Arc<Drainer> {
        self.running().drainer()
    }

    /// Waits for the end of a drain.
    pub fn wait(mut self) -> DrainOutcome {
        self.node.take().expect("the node runs").wait().expect("no part of the node fails")
    }

    /// Returns the client address.
    pub fn address(&self) -> SocketAddr {
        self.running().addresses.client
    }

    /// Returns the address of the admin port.
    pub fn admin_address(&self) -> SocketAddr {
        self.running().addresses.admin
    }

    /// Returns the key of tokens.
    pub fn key(&self) -> &[u8] {
        &self.running().token_key
    }

    /// Returns a token for any device of the user.
    pub fn token(&self, user: &str) -> String {
        auth::sign(self.key(), user, None, Duration::from_secs(600))
    }

    /// Opens a connection without sending a frame.
    pub fn connect(&self, wire: Wire) -> Client {
        Client::connect(self.address(), wire)
    }

    /// Opens a logged-in connection without a chain.
    pub fn login(&self, wire: Wire, user: &str, device: &str) -> Client {
        let mut client = self.connect(wire);
        client.login(hello(&self.token(user), device));
        client
    }

    /// Opens a logged-in connection whose chain continues with `next_id`.
    pub fn login_chained(&self, wire: Wire, user: &str, device: &str, next_id: &str) -> Client {
        let mut client = self.connect(wire);
        let mut hello = hello(&self.token(user), device);
        hello.next_id = next_id.into();
        client.login(hello);
        client
    }

    /// Creates a group and returns its conversation key.
    pub fn group(&self, id: &str, members: &[&str]) -> String {
        let (status, body) = self.admin("POST", "/v1/groups", &json!({"id": id, "members": members}));
        assert_eq!(status, 201, "{body}");
        body["conversation"].as_str().expect("a key").to_owned()
    }

    /// Adds users to a group; returns the seq of the change.
    pub fn add(&self, group: &str, users: &[&str]) -> u64 {
        self.change(group, &json!({"add": users}))
    }

    /// Removes users from a group; returns the seq of the change.
    pub fn kick(&self, group: &str, users: &[&str]) -> u64 {
        self.change(group, &json!({"remove": users}))
    }

    /// Sends one request to the admin port.
    pub fn admin(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = http::ask(self.running().addresses.admin, method, path, &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Returns the number of connections that the node counts.
    pub fn conns(&self) -> u64 {
        self.admin("GET", "/healthz", &Value::Null).1["conns"].as_u64().expect("a number")
    }

    /// Returns the value of a metric without labels. All nodes of a process share it.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = http::ask(self.running().addresses.admin, "GET", "/metrics", "");
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    fn change(&self, group: &str, body: &Value) -> u64 {
        let group = group.trim_start_matches("g:");
        let (status, body) = self.admin("POST", &format!("/v1/groups/{group}/members"), body);
        assert_eq!(status, 200, "{body}");
        body["seq"].as_u64().expect("a seq")
    }

    fn running(&self) -> &Node {
        self.node.as_ref().expect("the node runs")
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        if !self.keep {
            fs::remove_dir_all(&self.data).ok();
        }
    }
}
