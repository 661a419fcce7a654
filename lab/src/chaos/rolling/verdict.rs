//! The course of a rolling restart, and its judgement.

use std::{collections::HashSet, sync::atomic::Ordering, time::Duration};

use anyhow::bail;
use tidegate_protocol::machine::drain::Plan;

use super::{With, client::Shared, spread::Spread};
use crate::chaos::drain::{PACE_MAX, PACE_WINDOW, busiest};

/// Stall from which the pace is not judged: clients that were not scheduled for this long arrive at once.
const STALL_MAX: Duration = Duration::from_millis(500);

/// Longest accepted time without a connection of a client that moves as announced, on two cores that run everything;
/// the goal is 1 s.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Course of one restart.
pub(super) struct Turn {
    pub(super) node: usize,
    pub(super) plan: Plan,
    /// Time from the signal to the end of the process.
    pub(super) took: Duration,
    /// Longest accepted value of `took`, by the configuration.
    pub(super) longest: Duration,
    /// Times of the logins on other nodes.
    pub(super) arrivals: Vec<Duration>,
    /// Longest login during the drain, and its time after the signal.
    pub(super) login: (Duration, Duration),
    /// Longest time from a send to its ack until all was calm, and the time of that ack after the signal.
    pub(super) ack: (Duration, Duration),
    /// Longest time without a connection until all clients were back: of clients that move as announced, and of those
    /// that ignore `goAway`.
    pub(super) pause: [Duration; 2],
    pub(super) code: Option<i32>,
    pub(super) spoiled: Option<With>,
    /// Longest stall of the clients.
    pub(super) stall: Duration,
    /// Version of the node after the restart, where two programs alternate.
    pub(super) back_as: Option<String>,
}

impl Turn {
    /// Returns the fastest pace of arrivals relative to the plan. It is not judged for plans of less than a second,
    /// with a fault, or after a stall.
    fn pace(&self) -> Option<f64> {
        let over = self.plan.window.min(PACE_WINDOW);
        let mut arrivals = self.arrivals.clone();
        arrivals.sort_unstable();
        let most = busiest(&arrivals, over) as f64;
        let judged = over >= Duration::from_secs(1) && self.went_as_planned();
        judged.then(|| most / over.as_secs_f64() / f64::from(self.plan.rate.max(1)))
    }

    fn went_as_planned(&self) -> bool {
        self.spoiled.is_none() && self.stall < STALL_MAX
    }

    /// Returns the promises that this restart broke.
    fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.pace().is_some_and(|pace| pace > PACE_MAX) {
            broken.push(format!(
                "n{}: clients arrived at {:.2} x the plan",
                self.node + 1,
                self.pace().unwrap_or(0.0)
            ));
        }
        // A client that was not scheduled is late by that time, and by no more.
        if self.spoiled.is_none() && self.pause[0] > PAUSE_MAX + self.stall {
            let away = self.pause[0].as_secs_f64();
            broken.push(format!(
                "n{}: a client that moved as it was told was away for {away:.1} s",
                self.node + 1
            ));
        }
        // A fault may make the node cut clients. It still has to end in time and report that.
        let fine = if self.spoiled.is_some() { &[Some(0), Some(3)][..] } else { &[Some(0)] };
        if !fine.contains(&self.code) {
            broken.push(format!("n{}: exit code {:?}", self.node + 1, self.code));
        }
        if self.took > self.longest {
            broken.push(format!(
                "n{}: gone after {:.1} s, not within {:.1} s",
                self.node + 1,
                self.took.as_secs_f64(),
                self.longest.as_secs_f64()
            ));
        }
        broken
    }

    pub(super) fn print(&self) {
        let spoiled = self.spoiled.map(|it| format!("; meanwhile: {it:?}")).unwrap_or_default();
        let pace = self.pace().map_or("not judged".to_owned(), |pace| format!("{pace:.2} x plan"));
        let code = self.code.map_or("none".to_owned(), |code| code.to_string());
        let back = self.back_as.as_ref().map(|back| format!("; back as {back}")).unwrap_or_default();
        println!(
            "n{}: {} clients, planned {} a second over {:.1} s; {} arrivals elsewhere at {pace}, the longest login {} ms, done after {:.1} s, the slowest ack {} ms, after {:.1} s, nobody away for more than {} ms, clients kept from running for up to {} ms; gone after {:.1} s, exit code {code}{spoiled}{back}",
            self.node + 1,
            self.plan.conns,
            self.plan.rate,
            self.plan.window.as_secs_f64(),
            self.arrivals.len(),
            self.login.0.as_millis(),
            self.login.1.as_secs_f64(),
            self.ack.0.as_millis(),
            self.ack.1.as_secs_f64(),
            self.pause[0].as_millis(),
            self.stall.as_millis(),
            self.took.as_secs_f64(),
        );
        if self.pace().is_some() {
            println!("    by the second: {}", self.by_the_second());
        }
    }

    /// Returns the number of arrivals in each second.
    fn by_the_second(&self) -> String {
        let last = self.arrivals.iter().max().map_or(0, Duration::as_secs);
        let of = |second| self.arrivals.iter().filter(|at| at.as_secs() == second).count().to_string();
        (0..=last).map(of).collect::<Vec<_>>().join(" ")
    }
}

