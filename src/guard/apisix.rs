//! Bans of networks at the gateway APISIX: its plugin `ip-restriction` in a global rule, by the Admin API of the gateway.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tidegate_protocol::id::NodeId;
use tokio::time::timeout;

use super::looks;
use crate::{
    bans::{BanBoard, BanKind, BanSubject},
    cluster::{Cluster, Peers},
    log_limit::log_limited,
    metrics::Metrics,
    net::endpoint::HttpEndpoint,
    networks::Network,
    private,
};

/// Most networks of the rule; those that are banned for the longest time come first.
const NETWORKS_MAX: usize = 5_000;

/// Time after which a rule is written again that this node has not changed.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Longest wait for the gateway.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Entries read at once.
const PAGE: usize = 1_000;

/// Header with the key of the Admin API.
const KEY_HEADER: &str = "x-api-key";

/// Rule that the gateway has.
struct Written {
    networks: Vec<Network>,
    at: Instant,
    /// State of the bans from which the networks follow, and the first end of them.
    revision: u64,
    ends_ms: u64,
}

/// Task that keeps the global rule of a gateway as the bans of this node are. Of several nodes, the live one with the
/// lowest id does it.
pub struct ApisixBans {
    node: NodeId,
    peers: Arc<Peers>,
    bans: Arc<BanBoard>,
    endpoint: HttpEndpoint,
    key: header::HeaderValue,
    metrics: Metrics,
    written: Option<Written>,
}

impl ApisixBans {
    /// Creates the task. `url` is that of the global rule; `key_file` has the key of the Admin API.
    ///
    /// # Errors
    /// The URL or a file can't be used; the text names the setting, the file and the cure.
    pub fn new(
        cluster: &Cluster,
        url: &str,
        key_file: &Path,
        ca_file: &Path,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let endpoint = HttpEndpoint::new(url, ca_file).map_err(|error| {
            io::Error::new(error.kind(), format!("evidence.apisix_url, evidence.apisix_ca_file: {error}"))
        })?;
        let unusable = |kind: io::ErrorKind, why: &str| {
            io::Error::new(kind, private::unusable("evidence.apisix_key_file", key_file, why))
        };
        let bytes = private::read(key_file).map_err(|error| unusable(error.kind(), &error.to_string()))?;
        let wrong =
            || unusable(io::ErrorKind::InvalidData, "no key in it; write that of the Admin API to it");
        let mut key = header::HeaderValue::from_bytes(bytes.trim_ascii()).map_err(|_| wrong())?;
        if key.is_empty() {
            return Err(wrong());
        }
        key.set_sensitive(true);
        let (node, peers) = (cluster.me.node.clone(), Arc::clone(&cluster.peers));
        Ok(Self { node, peers, bans: Arc::clone(&cluster.bans), endpoint, key, metrics, written: None })
    }

    /// Writes changed bans for as long as the node runs.
    pub async fn run(mut self) {
        let mut looks = looks();
        loop {
            looks.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        if self.peers.others().iter().any(|row| row.info.boot.node < self.node) {
            // Another node may write something else before it is this one's turn again.
            self.written = None;
            return;
        }
        // Without all entries the rule would lose those that are missing.
        let Some(revision) = self.bans.revision() else { return };
        let now_ms = self.bans.now_ms();
        let is_due = |written: &Written| written.at.elapsed() >= REPEAT_INTERVAL;
        let is_same = |written: &Written| written.revision == revision && now_ms < written.ends_ms;
        if self.written.as_ref().is_some_and(|written| is_same(written) && !is_due(written)) {
            return;
        }
        let (networks, ends_ms) = banned_networks(&self.bans);
        if let Some(written) = &mut self.written
            && written.networks == networks
            && !is_due(written)
        {
            (written.revision, written.ends_ms) = (revision, ends_ms);
            return;
        }
        match self.write(&networks).await {
            Ok(()) => self.written = Some(Written { networks, at: Instant::now(), revision, ends_ms }),
            Err(why) => {
                self.metrics.gateway_bans_failed.increment(1);
                log_limited!(warn, why, "bans not written to the gateway; retrying");
            }
        }
    }

    /// Writes the rule. An empty list is not one that the plugin takes, so its rule is removed.
    async fn write(&self, networks: &[Network]) -> Result<(), String> {
        let (method, body) = if networks.is_empty() {
            (Method::DELETE, Bytes::new())
        } else {
            let list: Vec<String> = networks.iter().map(Network::to_string).collect();
            let rule = json!({"plugins": {"ip-restriction": {"blacklist": list, "message": "BANNED"}}});
            (Method::PUT, Bytes::from(rule.to_string()))
        };
        let is_removal = method == Method::DELETE;
        let status = timeout(TIMEOUT, self.exchange(method, body));
        let status = status.await.map_err(|_| format!("no answer within {TIMEOUT:?}"))??;
        match status {
            200 | 201 => Ok(()),
            // There was none.
            404 if is_removal => Ok(()),
            other => Err(format!("status {other}")),
        }
    }

    async fn exchange(&self, method: Method, body: Bytes) -> Result<u16, String> {
        let stream = self.endpoint.connect().await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let request = Request::builder()
            .method(method)
            .uri(self.endpoint.path())
            .header(header::HOST, self.endpoint.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .header(KEY_HEADER, &self.key)
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let answer = sender.send_request(request);
        tokio::pin!(answer);
        // The connection may end first, with the answer read.
        let response = tokio::select! {
            response = &mut answer => response,
            ended = connection => {
                ended.map_err(|error| error.to_string())?;
                answer.await
            }
        };
        Ok(response.map_err(|error| error.to_string())?.status().as_u16())
    }
}

/// Returns the banned networks that a gateway may refuse, sorted, and the first end of a ban or of an allowed network. One that contains an allowed network is left out, because
/// the rule of the gateway has no exceptions.
fn banned_networks(bans: &BanBoard) -> (Vec<Network>, u64) {
    let allowed = networks_of(bans, BanKind::Allow);
    let is_exempt = |network: &Network| {
        bans.is_exempt_network(network)
            || allowed.iter().any(|(allowed, _)| allowed.includes(network) || network.includes(allowed))
    };
    let mut banned = networks_of(bans, BanKind::Ban);
    let ends_ms = banned.iter().chain(&allowed).map(|(_, until_ms)| *until_ms).min().unwrap_or(u64::MAX);
    banned.retain(|(network, _)| !is_exempt(network));
    banned.sort_by_key(|(_, until_ms)| std::cmp::Reverse(*until_ms));
    banned.truncate(NETWORKS_MAX);
    let mut networks: Vec<Network> = banned.into_iter().map(|(network, _)| network).collect();
    networks.sort();
    (networks, ends_ms)
}

/// Returns the networks in force of a kind, with their ends.
fn networks_of(bans: &BanBoard, kind: BanKind) -> Vec<(Network, u64)> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = bans.list(kind, after.as_ref(), PAGE);
        let is_last = page.len() < PAGE;
        after = page.last().map(|(subject, _)| subject.clone());
        for (subject, ban) in page {
            // Networks come first.
            let BanSubject::Network(network) = subject else { return found };
            found.push((network, ban.until_ms.unwrap_or(u64::MAX)));
        }
        if is_last {
            return found;
        }
    }
}

#[cfg(test)]
mod tests;
