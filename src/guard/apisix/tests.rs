//! Tests with an Admin API that takes what the schema of `ip-restriction` allows.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    bans::{Ban, BanRecord},
    cluster::PeerSnapshot,
    link::LocalLink,
    metrics,
    ports::Ports,
    routes::{Lease, NodeBoot, NodeInfo, NodeRow},
};

const PATH: &str = "/apisix/admin/global_rules/tidegate-bans";

/// State of the Admin API: the blacklist of its rule, and the requests that it took.
#[derive(Default)]
struct FakeApisix {
    blacklist: Mutex<Option<Vec<String>>>,
    taken: Mutex<Vec<String>>,
}

/// Returns the blacklist of a rule, as the schema of the plugin allows it.
fn checked(body: &str) -> Option<Vec<String>> {
    let rule: Value = serde_json::from_str(body).ok()?;
    let keys = |value: &Value| Some(value.as_object()?.keys().cloned().collect::<Vec<_>>());
    let plugin = &rule["plugins"]["ip-restriction"];
    let are_known = keys(&rule)? == ["plugins"] && keys(plugin)? == ["blacklist", "message"];
    let message = plugin["message"].as_str()?;
    let list = plugin["blacklist"].as_array().filter(|list| !list.is_empty())?;
    let list: Option<Vec<String>> = list.iter().map(|it| it.as_str().map(str::to_owned)).collect();
    let list = list.filter(|list| list.iter().all(|it| it.parse::<ipnet::IpNet>().is_ok()))?;
    (are_known && (1..=1_024).contains(&message.len())).then_some(list)
}

impl FakeApisix {
    async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((stream, _)) = listener.accept().await {
            Box::pin(self.answer(stream)).await;
        }
    }

    async fn answer(&self, mut stream: TcpStream) {
        let mut request = String::new();
        let is_whole = |request: &str| {
            let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
            let head = head.to_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|it| it.lines().next());
            body.len() >= length.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
        };
        while !is_whole(&request) {
            let mut bytes = [0; 4_096];
            let length = stream.read(&mut bytes).await.unwrap();
            request.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        self.taken.lock().push(method.to_owned());
        let has_key = head.to_lowercase().contains("x-api-key: secret");
        let status = match (method, checked(body)) {
            _ if path != PATH || !has_key => 401,
            ("PUT", Some(list)) => {
                *self.blacklist.lock() = Some(list);
                201
            }
            ("DELETE", _) => {
                if self.blacklist.lock().take().is_some() {
                    200
                } else {
                    404
                }
            }
            _ => 400,
        };
        let response = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(response.as_bytes()).await.unwrap();
    }
}

fn note(bans: &BanBoard, kind: BanKind, subject: &str, until_ms: Option<u64>) {
    let ban = until_ms.map(|end| Ban { record: BanRecord::default(), until_ms: Some(bans.now_ms() + end) });
    bans.note(kind, subject.parse().unwrap(), ban);
    bans.publish(true);
}

fn boot(node: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(node).unwrap(), boot: 1 }
}

/// Cluster of a node that has read all entries.
fn cluster() -> Cluster {
    let cluster = Cluster::new(boot("n2"), Ports::in_memory(Arc::new(LocalLink)));
    cluster.bans.restart();
    cluster.bans.publish(true);
    cluster
}

fn task(cluster: &Cluster, address: SocketAddr, key: &str) -> io::Result<ApisixBans> {
    let file =
        std::env::temp_dir().join(format!("tidegate-apisix-{}-{}", std::process::id(), address.port()));
    fs::write(&file, key).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let url = format!("http://{address}{PATH}");
    let task = ApisixBans::new(cluster, &url, &file, Path::new(""), metrics::install().0);
    fs::remove_file(file).unwrap();
    task
}

