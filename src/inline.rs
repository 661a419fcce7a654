//! Inline execution: polls a use-case's future in place first, and hands it to the runtime only if it must wait.
//!
//! Ports in memory are ready at the first poll, so on one machine a shard needs no thread hop (ADR 1).

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::supervised;
use tokio::runtime::Handle;

/// Returns the future's output if it is ready now; otherwise the runtime completes it and passes the output to `later`.
pub fn run<T, F, L>(runtime: &Handle, future: F, later: L) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
    L: FnOnce(T) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + 'static,
{
    let mut future = Box::pin(future);
    let _guard = runtime.enter();
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => {
            supervised::spawn_on(runtime, "work of a shard", async move {
                let output = future.await;
                later(output).await;
            });
            None
        }
    }
}
