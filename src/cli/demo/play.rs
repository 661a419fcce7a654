//! Play: the stage, the node and the screen, with what breaks and judgements need of all three.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::bail;
use uuid::Uuid;

use super::{
    bot::Bot,
    judge::{Finding, Judgement, judge},
    node::NodeProcess,
    record::User,
    screen::Screen,
    stage::{Scene, Stage},
};

/// Time for a message to be acked and shown while nothing is broken, and for the bots to recover from a break.
pub(super) const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// Time for both histories to be pulled.
pub(super) const AUDIT_MAX: Duration = Duration::from_secs(20);

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
    /// Broken promises that the recording does not show.
    pub(super) overdue: BTreeSet<Finding>,
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
            overdue: BTreeSet::new(),
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
            bail!("the bots can't log in to the node");
        }
        self.stage.change(|scene, _| {
            scene.record.base = scene.bots.iter().filter_map(Bot::complete).max().unwrap_or(0);
        });
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
    pub(super) async fn judge(&mut self, limit: Duration) -> bool {
        self.stage.change(|scene, _| {
            let base = scene.record.base;
            scene.bots.iter_mut().for_each(|bot| bot.begin_audit(base));
        });
        let has_both = |scene: &Scene| scene.bots.iter().all(|bot| bot.audit().is_some());
        if !self.stage.until(limit, has_both).await {
            return false;
        }
        let mut judgement = self.stage.look(|scene| {
            let histories = User::BOTH.map(|user| {
                scene.bot(user).audit().map(|audit| audit.entries().to_vec()).unwrap_or_default()
            });
            judge(&scene.record, &histories)
        });
        judgement.findings.extend(self.overdue.iter().cloned());
        let new: Vec<&Finding> = judgement.findings.difference(&self.judged.findings).collect();
        self.screen.judged(&judgement, &new);
        self.judged = judgement;
        true
    }

    /// Notes a recovery that took too long.
    pub(super) fn overdue(&mut self, what: String) {
        self.overdue.insert(Finding { rule: "slow-recovery", what });
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
