//! Call queue of one stream to one peer: calls waiting to be sent and calls waiting for their reply, with a common
//! limit in bytes.
//!
//! Not a queue of a `QueueSet`: each caller waits for its own reply, a call is charged until that reply and not until it
//! is sent, a call that times out is withdrawn, and the peer's task, which reconnects, fails all calls at once.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use prost::Message as _;
use tidegate_protocol::pb;
use tokio::sync::{Notify, oneshot};

use super::{handshake::StreamEnd, service::MESSAGE_BYTES_MAX};
use crate::{link::LinkError, metrics::Metrics};

/// Size at which a frame gets no further call.
const FRAME_BYTES_TARGET: usize = 1024 * 1024;

/// Limit on one call; leaves space for the rest of its message.
const CALL_BYTES_MAX: usize = MESSAGE_BYTES_MAX - 1024;

pub(super) type CallBody = pb::link_call::Body;
pub(super) type ReplyBody = pb::link_reply::Body;
type ReplySender = oneshot::Sender<Result<ReplyBody, LinkError>>;

/// Calls of one stream to one peer, across reconnects.
pub(super) struct CallQueue {
    bytes_max: usize,
    metrics: Metrics,
    state: Mutex<State>,
    /// Notified when a call is enqueued.
    nonempty: Notify,
}

struct State {
    call_state: CallState,
    next_id: u64,
    /// Calls to be sent, in the order of their ids.
    queued: VecDeque<(pb::LinkCall, ReplySender)>,
    sent: HashMap<u64, ReplySender>,
    /// Size of all calls that have not ended.
    bytes: usize,
}

/// Connection state, checked for each new call.
enum CallState {
    /// Connected, or the first attempt to connect is in progress.
    Open,
    /// Disconnected, for the reason given; the peer's task reconnects.
    Down(String),
    /// Run of the peer has ended.
    Ended,
}

/// Call that has not ended. Dropping it ends the call, for instance when the caller is cancelled.
struct PendingCall<'a> {
    queue: &'a CallQueue,
    id: u64,
    bytes: usize,
}

impl CallQueue {
    pub(super) fn new(bytes_max: usize, metrics: Metrics) -> Self {
        let state = State {
            call_state: CallState::Open,
            next_id: 1,
            queued: VecDeque::new(),
            sent: HashMap::new(),
            bytes: 0,
        };
        Self { bytes_max, metrics, state: Mutex::new(state), nonempty: Notify::new() }
    }

