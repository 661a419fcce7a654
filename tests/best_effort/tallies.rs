//! Members and reactions of live rooms, over the nodes of a cluster.

use std::collections::BTreeMap;

use tidegate_protocol::{Code, codec::Wire};

use super::{Client, ask, mesh};

/// Sums and totals by kind, and members, as a client knows them.
#[derive(Debug, Default, PartialEq)]
struct Known {
    members: Option<u64>,
    sums: BTreeMap<String, u64>,
    totals: BTreeMap<String, u64>,
}

impl Known {
    /// Takes the next numbers of the room.
    fn take(&mut self, client: &mut Client) {
        let stats = client.expect_stats("numbers of the room", |stats| stats.room == "hall");
        self.members = stats.members.or(self.members);
        for it in stats.reactions {
            *self.sums.entry(it.kind.clone()).or_default() += it.sum;
            let before = self.totals.insert(it.kind, it.total).unwrap_or_default();
            assert!(before <= it.total && it.sum <= it.total);
        }
    }

    fn has(&self, members: u64, totals: &[(&str, u64)]) -> bool {
        let has_total = |(kind, total): &(&str, u64)| self.totals.get(*kind) == Some(total);
        self.members == Some(members) && totals.iter().all(has_total)
    }
}

#[test]
fn members_and_reactions_of_a_room_are_those_of_all_nodes() {
    let (mesh, _) = mesh(3);
    let mut clients: Vec<Client> =
        (0..6).map(|n| mesh.login(n % 3, Wire::ALL[n % 4], &format!("u{n}"), "phone")).collect();
    assert_eq!(clients[0].refused(ask::react("hall", "like")), Code::NotAMember);
    clients.iter_mut().for_each(|client| client.expect_done(ask::join("hall")));
    for (n, client) in clients.iter_mut().enumerate() {
        client.expect_done(ask::react("hall", if n == 0 { "wow" } else { "like" }));
    }
    for client in &mut clients {
        let mut known = Known::default();
        while !known.has(6, &[("like", 5), ("wow", 1)]) {
            known.take(client);
        }
        assert_eq!(known.sums, known.totals, "all reactions are younger than the members");
    }
    // One that joins learns the totals with its join; one that leaves is counted out.
    let mut late = mesh.login(1, Wire::JsonLine, "late", "phone");
    late.expect_done(ask::join("hall"));
    let mut known = Known::default();
    known.take(&mut late);
    assert!(
        known.has(6, &[("like", 5), ("wow", 1)]) && known.sums.values().all(|sum| *sum == 0),
        "{known:?}"
    );
    clients[0].expect_done(ask::leave("hall"));
    clients[3].expect_done(ask::leave("hall"));
    while !known.has(5, &[]) {
        known.take(&mut late);
    }
}
