//! Play: the bots talk, a break follows at its time, and a judgement follows each break.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::bail;
use uuid::Uuid;

use super::{
    bot::Bot,
    breaks::Break,
    judge::{Finding, Judgement, judge},
    node::NodeProcess,
    record::{Sent, User},
    screen::Screen,
    stage::{Scene, Stage},
    words,
};

/// Time for a message to be acked and shown while nothing is broken, and for the bots to recover from a break.
pub(super) const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// Time for both histories to be pulled.
const AUDIT_MAX: Duration = Duration::from_secs(20);
/// Longest pause between two messages of the talk.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Interval at which traces are asked for again; a node records them for ten minutes.
const TRACE_INTERVAL: Duration = Duration::from_secs(9 * 60);
/// Longest time before the first break.
const FIRST_BREAK_MAX: Duration = Duration::from_secs(5);

/// When the play ends by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) after: Option<Duration>,
    pub(super) rounds: Option<usize>,
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
    /// Broken promises that the recording does not show.
    pub(super) overdue: BTreeSet<Finding>,
    /// Whether a break is under way.
    pub(super) is_breaking: bool,
    messages: usize,
    talked: usize,
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
            is_breaking: false,
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

    /// Plays until the end; `Ok` also if a promise was broken.
    pub(super) async fn run(&mut self, end: End) -> anyhow::Result<()> {
        let pause = PAUSE_MAX.min(self.every / 4);
        let mut next_break = self.stage.now() + FIRST_BREAK_MAX.min(self.every / 2);
        let mut next_trace = self.stage.now() + TRACE_INTERVAL;
        while !self.screen.is_closed {
            if end.after.is_some_and(|after| self.stage.now() >= after)
                || end.rounds.is_some_and(|rounds| self.breaks >= rounds * Break::ALL.len())
            {
                return Ok(());
            }
            if self.stage.now() >= next_trace {
                next_trace = self.stage.now() + TRACE_INTERVAL;
                self.node.trace().await?;
            }
            if self.stage.now() >= next_break {
                next_break = self.stage.now() + self.every;
                self.break_next().await?;
            } else {
                self.talk().await?;
            }
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Lets one bot say the next line of the talk.
    async fn talk(&mut self) -> anyhow::Result<()> {
        let from = User::BOTH[self.talked % 2];
        let text = words::talk(self.talked);
        self.talked += 1;
        let at = self.stage.now();
        let id = self.write(from, text);
        let is_done = |scene: &Scene| {
            let seq = scene.record.find(&id).and_then(Sent::seq);
            seq.is_some() && scene.bot(from.other()).complete() >= seq
        };
        // Without the receiver, the next judgement says what is missing.
        self.stage.until(RECOVERY_MAX, is_done).await;
        self.check()?;
        let outcome = self.stage.look(|scene| {
            let sent = scene.record.find(&id)?;
            let shown = scene.record.shown(from.other()).iter().rev().find(|shown| shown.id == id);
            let shown = shown.map_or_else(
                || "not shown".to_owned(),
                |shown| format!("shown {}", words::fine(shown.at.saturating_sub(sent.at))),
            );
            let (seq, ack) = sent.seq().zip(sent.ack_time())?;
            Some(format!("{:<9} acked {:<8} {shown}", format!("seq {seq}"), words::fine(ack)))
        });
        self.screen.message(at, from, text, outcome.as_deref().unwrap_or("no ack"));
        Ok(())
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

    /// Does the next break, waits until the bots have recovered, and judges.
    async fn break_next(&mut self) -> anyhow::Result<()> {
        let (nth, round) = (self.breaks + 1, self.breaks / Break::ALL.len());
        let kind = Break::ALL[self.breaks % Break::ALL.len()];
        // Both bots have their turn.
        let victim = if round % 2 == 0 { User::Ben } else { User::Ada };
        self.screen.break_begins(self.stage.now(), nth, &kind.headline(victim));
        self.is_breaking = true;
        kind.run(self, victim).await?;
        if !self.stage.calm(RECOVERY_MAX).await {
            self.overdue(format!(
                "the bots had not recovered {} after break {nth}",
                words::fine(RECOVERY_MAX)
            ));
        }
        self.check()?;
        if !self.judge(AUDIT_MAX).await {
            self.overdue(format!(
                "the history was not answered within {} after break {nth}",
                words::fine(AUDIT_MAX)
            ));
        }
        self.is_breaking = false;
        self.breaks += 1;
        self.screen.line("");
        Ok(())
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
