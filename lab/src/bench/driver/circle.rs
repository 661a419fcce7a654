//! Conversations of two among connections in a circle: which there are, and who takes part in them.

/// Conversations of two among `users` connections, an even number, by index: first all between neighbours, then all
/// between connections that are two apart, and so on. So every connection has as many as the others, give or take one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Circle {
    users: usize,
}

impl Circle {
    pub(super) const fn new(users: usize) -> Self {
        Self { users }
    }

    /// Returns the largest number of conversations of two.
    pub(super) const fn conversations_max(self) -> usize {
        self.users * self.users.saturating_sub(1) / 2
    }

    /// Returns the index of the conversation of `one` and `other`, and the side of `one`.
    pub(super) fn index(self, one: usize, other: usize) -> (usize, usize) {
        let apart = (other + self.users - one) % self.users;
        let forward = apart * 2 < self.users || apart * 2 == self.users && one < other;
        let (start, apart) = if forward { (one, apart) } else { (other, self.users - apart) };
        ((apart - 1) * self.users + start, usize::from(!forward))
    }

    /// Returns the connection on the other side of a conversation.
    pub(super) const fn other(self, index: usize, side: usize) -> usize {
        let (start, apart) = (index % self.users, index / self.users + 1);
        if side == 0 { (start + apart) % self.users } else { start }
    }

    /// Returns the side of `slot` in one of its conversations.
    pub(super) const fn side(self, index: usize, slot: usize) -> usize {
        (index % self.users != slot) as usize
    }

    /// Returns the number of conversations of `slot` among the first `count`.
    pub(super) fn degree(self, slot: usize, count: usize) -> usize {
        self.ahead(slot, count) + self.back(slot, count)
    }

    /// Returns the other side of the `nth` of them.
    pub(super) fn partner(self, slot: usize, count: usize, nth: usize) -> usize {
        let ahead = self.ahead(slot, count);
        if nth < ahead {
            (slot + nth + 1) % self.users
        } else {
            (slot + self.users - (nth - ahead + 1)) % self.users
        }
    }

    /// Returns the number of conversations that begin at `slot`.
    fn ahead(self, slot: usize, count: usize) -> usize {
        count / self.users + usize::from(slot < count % self.users)
    }

    /// Returns the number of conversations that end at `slot`.
    fn back(self, slot: usize, count: usize) -> usize {
        let full = count / self.users;
        let start = (slot + self.users - (full + 1) % self.users) % self.users;
        full + usize::from(start < count % self.users)
    }
}

/// Returns the `nth` of `parts` nearly equal parts of `total`.
pub(super) const fn share(total: usize, parts: usize, nth: usize) -> usize {
    total / parts + (nth < total % parts) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Returns the sides of each conversation, by its index.
    fn all(users: usize, count: usize) -> BTreeMap<usize, Vec<(usize, usize)>> {
        let circle = Circle::new(users);
        let mut all: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for slot in 0..users {
            for nth in 0..circle.degree(slot, count) {
                let partner = circle.partner(slot, count, nth);
                let (index, side) = circle.index(slot, partner);
                assert_eq!(circle.index(partner, slot), (index, 1 - side), "both sides name the same");
                assert_eq!((circle.other(index, side), circle.side(index, slot)), (partner, side));
                all.entry(index).or_default().push((slot.min(partner), slot.max(partner)));
            }
        }
        all
    }

    #[test]
    fn the_first_conversations_are_each_there_once_from_both_sides() {
        for (users, counts) in
            [(2, vec![1]), (4, (1..=6).collect()), (8, (1..=28).collect()), (450, vec![100_000])]
        {
            assert!(counts.iter().all(|count| *count <= Circle::new(users).conversations_max()));
            for count in counts {
                let all = all(users, count);
                assert!(all.keys().copied().eq(0..count), "{users} users, {count} conversations");
                assert!(all.values().all(|sides| sides.len() == 2 && sides[0] == sides[1]));
                let mut pairs: Vec<_> = all.into_values().map(|sides| sides[0]).collect();
                pairs.sort_unstable();
                pairs.dedup();
                assert_eq!(pairs.len(), count, "{users} users: no two talk twice");
            }
        }
    }

    #[test]
    fn neighbours_come_first() {
        let circle = Circle::new(8);
        assert_eq!(circle.index(0, 1), (0, 0));
        assert_eq!(circle.index(1, 0), (0, 1));
        assert_eq!(circle.index(6, 7), (6, 0));
        assert_eq!(Circle::new(2).index(1, 0), (0, 1));
    }

    #[test]
    fn shares_add_up() {
        for total in [0, 1, 63, 64, 100_000] {
            let shares: Vec<usize> = (0..64).map(|nth| share(total, 64, nth)).collect();
            assert_eq!(shares.iter().sum::<usize>(), total);
            assert!(shares.iter().max().zip(shares.iter().min()).is_some_and(|(max, min)| max - min <= 1));
        }
    }
}
