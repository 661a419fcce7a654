//! Tests of the queries with a peer that returns too much.

use std::sync::atomic::Ordering;

use tidegate_protocol::id::NodeId;

use super::*;
use crate::{figures::StatsRow, link::recording::RecordingPeer, metrics};

#[tokio::test(start_paused = true)]
async fn answers_beyond_the_allowance_are_dropped() {
    let page = FiguresPage {
        stats: vec![StatsRow { at_ms: 1, values: vec![7; 256] }; 250],
        ..FiguresPage::default()
    };
    let liar = RecordingPeer { figures: Some(Box::new(move |_| page.clone())), ..RecordingPeer::default() };
    let run = NodeBoot { node: NodeId::new("n2").unwrap(), boot: 1 };
    let peers = PeerFigures::new(metrics::install().0);
    let mut taken = 0;
    for _ in 0..60 {
        let answers = peers.query(&liar, vec![(run.clone(), FiguresQuery::default())]).await;
        taken += answers.iter().filter(|(_, answer)| answer.is_ok()).count();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // 1 MB each: those of the burst are taken, and then one in 16 seconds is received.
    assert!((4..=8).contains(&taken), "{taken}");
    let queries = liar.figures_queries.load(Ordering::SeqCst);
    assert!(queries <= 9, "{queries}");
}
