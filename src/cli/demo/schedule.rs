//! Schedule: the bots talk, a break follows at its time, and a judgement follows each break.

use std::time::Duration;

use super::{
    breaks::Break,
    play::{AUDIT_MAX, Play, RECOVERY_MAX, Scope},
    record::{Sent, User},
    stage::Scene,
    words,
};

/// Longest pause between two messages of the talk.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Interval at which traces are asked for again; a node records them for ten minutes.
const TRACE_INTERVAL: Duration = Duration::from_secs(9 * 60);
/// Longest time before the first break.
const FIRST_BREAK_MAX: Duration = Duration::from_secs(5);

/// Breaks after which the whole history is compared.
const WHOLE_EVERY: usize = 10;

/// When the play ends by itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) after: Option<Duration>,
    pub(super) rounds: Option<usize>,
}

impl Play {
    /// Plays until the end; `Ok` also if a promise was broken.
    pub(super) async fn run(&mut self, end: End) -> anyhow::Result<()> {
        let pause = PAUSE_MAX.min(self.every / 4);
        let began = self.stage.now();
        let mut next_break = began + FIRST_BREAK_MAX.min(self.every / 2);
        let mut next_trace = began + TRACE_INTERVAL;
        loop {
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
            if self.screen.is_closed
                || end.after.is_some_and(|after| self.stage.now() >= began + after)
                || end.rounds.is_some_and(|rounds| self.breaks >= rounds.saturating_mul(Break::ALL.len()))
            {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
        }
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

    /// Does the next break, waits until the bots have recovered, and judges.
    async fn break_next(&mut self) -> anyhow::Result<()> {
        let (nth, round) = (self.breaks + 1, self.breaks / Break::ALL.len());
        let kind = Break::ALL[self.breaks % Break::ALL.len()];
        // Both bots have their turn.
        let victim = if round % 2 == 0 { User::Ben } else { User::Ada };
        self.screen.break_begins(self.stage.now(), nth, &kind.headline(victim));
        kind.run(self, victim).await?;
        if !self.stage.calm(RECOVERY_MAX).await {
            let limit = words::fine(RECOVERY_MAX);
            let why = self.stage.look(Scene::waits_for);
            self.overdue(format!("the bots had not recovered {limit} after break {nth}: {why}"));
        }
        self.check()?;
        let scope = if nth.is_multiple_of(WHOLE_EVERY) { Scope::Whole } else { Scope::New };
        if !self.judge(scope, AUDIT_MAX).await {
            let limit = words::fine(AUDIT_MAX);
            self.screen
                .detail(&format!("not checked: the histories took over {limit}; the next ✓ covers it"));
            self.print_broken();
        }
        self.breaks += 1;
        self.screen.line("");
        Ok(())
    }
}