/// Prints the results, and fails when a promise is broken.
pub(super) fn verdict(
    shared: &Shared,
    spread: &Spread,
    turns: &[Turn],
    stored: &[Vec<(u64, u64)>],
) -> anyhow::Result<()> {
    let (mut lost, mut doubled, mut misplaced, mut acked) = (0, 0, 0, 0);
    for (index, rows) in stored.iter().enumerate() {
        let last = shared.acked[index].load(Ordering::Acquire);
        let numbers: HashSet<u64> = rows.iter().map(|(_, number)| *number).collect();
        acked += last;
        lost += (1..=last).filter(|number| !numbers.contains(number)).count();
        doubled += rows.len() - numbers.len();
        misplaced += rows.iter().filter(|(seq, number)| seq != number).count();
    }
    let noted = shared.noted();
    let longest =
        |which: usize| turns.iter().map(|turn| turn.pause[which]).max().unwrap_or_default().as_millis();
    let [pause, deaf] = [0, 1].map(longest);
    println!(
        "{} restarts: {acked} acked, {lost} of them lost, {doubled} stored twice, {misplaced} out of order; {} pushes repeated; {} clients, up to {:.1} % from even at first",
        turns.len(),
        noted.repeated,
        shared.clients,
        100.0 * spread.off()
    );
    println!(
        "{} moves with both connections open, {} logins after a close; longest pause without a connection {pause} ms, of deaf clients {deaf} ms; slowest ack {} ms",
        noted.moves[0],
        noted.moves[1],
        turns.iter().map(|turn| turn.ack.0).max().unwrap_or_default().as_millis()
    );
    let mut broken = noted.broken.clone();
    broken.extend(spread.judge());
    if lost + doubled + misplaced > 0 {
        broken.push(format!("{lost} lost, {doubled} stored twice, {misplaced} out of order"));
    }
    broken.extend(turns.iter().flat_map(Turn::broken));
    if !broken.is_empty() {
        let more = broken.len();
        broken.truncate(20);
        bail!("the rolling restart broke {more} promises:\n  {}", broken.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::machine::drain;

    use super::*;
    use tidegate::config::Config;

    fn turn(arrivals: Vec<Duration>, code: i32) -> Turn {
        let settings = Config::default().drain_settings();
        let plan = drain::plan(5_000, &settings);
        Turn {
            node: 0,
            plan,
            took: Duration::from_secs(40),
            longest: settings.deadline,
            arrivals,
            login: Default::default(),
            ack: Default::default(),
            pause: [Duration::from_millis(900), Duration::from_secs(9)],
            code: Some(code),
            spoiled: None,
            stall: Duration::ZERO,
            back_as: None,
        }
    }

    /// Arrivals as planned: 5,000 over 30 s.
    fn even() -> Vec<Duration> {
        (0..5_000).map(|n| Duration::from_millis(6) * n).collect()
    }

    fn fails(turns: &[Turn], change: impl FnOnce(&Shared, &mut Vec<Vec<(u64, u64)>>)) -> bool {
        let shared = Shared::new(3, 1, Vec::new());
        shared.acked.iter().for_each(|acked| acked.store(2, Ordering::Release));
        let mut stored = vec![vec![(1, 1), (2, 2)]; 3];
        change(&shared, &mut stored);
        verdict(&shared, &Spread(vec![1; 3]), turns, &stored).is_err()
    }

    #[test]
    fn each_broken_promise_of_a_rolling_restart_fails() {
        let fine = || [turn(even(), 0)];
        assert!(!fails(&fine(), |_, _| {}));
        assert!(!fails(&fine(), |_, stored| stored[1].push((3, 3))), "stored, and the ack was on its way");
        assert!(fails(&fine(), |_, stored| _ = stored[1].pop()), "lost");
        assert!(fails(&fine(), |_, stored| stored[1].push((3, 2))), "twice");
        assert!(fails(&fine(), |_, stored| stored[1] = vec![(1, 2), (2, 1)]), "out of order");
        assert!(fails(&fine(), |shared, _| shared.noted().broken.push("a push".into())));
        assert!(fails(&[turn(even(), 3)], |_, _| {}), "cut");
        let spoiled = |code| Turn { spoiled: Some(With::Redis), ..turn(even(), code) };
        assert!(!fails(&[spoiled(3)], |_, _| {}), "that may happen when Redis is away");
        assert!(fails(&[spoiled(101)], |_, _| {}), "that may not");
        assert!(fails(&[Turn { took: Duration::from_secs(51), ..spoiled(0) }], |_, _| {}), "too late");
        let away = |turn| Turn { pause: [Duration::from_secs(6), Duration::ZERO], ..turn };
        assert!(fails(&[away(turn(even(), 0))], |_, _| {}), "away for long");
        let stalled = |stall| Turn { stall, ..away(turn(even(), 0)) };
        assert!(
            fails(&[stalled(Duration::from_millis(700))], |_, _| {}),
            "nor does a stall excuse more than itself"
        );
        assert!(!fails(&[stalled(Duration::from_secs(2))], |_, _| {}));
        assert!(!fails(&[away(spoiled(0))], |_, _| {}), "that may happen when Redis is away");
        let storm = even().into_iter().map(|at| at / 2).collect();
        assert!(fails(&[turn(storm, 0)], |_, _| {}), "twice as fast as planned");
        let uneven = |conns| verdict(&Shared::new(0, 1, Vec::new()), &Spread(conns), &fine(), &[]).is_err();
        assert!(!uneven(vec![5_400, 4_800, 4_800]));
        assert!(uneven(vec![6_000, 4_500, 4_500]));
    }
}
