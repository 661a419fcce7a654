//! TLS of the link between processes: a cluster switches to it node by node under load, and a node with a certificate of
//! another authority stays out.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use tidegate_protocol::codec::Wire;

use crate::{
    degraded::send_and_expect,
    history,
    rebalance::Until,
    send_until_acked,
    support::{Client, Cluster, eventually, fresh_data},
};

/// Folder with an authority and a certificate of each node, removed at the end.
struct Certificates(PathBuf);

impl Certificates {
    fn create() -> Self {
        let folder = fresh_data();
        for file in ["n1", "n2"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
            command.args(["cert", "127.0.0.1", "--file", file, "--out"]).arg(&folder);
            let output = command.output().expect("it runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Self(folder)
    }

    /// Returns the settings of a node.
    fn sets(&self, nth: usize, mode: &str) -> Vec<String> {
        let file = |name: String| Path::new(&self.0).join(name).display().to_string();
        let node = format!("n{}", nth + 1);
        vec![
            format!("link.tls_cert={}", file(format!("{node}.pem"))),
            format!("link.tls_key={}", file(format!("{node}.key"))),
            format!("link.tls_ca={}", file("ca.pem".to_owned())),
            format!("link.tls_mode={mode}"),
        ]
    }

    fn set_for(&self, cluster: &mut Cluster, nth: usize, mode: &str) {
        let sets = self.sets(nth, mode);
        cluster.set_for(nth, &sets.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Messages of each user at least: those that wait for a take-over are few.
const MESSAGES_MIN: u64 = 5;

/// Sends until `goes_on` is false; returns the number of messages.
fn talk(client: &mut Client, goes_on: &AtomicBool) -> u64 {
    let mut count = 0;
    while goes_on.load(Ordering::SeqCst) || count < MESSAGES_MIN {
        count += 1;
        assert_eq!(send_until_acked(client, "zoe", &format!("m{count}")).0, count);
        client.listen(Duration::from_millis(20));
    }
    count
}

/// Restarts a node while users of the other one send without a pause; checks that all messages are there, in order.
fn restart_under_load(cluster: &mut Cluster, nth: usize, name: &str) {
    let users = [0, 1, 2].map(|n| format!("{name}-{n}"));
    let mut clients = users.each_ref().map(|user| cluster.login(1 - nth, Wire::Tcp, user));
    let goes_on = AtomicBool::new(true);
    let counts: Vec<u64> = thread::scope(|scope| {
        let talks: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| talk(client, &goes_on))).collect();
        let until = Until(&goes_on);
        assert_eq!(cluster.stop(nth), Some(0));
        cluster.restart(nth);
        cluster.all_owned();
        cluster.all_linked();
        drop(until);
        talks.into_iter().map(|talk| talk.join().expect("the talk succeeds")).collect()
    });
    for ((client, user), count) in clients.iter_mut().zip(&users).zip(counts) {
        let expected: Vec<_> = (1..=count).map(|n| (n, format!("m{n}"))).collect();
        assert_eq!(history(client, &format!("d:{user}:zoe")), expected);
    }
}

/// Exchanges a message in each direction over the link.
fn exchange(cluster: &Cluster, next_seq: &mut u64) {
    let [mut ann, mut bob]: [Client; 2] =
        [cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::WsText, "bob")];
    send_and_expect(&mut ann, &mut bob, ("ann", "bob"), *next_seq);
    send_and_expect(&mut bob, &mut ann, ("bob", "ann"), *next_seq + 1);
    *next_seq += 2;
}

#[test]
fn running_cluster_switches_to_tls_and_refuses_a_foreign_certificate() {
    let (ours, foreign) = (Certificates::create(), Certificates::create());
    let mut cluster = Cluster::prepare(2, &[]);
    (0..2).for_each(|nth| ours.set_for(&mut cluster, nth, "accept"));
    cluster.start_nodes(0..2);
    cluster.all_owned();
    cluster.all_linked();
    let mut next_seq = 1;
    exchange(&cluster, &mut next_seq);
    for mode in ["prefer", "required"] {
        for nth in 0..2 {
            ours.set_for(&mut cluster, nth, mode);
            restart_under_load(&mut cluster, nth, &format!("{mode}-{nth}"));
            exchange(&cluster, &mut next_seq);
        }
    }
    let refused = (0..2).map(|nth| cluster.node(nth).metric("link_refused_total")).sum::<f64>();
    assert_eq!(refused, 0.0, "no node was refused on the way");

    foreign.set_for(&mut cluster, 1, "required");
    cluster.kill(1);
    cluster.restart(1);
    let [first, second] = [0, 1].map(|nth| cluster.node(nth));
    eventually("each node refuses the other", || {
        [first, second].iter().all(|node| node.metric("link_refused_total") >= 1.0).then_some(())
    });
    for node in [first, second] {
        let log = node.stderr();
        for words in ["link caller refused by its TLS", "no link to peer; retrying"] {
            assert!(log.contains(words), "{words:?} is missing: {log}");
        }
    }
    assert_eq!([first, second].map(|node| node.metric("link_peers")), [0.0, 0.0]);
}
