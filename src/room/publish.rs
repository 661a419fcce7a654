//! Publishing of tallies: frames with members and reactions to the shards with members, and reports to the other nodes.
//!
//! Frames are gathered by shard, and posted while at least half of the shard's lane of room frames is free, so that they
//! take no place of a message. The others wait in order for the next poll. Reports are sent by a loop of their own, so that
//! slow routes delay no frame.
//!
//! **Memory.** [`FRAMES_WAITING_BYTES_MAX`] a shard; a frame above that is dropped, and its totals are repeated. At most
//! [`REPORTS_WAITING_MAX`] reports wait for the routes, each of up to 600 bytes; the numbers of one that is dropped are late.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::id::ConversationId;
use tokio::{sync::mpsc, time};

use super::{INTEREST_PAGE_ROOMS, Remote, Rooms};
use crate::{
    directory::Directory,
    link::{BestEffortMessage, RoomTallyReport},
    mail::{Delivery, Mail, ShardHandle, ShardHandles},
};

/// Interval at which the tallies are polled.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Limit on the frames that wait for one shard.
const FRAMES_WAITING_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of frames that are posted as one mail.
const MAIL_BYTES: usize = 64 * 1024;

/// Limit on the reports that wait for the routes.
const REPORTS_WAITING_MAX: usize = 16_384;

/// Frames that wait for a shard, in order.
#[derive(Default)]
struct WaitingFrames {
    frames: VecDeque<Delivery>,
    bytes: usize,
}

/// Reports that wait for the routes, by room and run.
type WaitingReports = BTreeMap<(ConversationId, u64), RoomTallyReport>;

impl Rooms {
    /// Publishes the members and reactions of rooms until the node stops.
    pub async fn publish_tallies(self: Arc<Self>, directory: Arc<Directory>, shards: ShardHandles) {
        let (sender, receiver) = mpsc::channel(1);
        tokio::join!(self.publish_frames(&directory, &shards, sender), self.report(receiver));
    }

    async fn publish_frames(
        &self,
        directory: &Directory,
        shards: &ShardHandles,
        reporter: mpsc::Sender<WaitingReports>,
    ) {
        let mut waiting: BTreeMap<usize, WaitingFrames> = BTreeMap::new();
        let mut reports = WaitingReports::new();
        loop {
            time::sleep(PUBLISH_INTERVAL).await;
            let is_occupied = |room: &ConversationId| !directory.conversation(room).is_empty();
            for due in self.tallies.poll(self.tallies.now(), is_occupied) {
                if let Some(stats) = due.stats {
                    let frame = Delivery::room_stats(&due.room, stats);
                    let to = directory.conversation(&due.room);
                    let all_wait = to.iter().map(|shard| waiting.entry(shard).or_default().push(&frame));
                    if all_wait.filter(|is_waiting| !is_waiting).count() > 0 {
                        self.tallies.note_unposted(&due.room);
                    }
                }
                if let Some(report) = due.report.filter(|_| self.remote.is_some()) {
                    add_report(&mut reports, due.room, report);
                }
            }
            let handles = shards.get().map(|shards| shards.as_slice()).unwrap_or_default();
            waiting.iter_mut().for_each(|(shard, frames)| frames.post(handles.get(*shard)));
            waiting.retain(|_, frames| !frames.frames.is_empty());
            if !reports.is_empty()
                && let Ok(permit) = reporter.try_reserve()
            {
                permit.send(std::mem::take(&mut reports));
            }
        }
    }

    async fn report(&self, mut reports: mpsc::Receiver<WaitingReports>) {
        while let Some(reports) = reports.recv().await {
            let Some(remote) = &self.remote else { continue };
            let reports: Vec<(ConversationId, RoomTallyReport)> =
                reports.into_iter().map(|((room, _), report)| (room, report)).collect();
            remote.report_tallies(&reports).await;
        }
    }
}

impl WaitingFrames {
    /// Adds a frame; returns `false` if it does not fit.
    fn push(&mut self, frame: &Delivery) -> bool {
        let fits = self.bytes + frame.weight() <= FRAMES_WAITING_BYTES_MAX;
        if fits {
            self.bytes += frame.weight();
            self.frames.push_back(frame.clone());
        }
        fits
    }

    /// Posts what the shard has space for; drops all if there is no such shard.
    fn post(&mut self, shard: Option<&ShardHandle>) {
        let Some(shard) = shard else { return *self = Self::default() };
        while !self.frames.is_empty() && shard.has_half_for_rooms() {
            let mut bytes = 0;
            let is_in_page = |frame: &&Delivery| {
                bytes += frame.weight();
                bytes <= MAIL_BYTES
            };
            let count = self.frames.iter().take_while(is_in_page).count().max(1);
            let page: Vec<Delivery> = self.frames.iter().take(count).cloned().collect();
            let weight: usize = page.iter().map(Delivery::weight).sum();
            if !shard.try_post(Mail::RoomFrames(page)) {
                return;
            }
            self.frames.drain(..count);
            self.bytes -= weight;
        }
    }
}

/// Adds a report to those that wait, or to the one of its run, whose numbers it follows.
fn add_report(reports: &mut WaitingReports, room: ConversationId, report: RoomTallyReport) {
    let key = (room, report.run);
    if let Some(waiting) = reports.get_mut(&key) {
        waiting.members = report.members.or(waiting.members);
        if !report.reactions.counts.is_empty() {
            let is_first = waiting.reactions.is_first || report.reactions.is_first;
            waiting.reactions = report.reactions;
            waiting.reactions.is_first = is_first;
        }
    } else if reports.len() < REPORTS_WAITING_MAX {
        reports.insert(key, report);
    }
}

impl Remote {
    /// Sends reports to the nodes with members of the rooms; to all, once the routes have failed.
    async fn report_tallies(&self, reports: &[(ConversationId, RoomTallyReport)]) {
        let mut has_failed = false;
        for page in reports.chunks(INTEREST_PAGE_ROOMS) {
            let rooms: Vec<ConversationId> = page.iter().map(|(room, _)| room.clone()).collect();
            let nodes = if has_failed { None } else { self.cluster.nodes_with(&rooms).await };
            has_failed = nodes.is_none();
            let nodes = nodes.unwrap_or_else(|| vec![self.cluster.peers.runs(); rooms.len()]);
            for ((room, report), nodes) in page.iter().zip(nodes) {
                for node in &nodes {
                    let (room, tally) = (room.clone(), Box::new(report.clone()));
                    self.queues.send(node, BestEffortMessage::RoomTally { room, tally });
                }
            }
        }
    }
}
