//! Signals of a serving process: handled from its start, and passed to the drain of its node.

use std::{
    io::{self, IsTerminal as _},
    process,
    sync::Arc,
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::timeout,
};

use crate::{
    api::reload::Reload as _,
    drain::Drainer,
    log_limit::announce,
    node::{Node, Reloader},
    supervised,
};

/// After a signal during the start, the time for the node to finish starting, so that it can drain.
const START_MAX: Duration = Duration::from_secs(10);

/// Signal handler of the process, with the drainer of the node once it has started.
pub(super) struct Signals {
    started: watch::Sender<Option<Started>>,
}

/// Parts of a started node that signals reach.
#[derive(Clone)]
struct Started {
    drainer: Arc<Drainer>,
    reloader: Arc<Reloader>,
}

impl Signals {
    /// Handles SIGTERM, SIGINT and SIGHUP from now on. The first process of a container ignores signals without a handler, so
    /// a pod deleted while its node starts would serve until it is killed. While the start `waits`, a signal ends it
    /// at once.
    ///
    /// SIGHUP makes the node read its configuration and its keys again, and open its audit file again. In a terminal, which sends it when it is
    /// closed, it stops the node as SIGTERM does.
    pub(super) fn listen(mut waits: watch::Receiver<bool>) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut term, mut int, mut hang_up) = {
            let _guard = runtime.enter();
            let hang_up = signal(SignalKind::hangup())?;
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, hang_up)
        };
        let is_in_terminal = io::stderr().is_terminal();
        let sender = watch::Sender::<Option<Started>>::new(None);
        let (mut started, reloaded) = (sender.subscribe(), sender.subscribe());
        let handle = async move {
            let mut next = async || loop {
                tokio::select! {
                    _ = term.recv() => return,
                    _ = int.recv() => return,
                    _ = hang_up.recv() => match reloaded.borrow().clone() {
                        _ if is_in_terminal => return,
                        // The outcome is in the log.
                        Some(node) => drop(node.reloader.reload()),
                        None => {}
                    },
                }
            };
            for hint in ["stopping: clients are asked to reconnect; a second signal hurries", "stopping now"]
            {
                next().await;
                announce(hint);
                let node = tokio::select! {
                    // A serving node must not end without its drain.
                    biased;
                    node = timeout(START_MAX, started.wait_for(Option::is_some)) => node.ok().and_then(Result::ok),
                    () = next() => None,
                    Ok(_) = waits.wait_for(|waits| *waits) => None,
                };
                match node.as_deref() {
                    Some(Some(node)) => node.drainer.signal(),
                    // The node has no clients and no pending work.
                    _ => {
                        announce("stopped before the node had started");
                        process::exit(0);
                    }
                }
            }
            // Further signals to stop are ignored.
            loop {
                next().await;
            }
        };
        supervised::spawn_thread("tidegate-signals", move || runtime.block_on(handle))?;
        Ok(Self { started: sender })
    }

    /// Passes signals to `node`: the first to stop begins its drain, the second speeds it up.
    pub(super) fn drain_on_signal(&self, node: &Node) {
        let (drainer, reloader) = (Arc::clone(node.drainer()), Arc::clone(node.reloader()));
        self.started.send_replace(Some(Started { drainer, reloader }));
    }
}
