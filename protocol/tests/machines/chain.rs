//! Tests of the nextId chain: the failures of S37 by name, and any input against a naive model.

mod property;
mod rules;

use std::time::Duration;
use tidegate_protocol::{
    Time,
    id::MsgId,
    machine::chain::{Chain, ChainLimits},
};

const LIMITS: ChainLimits =
    ChainLimits { hold_max: 8, hold_bytes_max: 1_000, order_timeout: Duration::from_millis(100) };
const T0: Time = Time::ZERO;

fn id(n: u32) -> MsgId {
    MsgId::new(&format!("m{n}")).expect("well formed")
}

fn release(chain: &mut Chain<u32>, now: Time) -> Vec<u32> {
    std::iter::from_fn(|| chain.poll_release(now)).collect()
}
