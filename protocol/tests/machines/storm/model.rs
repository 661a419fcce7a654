//! Naive storms: a list of all messages that were ever accepted.

use tidegate_protocol::machine::storm::{RECEIVE_SKEW_MS, StormEvent, StormPhase, StormReport};

/// Event without its profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Started(StormReport),
    Ended(StormReport),
}

impl From<StormEvent> for Seen {
    fn from(event: StormEvent) -> Self {
        match event {
            StormEvent::Started(report) => Self::Started(report),
            StormEvent::Ended(report, _) => Self::Ended(report),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) threshold: u32,
    pub(super) window_ms: u64,
    /// Receive time and owner's time.
    list: Vec<(u64, u64)>,
    storm: Option<StormReport>,
    cools_until: Option<u64>,
}

impl Model {
    pub(super) fn new(threshold: u32, window_ms: u64) -> Self {
        Self { threshold, window_ms, list: Vec::new(), storm: None, cools_until: None }
    }

    /// Counts the messages within a window, by both times, and those shortly after it.
    pub(super) fn count(&self, window_ms: u64, skew_ms: u64, received: u64, now: u64) -> u32 {
        let is_within = |(t, r): &&(u64, u64)| {
            r + self.window_ms.min(window_ms) > now && t + window_ms > received && *t <= received + skew_ms
        };
        u32::try_from(self.list.iter().filter(is_within).count()).unwrap()
    }

    fn within(&self, received: u64, now: u64) -> u32 {
        self.count(self.window_ms, RECEIVE_SKEW_MS, received, now)
    }

    pub(super) fn push(&mut self, received: u64, now: u64) {
        self.list.push((received, now));
    }

    pub(super) fn message(&mut self, seq: u64, received: u64, now: u64) -> Option<Seen> {
        let over = if self.threshold > 0 { self.end_if_idle(now) } else { None };
        self.push(received, now);
        let count = self.within(received, now);
        if count <= self.threshold {
            return over;
        }
        if let Some(storm) = &mut self.storm {
            if self.cools_until.take().is_some() {
                *storm = StormReport { count, peak: storm.peak.max(count), ..*storm };
            }
            return None;
        }
        let report = StormReport { seq, since_ms: received, count, peak: count };
        self.storm = Some(report);
        Some(Seen::Started(report))
    }

    /// Ends a storm without a message for two windows.
    fn end_if_idle(&mut self, now: u64) -> Option<Seen> {
        let last = self.list.last()?.1;
        if now < last + 2 * self.window_ms {
            return None;
        }
        self.cools_until = None;
        self.storm.take().map(|report| Seen::Ended(StormReport { count: 0, ..report }))
    }

    pub(super) fn tick(&mut self, now: u64, wall: u64) -> Option<Seen> {
        if let Some(over) = self.end_if_idle(now) {
            return Some(over);
        }
        let newest = self.list.last().map_or(0, |it| it.0);
        let count = self.within(wall, now).max(self.within(newest, now));
        let storm = self.storm.as_mut()?;
        *storm = StormReport { count, peak: storm.peak.max(count), ..*storm };
        let report = *storm;
        match self.cools_until {
            None if 2 * count <= self.threshold => self.cools_until = Some(now + self.window_ms),
            None => {}
            Some(_) if count > self.threshold => self.cools_until = None,
            Some(until) if now < until => {}
            Some(_) => {
                (self.storm, self.cools_until) = (None, None);
                return Some(Seen::Ended(report));
            }
        }
        None
    }

    pub(super) fn report(&self) -> Option<StormReport> {
        self.storm
    }

    pub(super) fn phase(&self) -> StormPhase {
        match (self.storm, self.cools_until) {
            (None, _) => StormPhase::Quiet,
            (Some(_), None) => StormPhase::Storm,
            (Some(_), Some(_)) => StormPhase::Cooling,
        }
    }
}
