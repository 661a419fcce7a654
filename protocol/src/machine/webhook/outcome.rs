//! Outcomes of requests: what they change in lanes, parked conversations and the health of the endpoint.

use std::time::Duration;

use super::{
    NODE_RETRY, RESUME_INTERVAL, RETRY_AFTER_MAX, Sent, SentOf, WebhookDelivery, WebhookEvent,
    WebhookFailure, WebhookNotice, WebhookOutcome,
    cursor::{ASIDE_MAX, PARKED_MAX},
    health::FAILING_AFTER,
    parking::{ParkTimes, ParkedFailure},
    partition::Partition,
};
use crate::Time;

/// Lane of a partition.
#[derive(Clone, Copy)]
struct LaneAt {
    partition: u32,
    lane: usize,
}

/// Failure of a request.
#[derive(Clone, Copy)]
struct Failed {
    failure: WebhookFailure,
    is_refusal: bool,
    now: Time,
}

impl WebhookDelivery {
    /// Notes that a request has only so many of its events, at least one: the others did not fit, and stay in their lane.
    pub fn handle_shortened(&mut self, ticket: u64, events: usize) {
        if let Some(Sent { of: SentOf::Lane { count, .. }, .. }) = self.in_flight.get_mut(&ticket) {
            *count = events.clamp(1, *count);
        }
    }

    /// Takes the outcome of a request. That of a request of a partition that was lost meanwhile changes nothing.
    pub fn handle_outcome(&mut self, ticket: u64, outcome: WebhookOutcome, now: Time) {
        let Some(sent) = self.in_flight.remove(&ticket) else { return };
        self.free(&sent, now);
        if let Some(partition) = self.partitions.get_mut(&sent.partition) {
            partition.in_flight = partition.in_flight.saturating_sub(1);
        }
        let number = sent.partition;
        match outcome {
            WebhookOutcome::Taken => self.handle_taken(sent, now),
            WebhookOutcome::Passed => self.handle_passed(sent, now),
            WebhookOutcome::Refused(status) => {
                let failure = WebhookFailure::Status(status);
                self.handle_failed(sent, Failed { failure, is_refusal: true, now });
            }
            WebhookOutcome::Failed(failure) => {
                self.handle_failed(sent, Failed { failure, is_refusal: false, now });
            }
            WebhookOutcome::Busy(wait) => {
                self.wait_until = self.wait_until.max(now + wait.min(RETRY_AFTER_MAX));
                self.send_again(&sent, now);
            }
            WebhookOutcome::Gone => {
                self.disable(sent.order, now);
                self.send_again(&sent, now);
            }
            WebhookOutcome::Unsent => self.send_again(&sent, now),
        }
        if let Some(partition) = self.partitions.get_mut(&number) {
            partition.carry_out_orders(&self.settings, now);
        }
    }

    /// Stops all partitions, until an operator orders to resume. One that has carried out a later order goes on: that may be
    /// the one to resume, and otherwise its next request gets the same answer.
    fn disable(&mut self, order: u64, now: Time) {
        let mut is_new = false;
        let is_stopped = |it: &&mut Partition| !it.is_disabled && it.last_carried_out() <= order;
        for partition in self.partitions.values_mut().filter(is_stopped) {
            (partition.is_disabled, is_new) = (true, true);
            partition.handle_changed(0, now);
        }
        if is_new {
            self.notices.push_back(WebhookNotice::Disabled);
        }
    }

    /// Moves past events that the receiver does not want. That says nothing about its health.
    fn handle_passed(&mut self, sent: Sent, now: Time) {
        let Some(partition) = self.partitions.get_mut(&sent.partition) else { return };
        match sent.of {
            SentOf::Lane { lane, count } => partition.lanes[lane].take(count, now),
            SentOf::Head { lane, event } => partition.lanes[lane].remove(&event),
            SentOf::Parked(event) => partition.parking.handle_done(&event, now),
        }
        partition.handle_passed(now);
        if sent.is_probe {
            self.health.repeat_probe(now);
        }
    }

    /// Frees what a request occupies.
    pub(super) fn free(&mut self, sent: &Sent, now: Time) {
        if sent.is_probe {
            self.health.end_probe(now);
        }
        match &sent.of {
            SentOf::Lane { lane, .. } => {
                if let Some(slot) = self.slots.get_mut(*lane) {
                    slot.is_busy = false;
                }
                self.set_idle(sent.partition, *lane);
            }
            SentOf::Head { lane, .. } => self.set_idle(sent.partition, *lane),
            SentOf::Parked(_) => self.parked_in_flight = self.parked_in_flight.saturating_sub(1),
        }
    }

    fn set_idle(&mut self, partition: u32, lane: usize) {
        let partition = self.partitions.get_mut(&partition);
        if let Some(lane) = partition.and_then(|it| it.lanes.get_mut(lane)) {
            lane.is_in_flight = false;
        }
    }

    fn handle_taken(&mut self, sent: Sent, now: Time) {
        self.slots.iter_mut().for_each(|slot| slot.has_failed = false);
        if self.health.succeed(now) {
            self.notices.push_back(WebhookNotice::Recovered);
            let mut resume_at = now;
            for slot in &mut self.slots {
                slot.resume_at = resume_at;
                resume_at = resume_at + RESUME_INTERVAL;
            }
            for lane in self.partitions.values_mut().flat_map(|it| &mut it.lanes) {
                lane.retry_at = now;
            }
        }
        let Some(partition) = self.partitions.get_mut(&sent.partition) else { return };
        match sent.of {
            SentOf::Lane { lane, count } => {
                let lane = &mut partition.lanes[lane];
                if !partition.parking.aside().is_empty() {
                    lane.first_events(count).for_each(|event| partition.parking.remove_aside(event));
                }
                lane.take(count, now);
                lane.succeed(self.settings.batch_max);
                partition.handle_changed(count, now);
            }
            SentOf::Head { lane, event } => {
                partition.parking.remove_aside(&event);
                partition.lanes[lane].remove(&event);
                partition.handle_changed(1, now);
            }
            SentOf::Parked(event) => {
                partition.parking.remove_aside(&event);
                partition.parking.handle_done(&event, now);
                partition.handle_changed(1, now);
            }
        }
    }

