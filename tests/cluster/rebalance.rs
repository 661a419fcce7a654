//! Partitions that move under load: a node joins, gets its share and leaves again.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use tidegate_protocol::codec::Wire;

use super::{
    history, send_until_acked,
    support::{Client, Cluster, ServerBody, text_of},
};

/// Two users who send in turn, on nodes that stay.
struct Pair {
    place: String,
    clients: [Client; 2],
    names: [String; 2],
    /// Seqs that each of them received.
    received: [BTreeSet<u64>; 2],
}

impl Pair {
    fn new(cluster: &Cluster, nth: usize) -> Self {
        let names = [format!("a{nth}"), format!("b{nth}")];
        let clients = [0, 1].map(|of| cluster.login((nth + of) % 3, Wire::ALL[nth % 4], &names[of]));
        Self { place: format!("d:a{nth}:b{nth}"), clients, names, received: Default::default() }
    }

    /// Sends until `goes_on` is false; returns the number of messages and the longest wait for an ack.
    fn talk(&mut self, goes_on: &AtomicBool) -> (u64, Duration) {
        let (mut count, mut longest) = (0, Duration::ZERO);
        while goes_on.load(Ordering::SeqCst) {
            count += 1;
            let (from, to) = ((count % 2) as usize, ((count + 1) % 2) as usize);
            let (seq, took) =
                send_until_acked(&mut self.clients[from], &self.names[to], &format!("m{count}"));
            assert_eq!(seq, count, "in {}", self.place);
            longest = longest.max(took);
            self.listen(to);
        }
        (count, longest)
    }

    /// Receives the available pushes: each seq is above all earlier ones, or repeats one of them.
    fn listen(&mut self, who: usize) {
        let (client, received) = (&mut self.clients[who], &mut self.received[who]);
        client.settle();
        let frames: Vec<_> = client.inbox.drain(..).collect();
        for frame in frames {
            if let Some(ServerBody::Push(push)) = frame.body {
                assert_eq!(text_of(&push), format!("m{}", push.seq), "in {}", self.place);
                let again = received.contains(&push.seq);
                assert!(
                    again || received.last() < Some(&push.seq),
                    "{} after {:?}",
                    push.seq,
                    received.last()
                );
                received.insert(push.seq);
                client.ack(&self.place, push.seq);
            }
        }
    }
}

/// Stops the other threads when dropped, also after a failed check.
pub(crate) struct Until<'a>(pub(crate) &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Limit of a wait for an ack. A joining node costs a heartbeat and two joins (ADR 8), with 0.3 s without an owner; one
/// that leaves within a second of a join has the others wait out the second that the library keeps between two joins.
/// A message in the middle of both waits less than 2 s, if no thread of a node waits for a core.
const ACK_WAIT_MAX: Duration = Duration::from_secs(3);

#[test]
fn rebalance_under_load_keeps_every_message_in_order() {
    let mut cluster = Cluster::prepare(4, &["log.filter=info,tidegate::bus::kafka::group=debug"]);
    cluster.start_nodes(0..3);
    cluster.all_shared();
    cluster.all_linked();
    let mut pairs: Vec<Pair> = (0..6).map(|nth| Pair::new(&cluster, nth)).collect();
    let goes_on = AtomicBool::new(true);
    let said: Vec<(u64, Duration)> = thread::scope(|scope| {
        let talking: Vec<_> = pairs.iter_mut().map(|pair| scope.spawn(|| pair.talk(&goes_on))).collect();
        let until = Until(&goes_on);
        for _ in 0..2 {
            cluster.restart(3);
            cluster.node(3).metric_becomes("partitions_owned", 1.0);
            cluster.all_linked();
            assert_eq!(cluster.stop(3), Some(0));
            cluster.all_owned();
        }
        drop(until);
        talking.into_iter().map(|talk| talk.join().expect("the talk succeeds")).collect()
    });
    let waits: Vec<Duration> = said.iter().map(|(_, longest)| *longest).collect();
    for (pair, (count, _)) in pairs.iter_mut().zip(said) {
        assert!(count > 20, "{count} in {}", pair.place);
        let expected: Vec<_> = (1..=count).map(|n| (n, format!("m{n}"))).collect();
        for client in &mut pair.clients {
            let mut found = history(client, &pair.place);
            while let Some((last, _)) = found.last().filter(|(last, _)| *last < count).cloned() {
                let page = client.page(super::ask::after(&pair.place, last, 1_000));
                found.extend(page.messages.iter().map(|push| (push.seq, text_of(push).to_owned())));
            }
            assert_eq!(found, expected);
        }
    }
    // The times of the joins and of the take-overs say which step took long.
    let logs = || [0, 1, 2].map(|nth| cluster.node(nth).stderr()).join("\n");
    let are_short = waits.iter().all(|longest| *longest < ACK_WAIT_MAX);
    assert!(are_short, "longest waits for an ack: {waits:?}; the nodes wrote:\n{}", logs());
}
