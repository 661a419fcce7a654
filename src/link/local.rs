//! `Link` adapter of a single node, which has no peers: every call with items fails.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Answer, AnswerStatus, ArchiveStatus, Ask, BestEffortMessage, Landing, Link, LinkError, PeerPush,
    PublishedMark, RoutedSession,
};
use crate::{
    figures::{FiguresPage, FiguresQuery},
    routes::NodeBoot,
    storms::{StormsPage, StormsQuery},
    trace::{TraceEvent, TraceFilter},
};

/// Link of profile `single`. A node never calls itself through a link.
#[derive(Debug, Default)]
pub struct LocalLink;

/// Returns [`LinkError::NotHere`] for any batch but an empty one, as the port requires.
fn not_here<T>(items: &[T]) -> Result<(), LinkError> {
    if items.is_empty() { Ok(()) } else { Err(LinkError::NotHere) }
}

#[async_trait]
impl Link for LocalLink {
    async fn answers(&self, _: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        not_here(&answers)
    }

    async fn deliver(&self, _: &NodeBoot, deliveries: Vec<PeerPush>) -> Result<Vec<Vec<Landing>>, LinkError> {
        not_here(&deliveries).map(|()| Vec::new())
    }

    async fn stop_sessions(
        &self,
        _: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        not_here(&sessions).map(|()| Vec::new())
    }

    async fn archive_status(
        &self,
        _: &NodeBoot,
        _: Vec<PublishedMark>,
        _: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        Err(LinkError::NotHere)
    }

    async fn answers_again(
        &self,
        _: &NodeBoot,
        _: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        not_here(&asks).map(|()| Vec::new())
    }

    async fn send_best_effort(
        &self,
        _: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        not_here(&messages)
    }

    async fn traces(&self, _: &NodeBoot, _: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        Err(LinkError::NotHere)
    }

    async fn figures(&self, _: &NodeBoot, _: FiguresQuery) -> Result<FiguresPage, LinkError> {
        Err(LinkError::NotHere)
    }

    async fn storms(&self, _: &NodeBoot, _: StormsQuery) -> Result<StormsPage, LinkError> {
        Err(LinkError::NotHere)
    }
}
