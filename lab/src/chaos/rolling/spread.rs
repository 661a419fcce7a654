//! Distribution of the clients over the nodes, each where it was assigned.

use std::fmt;

use super::{conns, until};
use crate::chaos::cluster::Cluster;

/// Largest accepted deviation of each of three nodes from its even share after 15,000 logins.
const WITHIN: f64 = 0.1;
/// Accepted standard deviations of a fair draw: few clients are distributed less evenly by chance.
const DEVIATIONS: f64 = 3.5;

/// Number of connections of each node.
pub(super) struct Spread(pub(super) Vec<usize>);

impl Spread {
    /// Reads the counts of the nodes, once each client has one connection.
    ///
    /// # Errors
    /// Fails when a node does not answer, or counts connections that no client has.
    pub(super) async fn of(cluster: &Cluster, clients: usize) -> anyhow::Result<Self> {
        let mut seen: Vec<usize> = Vec::new();
        until("the nodes have as many connections as there are clients", async || {
            seen.clear();
            for nth in 0..cluster.nodes.len() {
                seen.push(conns(cluster, nth).await.unwrap_or(0));
            }
            seen.iter().sum::<usize>() == clients
        })
        .await?;
        Ok(Self(seen))
    }

    /// Returns the largest deviation from the even share, relative to that share.
    pub(super) fn off(&self) -> f64 {
        let even = self.even();
        self.0.iter().map(|conns| (*conns as f64 - even).abs() / even).fold(0.0, f64::max)
    }

    /// Returns the accepted deviation after logins.
    pub(super) fn allowed(&self) -> f64 {
        let clients: usize = self.0.iter().sum();
        let deviation = (self.0.len().saturating_sub(1) as f64 / clients.max(1) as f64).sqrt();
        WITHIN.max(DEVIATIONS * deviation)
    }

    /// Returns a description of an unacceptable deviation.
    pub(super) fn judge(&self) -> Option<String> {
        let (off, allowed) = (self.off(), self.allowed());
        (off > allowed)
            .then(|| format!("after the logins: {self}; up to {:.1} % are allowed", 100.0 * allowed))
    }

    fn even(&self) -> f64 {
        let clients: usize = self.0.iter().sum();
        clients.max(1) as f64 / self.0.len().max(1) as f64
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, conns) in self.0.iter().enumerate() {
            write!(f, "n{} {conns}, ", nth + 1)?;
        }
        write!(f, "up to {:.1} % from even", 100.0 * self.off())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_thousand_are_within_ten_percent_and_fewer_as_a_fair_draw_would_have_it() {
        let fine: [&[usize]; 6] = [
            &[5_000, 5_000, 5_000],
            &[5_499, 4_600, 4_901],
            &[5_500, 4_500, 5_000],
            &[563, 437, 500],
            &[30, 15, 15],
            &[60],
        ];
        for conns in fine {
            let spread = Spread(conns.to_vec());
            assert_eq!(spread.judge(), None, "{spread}");
        }
        let wrong: [&[usize]; 6] = [
            &[5_501, 4_700, 4_799],
            &[5_200, 5_301, 4_499],
            &[7_500, 7_500, 0],
            &[565, 435, 500],
            &[60, 0, 0],
            &[3, 1_497],
        ];
        for conns in wrong {
            let spread = Spread(conns.to_vec());
            assert!(spread.judge().is_some(), "{spread}");
        }
    }

    #[test]
    fn it_says_what_each_node_has() {
        assert_eq!(Spread(vec![520, 480]).to_string(), "n1 520, n2 480, up to 4.0 % from even");
        assert_eq!(Spread(vec![0, 0]).judge(), None, "nobody");
    }
}