#[tokio::test]
async fn banned_networks_are_written_and_the_rule_is_removed_with_the_last() {
    let (cluster, apisix) = (cluster(), Arc::new(FakeApisix::default()));
    let bans = Arc::clone(&cluster.bans);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Arc::clone(&apisix).serve(listener));
    let mut task = task(&cluster, address, "secret\n").unwrap();
    task.look().await;
    assert_eq!(*apisix.taken.lock(), ["DELETE"], "a rule of a former run does not stay");
    note(&bans, BanKind::Ban, "network:192.0.2.0/24", Some(60_000));
    note(&bans, BanKind::Ban, "network:2001:db8::/32", Some(60_000));
    note(&bans, BanKind::Ban, "network:198.51.100.0/24", Some(60_000));
    note(&bans, BanKind::Ban, "user:ann", Some(60_000));
    note(&bans, BanKind::Allow, "network:198.51.100.7", Some(60_000));
    task.look().await;
    let expected = ["192.0.2.0/24", "2001:db8::/32"].map(str::to_owned);
    assert_eq!(apisix.blacklist.lock().as_deref(), Some(&expected[..]), "an allowed address stays");
    task.look().await;
    assert_eq!(*apisix.taken.lock(), ["DELETE", "PUT"], "nothing has changed");
    for network in ["192.0.2.0/24", "2001:db8::/32"] {
        note(&bans, BanKind::Ban, &format!("network:{network}"), None);
    }
    task.look().await;
    assert_eq!((apisix.blacklist.lock().clone(), apisix.taken.lock().len()), (None, 3));
}

#[tokio::test]
async fn refused_rule_is_written_again_and_a_key_is_needed() {
    let (cluster, apisix) = (cluster(), Arc::new(FakeApisix::default()));
    let bans = Arc::clone(&cluster.bans);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Arc::clone(&apisix).serve(listener));
    assert!(task(&cluster, address, " \n").is_err());
    let mut task = task(&cluster, address, "wrong").unwrap();
    note(&bans, BanKind::Ban, "network:192.0.2.0/24", Some(60_000));
    task.look().await;
    assert!(task.written.is_none() && apisix.blacklist.lock().is_none());
    task.key = header::HeaderValue::from_static("secret");
    task.look().await;
    assert_eq!(apisix.blacklist.lock().as_ref().map(Vec::len), Some(1));
}

#[tokio::test]
async fn only_the_node_with_the_lowest_id_writes_and_only_once_all_entries_are_read() {
    let apisix = Arc::new(FakeApisix::default());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(Arc::clone(&apisix).serve(listener));
    let cluster = Cluster::new(boot("n2"), Ports::in_memory(Arc::new(LocalLink)));
    let mut task = task(&cluster, address, "secret").unwrap();
    note(&cluster.bans, BanKind::Ban, "network:192.0.2.0/24", Some(60_000));
    task.look().await;
    assert!(apisix.taken.lock().is_empty(), "other entries may be missing");
    cluster.bans.restart();
    note(&cluster.bans, BanKind::Ban, "network:192.0.2.0/24", Some(60_000));
    let live = |node: &str| {
        let others = [NodeRow::new(NodeInfo::new(boot(node)), Lease::Live)];
        cluster.peers.set(PeerSnapshot { others: others.into(), ..PeerSnapshot::default() });
    };
    live("n1");
    task.look().await;
    assert!(apisix.taken.lock().is_empty(), "n1 writes");
    live("n3");
    task.look().await;
    assert_eq!(*apisix.taken.lock(), ["PUT"]);
}

#[test]
fn revision_changes_with_entries_and_the_first_end_is_known() {
    let bans = BanBoard::default();
    assert_eq!(bans.revision(), None);
    bans.restart();
    note(&bans, BanKind::Ban, "network:192.0.2.0/24", Some(60_000));
    let before = bans.revision().unwrap();
    note(&bans, BanKind::Ban, "network:192.0.3.0/24", Some(9_000));
    assert!(bans.revision() > Some(before));
    let (networks, ends_ms) = banned_networks(&bans);
    assert_eq!(networks.len(), 2);
    assert!(ends_ms <= bans.now_ms() + 9_000);
    let before = bans.revision();
    bans.publish(true);
    assert_eq!(bans.revision(), before);
}
