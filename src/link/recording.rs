//! Link stub for unit tests of its callers: it records the calls, and fails or holds them on request.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_protocol::id::DeviceId;
use tokio::sync::Semaphore;

use super::{
    AckQuery, Answer, AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, BestEffortMessage, DeviceAck, Landing,
    Link, LinkError, PeerPush, PublishedMark, RoutedSession,
};
use crate::{
    figures::{FiguresPage, FiguresQuery},
    routes::NodeBoot,
};

/// Reply to a query for figures.
type FiguresReply = Box<dyn Fn(FiguresQuery) -> FiguresPage + Send + Sync>;

/// Peer that records what it receives.
#[derive(Default)]
pub(crate) struct RecordingPeer {
    /// Request ids of the answers.
    pub(crate) requests: Mutex<Vec<u64>>,
    /// Encoded pushes of the deliveries.
    pub(crate) pushes: Mutex<Vec<Vec<u8>>>,
    /// Best-effort messages, with the node that each was sent to.
    pub(crate) best_effort: Mutex<Vec<(NodeBoot, BestEffortMessage)>>,
    /// Number of best-effort calls.
    pub(crate) best_effort_calls: AtomicUsize,
    /// Number of next answers and deliveries that fail.
    pub(crate) failures: AtomicUsize,
    /// Whether no target is connected.
    pub(crate) is_empty: AtomicBool,
    /// Whether best-effort calls are rejected, as by a node of an older version.
    pub(crate) rejects_best_effort: AtomicBool,
    /// Figures that it returns; without them, queries are rejected, as by a node of an older version.
    pub(crate) figures: Option<FiguresReply>,
    /// Number of queries for figures.
    pub(crate) figures_queries: AtomicUsize,
    /// Seq up to which each user has acked, on the device `phone`; without it, queries of acks are rejected.
    pub(crate) acked_to: Mutex<Option<u64>>,
    /// Queries of acks, by call.
    pub(crate) ack_queries: Mutex<Vec<Vec<AckQuery>>>,
    /// Permits that calls wait for, if any.
    pub(crate) gate: Option<Semaphore>,
}

impl RecordingPeer {
    /// Returns the best-effort messages in order.
    pub(crate) fn messages(&self) -> Vec<BestEffortMessage> {
        self.best_effort.lock().iter().map(|(_, message)| message.clone()).collect()
    }

    async fn wait_for_gate(&self) {
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
    }

    async fn admit(&self) -> Result<(), LinkError> {
        self.wait_for_gate().await;
        let fails = self
            .failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        if fails { Err(LinkError::Unavailable("planned".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl Link for RecordingPeer {
    async fn answers(&self, _: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.admit().await?;
        self.requests.lock().extend(answers.iter().map(|answer| answer.request));
        Ok(())
    }

    async fn deliver(&self, _: &NodeBoot, deliveries: Vec<PeerPush>) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.admit().await?;
        let landing = match self.is_empty.load(Ordering::SeqCst) {
            true => Landing::NotHere,
            false => Landing::Delivered,
        };
        self.pushes.lock().extend(deliveries.iter().map(|it| it.push.to_vec()));
        Ok(deliveries.iter().map(|it| vec![landing; it.to.len()]).collect())
    }

    async fn stop_sessions(&self, _: &NodeBoot, _: Vec<RoutedSession>) -> Result<Vec<bool>, LinkError> {
        Ok(Vec::new())
    }

    async fn archive_status(
        &self,
        _: &NodeBoot,
        _: Vec<PublishedMark>,
        _: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        Ok(ArchiveStatus::ArchivedUpTo(ArchivedUpTo::default()))
    }

    async fn answers_again(
        &self,
        _: &NodeBoot,
        _: &NodeBoot,
        _: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        Ok(Vec::new())
    }

    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        self.best_effort_calls.fetch_add(1, Ordering::SeqCst);
        self.wait_for_gate().await;
        if self.rejects_best_effort.load(Ordering::SeqCst) {
            return Err(LinkError::Unavailable("malformed call, perhaps of a newer version".to_owned()));
        }
        self.best_effort.lock().extend(messages.into_iter().map(|message| (to.clone(), message)));
        Ok(())
    }

    async fn acks(&self, _: &NodeBoot, queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        self.ack_queries.lock().push(queries.clone());
        let acked_to = *self.acked_to.lock();
        let acked_to = acked_to.ok_or_else(|| LinkError::Unavailable("planned".to_owned()))?;
        let device = DeviceId::new("phone").unwrap();
        let ack = |it: &AckQuery| vec![DeviceAck { device: device.clone(), has_acked: it.seq <= acked_to }];
        Ok(queries.iter().map(ack).collect())
    }

    async fn figures(&self, _: &NodeBoot, query: FiguresQuery) -> Result<FiguresPage, LinkError> {
        self.figures_queries.fetch_add(1, Ordering::SeqCst);
        self.wait_for_gate().await;
        let refused = || LinkError::Unavailable("malformed call, perhaps of a newer version".to_owned());
        self.figures.as_ref().map(|figures| figures(query)).ok_or_else(refused)
    }
}

/// Link to several recording peers; a call to any other node panics.
pub(crate) struct RecordingPeers(pub(crate) HashMap<NodeBoot, Arc<RecordingPeer>>);

#[async_trait]
impl Link for RecordingPeers {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.0[to].answers(to, answers).await
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<PeerPush>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.0[to].deliver(to, deliveries).await
    }

    async fn stop_sessions(
        &self,
        to: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        self.0[to].stop_sessions(to, sessions).await
    }

    async fn archive_status(
        &self,
        to: &NodeBoot,
        marks: Vec<PublishedMark>,
        within: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        self.0[to].archive_status(to, marks, within).await
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        self.0[to].answers_again(from, to, asks).await
    }

    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        self.0[to].send_best_effort(to, messages).await
    }

    async fn acks(&self, to: &NodeBoot, queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        self.0[to].acks(to, queries).await
    }
}
