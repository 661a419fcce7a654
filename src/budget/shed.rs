//! Choice of the connections that a shard closes when memory is short.

use std::cmp::Reverse;

/// Bytes that one memory alarm frees on a shard, by closing at least [`CONNS_MIN`] and at most [`CONNS_MAX`]
/// connections.
const BYTES: usize = 4 << 20;
const CONNS_MIN: usize = 16;
const CONNS_MAX: usize = 256;

/// Least bytes of a client that is closed. One that is not logged in is closed for any.
const CLIENT_BYTES_MIN: usize = 4 << 10;

/// Least bytes of all clients together for which some are closed. Below it, the memory is held elsewhere, and closing
/// clients would free nothing.
const CLIENTS_BYTES_MIN: usize = 1 << 20;

/// Memory that a connection holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Weight {
    /// Whether it is not logged in.
    pub(crate) is_stranger: bool,
    /// Class of its user in live rooms: those of lower ones are closed first.
    pub(crate) class: Reverse<u8>,
    /// Bytes that are freed when it is closed.
    pub(crate) bytes: usize,
}

/// Returns the connections to close, those that are not logged in first, then those of the lowest class, and of these
/// the ones that hold the most.
pub(crate) fn choose(mut conns: Vec<(Weight, u32)>) -> Vec<(Weight, u32)> {
    conns.retain(|(it, _)| it.bytes >= if it.is_stranger { 1 } else { CLIENT_BYTES_MIN });
    let of_clients: usize = conns.iter().filter(|(it, _)| !it.is_stranger).map(|(it, _)| it.bytes).sum();
    if of_clients < CLIENTS_BYTES_MIN {
        conns.retain(|(it, _)| it.is_stranger);
    }
    conns.sort_unstable_by(|a, b| b.cmp(a));
    let mut freed = 0;
    let is_enough = |nth: usize, freed: usize| nth >= CONNS_MAX || (nth >= CONNS_MIN && freed >= BYTES);
    let count = conns
        .iter()
        .enumerate()
        .take_while(|(nth, (it, _))| {
            let goes_on = !is_enough(*nth, freed);
            freed += it.bytes;
            goes_on
        })
        .count();
    conns.truncate(count);
    conns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conns(is_stranger: bool, bytes: usize, count: u32) -> Vec<(Weight, u32)> {
        of_class(0, is_stranger, bytes, count)
    }

    fn of_class(class: u8, is_stranger: bool, bytes: usize, count: u32) -> Vec<(Weight, u32)> {
        (0..count).map(|slot| (Weight { is_stranger, class: Reverse(class), bytes }, slot)).collect()
    }

    #[test]
    fn x7_strangers_are_closed_first_and_few_at_a_time() {
        let all = [conns(false, 1 << 20, 100), conns(true, 1, 10)].concat();
        let chosen = choose(all);
        assert!(chosen[..10].iter().all(|(it, _)| it.is_stranger));
        assert_eq!(chosen.len(), 16, "that frees 6 MiB");
        assert_eq!(choose(conns(false, 5_000, 1_000)).len(), 256);
    }

    #[test]
    fn lower_classes_are_closed_first_whatever_the_others_hold() {
        let all = [
            of_class(3, false, 4 << 20, 10),
            of_class(1, false, 8 << 10, 200),
            of_class(0, false, 4 << 10, 20),
        ];
        let classes = |chosen: &[(Weight, u32)]| chosen.iter().map(|(it, _)| it.class.0).collect::<Vec<_>>();
        let chosen = classes(&choose(all.concat()));
        assert_eq!(chosen[..20], [0; 20]);
        assert_eq!(chosen[20..220], [1; 200]);
        assert_eq!(chosen[220..], [3], "1.6 MiB of the lower ones are not enough");
    }

    #[test]
    fn s79_clients_are_not_closed_for_memory_that_others_hold() {
        assert_eq!(choose(conns(false, 32 << 10, 20)), [], "640 KiB are not the cause");
        assert_eq!(choose(conns(true, 1, 20)).len(), 20);
        assert_eq!(choose(conns(false, 32 << 10, 40)).len(), 40);
        assert_eq!(choose(conns(false, 4_000, 1_000)), []);
    }
}
