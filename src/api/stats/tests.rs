//! Tests of the stream with peers: their rows, and what a peer that does not answer changes.

use std::sync::atomic::Ordering;

use tidegate_protocol::id::NodeId;

use super::*;
use crate::{
    cluster::PeerSnapshot,
    figures::{CodesRow, Figures, StatsRow},
    link::{Link, MemoryLink, recording::RecordingPeer},
    metrics,
    ports::Ports,
    routes::{Lease, NodeBoot, NodeInfo, NodeRow},
};

fn run(name: &str, boot: u64) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot }
}

/// Returns the feed of node `n1`, whose peers are these.
fn feed(peers: &[(NodeBoot, Arc<RecordingPeer>)]) -> Arc<StatsFeed> {
    let link = MemoryLink::default();
    peers.iter().for_each(|(run, peer)| link.add(run.clone(), Arc::clone(peer) as Arc<dyn Link>));
    let cluster = Arc::new(Cluster::new(run("n1", 1), Ports::in_memory(Arc::new(link))));
    set_peers(&cluster, peers.iter().map(|(run, _)| run.clone()));
    let (metrics, handle) = metrics::install();
    let feed = StatsFeed::new(cluster, handle, metrics, Arc::default(), Arc::default());
    let feed = Arc::new(feed);
    let running = Arc::clone(&feed);
    tokio::spawn(async move { running.run().await });
    feed
}

fn set_peers(cluster: &Cluster, runs: impl Iterator<Item = NodeBoot>) {
    let live = |run| NodeRow::new(NodeInfo::new(run), Lease::Live);
    cluster.peers.set(PeerSnapshot { others: runs.map(live).collect(), ..PeerSnapshot::default() });
}

fn peer(figures: Option<&Arc<Figures>>, hangs: bool) -> Arc<RecordingPeer> {
    let figures = figures.map(Arc::clone);
    Arc::new(RecordingPeer {
        figures: figures.map(|figures| Box::new(move |query| figures.page(query)) as _),
        gate: hangs.then(|| Semaphore::new(0)),
        ..RecordingPeer::default()
    })
}

/// Returns how often a peer was queried.
fn queries(peer: &RecordingPeer) -> usize {
    peer.figures_queries.load(Ordering::SeqCst)
}

/// Returns the next events that name the node.
async fn next_of(node: &str, later: &mut broadcast::Receiver<Bytes>) -> String {
    let names = format!("\"node\":\"{node}\"");
    loop {
        let events = later.recv().await.expect("the stream goes on");
        let events = std::str::from_utf8(&events).unwrap().split_inclusive("\n\n");
        let found: String = events.filter(|event| event.contains(&names)).collect();
        if !found.is_empty() {
            return found;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn peers_are_queried_while_there_is_a_stream_only() {
    let figures = Arc::new(Figures::default());
    figures.push_stats(StatsRow { at_ms: 5, values: vec![9] });
    figures.push_codes(CodesRow { at_ms: 10_000, counts: vec![(4_014, 3)] });
    let n2 = peer(Some(&figures), false);
    let feed = feed(&[(run("n2", 7), Arc::clone(&n2))]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(queries(&n2), 0, "an idle cluster makes no calls");
    let (start, mut later) = feed.follow().unwrap();
    let start: String = start.collect();
    assert!(start.starts_with("event: start\n") && start.contains("event: past\n"), "{start}");
    assert!(start.contains("event: codes\n") && !start.contains("\"n2\""), "{start}");
    let past = next_of("n2", &mut later).await;
    assert!(past.starts_with("event: past\ndata: {\"node\":\"n2\",\"rows\":[[5,9,0,"), "{past}");
    assert!(past.ends_with("\"rows\":[[10000,[[4014,3]]]]}\n\n"), "{past}");
    figures.push_stats(StatsRow { at_ms: 6, values: vec![8] });
    let now = next_of("n2", &mut later).await;
    assert!(now.starts_with("event: now\ndata: {\"node\":\"n2\",\"row\":[6,8,0,"), "{now}");
    // Another stream gets at once what the first one has.
    let (start, second) = feed.follow().unwrap();
    assert!(start.collect::<String>().contains("{\"node\":\"n2\",\"rows\":[[5,9,"));
    drop((later, second));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = queries(&n2);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(queries(&n2), before, "the last stream has ended");
    let (start, _later) = feed.follow().unwrap();
    assert!(!start.collect::<String>().contains("\"n2\""), "nothing is kept meanwhile");
}

#[tokio::test(start_paused = true)]
async fn peer_that_is_old_or_hangs_delays_no_other() {
    let figures = Arc::new(Figures::default());
    let peers = [
        (run("old", 1), peer(None, false)),
        (run("stuck", 1), peer(None, true)),
        (run("n3", 1), peer(Some(&figures), false)),
        // A former run of this node, which is still in the list of nodes.
        (run("n1", 0), peer(Some(&figures), false)),
    ];
    let feed = feed(&peers);
    let (_, mut later) = feed.follow().unwrap();
    assert!(next_of("n3", &mut later).await.starts_with("event: past\n"));
    for at_ms in 1..4 {
        figures.push_stats(StatsRow { at_ms, values: vec![1] });
        let began = tokio::time::Instant::now();
        let now = next_of("n3", &mut later).await;
        assert!(
            now.starts_with(&format!("event: now\ndata: {{\"node\":\"n3\",\"row\":[{at_ms},1,")),
            "{now}"
        );
        assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    }
    assert!(queries(&peers[0].1) > 1, "it may be updated meanwhile");
    assert_eq!(queries(&peers[3].1), 0);
}

#[tokio::test(start_paused = true)]
async fn restarted_peer_begins_with_its_past() {
    let [before, after] = [(); 2].map(|()| Arc::new(Figures::default()));
    (1..4).for_each(|at_ms| before.push_stats(StatsRow { at_ms, values: vec![1] }));
    after.push_stats(StatsRow { at_ms: 9, values: vec![2] });
    let runs = [run("n2", 1), run("n2", 2)];
    let feed =
        feed(&[(runs[0].clone(), peer(Some(&before), false)), (runs[1].clone(), peer(Some(&after), false))]);
    set_peers(&feed.cluster, runs[..1].iter().cloned());
    let (_, mut later) = feed.follow().unwrap();
    let past = |rows: &str| format!("event: past\ndata: {{\"node\":\"n2\",\"rows\":[[{rows},");
    assert!(next_of("n2", &mut later).await.starts_with(&past("1,1")));
    set_peers(&feed.cluster, runs[1..].iter().cloned());
    assert!(next_of("n2", &mut later).await.starts_with(&past("9,2")));
    assert_eq!(feed.state.lock().peers.query(&runs[0]).stats_from, Some(0), "the former run is forgotten");
}
