//! Table of networks by open addressing, with one probe for each prefix length in use.
//!
//! Nearly all probes find nothing. A filter with few bits for each network answers most of them from a small part of
//! memory, so that a probe seldom waits for the table.

use std::{
    hash::{BuildHasher as _, Hash, Hasher},
    net::IpAddr,
};

use foldhash::quality::RandomState;

use crate::networks::Network;

/// Bits before an IPv4 address: it is kept as mapped into IPv6, where no IPv6 network can be.
const MAPPED_BITS: u8 = 96;

/// Slots for each network, at least: chains of full slots stay short.
const SLOTS_PER_NETWORK: usize = 2;

/// Smallest number of slots.
const SLOTS_MIN: usize = 16;

/// Bits of the filter for each slot: with two slots or more for a network, at most an eighth of all bits are set.
const FILTER_BITS_PER_SLOT: usize = 4;

/// Prefix of a free slot.
const FREE: u8 = u8::MAX;

/// First bits of a network, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetworkKey {
    bits: u128,
    prefix: u8,
}

impl NetworkKey {
    /// Creates the key of a network.
    pub(super) fn of(network: &Network) -> Self {
        let prefix = network.prefix() + if network.address().is_ipv4() { MAPPED_BITS } else { 0 };
        Self::new(bits_of(network.address()), prefix)
    }

    /// Creates the key of the network with this prefix around an address.
    pub(super) fn new(address: u128, prefix: u8) -> Self {
        let kept = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        Self { bits: address & kept, prefix }
    }
}

impl Hash for NetworkKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // The prefix only tells networks with the same first bits apart.
        hasher.write_u128(self.bits ^ u128::from(self.prefix));
    }
}

/// Returns an address as bits of IPv6; IPv4 addresses are mapped.
pub(super) fn bits_of(address: IpAddr) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[derive(Clone, Copy)]
struct Slot {
    key: NetworkKey,
    until_ms: u64,
}

/// Networks with their ends, which no call changes.
pub(super) struct NetworkTable {
    slots: Box<[Slot]>,
    /// One bit for each network, by its hash.
    filter: Box<[u64]>,
    len: usize,
    keys: RandomState,
    /// Prefix lengths in use, IPv4 first.
    prefixes: Vec<u8>,
    /// Number of those of IPv4.
    of_v4: usize,
}

impl NetworkTable {
    /// Builds the table of networks, each of which occurs once, with their ends in ms.
    pub(super) fn new(networks: impl ExactSizeIterator<Item = (NetworkKey, u64)>) -> Self {
        let slots = (networks.len() * SLOTS_PER_NETWORK).next_power_of_two().max(SLOTS_MIN);
        let free = Slot { key: NetworkKey { bits: 0, prefix: FREE }, until_ms: 0 };
        let keys = RandomState::default();
        let mut table = Self {
            slots: vec![free; slots].into(),
            filter: vec![0; slots * FILTER_BITS_PER_SLOT / 64].into(),
            len: networks.len(),
            keys,
            prefixes: Vec::new(),
            of_v4: 0,
        };
        let (mut v4, mut v6) = ([false; 129], [false; 129]);
        for (key, until_ms) in networks {
            let is_v4 = key.prefix >= MAPPED_BITS && key.bits >> 32 == 0xffff;
            let used = if is_v4 { &mut v4 } else { &mut v6 };
            used[usize::from(key.prefix)] = true;
            let hash = table.keys.hash_one(key);
            let (word, mask) = table.filter_bit(hash);
            table.filter[word] |= mask;
            let at = table.slot_of(hash, &key);
            table.slots[at] = Slot { key, until_ms };
        }
        let used =
            |lengths: &[bool; 129]| (0..=128).filter(|at| lengths[usize::from(*at)]).collect::<Vec<u8>>();
        table.prefixes = used(&v4);
        table.of_v4 = table.prefixes.len();
        table.prefixes.extend(used(&v6));
        table
    }

    /// Returns the bit of a hash, as word and mask.
    fn filter_bit(&self, hash: u64) -> (usize, u64) {
        let bit = (hash >> 32) as usize & (self.filter.len() * 64 - 1);
        (bit / 64, 1 << (bit % 64))
    }

    /// Returns the slot of a key, or the free one in which it would be.
    fn slot_of(&self, hash: u64, key: &NetworkKey) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        // Half of the slots are free.
        while self.slots[at].key.prefix != FREE && self.slots[at].key != *key {
            at = (at + 1) & mask;
        }
        at
    }

    /// Returns the end of a network; `None` if it is not in the table.
    pub(super) fn get(&self, key: &NetworkKey) -> Option<u64> {
        let hash = self.keys.hash_one(key);
        let (word, mask) = self.filter_bit(hash);
        if self.filter[word] & mask == 0 {
            return None;
        }
        let slot = self.slots[self.slot_of(hash, key)];
        (slot.key.prefix != FREE).then_some(slot.until_ms)
    }

    /// Returns the prefix lengths in use by networks of the family of an address, as bits of IPv6.
    pub(super) fn prefixes(&self, address: u128) -> &[u8] {
        let (v4, v6) = self.prefixes.split_at(self.of_v4);
        if address >> 32 == 0xffff { v4 } else { v6 }
    }

    /// Returns the number of networks.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}
