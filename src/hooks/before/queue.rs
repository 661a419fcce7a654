//! Queue of questions, which requests take in lists; bounded in number and bytes.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tidegate_protocol::id::MsgId;
use tokio::{sync::oneshot, time::Instant};

use super::answer::ItemAnswer;
use crate::hooks::failure::HookFailure;

/// Most items of a request.
pub(super) const BATCH_MAX: usize = 32;

/// Most bytes of the items of a request, unless a single one is larger.
pub(super) const BATCH_BYTES_MAX: usize = 128 * 1024;

/// Most bytes of the items that wait.
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Answer about an item.
pub(super) type BeforeAnswer = Result<ItemAnswer, HookFailure>;

/// Item that waits for a request.
pub(super) struct Waiting {
    /// Id of the message.
    pub(super) msg_id: MsgId,
    /// End of its question.
    pub(super) deadline: Instant,
    json: Vec<u8>,
    answer: oneshot::Sender<BeforeAnswer>,
}

impl Waiting {
    /// Creates an item with this JSON, and returns what waits for its answer. Dropped, the item is not sent any more.
    pub(super) fn new(
        json: Vec<u8>,
        msg_id: MsgId,
        deadline: Instant,
    ) -> (Self, oneshot::Receiver<BeforeAnswer>) {
        let (answer, receiver) = oneshot::channel();
        (Self { msg_id, deadline, json, answer }, receiver)
    }

    /// Returns whether nobody waits for the answer any more.
    pub(super) fn is_over(&self) -> bool {
        self.answer.is_closed()
    }

    /// Answers the item; its question may be over.
    pub(super) fn answer(self, answer: BeforeAnswer) {
        self.answer.send(answer).ok();
    }
}

/// Items that wait, and the number of tasks that send requests.
pub(super) struct BatchQueue {
    state: Mutex<State>,
    senders_max: usize,
    waiting_max: usize,
}

#[derive(Default)]
struct State {
    items: VecDeque<Waiting>,
    bytes: usize,
    senders: usize,
}

impl BatchQueue {
    /// Creates an empty queue for so many tasks and items.
    pub(super) fn new(senders_max: usize, waiting_max: usize) -> Self {
        Self { state: Mutex::default(), senders_max, waiting_max }
    }

    /// Adds an item, and returns whether the caller has to start another task, which takes items until there are none.
    ///
    /// # Errors
    /// Too many items wait, or too many bytes.
    pub(super) fn push(&self, item: Waiting) -> Result<bool, HookFailure> {
        let mut state = self.state.lock();
        let starts = state.senders < self.senders_max;
        // Items whose questions are over take no place from others.
        if state.items.len() >= self.waiting_max || state.bytes + item.json.len() > QUEUE_BYTES_MAX {
            state.drop_ended();
        }
        let waiting_max = self.waiting_max + usize::from(starts);
        if state.items.len() >= waiting_max || state.bytes + item.json.len() > QUEUE_BYTES_MAX {
            return Err(HookFailure::Full);
        }
        state.bytes += item.json.len();
        state.items.push_back(item);
        state.senders += usize::from(starts);
        Ok(starts)
    }

    /// Returns the number of items that wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Returns the number of tasks that send requests.
    #[cfg(test)]
    pub(super) fn senders(&self) -> usize {
        self.state.lock().senders
    }

    /// Returns the items of the next request, in the order in which they came; `None` ends the task that asks.
    pub(super) fn take(&self) -> Option<Vec<Waiting>> {
        let mut state = self.state.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let fits = |item: &mut Waiting, bytes: usize| {
            item.answer.is_closed() || bytes == 0 || bytes + item.json.len() <= BATCH_BYTES_MAX
        };
        while batch.len() < BATCH_MAX
            && let Some(item) = state.items.pop_front_if(|item| fits(item, bytes))
        {
            state.bytes -= item.json.len();
            if !item.answer.is_closed() {
                bytes += item.json.len();
                batch.push(item);
            }
        }
        if batch.is_empty() {
            state.senders -= 1;
            return None;
        }
        Some(batch)
    }
}

impl State {
    fn drop_ended(&mut self) {
        self.items.retain(|item| !item.answer.is_closed());
        self.bytes = self.items.iter().map(|item| item.json.len()).sum();
    }
}

/// Returns the body of a request about these items.
pub(super) fn body(batch: &[Waiting]) -> Vec<u8> {
    let bytes = batch.iter().map(|item| item.json.len() + 1).sum::<usize>();
    let mut body = Vec::with_capacity(bytes + 16);
    body.extend_from_slice(br#"{"items":["#);
    for (nth, item) in batch.iter().enumerate() {
        if nth > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&item.json);
    }
    body.extend_from_slice(b"]}");
    body
}

#[cfg(test)]
mod tests;
