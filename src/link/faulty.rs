//! Fault-injecting wrapper of a `Link`.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    AckQuery, Answer, AnswerStatus, ArchiveStatus, Ask, BestEffortMessage, CloseOrder, ConnectionPage,
    ConnectionQuery, DeviceAck, Landing, LeaseStatus, Link, LinkError, PeerPush, PublishedMark, RoomRemoval,
    RoomsPage, RoomsQuery, RoutedSession,
};
use crate::{
    fault::{Breaks, Faulty},
    figures::{FiguresPage, FiguresQuery},
    revocation::Revocation,
    routes::NodeBoot,
    storms::{StormsPage, StormsQuery},
    trace::{TraceEvent, TraceFilter},
};

impl Breaks for LinkError {
    fn unavailable(why: String) -> Self {
        Self::Unavailable(why)
    }
    fn unknown(why: String) -> Self {
        Self::Unknown(why)
    }
}

#[async_trait]
impl Link for Faulty<dyn Link> {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.call("answers", self.inner.answers(to, answers)).await
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<PeerPush>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.call("deliver", self.inner.deliver(to, deliveries)).await
    }

    async fn stop_sessions(
        &self,
        to: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        self.call("stop_sessions", self.inner.stop_sessions(to, sessions)).await
    }

    async fn archive_status(
        &self,
        to: &NodeBoot,
        marks: Vec<PublishedMark>,
        within: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        self.call("archive_status", self.inner.archive_status(to, marks, within)).await
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        self.call("answers_again", self.inner.answers_again(from, to, asks)).await
    }

    async fn lease_status(&self, from: &NodeBoot, to: &NodeBoot) -> Result<LeaseStatus, LinkError> {
        self.call("lease_status", self.inner.lease_status(from, to)).await
    }

    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        self.call("send_best_effort", self.inner.send_best_effort(to, messages)).await
    }

    async fn traces(&self, to: &NodeBoot, query: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        self.call("traces", self.inner.traces(to, query)).await
    }

    async fn figures(&self, to: &NodeBoot, query: FiguresQuery) -> Result<FiguresPage, LinkError> {
        self.call("figures", self.inner.figures(to, query)).await
    }

    async fn storms(&self, to: &NodeBoot, query: StormsQuery) -> Result<StormsPage, LinkError> {
        self.call("storms", self.inner.storms(to, query)).await
    }

    async fn connections(&self, to: &NodeBoot, query: ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        self.call("connections", self.inner.connections(to, query)).await
    }

    async fn acks(&self, to: &NodeBoot, queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        self.call("acks", self.inner.acks(to, queries)).await
    }

    async fn rooms(&self, to: &NodeBoot, query: RoomsQuery) -> Result<RoomsPage, LinkError> {
        self.call("rooms", self.inner.rooms(to, query)).await
    }

    async fn close_connections(&self, to: &NodeBoot, order: CloseOrder) -> Result<u64, LinkError> {
        self.call("close_connections", self.inner.close_connections(to, order)).await
    }

    async fn remove_from_room(&self, to: &NodeBoot, removal: RoomRemoval) -> Result<u64, LinkError> {
        self.call("remove_from_room", self.inner.remove_from_room(to, removal)).await
    }

    async fn revoke(&self, to: &NodeBoot, revocation: Revocation) -> Result<u64, LinkError> {
        self.call("revoke", self.inner.revoke(to, revocation)).await
    }
}
