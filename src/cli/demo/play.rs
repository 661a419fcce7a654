//! Play: the stage, the node and the screen, with what breaks and judgements need of all three.

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use anyhow::bail;
use uuid::Uuid;

use super::{
    bot::Bot,
    judge::{Finding, Judgement, judge},
    node::NodeProcess,
    past::Past,
    record::User,
    screen::Screen,
    stage::{Scene, Stage},
};

/// Time for a message to be acked and shown while nothing is broken, and for the bots to recover from a break.
pub(super) const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// Time for both histories to be pulled.
pub(super) const AUDIT_MAX: Duration = Duration::from_secs(20);

/// Part of the history that a judgement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Entries since the last judgement.
    New,
    /// All entries since the start of the demo.
    Whole,
}

/// State of the play.
pub(super) struct Play {
    pub(super) stage: Arc<Stage>,
    pub(super) node: NodeProcess,
    pub(super) screen: Screen,
    pub(super) every: Duration,
    /// Message that its receiver hides, counted from 1: a planted fault.
    pub(super) plant: Option<usize>,
    /// Finished breaks.
    pub(super) breaks: usize,
    /// The last judgement.
    pub(super) judged: Judgement,
    /// Broken promises that no later judgement takes back: what the recording does not show, or shows no longer.
    broken: BTreeSet<Finding>,
    /// Hashes of the entries that were judged and are forgotten.
    past: Arc<Past>,
    messages: usize,
    /// Messages of the talk so far.
    pub(super) talked: usize,
}

impl Play {
    /// Creates a play that has not begun.
    pub(super) fn new(stage: Arc<Stage>, node: NodeProcess, screen: Screen) -> Self {
        Self {
            stage,
            node,
            screen,
            every: Duration::ZERO,
            plant: None,
            breaks: 0,
            judged: Judgement::default(),
            broken: BTreeSet::new(),
            past: Arc::default(),
            messages: 0,
            talked: 0,
        }
    }

    /// Waits until both bots are connected, and begins the recording at the end of their conversation.
    pub(super) async fn begin(&mut self) -> anyhow::Result<()> {
        let is_synced = |scene: &Scene| {
            scene.bots.iter().all(|bot| bot.is_live() && bot.complete().is_some()) && scene.is_calm()
        };
        if !self.stage.until(RECOVERY_MAX, is_synced).await {
            self.check()?;
            bail!("the bots can't log in to the node: {}", self.stage.look(Scene::waits_for));
        }
        self.stage.change(|scene, _| scene.record.base = scene.end());
        self.node.trace().await
    }

    /// Lets a bot write a message; returns its id.
    pub(super) fn write(&mut self, from: User, text: &str) -> String {
        self.messages += 1;
        let id = Uuid::now_v7().simple().to_string();
        let is_hidden = self.plant == Some(self.messages);
        self.stage.change(|scene, now| {
            if is_hidden {
                scene.bots[from.other() as usize].hidden = Some(id.clone());
            }
            scene.bots[from as usize].write(id.clone(), text.to_owned(), now, &mut scene.record);
        });
        id
    }

    /// Pulls the history over both connections, compares, and prints the judgement; returns whether there is one.
    ///
    /// Of what was judged while nothing was open only hashes are kept: the next judgement is about what follows, and one
    /// of the whole history compares the hashes.
    pub(super) async fn judge(&mut self, scope: Scope, limit: Duration) -> bool {
        let judged = (scope == Scope::Whole).then_some(&self.past);
        let (began, settled) = self.stage.change(|scene, now| {
            let base = scene.record.base;
            scene.bots.iter_mut().for_each(|bot| bot.begin_audit(base, judged));
            (now, scene.settled())
        });
        let has_both = |scene: &Scene| scene.bots.iter().all(Bot::has_audit);
        self.stage.until(limit, has_both).await;
        let judged = self.stage.change(|scene, _| {
            let [ada, ben] = scene.bots.each_mut().map(Bot::end_audit);
            let mut pulled = [ada?, ben?];
            let changed = pulled.each_mut().map(|pulled| mem::take(&mut pulled.changed)).concat();
            let histories = pulled.map(|pulled| pulled.entries);
            let judgement = judge(&scene.record, &histories, began);
            let settled = settled.filter(|_| scene.settled() == settled);
            if let Some(end) = settled {
                scene.record.settle(end);
            }
            Some((judgement, changed, settled.map(|end| (histories, end))))
        });
        let Some((mut judgement, changed, settled)) = judged else { return false };
        self.broken.extend(changed);
        if let Some(([history, _], end)) = settled {
            self.broken.extend(judgement.findings.iter().cloned());
            Arc::make_mut(&mut self.past).add(&history, end);
        }
        judgement.findings.extend(self.broken.iter().cloned());
        let new: Vec<&Finding> = judgement.findings.difference(&self.judged.findings).collect();
        self.screen.judged(&judgement, &new);
        self.judged = judgement;
        true
    }

    /// Notes a recovery that took too long.
    pub(super) fn overdue(&mut self, what: String) {
        self.broken.insert(Finding { rule: "slow-recovery", what });
    }

    /// Prints the broken promises that no judgement has printed.
    pub(super) fn print_broken(&mut self) {
        let new: Vec<&Finding> = self.broken.difference(&self.judged.findings).collect();
        self.screen.broken(&new);
        self.judged.findings.extend(self.broken.iter().cloned());
    }

    /// Returns whether no promise was broken, as far as it was judged.
    pub(super) fn is_good(&self) -> bool {
        self.judged.findings.is_empty() && self.broken.is_empty()
    }

    /// Fails if the play can't go on: the node has ended, or a bot must not connect again.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.node.check()?;
        match self.stage.look(|scene| scene.failed.clone()) {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }
}
