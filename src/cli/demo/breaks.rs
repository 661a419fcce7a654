//! Breaks: what is done to the bots' links, their clients and the node, and sentences about what was seen then.

use std::time::Duration;

use anyhow::ensure;

use super::{
    play::{Play, RECOVERY_MAX},
    record::{Sent, User},
    stage::{Scene, Wish},
    words::{fine, plural, seqs},
};

/// Longest time that a bot stays offline.
const OFFLINE_MAX: Duration = Duration::from_secs(3);
/// Shortest time that a bot stays offline.
const OFFLINE_MIN: Duration = Duration::from_millis(400);
/// Interval between messages that are written until the node is killed.
const STREAM_INTERVAL: Duration = Duration::from_millis(2);
/// Messages that are written one after the other, and messages that follow at once, right before the kill.
const STREAM_MESSAGES: (usize, usize) = (6, 10);

/// Kind of break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    /// The node resets the receiver's link.
    Reset,
    /// The receiver leaves, and comes back later.
    Offline,
    /// The node's process is killed.
    Kill,
    /// The sender repeats a message.
    Twice,
    /// The sender's link ends before the ack is read.
    LostAck,
    /// The receiver acks nothing.
    Frozen,
}

impl Break {
    /// All kinds, in the order of a round.
    pub(super) const ALL: [Self; 6] =
        [Self::Reset, Self::Offline, Self::Kill, Self::Twice, Self::LostAck, Self::Frozen];

    /// Returns the noun of the kind, which takes an `s` in the plural.
    const fn noun(self) -> &'static str {
        match self {
            Self::Reset => "link reset",
            Self::Offline => "absence",
            Self::Kill => "node kill",
            Self::Twice => "double send",
            Self::LostAck => "lost ack",
            Self::Frozen => "frozen client",
        }
    }

    /// Returns what is about to be done.
    pub(super) fn headline(self, victim: User) -> String {
        let (name, other) = (victim.name(), victim.other().name());
        match self {
            Self::Reset => format!("the link of {name} is reset while messages to {name} are in flight"),
            Self::Offline => format!("{name} says bye and stays away; {other} writes on"),
            Self::Kill => {
                "the node is killed (SIGKILL) while both write, and starts again on its data".to_owned()
            }
            Self::Twice => format!("{other} sends a message twice, under the same id"),
            Self::LostAck => format!("{other} sends a message, and loses the link before the ack is read"),
            Self::Frozen => format!("{name} takes pushes, but acks none"),
        }
    }

    /// Breaks, waits until the break is over, and prints what was seen.
    ///
    /// # Errors
    /// The node can't be asked, or started again.
    pub(super) async fn run(self, play: &mut Play, victim: User) -> anyhow::Result<()> {
        match self {
            Self::Reset => reset(play, victim).await,
            Self::Offline => offline(play, victim).await,
            Self::Kill => kill(play).await,
            Self::Twice => twice(play, victim.other()).await,
            Self::LostAck => lost_ack(play, victim.other()).await,
            Self::Frozen => frozen(play, victim).await,
        }
    }
}

/// Returns how many breaks there were, and how many of each kind: `2 breaks: 1 link reset, 1 absence`.
pub(super) fn summary(breaks: usize) -> String {
    let kinds = Break::ALL.len();
    let counts = Break::ALL.iter().enumerate().map(|(nth, kind)| (kind, (breaks + kinds - 1 - nth) / kinds));
    let parts: Vec<String> =
        counts.filter(|(_, count)| *count > 0).map(|(kind, count)| plural(count, kind.noun())).collect();
    let count = plural(breaks, "break");
    if parts.is_empty() { count } else { format!("{count}: {}", parts.join(", ")) }
}

async fn reset(play: &mut Play, victim: User) -> anyhow::Result<()> {
    let (other, mark) = (victim.other(), shown_so_far(play, victim));
    let mut ids = vec![play.write(other, "Are you there?")];
    let cut = play.node.cut(victim).await?;
    ensure!(cut > 0, "the node had no connection of {} to reset", victim.name());
    ids.push(play.write(other, "I think your link broke."));
    ids.push(play.write(other, "I just write on."));
    play.stage.until(RECOVERY_MAX, |scene| !scene.bot(victim).is_live()).await;
    let broke = play.stage.now();
    play.stage.until(RECOVERY_MAX, |scene| all_acked(scene, &ids)).await;
    noticed_nothing(play, other, &ids);
    came_back(play, victim, mark, broke).await;
    Ok(())
}

