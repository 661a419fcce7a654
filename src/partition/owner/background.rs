//! Background tasks of an owner, which append records of their own: retention, and the switch of the ledger's rules.

use std::{future::Future, sync::Arc};

use super::Owner;
use crate::partition::{retention::Sweeper, rules::Switcher};

impl Owner {
    /// Returns the task that expires messages and dedup keys.
    pub(super) fn sweep(&self) -> impl Future<Output = ()> + Send + use<> {
        let (cluster, metrics) = (Arc::clone(&self.cluster), Some(self.metrics.clone()));
        let (partition, fence, settings) = (self.partition, self.fence, self.settings.retention);
        let rules = self.rules.subscribe();
        async move {
            let (bus, store) = (&*cluster.ports.bus, &*cluster.ports.store);
            let (clock, is_distrust_logged) = Default::default();
            let sweeper = Sweeper {
                partition,
                fence,
                bus,
                store,
                settings,
                rules,
                keys_from: 0,
                metrics,
                clock,
                is_distrust_logged,
            };
            sweeper.run().await;
        }
    }

    /// Returns the task that switches the rules of the ledger.
    pub(super) fn switch(&self) -> impl Future<Output = ()> + Send + use<> {
        let (cluster, partition) = (Arc::clone(&self.cluster), self.partition);
        let (settings, wall_ms) = (self.settings.rules, self.settings.retention.wall_ms);
        let rules = self.rules.subscribe();
        async move {
            let (me, bus, peers) = (&cluster.me, &*cluster.ports.bus, &*cluster.peers);
            Switcher { partition, me, bus, peers, settings, rules, wall_ms }.run().await;
        }
    }

    /// Publishes the rules in force to the background tasks that append.
    pub(super) fn publish_rules(&self) {
        let (now, before) = (self.ledger.rules(), *self.rules.borrow());
        if now.ledger_version > before.ledger_version {
            self.metrics.rules_switched.increment(1);
            tracing::info!(partition = self.partition, version = now.ledger_version, "ledger rules switched");
        }
        if now != before {
            self.rules.send_replace(now);
        }
    }
}
