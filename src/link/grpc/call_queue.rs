//! What is under way to one peer on one lane: calls that wait to be sent and calls that wait for their reply, bounded
//! in bytes together.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prost::Message as _;
use tidegate_protocol::pb;
use tokio::sync::{Notify, oneshot};

use super::{handshake::End, service::MESSAGE_BYTES_MAX};
use crate::{link::LinkError, metrics::Metrics};

/// From here on a frame takes no further call: what waits is sent in frames of about this size.
const FRAME_BYTES: usize = 1024 * 1024;

/// Room for what a message has besides its one call.
const CALL_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 1024;

pub(super) type Asked = pb::link_call::Body;
pub(super) type Replied = pb::link_reply::Body;
type Waiter = oneshot::Sender<Result<Replied, LinkError>>;

/// One lane to one peer, across reconnects.
pub(super) struct Lane {
    bytes_max: usize,
    metrics: Metrics,
    state: Mutex<State>,
    /// There is something to send.
    ready: Notify,
}

struct State {
    standing: Standing,
    next_id: u64,
    /// In the order of their ids.
    waiting: VecDeque<(pb::LinkCall, Waiter)>,
    sent: HashMap<u64, Waiter>,
    /// Of all calls that have not ended.
    bytes: usize,
}

/// What a new call meets.
enum Standing {
    /// No attempt has ended yet, or there is a connection.
    Open,
    /// There is none; the next attempt comes by itself.
    Down(String),
    /// The run of the node that it leads to is over.
    Gone,
}

/// A call that has not ended; ends it when dropped, also when its caller gives up.
struct UnderWay<'a> {
    lane: &'a Lane,
    id: u64,
    bytes: usize,
}

impl Lane {
    pub(super) fn new(bytes_max: usize, metrics: Metrics) -> Self {
        let state = State {
            standing: Standing::Open,
            next_id: 1,
            waiting: VecDeque::new(),
            sent: HashMap::new(),
            bytes: 0,
        };
        Self { bytes_max, metrics, state: Mutex::new(state), ready: Notify::new() }
    }

    /// Sends a call and waits for its reply, so long.
    pub(super) async fn call(&self, body: Asked, time: Duration) -> Result<Replied, LinkError> {
        let (under_way, reply) = self.enter(body)?;
        match tokio::time::timeout(time, reply).await {
            Ok(Ok(replied)) => replied,
            Ok(Err(_)) => Err(LinkError::Unknown("the lane was given up".to_owned())),
            Err(_) => {
                self.metrics.link_timeouts.increment(1);
                Err(under_way.too_late())
            }
        }
    }

    fn enter(
        &self,
        body: Asked,
    ) -> Result<(UnderWay<'_>, oneshot::Receiver<Result<Replied, LinkError>>), LinkError> {
        let mut call = pb::LinkCall { id: 0, body: Some(body) };
        // The id is not counted: it has no value yet that all calls share.
        let bytes = call.encoded_len();
        let mut state = self.lock();
        match &state.standing {
            Standing::Open => {}
            Standing::Down(why) => return Err(LinkError::Unavailable(why.clone())),
            Standing::Gone => return Err(LinkError::NotHere),
        }
        if bytes > CALL_BYTES_MAX {
            return Err(LinkError::Unavailable(format!("a batch of {bytes} bytes is too large: split it")));
        }
        // A call that is larger than the bound has the lane for itself.
        if state.bytes > 0 && state.bytes.saturating_add(bytes) > self.bytes_max {
            self.metrics.link_full.increment(1);
            return Err(LinkError::Unavailable("the queue to the peer is full".to_owned()));
        }
        call.id = state.next_id;
        let (id, (waiter, reply)) = (call.id, oneshot::channel());
        state.next_id += 1;
        state.bytes += bytes;
        state.waiting.push_back((call, waiter));
        drop(state);
        self.metrics.link_calls.increment(1);
        self.ready.notify_one();
        Ok((UnderWay { lane: self, id, bytes }, reply))
    }

    /// Waits until there are calls, then takes as many as make a frame. Nothing is taken when dropped before it is ready.
    pub(super) async fn next_frame(&self) -> pb::LinkCalls {
        loop {
            let calls = self.take();
            if !calls.is_empty() {
                self.metrics.link_frames.increment(1);
                return pb::LinkCalls { calls };
            }
            self.ready.notified().await;
        }
    }

    fn take(&self) -> Vec<pb::LinkCall> {
        let mut state = self.lock();
        let (mut calls, mut bytes) = (Vec::new(), 0);
        while let Some((call, _)) = state.waiting.front() {
            bytes += call.encoded_len();
            if bytes > FRAME_BYTES && !calls.is_empty() {
                break;
            }
            let Some((call, waiter)) = state.waiting.pop_front() else { break };
            state.sent.insert(call.id, waiter);
            calls.push(call);
        }
        calls
    }

    /// A reply came; nobody may wait for it any more.
    pub(super) fn replied(&self, reply: pb::LinkReply) {
        let Some(waiter) = self.lock().sent.remove(&reply.id) else { return };
        let result = match reply.body {
            Some(Replied::Failure(failure)) if failure.in_doubt => Err(LinkError::Unknown(failure.why)),
            Some(Replied::Failure(failure)) => Err(LinkError::Unavailable(failure.why)),
            Some(body) => Ok(body),
            None => Err(LinkError::Unknown("the peer gave an empty reply".to_owned())),
        };
        // A caller that gave up hears nothing.
        waiter.send(result).ok();
    }

    /// There is a connection.
    pub(super) fn up(&self) {
        self.lock().standing = Standing::Open;
    }