async fn offline(play: &mut Play, victim: User) -> anyhow::Result<()> {
    let (other, mark) = (victim.other(), shown_so_far(play, victim));
    let away = (play.every / 3).clamp(OFFLINE_MIN, OFFLINE_MAX);
    play.stage.wish(victim, Wish::Offline);
    play.stage.until(RECOVERY_MAX, |scene| !scene.bot(victim).is_live()).await;
    let left = play.stage.now();
    let mut ids = Vec::new();
    for text in ["You are away, I see.", "I write it down for you.", "Read it when you are back."] {
        ids.push(play.write(other, text));
        tokio::time::sleep(away / 3).await;
    }
    play.stage.until(RECOVERY_MAX, |scene| all_acked(scene, &ids)).await;
    let gone = play.stage.now() - left;
    let seqs = seqs(&play.stage.look(|scene| seqs_of(scene, &ids)));
    play.screen.detail(&format!(
        "{} was away for {}; meanwhile {seqs} of {} were acked",
        victim.name(),
        fine(gone),
        other.name()
    ));
    let back = play.stage.now();
    play.stage.wish(victim, Wish::Online);
    came_back(play, victim, mark, back).await;
    Ok(())
}

async fn kill(play: &mut Play) -> anyhow::Result<()> {
    let mut ids = Vec::new();
    let (stream, burst) = STREAM_MESSAGES;
    for nth in 0..stream + burst {
        ids.push(play.write(User::BOTH[nth % 2], "Quick, before it goes dark."));
        if nth < stream {
            tokio::time::sleep(STREAM_INTERVAL).await;
        }
    }
    // Time for the burst to leave, not for its acks.
    tokio::time::sleep(STREAM_INTERVAL / 2).await;
    let killed = play.stage.now();
    play.node.kill().await?;
    play.stage.until(RECOVERY_MAX, |scene| scene.bots.iter().all(|bot| !bot.is_live())).await;
    let acked = play.stage.look(|scene| seqs_of(scene, &ids).len());
    let open = ids.len() - acked;
    play.screen.detail(&format!("of {} just sent, {acked} had their ack and {open} had none", ids.len()));
    play.node.restart().await?;
    let started = play.stage.now() - killed;
    let is_back = |scene: &Scene| scene.bots.iter().all(|bot| bot.is_live());
    play.stage.until(RECOVERY_MAX, is_back).await;
    let both = play.stage.now() - killed;
    play.screen.detail(&format!(
        "the node served again after {}, and both were back after {}",
        fine(started),
        fine(both)
    ));
    play.node.trace().await?;
    play.stage.until(RECOVERY_MAX, |scene| all_acked(scene, &ids)).await;
    let repeated = play.stage.look(|scene| {
        let sent = found(scene, &ids);
        let repeated = sent.iter().filter(|sent| sent.attempts > 1);
        let is_stored = |sent: &&&Sent| sent.acks.last().is_some_and(|ack| ack.is_duplicate);
        (repeated.clone().count(), repeated.filter(is_stored).count())
    });
    play.screen.detail(&match repeated {
        (0, _) => "nothing had to be sent again".to_owned(),
        (all, stored) => format!(
            "{} sent again under the same id: {stored} known already, {} new to the node",
            plural(all, "message"),
            all - stored
        ),
    });
    Ok(())
}

async fn twice(play: &mut Play, sender: User) -> anyhow::Result<()> {
    let receiver = sender.other();
    let id = play.write(sender, "I say this only once.");
    play.stage.change(|scene, now| {
        let Scene { bots, record, .. } = scene;
        bots[sender as usize].repeat(&id, now, record);
    });
    let is_answered = |scene: &Scene| scene.record.find(&id).is_some_and(|sent| sent.acks.len() >= 2);
    play.stage.until(RECOVERY_MAX, is_answered).await;
    play.stage.calm(RECOVERY_MAX).await;
    let (acks, shown) = play.stage.look(|scene| {
        let acks = scene.record.find(&id).map(|sent| sent.acks.clone()).unwrap_or_default();
        (acks, scene.record.times_shown(receiver, &id))
    });
    let duplicates = acks.iter().filter(|ack| ack.is_duplicate).count();
    let seqs: Vec<String> = acks.iter().map(|ack| ack.seq.to_string()).collect();
    play.screen.detail(&format!(
        "acked as seq {}, {} of {} marked as a duplicate; {} was shown it {}",
        seqs.join(" and as seq "),
        duplicates,
        acks.len(),
        receiver.name(),
        times(shown)
    ));
    Ok(())
}

async fn lost_ack(play: &mut Play, sender: User) -> anyhow::Result<()> {
    let receiver = sender.other();
    let had = play.stage.look(|scene| scene.bot(receiver).complete());
    play.stage.wish(sender, Wish::Deaf);
    let id = play.write(sender, "Did you get this one?");
    let has_it = play.stage.until(RECOVERY_MAX, |scene| scene.bot(receiver).complete() > had).await;
    play.stage.wish(sender, Wish::Cut);
    play.stage.until(RECOVERY_MAX, |scene| !scene.bot(sender).is_live()).await;
    let (broke, is_acked) = (play.stage.now(), play.stage.look(|scene| all_acked(scene, &[&id])));
    play.stage.wish(sender, Wish::Online);
    play.stage.until(RECOVERY_MAX, |scene| all_acked(scene, &[&id])).await;
    let back = play.stage.now() - broke;
    if has_it && !is_acked {
        play.screen.detail(&format!(
            "{} had it already, and {} did not know: the link was reset",
            receiver.name(),
            sender.name()
        ));
    }
    let (sent, shown) =
        play.stage.look(|scene| (scene.record.find(&id).cloned(), scene.record.times_shown(receiver, &id)));
    play.screen.detail(&format!(
        "{} was back after {}, and sent it again under the same id",
        sender.name(),
        fine(back)
    ));
    if let Some(ack) = sent.and_then(|sent| sent.acks.last().copied()) {
        play.screen.detail(&format!(
            "it was acked as seq {}, {}; {} was shown it {}",
            ack.seq,
            if ack.is_duplicate { "a duplicate" } else { "new to the node" },
            receiver.name(),
            times(shown)
        ));
    }
    Ok(())
}