    fn handle_failed(&mut self, sent: Sent, failed: Failed) {
        let now = failed.now;
        match sent.of {
            SentOf::Lane { lane, count } => {
                self.slots[lane].has_failed = true;
                self.health.fail();
                self.handle_lane_failed(LaneAt { partition: sent.partition, lane }, count, now);
                self.check_failing(now);
            }
            SentOf::Head { lane, event } => {
                self.look_past(LaneAt { partition: sent.partition, lane }, &event, now);
            }
            SentOf::Parked(event) => self.handle_parked_failed(sent.partition, &event, failed),
        }
    }

    fn handle_lane_failed(&mut self, at: LaneAt, count: usize, now: Time) {
        let (mark, batch_max) = (self.health.mark(), self.settings.batch_max);
        let Some(partition) = self.partitions.get_mut(&at.partition) else { return };
        let lane = &mut partition.lanes[at.lane];
        lane.failures = lane.failures.saturating_add(1);
        let since = *lane.failing.get_or_insert(mark);
        let others_succeed = mark.successes > since.successes;
        // The settings may have changed while the request was in flight.
        lane.limit = (count / 2).clamp(1, batch_max.max(1));
        // While others succeed, the event that fails is searched without growing delays.
        let steps = if others_succeed && count > 1 { 1 } else { lane.failures };
        let retry_at = now + self.health.backoff(steps);
        lane.retry_at = retry_at;
        if let Some(first) = lane.first().filter(|_| count == 1 && others_succeed).cloned() {
            let failing = mark.working.saturating_sub(since.working);
            self.park(at, first, ParkTimes { failing, mark, retry_at }, now);
        }
    }

    /// Parks a conversation of a full lane once as many probes of the lane have failed as it has conversations: otherwise no
    /// probe would ever show that the endpoint takes the events of others.
    fn look_past(&mut self, at: LaneAt, event: &WebhookEvent, now: Time) {
        let capacity = self.capacity();
        let retry_at = now + self.health.backoff(1);
        let Some(partition) = self.partitions.get_mut(&at.partition) else { return };
        let lane = &mut partition.lanes[at.lane];
        lane.failed_probes += 1;
        if lane.is_full(capacity) && lane.failed_probes >= lane.heads().len() {
            let times = ParkTimes { failing: Duration::ZERO, mark: self.health.mark(), retry_at };
            self.park(at, event.clone(), times, now);
        }
    }

    /// Parks the conversation of the lane's first event.
    fn park(&mut self, at: LaneAt, first: WebhookEvent, times: ParkTimes, now: Time) {
        let fits = self.parked() < PARKED_MAX;
        let Some(partition) = self.partitions.get_mut(&at.partition) else { return };
        let lane = &mut partition.lanes[at.lane];
        if fits && partition.parking.park(&lane.of(&first.conversation), times) {
            lane.remove_conversation(&first.conversation);
            (lane.failures, lane.failing, lane.failed_probes) = (0, None, 0);
            lane.retry_at = now;
            partition.handle_changed(1, now);
            self.notices.push_back(WebhookNotice::Parked(first));
        }
    }

    fn handle_parked_failed(&mut self, number: u32, event: &WebhookEvent, failed: Failed) {
        let Failed { failure, is_refusal, now } = failed;
        let aside = self.aside().count();
        let at_ms = self.wall_at_zero.saturating_add(now.as_millis());
        let Some(partition) = self.partitions.get_mut(&number) else { return };
        let tries = partition.parking.tries(&event.conversation).saturating_add(1);
        let failure = ParkedFailure {
            failure,
            is_refusal,
            aside_after: self.settings.aside_after,
            mark: self.health.mark(),
            retry_at: now + self.health.backoff(tries),
            now,
            at_ms,
            fits: aside < ASIDE_MAX,
        };
        let is_aside = partition.parking.handle_failure(event, failure);
        partition.handle_changed(usize::from(is_aside), now);
        if is_aside {
            self.notices.push_back(WebhookNotice::Aside(event.clone()));
        }
    }

    /// Begins the failing state once each lane with events has failed since the last success.
    fn check_failing(&mut self, now: Time) {
        if self.health.is_failing() || self.health.in_row < FAILING_AFTER {
            return;
        }
        let has_events = |lane: usize| self.partitions.values().any(|it| it.lanes[lane].len() > 0);
        let mut slots = self.slots.iter().enumerate();
        if slots.all(|(lane, slot)| slot.has_failed || !has_events(lane)) {
            self.health.begin_failing(now);
            self.notices.push_back(WebhookNotice::Failing);
        }
    }

    /// Schedules another try, without a failure.
    fn send_again(&mut self, sent: &Sent, now: Time) {
        let Some(partition) = self.partitions.get_mut(&sent.partition) else { return };
        let retry_at = now + NODE_RETRY;
        match &sent.of {
            SentOf::Lane { lane, .. } | SentOf::Head { lane, .. } => {
                partition.lanes[*lane].retry_at = retry_at
            }
            SentOf::Parked(event) => partition.parking.handle_again(event, retry_at),
        }
    }
}
