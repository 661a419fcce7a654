//! Signals of a process that serves: heard from its first moment on, and led to the drain of its node.

use std::{process, sync::Arc, thread, time::Duration};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::timeout,
};

use crate::{drain::Drainer, node::Node};

/// How long a node that is told to end while it starts may take to come that far that it can leave in order.
const START_MAX: Duration = Duration::from_secs(10);

/// What is heard, and whose it is once there is a node.
pub(super) struct Signals {
    drainer: watch::Sender<Option<Arc<Drainer>>>,
}

impl Signals {
    /// Hears SIGTERM and SIGINT from now on. The first process of a container does not end by a signal that nobody listens to: a pod
    /// that was deleted while its node started would serve until it is killed. While the start `waits`, a signal ends it at once.
    pub(super) fn listen(mut waits: watch::Receiver<bool>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut term, mut int) = {
            let _guard = runtime.enter();
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
        };
        let drainer = watch::Sender::<Option<Arc<Drainer>>>::new(None);
        let mut started = drainer.subscribe();
        let heed = async move {
            let mut next = async || {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
            };
            for hint in ["stopping: clients are told to come back; a second signal hurries", "stopping now"] {
                next().await;
                eprintln!("{hint}");
                let node = tokio::select! {
                    // A node that serves is never ended without its drain.
                    biased;
                    node = timeout(START_MAX, started.wait_for(Option::is_some)) => node.ok().and_then(Result::ok),
                    () = next() => None,
                    Ok(_) = waits.wait_for(|waits| *waits) => None,
                };
                match node.as_deref() {
                    Some(Some(drainer)) => drainer.signal(),
                    // It has no clients, and nothing that it did not finish.
                    _ => {
                        eprintln!("stopped before the node had started");
                        process::exit(0);
                    }
                }
            }
            // Further ones change nothing, and end nothing.
            std::future::pending::<()>().await;
        };
        thread::Builder::new().name("tidegate-signals".into()).spawn(move || runtime.block_on(heed))?;
        Ok(Self { drainer })
    }

    /// The first signal begins the drain of that node, the second one speeds it up.
    pub(super) fn lead_to(&self, node: &Node) {
        self.drainer.send_replace(Some(Arc::clone(node.drainer())));
    }
}
