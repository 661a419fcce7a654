//! Bloom filter of the stored dedup keys: a new message whose key is certainly not stored needs no database lookup.
//!
//! Blocks of 256 bits (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters). The keys are
//! hashes, so their own bits select block and bits. After a start the filter loads the stored keys, a few thousand at
//! a time; new keys are added as they are archived. While it is partial, or once it has overflowed, it answers
//! "maybe" to every key.

use tidegate_protocol::record::{Hash16, Position};

use super::{Database, DatabaseError, codec};
use crate::store::Fence;

/// Memory for the key filters of a node: 20 million keys, with about one false "maybe" per thousand lookups.
pub(super) const FILTER_BYTES_MAX: usize = 64 << 20;

/// Maximum average number of keys per block of 32 bytes.
const KEYS_PER_BLOCK: usize = 10;

/// Blocks of the first part, a power of two; each further part has twice as many.
const FIRST_PART_BLOCKS: usize = 1 << 12;
/// Blocks of the largest part, a power of two.
const PART_BLOCKS_MAX: usize = 1 << 18;

type Block = [u32; 8];

/// Part of the filter with keys of similar age, which is dropped as a whole.
struct Part {
    blocks: Vec<Block>,
    keys: usize,
    /// Highest record offset of its keys.
    newest: u64,
}

/// Filter over the keys of one partition, with the partition's owner and position.
pub(super) struct KeyFilter {
    parts: Vec<Part>,
    bytes_max: usize,
    /// Next stored key to load; `None` if all are loaded.
    next_stored: Option<Hash16>,
    /// Whether there were too many keys for `bytes_max`.
    is_overflowed: bool,
    owner: Option<(Fence, Position)>,
}

fn mask(hash: &Hash16) -> Block {
    let bits = hash.iter().skip(8).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    std::array::from_fn(|word| 1 << (bits >> (5 * word) & 31))
}

impl Part {
    fn new(blocks: usize) -> Self {
        Self { blocks: vec![Block::default(); blocks], keys: 0, newest: 0 }
    }

    fn block(&self, hash: &Hash16) -> usize {
        let start = hash.iter().take(4).fold(0, |start, byte| start << 8 | usize::from(*byte));
        start & (self.blocks.len() - 1)
    }

    fn add(&mut self, hash: &Hash16, offset: u64) {
        let at = self.block(hash);
        self.blocks[at].iter_mut().zip(mask(hash)).for_each(|(word, bit)| *word |= bit);
        (self.keys, self.newest) = (self.keys + 1, self.newest.max(offset));
    }

    fn may_hold(&self, hash: &Hash16) -> bool {
        self.blocks[self.block(hash)].iter().zip(mask(hash)).all(|(word, bit)| word & bit != 0)
    }

    fn is_full(&self) -> bool {
        self.keys >= self.blocks.len() * KEYS_PER_BLOCK
    }
}

