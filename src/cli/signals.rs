//! Signals of a serving process: handled from its start, and passed to the drain of its node.

use std::{process, sync::Arc, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::timeout,
};

use crate::{drain::Drainer, node::Node, supervised};

/// After a signal during the start, the time for the node to finish starting, so that it can drain.
const START_MAX: Duration = Duration::from_secs(10);

/// Signal handler of the process, with the drainer of the node once it has started.
pub(super) struct Signals {
    drainer: watch::Sender<Option<Arc<Drainer>>>,
}

impl Signals {
    /// Handles SIGTERM and SIGINT from now on. The first process of a container ignores signals without a handler, so
    /// a pod deleted while its node starts would serve until it is killed. While the start `waits`, a signal ends it
    /// at once.
    pub(super) fn listen(mut waits: watch::Receiver<bool>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut term, mut int) = {
            let _guard = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        let drainer = watch::Sender::<Option<Arc<Drainer>>>::new(None);
        let mut started = drainer.subscribe();
        let handle = async move {
            let mut next = async || {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
            };
            for hint in ["stopping: clients are asked to reconnect; a second signal hurries", "stopping now"]
            {
                next().await;
                eprintln!("{hint}");
                let node = tokio::select! {
                    // A serving node must not end without its drain.
                    biased;
                    node = timeout(START_MAX, started.wait_for(Option::is_some)) => node.ok().and_then(Result::ok),
                    () = next() => None,
                    Ok(_) = waits.wait_for(|waits| *waits) => None,
                };
                match node.as_deref() {
                    Some(Some(drainer)) => drainer.signal(),
                    // The node has no clients and no pending work.
                    _ => {
                        eprintln!("stopped before the node had started");
                        process::exit(0);
                    }
                }
            }
            // Keeps the handlers, so that further signals are ignored.
            std::future::pending::<()>().await;
        };
        supervised::spawn_thread("tidegate-signals", move || runtime.block_on(handle))?;
        Ok(Self { drainer })
    }

    /// Passes signals to `node`: the first begins its drain, the second speeds it up.
    pub(super) fn drain_on_signal(&self, node: &Node) {
        self.drainer.send_replace(Some(Arc::clone(node.drainer())));
    }
}