    /// Sends a call and waits for its reply, at most `timeout`.
    pub(super) async fn call(&self, body: CallBody, timeout: Duration) -> Result<ReplyBody, LinkError> {
        let (pending, reply) = self.enqueue(body)?;
        match tokio::time::timeout(timeout, reply).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(LinkError::Unknown("the stream to the peer was dropped".to_owned())),
            Err(_) => {
                self.metrics.link_timeouts.increment(1);
                Err(pending.timed_out())
            }
        }
    }

    fn enqueue(
        &self,
        body: CallBody,
    ) -> Result<(PendingCall<'_>, oneshot::Receiver<Result<ReplyBody, LinkError>>), LinkError> {
        let mut call = pb::LinkCall { id: 0, body: Some(body) };
        // Measured without the id, which is assigned under the lock.
        let bytes = call.encoded_len();
        let mut state = self.lock();
        match &state.call_state {
            CallState::Open => {}
            CallState::Down(why) => return Err(LinkError::Unavailable(why.clone())),
            CallState::Ended => return Err(LinkError::NotHere),
        }
        if bytes > CALL_BYTES_MAX {
            return Err(LinkError::Unavailable(format!("batch of {bytes} bytes is too large; split it")));
        }
        // A call above the limit is accepted if the queue is empty.
        if state.bytes > 0 && state.bytes.saturating_add(bytes) > self.bytes_max {
            self.metrics.link_full.increment(1);
            return Err(LinkError::Unavailable("the queue to the peer is full".to_owned()));
        }
        call.id = state.next_id;
        let (id, (sender, reply)) = (call.id, oneshot::channel());
        state.next_id += 1;
        state.bytes += bytes;
        state.queued.push_back((call, sender));
        drop(state);
        self.metrics.link_calls.increment(1);
        self.nonempty.notify_one();
        Ok((PendingCall { queue: self, id, bytes }, reply))
    }

    /// Waits until calls are queued, then takes one frame of them. Cancel-safe: an early drop takes nothing.
    pub(super) async fn next_frame(&self) -> pb::LinkCalls {
        loop {
            let calls = self.take_frame();
            if !calls.is_empty() {
                self.metrics.link_frames.increment(1);
                return pb::LinkCalls { calls };
            }
            self.nonempty.notified().await;
        }
    }

    fn take_frame(&self) -> Vec<pb::LinkCall> {
        let mut state = self.lock();
        let (mut calls, mut bytes) = (Vec::new(), 0);
        while let Some((call, _)) = state.queued.front() {
            bytes += call.encoded_len();
            if bytes > FRAME_BYTES_TARGET && !calls.is_empty() {
                break;
            }
            let Some((call, sender)) = state.queued.pop_front() else { break };
            state.sent.insert(call.id, sender);
            calls.push(call);
        }
        calls
    }

    /// Passes a reply to its caller, if that still waits.
    pub(super) fn complete(&self, reply: pb::LinkReply) {
        let Some(sender) = self.lock().sent.remove(&reply.id) else { return };
        let result = match reply.body {
            Some(ReplyBody::Failure(failure)) if failure.in_doubt => Err(LinkError::Unknown(failure.why)),
            Some(ReplyBody::Failure(failure)) => Err(LinkError::Unavailable(failure.why)),
            Some(body) => Ok(body),
            None => Err(LinkError::Unknown("the reply is empty".to_owned())),
        };
        // The caller may have been cancelled.
        sender.send(result).ok();
    }

    /// Accepts calls, once the peer is connected.
    pub(super) fn set_up(&self) {
        self.lock().call_state = CallState::Open;
    }

    /// Fails all calls when the connection ends: sent ones are in doubt, queued ones had no effect, new ones fail at
    /// once.
    pub(super) fn set_down(&self, end: &StreamEnd) {
        let mut state = self.lock();
        let (call_state, not_sent) = match end {
            StreamEnd::RunEnded => (CallState::Ended, LinkError::NotHere),
            StreamEnd::Failed(why) => (CallState::Down(why.clone()), LinkError::Unavailable(why.clone())),
        };
        state.call_state = call_state;
        let in_doubt = LinkError::Unknown("the connection ended".to_owned());
        let (queued, sent) = (std::mem::take(&mut state.queued), std::mem::take(&mut state.sent));
        drop(state);
        for (_, sender) in queued {
            sender.send(Err(not_sent.clone())).ok();
        }
        for sender in sent.into_values() {
            sender.send(Err(in_doubt.clone())).ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl PendingCall<'_> {
    /// Returns the error of a call that timed out: without effect if it was still queued, otherwise in doubt.
    fn timed_out(self) -> LinkError {
        if self.queue.lock().withdraw(self.id) {
            LinkError::Unavailable("timed out before the peer accepted the call".to_owned())
        } else {
            LinkError::Unknown("timed out waiting for the reply".to_owned())
        }
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.bytes = state.bytes.saturating_sub(self.bytes);
        state.withdraw(self.id);
        state.sent.remove(&self.id);
    }
}

impl State {
    /// Removes a queued call, which then is never sent; returns whether it was still queued.
    fn withdraw(&mut self, id: u64) -> bool {
        let at = self.queued.binary_search_by_key(&id, |(call, _)| call.id);
        at.is_ok_and(|at| self.queued.remove(at).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics;

    fn queue(bytes_max: usize) -> Arc<CallQueue> {
        Arc::new(CallQueue::new(bytes_max, metrics::install().0))
    }

    /// Returns a call of approximately `bytes`.
    fn call(bytes: usize) -> CallBody {
        let push = pb::LinkDelivery { push: vec![0; bytes].into(), ..Default::default() };
        CallBody::Deliveries(pb::LinkDeliveries { deliveries: vec![push] })
    }

    fn reply(id: u64) -> pb::LinkReply {
        pb::LinkReply { id, body: Some(ReplyBody::Taken(pb::LinkReady {})) }
    }

    fn ids(frame: &pb::LinkCalls) -> Vec<u64> {
        frame.calls.iter().map(|call| call.id).collect()
    }

    #[tokio::test]
    async fn queued_calls_share_frames_of_bounded_size() {
        let queue = queue(usize::MAX);
        let calls: Vec<_> = (0..100).map(|_| queue.enqueue(call(100)).unwrap()).collect();
        assert_eq!(ids(&queue.next_frame().await), (1..=100).collect::<Vec<u64>>());
        let more: Vec<_> = (0..3).map(|_| queue.enqueue(call(FRAME_BYTES_TARGET / 2)).unwrap()).collect();
        let larger = queue.enqueue(call(2 * FRAME_BYTES_TARGET)).unwrap();
        for expected in [vec![101], vec![102], vec![103], vec![104]] {
            assert_eq!(ids(&queue.next_frame().await), expected);
        }
        drop((calls, more, larger));
        assert_eq!(queue.lock().bytes, 0);
    }

    #[tokio::test]
    async fn call_counts_until_it_ends_and_always_fits_alone() {
        let queue = queue(1_000);
        let alone = queue.enqueue(call(5_000)).unwrap();
        assert!(matches!(queue.enqueue(call(1)), Err(LinkError::Unavailable(_))));
        assert_eq!(ids(&queue.next_frame().await), [1]);
        assert!(matches!(queue.enqueue(call(1)), Err(LinkError::Unavailable(_))), "a sent call still counts");
        drop(alone);
        assert!(queue.enqueue(call(1)).is_ok());
    }

    #[tokio::test]
    async fn timeout_distinguishes_sent_from_queued_calls() {
        let queue = queue(usize::MAX);
        let (sent, _) = queue.enqueue(call(1)).unwrap();
        assert_eq!(ids(&queue.next_frame().await), [1]);
        let (waiting, _) = queue.enqueue(call(1)).unwrap();
        assert!(matches!(waiting.timed_out(), LinkError::Unavailable(_)));
        assert!(matches!(sent.timed_out(), LinkError::Unknown(_)));
        // The reply arrives as the call times out, so the call took effect.
        let (replied, _reply) = queue.enqueue(call(1)).unwrap();
        assert_eq!(ids(&queue.next_frame().await), [3], "a call that timed out in the queue is not sent");
        queue.complete(reply(3));
        assert!(matches!(replied.timed_out(), LinkError::Unknown(_)));
        assert!(queue.lock().sent.is_empty() && queue.lock().bytes == 0);
    }

    #[tokio::test]
    async fn disconnect_leaves_only_sent_calls_in_doubt() {
        let queue = queue(usize::MAX);
        let (_one, sent) = queue.enqueue(call(1)).unwrap();
        assert_eq!(ids(&queue.next_frame().await), [1]);
        let (_two, waiting) = queue.enqueue(call(1)).unwrap();
        queue.set_down(&StreamEnd::Failed("it broke".into()));
        assert!(matches!(sent.await.unwrap(), Err(LinkError::Unknown(_))));
        let not_done = LinkError::Unavailable("it broke".into());
        assert_eq!(waiting.await.unwrap(), Err(not_done.clone()));
        assert_eq!(queue.enqueue(call(1)).err(), Some(not_done));
        queue.set_up();
        let (_three, reply_to) = queue.enqueue(call(1)).unwrap();
        assert_eq!(ids(&queue.next_frame().await), [3], "calls of the last connection are not resent");
        queue.complete(reply(3));
        assert!(reply_to.await.unwrap().is_ok());
        queue.set_down(&StreamEnd::RunEnded);
        assert_eq!(queue.enqueue(call(1)).err(), Some(LinkError::NotHere));
    }
}