async fn frozen(play: &mut Play, victim: User) -> anyhow::Result<()> {
    let (other, copies) = play.stage.change(|scene, _| {
        let index = victim as usize;
        scene.bots[index].is_frozen = true;
        scene.closed[index] = None;
        (victim.other(), scene.bots[index].copies)
    });
    let began = play.stage.now();
    let id = play.write(other, "You look a little frozen.");
    let is_closed = |scene: &Scene| scene.closed[victim as usize].is_some();
    play.stage.until(RECOVERY_MAX, is_closed).await;
    let (copies, close) = play.stage.change(|scene, _| {
        let bot = &mut scene.bots[victim as usize];
        bot.thaw();
        (bot.copies - copies, scene.closed[victim as usize].take())
    });
    let again = match copies {
        0 => "the broker sent nothing again".to_owned(),
        1 => "the broker sent the push once more".to_owned(),
        copies => format!("the broker sent the push {copies} more times"),
    };
    play.screen.detail(&match &close {
        Some(close) => format!(
            "{again}, then closed the link as {} after {}",
            close.name,
            fine(close.at.saturating_sub(began))
        ),
        None => format!("{again}, and did not close the link"),
    });
    let closed = play.stage.now();
    play.stage.calm(RECOVERY_MAX).await;
    let back = play.stage.now() - closed;
    let shown = play.stage.look(|scene| scene.record.times_shown(victim, &id));
    play.screen.detail(&format!(
        "{} was back after {}, and had been shown the message {}",
        victim.name(),
        fine(back),
        times(shown)
    ));
    Ok(())
}

/// Prints that the sender got its acks while the receiver's link was broken.
fn noticed_nothing(play: &mut Play, sender: User, ids: &[String]) {
    let (seqs, slowest) = play.stage.look(|scene| {
        let slowest = found(scene, ids).iter().filter_map(|sent| sent.ack_time()).max();
        (seqs_of(scene, ids), slowest)
    });
    if let Some(slowest) = slowest {
        play.screen.detail(&format!(
            "{} noticed nothing: {} acked within {}",
            sender.name(),
            self::seqs(&seqs),
            fine(slowest)
        ));
    }
}

/// Waits until a bot is back and has everything, and prints what it pulled of what it was shown since `mark`.
async fn came_back(play: &mut Play, user: User, mark: usize, since: Duration) {
    play.stage.until(RECOVERY_MAX, |scene| scene.bot(user).is_live()).await;
    let back = play.stage.now() - since;
    play.stage.calm(RECOVERY_MAX).await;
    let fetched: Vec<u64> = play.stage.look(|scene| {
        scene.record.shown(user).iter().skip(mark).filter(|it| it.is_pulled).map(|it| it.seq).collect()
    });
    let got = match fetched.first() {
        None => "and had missed nothing".to_owned(),
        Some(first) => format!("had everything up to {}, and fetched {}", first - 1, seqs(&fetched)),
    };
    play.screen.detail(&format!("{} was back after {}, {got}", user.name(), fine(back)));
}

/// Returns how many messages a user was shown so far.
fn shown_so_far(play: &Play, user: User) -> usize {
    play.stage.look(|scene| scene.record.shown(user).len())
}

fn found<'a>(scene: &'a Scene, ids: &[impl AsRef<str>]) -> Vec<&'a Sent> {
    ids.iter().filter_map(|id| scene.record.find(id.as_ref())).collect()
}

fn all_acked(scene: &Scene, ids: &[impl AsRef<str>]) -> bool {
    ids.iter().all(|id| scene.record.find(id.as_ref()).is_some_and(|sent| sent.seq().is_some()))
}

/// Returns the seqs of the acked ones, ascending.
fn seqs_of(scene: &Scene, ids: &[impl AsRef<str>]) -> Vec<u64> {
    let mut seqs: Vec<u64> = found(scene, ids).iter().filter_map(|sent| sent.seq()).collect();
    seqs.sort_unstable();
    seqs
}

fn times(count: usize) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_counts_each_kind_as_a_noun() {
        for (breaks, text) in [
            (0, "0 breaks"),
            (1, "1 break: 1 link reset"),
            (3, "3 breaks: 1 link reset, 1 absence, 1 node kill"),
            (
                9,
                "9 breaks: 2 link resets, 2 absences, 2 node kills, 1 double send, 1 lost ack, 1 frozen client",
            ),
        ] {
            assert_eq!(summary(breaks), text);
        }
    }
}
