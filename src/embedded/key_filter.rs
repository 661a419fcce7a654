//! Which dedup keys may be stored: memory says "surely not", so that a new message needs no look at the database.
//!
//! A filter of 256-bit blocks (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters), whose places
//! are taken from the keys themselves: they are hashes. It takes in what is stored after a start, a few thousand keys
//! at a time, and what is archived from then on. Until it has all, or when there are too many for it, it says "maybe".

use tidegate_protocol::record::{Hash16, Position};

use super::{Database, Trouble, codec};
use crate::store::Fence;

/// Memory for the keys of a node: twenty million of them, of which one lookup in about a thousand is a false "maybe".
pub(super) const BYTES_MAX: usize = 64 << 20;

/// Keys in a block of 32 bytes, at most on average.
const KEYS_A_BLOCK: usize = 10;

/// Blocks of the first part, and of the largest; each power of two.
const FIRST: usize = 1 << 12;
const LARGEST: usize = 1 << 18;

type Block = [u32; 8];

/// Keys that came together, more or less.
struct Part {
    blocks: Vec<Block>,
    keys: usize,
    /// The highest offset of the records they belong to.
    newest: u64,
}

/// The keys of a partition, and where it stands.
pub(super) struct Seen {
    parts: Vec<Part>,
    bytes_max: usize,
    /// From which stored key on it still has to take them in; none = it has all.
    next: Option<Hash16>,
    /// There were too many.
    over: bool,
    stands: Option<(Fence, Position)>,
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
        self.keys >= self.blocks.len() * KEYS_A_BLOCK
    }
}

impl Seen {
    /// Has nothing yet, and is allowed so many bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { parts: Vec::new(), bytes_max, next: Some(Hash16::default()), over: false, stands: None }
    }

    /// Notes where the partition stands now; none = it has no owner yet.
    pub(super) fn stands(&mut self, stands: Option<(Fence, Position)>) {
        self.stands = stands;
    }

    /// Where the partition stands, if it is the caller's.
    pub(super) fn position(&self, of: Fence) -> Option<Position> {
        self.stands.filter(|(fence, _)| *fence == of).map(|(_, position)| position)
    }

    /// Notes a key that is stored, or will be: before its commit.
    pub(super) fn add(&mut self, hash: &Hash16, offset: u64) {
        if self.over {
            return;
        }
        if self.parts.last().is_none_or(Part::is_full) {
            let blocks = self.parts.last().map_or(FIRST, |part| (part.blocks.len() * 2).min(LARGEST));
            let all: usize = self.parts.iter().map(|part| part.blocks.len()).sum();
            if (all + blocks) * size_of::<Block>() > self.bytes_max {
                tracing::info!(
                    "more dedup keys than memory has room for: new messages are looked up on the disk"
                );
                (self.over, self.parts) = (true, Vec::new());
                return;
            }
            self.parts.push(Part::new(blocks));
        }
        if let Some(part) = self.parts.last_mut() {
            part.add(hash, offset);
        }
    }

    /// Lets go what belongs to records below an offset: the rules forget it.
    pub(super) fn forget(&mut self, below: u64) {
        self.parts.retain(|part| part.newest >= below || !part.is_full());
    }

    /// False: no such key is stored.
    pub(super) fn may_hold(&self, hash: &Hash16) -> bool {
        self.over || self.next.is_some() || self.parts.iter().any(|part| part.may_hold(hash))
    }

    /// Whether there is something to take in.
    pub(super) fn is_behind(&self) -> bool {
        self.next.is_some() && !self.over
    }

    /// Takes the next stored keys in, `count` at most.
    pub(super) fn take_in(
        &mut self,
        database: &Database,
        partition: u32,
        count: usize,
    ) -> Result<(), Trouble> {
        let Some(from) = self.next else { return Ok(()) };
        let (first, last) = (codec::key_key(partition, &from), codec::key_key(partition, &[u8::MAX; 16]));
        for (index, entry) in database.keys.range(first..=last).enumerate() {
            let (key, value) = entry.into_inner()?;
            let hash = codec::key_hash(&key)?;
            if index == count {
                self.next = Some(hash);
                return Ok(());
            }
            self.add(&hash, codec::key(&value)?.offset);
        }
        self.next = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes_max: usize) -> Seen {
        Seen { next: None, ..Seen::new(bytes_max) }
    }

    fn hash(number: u64) -> Hash16 {
        let parts = [number, number ^ 0xA5A5].map(|it| xxhash_rust::xxh3::xxh3_64(&it.to_le_bytes()));
        [parts[0].to_le_bytes(), parts[1].to_le_bytes()].concat().try_into().unwrap()
    }

    #[test]
    fn what_was_added_is_never_denied_and_little_else_is_taken_for_it() {
        let mut seen = whole(BYTES_MAX);
        for number in 0..300_000 {
            seen.add(&hash(number), number);
        }
        assert!((0..300_000).all(|number| seen.may_hold(&hash(number))));
        let wrong = (300_000..400_000).filter(|number| seen.may_hold(&hash(*number))).count();
        assert!(wrong < 200, "{wrong} of 100,000");
    }

    #[test]
    fn without_all_keys_or_room_for_them_it_denies_nothing() {
        let behind = Seen::new(BYTES_MAX);
        assert!(behind.may_hold(&hash(1)));
        let mut small = whole(FIRST * size_of::<Block>());
        for number in 0..(FIRST * KEYS_A_BLOCK) as u64 {
            small.add(&hash(number), number);
        }
        assert!(!small.may_hold(&hash(u64::MAX)));
        small.add(&hash(u64::MAX), 0);
        assert!(small.may_hold(&hash(u64::MAX - 1)), "it is over");
    }

    #[test]
    fn a_part_goes_when_all_of_it_is_forgotten() {
        let mut seen = whole(BYTES_MAX);
        let first = (FIRST * KEYS_A_BLOCK) as u64;
        for number in 0..first + 10 {
            seen.add(&hash(number), number);
        }
        seen.forget(first - 1);
        assert!(seen.may_hold(&hash(0)), "one of its keys counts");
        seen.forget(first);
        assert!(!seen.may_hold(&hash(0)) && seen.may_hold(&hash(first)));
    }

    #[test]
    fn only_the_owner_is_told_where_it_stands() {
        let mut seen = whole(BYTES_MAX);
        assert_eq!(seen.position(Fence(1)), None);
        seen.stands(Some((Fence(1), Position::START)));
        assert_eq!((seen.position(Fence(1)), seen.position(Fence(2))), (Some(Position::START), None));
    }
}