    /// There is none: what was sent is in doubt, what was not is not done, and new calls fail at once.
    pub(super) fn down(&self, end: &End) {
        let mut state = self.lock();
        let (standing, not_done) = match end {
            End::Gone => (Standing::Gone, LinkError::NotHere),
            End::Why(why) => (Standing::Down(why.clone()), LinkError::Unavailable(why.clone())),
        };
        state.standing = standing;
        let in_doubt = LinkError::Unknown("the connection ended".to_owned());
        let (waiting, sent) = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.sent));
        drop(state);
        for (_, waiter) in waiting {
            waiter.send(Err(not_done.clone())).ok();
        }
        for waiter in sent.into_values() {
            waiter.send(Err(in_doubt.clone())).ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay<'_> {
    /// What a caller is told whose time is over.
    fn too_late(self) -> LinkError {
        if self.lane.lock().withdraw(self.id) {
            LinkError::Unavailable("the peer takes too slowly".to_owned())
        } else {
            LinkError::Unknown("no reply in time".to_owned())
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.lane.lock();
        state.bytes = state.bytes.saturating_sub(self.bytes);
        state.withdraw(self.id);
        state.sent.remove(&self.id);
    }
}

impl State {
    /// Takes back a call that was not sent; says whether it was one, so that nobody ever will.
    fn withdraw(&mut self, id: u64) -> bool {
        let at = self.waiting.binary_search_by_key(&id, |(call, _)| call.id);
        at.is_ok_and(|at| self.waiting.remove(at).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics;

    fn lane(bytes_max: usize) -> Arc<Lane> {
        Arc::new(Lane::new(bytes_max, metrics::install().0))
    }

    /// A call of about that many bytes.
    fn call(bytes: usize) -> Asked {
        let push = pb::LinkDelivery { push: vec![0; bytes].into(), ..Default::default() };
        Asked::Deliveries(pb::LinkDeliveries { deliveries: vec![push] })
    }

    fn reply(id: u64) -> pb::LinkReply {
        pb::LinkReply { id, body: Some(Replied::Taken(pb::LinkReady {})) }
    }

    fn ids(frame: &pb::LinkCalls) -> Vec<u64> {
        frame.calls.iter().map(|call| call.id).collect()
    }

    #[tokio::test]
    async fn what_waits_goes_together_in_frames_of_a_bounded_size() {
        let lane = lane(usize::MAX);
        let calls: Vec<_> = (0..100).map(|_| lane.enter(call(100)).unwrap()).collect();
        assert_eq!(ids(&lane.next_frame().await), (1..=100).collect::<Vec<u64>>());
        let more: Vec<_> = (0..3).map(|_| lane.enter(call(FRAME_BYTES / 2)).unwrap()).collect();
        let larger = lane.enter(call(2 * FRAME_BYTES)).unwrap();
        for expected in [vec![101], vec![102], vec![103], vec![104]] {
            assert_eq!(ids(&lane.next_frame().await), expected);
        }
        drop((calls, more, larger));
        assert_eq!(lane.lock().bytes, 0);
    }

    #[tokio::test]
    async fn the_bound_counts_until_a_call_ends_and_a_call_alone_always_fits() {
        let lane = lane(1_000);
        let alone = lane.enter(call(5_000)).unwrap();
        assert!(matches!(lane.enter(call(1)), Err(LinkError::Unavailable(_))));
        assert_eq!(ids(&lane.next_frame().await), [1]);
        assert!(matches!(lane.enter(call(1)), Err(LinkError::Unavailable(_))), "sent is not ended");
        drop(alone);
        assert!(lane.enter(call(1)).is_ok());
    }

    #[tokio::test]
    async fn too_late_tells_sent_from_never_sent() {
        let lane = lane(usize::MAX);
        let (sent, _) = lane.enter(call(1)).unwrap();
        assert_eq!(ids(&lane.next_frame().await), [1]);
        let (waiting, _) = lane.enter(call(1)).unwrap();
        assert!(matches!(waiting.too_late(), LinkError::Unavailable(_)));
        assert!(matches!(sent.too_late(), LinkError::Unknown(_)));
        // A reply on its way while the time ended: it was done.
        let (replied, _kept) = lane.enter(call(1)).unwrap();
        assert_eq!(ids(&lane.next_frame().await), [3], "what is not wanted any more is never sent");
        lane.replied(reply(3));
        assert!(matches!(replied.too_late(), LinkError::Unknown(_)));
        assert!(lane.lock().sent.is_empty() && lane.lock().bytes == 0);
    }

    #[tokio::test]
    async fn the_end_of_a_connection_puts_what_was_sent_in_doubt_and_nothing_else() {
        let lane = lane(usize::MAX);
        let (_one, sent) = lane.enter(call(1)).unwrap();
        assert_eq!(ids(&lane.next_frame().await), [1]);
        let (_two, waiting) = lane.enter(call(1)).unwrap();
        lane.down(&End::Why("it broke".into()));
        assert!(matches!(sent.await.unwrap(), Err(LinkError::Unknown(_))));
        let not_done = LinkError::Unavailable("it broke".into());
        assert_eq!(waiting.await.unwrap(), Err(not_done.clone()));
        assert_eq!(lane.enter(call(1)).err(), Some(not_done));
        lane.up();
        let (_three, reply_to) = lane.enter(call(1)).unwrap();
        assert_eq!(ids(&lane.next_frame().await), [3], "nothing of the last connection is sent again");
        lane.replied(reply(3));
        assert!(reply_to.await.unwrap().is_ok());
        lane.down(&End::Gone);
        assert_eq!(lane.enter(call(1)).err(), Some(LinkError::NotHere));
    }
}
