//! Background tasks of an owner: retention and the switch of the ledger's rules, which append records of their own, and
//! reads of the past for storms, and actions about them.

use std::{future::Future, sync::Arc};

use super::Owner;
use crate::partition::{
    retention::Sweeper,
    rules::Switcher,
    storm_actions::{StormActor, StormScope},
    storms,
};

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
        let (rules, is_log_new) = (self.rules.subscribe(), self.is_log_new);
        async move {
            let (me, bus, peers) = (&cluster.me, &*cluster.ports.bus, &*cluster.peers);
            Switcher { partition, me, bus, peers, settings, is_log_new, rules, wall_ms }.run().await;
        }
    }

    /// Returns the task that reads the past of groups that are watched for storms.
    pub(super) fn read_past(&self) -> impl Future<Output = ()> + Send + use<> {
        let (table, cluster) = (Arc::clone(&self.storms), Arc::clone(&self.cluster));
        storms::read_past(table, cluster, self.settings.retention.wall_ms)
    }

    /// Returns the task that acts on storms; it does nothing without ports.
    pub(super) fn act_on_storms(&self) -> impl Future<Output = ()> + Send + use<> {
        let actor = self.storm_ports.as_ref().map(|ports| {
            let scope = StormScope {
                partition: self.partition,
                fence: self.fence,
                small_group_max: self.settings.small_group_max,
                wall_ms: self.settings.retention.wall_ms,
            };
            let (cluster, table) = (Arc::clone(&self.cluster), Arc::clone(&self.storms));
            StormActor::new(scope, cluster, table, Arc::clone(ports), self.metrics.clone())
        });
        async move {
            if let Some(actor) = actor {
                actor.run().await;
            }
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
