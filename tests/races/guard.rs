//! Entries of the guard over several nodes: notifications, and nodes that find a change in the store.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use tidegate::{
    cluster::{Cluster, GuardChange, GuardHandler},
    fault::Fault,
    guard::rules::{put_rule, remove_rule},
    store::{GuardKey, GuardKind, GuardRow},
};
use tidegate_protocol::{Code, codec::Wire};

use super::mesh;
use crate::{
    mesh::Mesh,
    support::{Client, ServerBody, ask, eventually, send},
};

/// Time within which a change is in force on all nodes.
const IN_FORCE_MAX: Duration = Duration::from_secs(2);

/// Rules as a node got them, by name.
#[derive(Default)]
struct Received(Mutex<BTreeMap<String, Bytes>>);

#[async_trait]
impl GuardHandler for Received {
    fn handles(&self, kind: GuardKind) -> bool {
        kind == GuardKind::Rule
    }

    async fn restarted(&self) {
        self.0.lock().clear();
    }

    async fn changed(&self, rows: &[GuardRow], _: u64) {
        for row in rows {
            match &row.value {
                Some(value) => self.0.lock().insert(row.key.name().to_owned(), value.clone()),
                None => self.0.lock().remove(row.key.name()),
            };
        }
    }
}

impl Received {
    fn on(cluster: &Cluster) -> Arc<Self> {
        let received = Arc::new(Self::default());
        cluster.guard.add_handler(Arc::clone(&received) as Arc<dyn GuardHandler>);
        received
    }

    fn value(&self) -> Option<Bytes> {
        self.0.lock().get("r").cloned()
    }
}

fn put(mesh: &Mesh, nth: usize, value: &str) -> GuardChange {
    mesh.put_entry(nth, (GuardKind::Rule, "r"), Bytes::copy_from_slice(value.as_bytes()), None)
}

#[test]
fn change_of_an_entry_reaches_all_nodes_at_once() {
    let (mesh, _ann) = mesh();
    let received = [0, 1, 2].map(|nth| Received::on(mesh.node(nth).cluster()));
    let begin = Instant::now();
    for n in 0..12_usize {
        let value = n.to_string();
        let change = put(&mesh, n % 3, &value);
        assert!(change.is_in_force && change.pending.is_empty(), "{change:?}");
        assert_eq!(received[n % 3].value().as_deref(), Some(value.as_bytes()));
        let all = || received.iter().all(|it| it.value().as_deref() == Some(value.as_bytes()));
        eventually("the entry is on all nodes", || all().then_some(()));
    }
    // Nodes that only read each second would need about one for each of the changes.
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    let key = GuardKey::new(GuardKind::Rule, "r").unwrap();
    mesh.run(mesh.node(1).cluster().remove_guard(&key, None)).unwrap();
    eventually("the entry is gone", || received.iter().all(|it| it.value().is_none()).then_some(()));
}

#[test]
fn change_of_an_entry_reaches_nodes_whose_link_is_cut() {
    let (mesh, _ann) = mesh();
    let received = [0, 1, 2].map(|nth| Received::on(mesh.node(nth).cluster()));
    put(&mesh, 0, "before");
    eventually("all nodes read", || received.iter().all(|it| it.value().is_some()).then_some(()));
    (0..2).for_each(|_| mesh.node(1).link.plan("send_best_effort", Fault::Fail));
    let begin = Instant::now();
    let mut pending = put(&mesh, 1, "after").pending;
    pending.sort();
    assert_eq!(pending, ["n1", "n3"]);
    let all = || received.iter().all(|it| it.value().as_deref() == Some(&b"after"[..]));
    eventually("the entry is on all nodes", || all().then_some(()));
    assert!(begin.elapsed() < IN_FORCE_MAX, "{:?}", begin.elapsed());
}

#[test]
fn rule_of_the_api_limits_on_all_nodes_until_it_is_removed() {
    let (mesh, mut ann) = mesh();
    let mut there = mesh.login(2, Wire::Tcp, "eve", "phone");
    let form = json!({"level": "user", "calls": ["send"], "window": "1h", "limit": 2});
    let form = serde_json::from_value(form).unwrap();
    ann.text("bob", "m0", "before");
    let change = mesh.run(put_rule(mesh.node(1).cluster(), "few", &form, None)).unwrap();
    assert!(change.is_in_force && change.pending.is_empty(), "{change:?}");
    let begin = Instant::now();
    // What was sent before the rule does not count.
    let refused = |client: &mut Client, prefix: &str| {
        (1..).find(|n| {
            let body = client.ask(ask::send(send("bob", &format!("{prefix}{n}"), "hi")));
            matches!(&body, ServerBody::Error(error) if error.name == Code::RateLimited.name())
        })
    };
    for (client, prefix) in [(&mut ann, "a"), (&mut there, "e")] {
        let nth = refused(client, prefix);
        assert!(nth >= Some(3), "{nth:?}");
        assert!(begin.elapsed() < IN_FORCE_MAX, "{:?}", begin.elapsed());
    }
    mesh.run(remove_rule(mesh.node(0).cluster(), "few", None)).unwrap();
    let mut n = 0;
    eventually("the rule is gone", || {
        n += 1;
        let body = there.ask(ask::send(send("bob", &format!("late{n}"), "hi")));
        matches!(body, ServerBody::SendAck(_)).then_some(())
    });
}
