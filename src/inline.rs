//! Runs a use-case's future at once where it can: polled inline first, handed to the runtime only if it must wait.
//!
//! Memory ports are ready at the first poll, so on one machine a shard needs no thread hop (ADR 0001).

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use tokio::runtime::Handle;

/// The future's output if it is ready now; otherwise the runtime goes on with it and gives the output to `later`.
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
            runtime.spawn(async move {
                let output = future.await;
                later(output).await;
            });
            None
        }
    }
}
