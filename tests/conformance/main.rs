//! Conformance of the adapters of each port: one suite per port, run over each adapter and over a wrapper without
//! faults.
//!
//! The title of a case names the flaws (S1-S37) that it prevents. A new adapter is one more line in `suite!`.
#![allow(clippy::unwrap_used)]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use port::free_port;
use tidegate::routes::NodeBoot;
use tidegate_protocol::{
    Time,
    id::{ConversationId, DeviceId, GroupId, NodeId, UserId},
};
use time::eventually_within;
use unique::unique_name;

/// Makes one test of each case for each adapter.
macro_rules! suite {
    ({ $($adapter:ident => $world:expr;)+ } $cases:tt) => { $(suite!(@one $adapter, $world, $cases);)+ };
    (@one $adapter:ident, $world:expr, { $($case:ident)+ }) => {
        mod $adapter {
            $(#[tokio::test]
            async fn $case() {
                let world = $world;
                // A case that does not end is a failure too.
                let case = super::$case(&world);
                tokio::time::timeout(std::time::Duration::from_secs(20), case).await.expect("it ends");
            })+
        }
    };
}

mod bus;
mod crashes;
mod embedded;
mod grants;
mod ids;
mod kafka;
mod link;
mod lists;
mod mirror;
mod numbers;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "../support/kafka.rs"]
mod own_kafka;
mod paging;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "../support/port.rs"]
mod port;
mod ports;
mod postgres;
mod read_cost;
mod reader;
mod redis;
mod routes;
mod scratch;
#[path = "../support/services.rs"]
mod services;
mod store;
#[allow(dead_code, unreachable_pub, reason = "other test binaries use the rest of it, and hand it on")]
#[path = "../support/time.rs"]
mod time;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "../support/unique.rs"]
mod unique;
mod unread;

fn user(text: &str) -> UserId {
    UserId::new(text).unwrap()
}

fn device(text: &str) -> DeviceId {
    DeviceId::new(text).unwrap()
}

fn group(text: &str) -> ConversationId {
    ConversationId::group(&GroupId::new(text).unwrap())
}

fn node(text: &str, boot: u64) -> NodeBoot {
    NodeBoot { node: NodeId::new(text).unwrap(), boot }
}

/// The answer of an adapter that must answer at the first poll.
fn at_once<T>(mut call: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("not ready at the first poll"),
    }
}

/// Clock that a test moves by hand.
#[derive(Clone, Default)]
struct HandClock(Arc<AtomicU64>);

impl HandClock {
    fn now(&self) -> Time {
        Time::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn pass(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }
}