impl KeyFilter {
    /// Creates an empty filter that may use `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            parts: Vec::new(),
            bytes_max,
            next_stored: Some(Hash16::default()),
            is_overflowed: false,
            owner: None,
        }
    }

    /// Sets fence and position of the partition's owner; `None` if it has none yet.
    pub(super) fn set_owner(&mut self, owner: Option<(Fence, Position)>) {
        self.owner = owner;
    }

    /// Returns the partition's position, if `of` is its fence.
    pub(super) fn position(&self, of: Fence) -> Option<Position> {
        self.owner.filter(|(fence, _)| *fence == of).map(|(_, position)| position)
    }

    /// Adds a stored key; a new key must be added before its commit.
    pub(super) fn add(&mut self, hash: &Hash16, offset: u64) {
        if self.is_overflowed {
            return;
        }
        if self.parts.last().is_none_or(Part::is_full) {
            let blocks = self
                .parts
                .last()
                .map_or(FIRST_PART_BLOCKS, |part| (part.blocks.len() * 2).min(PART_BLOCKS_MAX));
            let all: usize = self.parts.iter().map(|part| part.blocks.len()).sum();
            if (all + blocks) * size_of::<Block>() > self.bytes_max {
                tracing::info!(
                    bytes_max = self.bytes_max,
                    "key filter full; looking up new messages on the disk"
                );
                (self.is_overflowed, self.parts) = (true, Vec::new());
                return;
            }
            self.parts.push(Part::new(blocks));
        }
        if let Some(part) = self.parts.last_mut() {
            part.add(hash, offset);
        }
    }

    /// Drops the full parts with only keys of records below an offset, which the rules have expired.
    pub(super) fn expire(&mut self, below: u64) {
        self.parts.retain(|part| part.newest >= below || !part.is_full());
    }

    /// Returns false if the key is certainly not stored.
    pub(super) fn may_hold(&self, hash: &Hash16) -> bool {
        self.is_overflowed || self.next_stored.is_some() || self.parts.iter().any(|part| part.may_hold(hash))
    }

    /// Returns whether there are stored keys to load.
    pub(super) fn is_partial(&self) -> bool {
        self.next_stored.is_some() && !self.is_overflowed
    }

    /// Loads up to `count` further stored keys.
    pub(super) fn load_next(
        &mut self,
        database: &Database,
        partition: u32,
        count: usize,
    ) -> Result<(), DatabaseError> {
        let Some(from) = self.next_stored else { return Ok(()) };
        let (first, last) = (codec::key_key(partition, &from), codec::key_key(partition, &[u8::MAX; 16]));
        for (index, entry) in database.keys.range(first..=last).enumerate() {
            let (key, value) = entry.into_inner()?;
            let hash = codec::key_hash(&key)?;
            if index == count {
                self.next_stored = Some(hash);
                return Ok(());
            }
            self.add(&hash, codec::key(&value)?.offset);
        }
        self.next_stored = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(bytes_max: usize) -> KeyFilter {
        KeyFilter { next_stored: None, ..KeyFilter::new(bytes_max) }
    }

    fn hash(number: u64) -> Hash16 {
        let parts = [number, number ^ 0xA5A5].map(|it| xxhash_rust::xxh3::xxh3_64(&it.to_le_bytes()));
        [parts[0].to_le_bytes(), parts[1].to_le_bytes()].concat().try_into().unwrap()
    }

    #[test]
    fn added_keys_are_always_found_with_few_false_positives() {
        let mut filter = complete(FILTER_BYTES_MAX);
        for number in 0..300_000 {
            filter.add(&hash(number), number);
        }
        assert!((0..300_000).all(|number| filter.may_hold(&hash(number))));
        let wrong = (300_000..400_000).filter(|number| filter.may_hold(&hash(*number))).count();
        assert!(wrong < 200, "{wrong} of 100,000");
    }

    #[test]
    fn partial_and_overflowed_filters_answer_maybe() {
        let incomplete = KeyFilter::new(FILTER_BYTES_MAX);
        assert!(incomplete.may_hold(&hash(1)));
        let mut small = complete(FIRST_PART_BLOCKS * size_of::<Block>());
        for number in 0..(FIRST_PART_BLOCKS * KEYS_PER_BLOCK) as u64 {
            small.add(&hash(number), number);
        }
        assert!(!small.may_hold(&hash(u64::MAX)));
        small.add(&hash(u64::MAX), 0);
        assert!(small.may_hold(&hash(u64::MAX - 1)), "it has overflowed");
    }

    #[test]
    fn part_is_dropped_once_all_its_keys_have_expired() {
        let mut filter = complete(FILTER_BYTES_MAX);
        let first = (FIRST_PART_BLOCKS * KEYS_PER_BLOCK) as u64;
        for number in 0..first + 10 {
            filter.add(&hash(number), number);
        }
        filter.expire(first - 1);
        assert!(filter.may_hold(&hash(0)), "one of its keys counts");
        filter.expire(first);
        assert!(!filter.may_hold(&hash(0)) && filter.may_hold(&hash(first)));
    }

    #[test]
    fn only_the_owner_gets_the_position() {
        let mut filter = complete(FILTER_BYTES_MAX);
        assert_eq!(filter.position(Fence(1)), None);
        filter.set_owner(Some((Fence(1), Position::START)));
        assert_eq!((filter.position(Fence(1)), filter.position(Fence(2))), (Some(Position::START), None));
    }
}
