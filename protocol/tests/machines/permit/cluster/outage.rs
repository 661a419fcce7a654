//! Outage of the server that grants permits: what nodes admit by their shares, and after its return.

use super::*;

/// Plans of an outage from 3.0 to 6.5 s, with and without a move of the load, a loss of the data, and faults.
fn outage_plan(n: usize) -> Plan {
    Plan {
        outage: 3_000..6_500,
        moves_load: n.is_multiple_of(2),
        keeps_data: n % 4 < 2,
        has_faults: n >= 12,
        ..Plan::calm([6, 50, 1_000][n % 3], 3.0, [34, 90][n / 2 % 2])
    }
}

impl Cluster {
    /// Returns the shares of the nodes that get at least 1.5 times their share of requests in the outage, and of the others.
    fn busy_and_quiet_shares(&self) -> [u32; 2] {
        let mut shares = [0; 2];
        for (node, id) in NODES.into_iter().enumerate() {
            let share = share_of(self.rule.limit(), KEY, id, &NODES);
            let percent = self.percent_of(node, self.plan.moves_load);
            let demand = f64::from(self.plan.limit) * self.plan.offered * percent as f64 / 100.0;
            shares[usize::from(demand < 1.5 * f64::from(share))] += share;
        }
        shares
    }

    /// Checks the uses in the outage, and returns them in parts of the limit.
    fn check_outage(&self, seed: u64) -> f64 {
        let away = 3_000 + TIMEOUT_MS..6_500;
        let away: Vec<u64> = self.all_uses().into_iter().filter(|use_at| away.contains(use_at)).collect();
        assert!(self.worst(&away) <= 1.0, "in the outage, seed {seed}, {:?}", self.plan);
        // Permits are used until a life after the failure, and count for a window: until 4,050. Then a busy node uses its share
        // once in each window, which fits twice into what is left, with 450 ms for the arrivals.
        let [busy, _] = self.busy_and_quiet_shares();
        let least = 2 * busy as usize;
        assert!(away.len() >= least, "{} of {least} by shares, seed {seed}, {:?}", away.len(), self.plan);
        away.len() as f64 / f64::from(self.plan.limit)
    }

    /// Checks the uses after a return without faults, and returns them in parts of what the limit admits.
    fn check_return(&self, seed: u64) -> f64 {
        let (plan, last) = (&self.plan, self.on_shares.1);
        assert!(last < 8_600, "back on permits, but at {last}");
        let of = |uses: &[u64], from: u64| uses.iter().copied().filter(|at| *at >= from).collect::<Vec<_>>();
        // A node charges with its next request, which its share decides. So a quiet node has requests that nothing has charged
        // yet, at most its share.
        let (late, [_, quiet]) = (of(&self.by_share, 8_700).len(), self.busy_and_quiet_shares());
        assert!(late <= quiet as usize, "{late} by share, seed {seed}, {plan:?}");
        let after = of(&self.all_uses(), 8_700);
        let most = 1.0 + late as f64 / f64::from(plan.limit);
        assert!(self.worst(&after) <= most, "after the return, seed {seed}, {plan:?}");
        // What was charged counts as granted then, so nothing may be left until a window and a life later. From then on the
        // limit is granted once in that time, and a wait for an answer. A shard asks for what waits, and for no more than 1.25
        // times what it has used in the last life, which lapses if nothing comes: at least half is used.
        let cycle = (self.rule.window() + self.rule.life()).as_millis() as u64;
        let from = last + TIMEOUT_MS + cycle;
        let cycles = 1 + (12_000 - from) / (cycle + TIMEOUT_MS);
        let (used, least) = (of(&self.by_permit, from).len(), cycles as f64 * f64::from(plan.limit) / 2.0);
        assert!(used as f64 >= least, "{used} of {least} by permit, seed {seed}, {plan:?}");
        after.len() as f64 / (3.3 * f64::from(plan.limit))
    }
}

/// Single plans with small limits scatter: their bounds are those that follow from the design, and hold for each plan. The
/// sums over all plans have bounds near to what is usual.
#[test]
fn permits_give_way_to_shares_while_the_server_is_away() {
    let mut worst = 0.0_f64;
    // Parts of the limit that were used in each plan: by shares, and after the return.
    let (mut by_shares, mut returned) = (Vec::new(), Vec::new());
    for n in 0..16 {
        let seed = seed().wrapping_add(n as u64 * 777);
        let cluster = Cluster::run(outage_plan(n), seed, 12_000);
        worst = worst.max(cluster.check(seed));
        assert!(cluster.on_shares.0.unwrap() < 4_000, "a change takes less than a second");
        by_shares.push(cluster.check_outage(seed));
        if !cluster.plan.has_faults {
            returned.push(cluster.check_return(seed));
        }
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    println!("means {:.3} {:.3}, worst window {worst:.3}", mean(&by_shares), mean(&returned));
    assert!(mean(&by_shares) >= 2.1, "{by_shares:?}");
    assert!(mean(&returned) >= 0.78, "{returned:?}");
}
