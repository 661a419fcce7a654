//! What a consumer of the feed has taken, and how it comes to an end.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::sleep;

use super::record::Recorder;
use crate::{checker::HistoryEvent, person::text_hash};

/// Time in which a consumer has to have everything after all faults have ended.
pub(super) const CATCH_UP_MAX: Duration = Duration::from_secs(90);

/// Highest seq by conversation.
pub(super) type HighestSeqs = BTreeMap<String, u64>;

/// Events that a consumer has taken.
pub(super) struct Taken {
    endpoint: &'static str,
    recorder: Arc<Recorder>,
    highest: Mutex<HighestSeqs>,
}

impl Taken {
    pub(super) fn new(endpoint: &'static str, recorder: Arc<Recorder>) -> Self {
        Self { endpoint, recorder, highest: Mutex::default() }
    }

    /// Records an event. One without a seq, such as that of a pruning, is left out.
    pub(super) fn note(&self, event: &Value) {
        let data = &event["data"];
        let (Some(conv), Some(seq)) = (event["subject"].as_str(), data["seq"].as_u64()) else { return };
        let cid = data["msgId"].as_str();
        let text = data["content"]["text"].as_str();
        let body = cid.map_or(0, |_| text.map_or(0, text_hash));
        self.recorder.add(HistoryEvent::Delivered { endpoint: self.endpoint, conv, seq, cid, body });
        let mut highest = self.highest.lock();
        match highest.get_mut(conv) {
            Some(last) => *last = seq.max(*last),
            None => drop(highest.insert(conv.to_owned(), seq)),
        }
    }

    /// Returns the highest seqs that were taken.
    pub(super) fn highest(&self) -> HighestSeqs {
        self.highest.lock().clone()
    }

    /// Records that the consumer has had time for everything.
    pub(super) fn catch_up(&self) {
        self.recorder.add(HistoryEvent::CaughtUp { endpoint: self.endpoint });
    }

    /// Waits until all of this was taken, or the time is over: then the checker names what is missing.
    pub(super) async fn catch_up_with(&self, wanted: &HighestSeqs) {
        let end = Instant::now() + CATCH_UP_MAX;
        let has_all = || {
            let highest = self.highest.lock();
            wanted.iter().all(|(conv, seq)| highest.get(conv).is_some_and(|last| last >= seq))
        };
        while !has_all() && Instant::now() < end {
            sleep(Duration::from_millis(100)).await;
        }
        self.catch_up();
    }
}
