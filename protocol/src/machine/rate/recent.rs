//! Set of recently used keys, in a fixed amount of memory.

/// Keys of a bucket, one cache line.
const WAYS: usize = 8;

/// Recently used keys; each bucket keeps the 8 that were used last.
///
/// Keys are hashes under a secret key. A key may be forgotten at any time, and nothing else is ever reported as known,
/// except for keys whose hashes are equal.
#[derive(Debug)]
pub struct RecentKeys {
    /// Keys by bucket, last used first; 0 for none.
    buckets: Vec<[u64; WAYS]>,
}

impl RecentKeys {
    /// Creates a set of at least `keys_max` keys, rounded up to whole buckets. Its memory is reserved at once.
    pub fn new(keys_max: usize) -> Self {
        Self { buckets: vec![[0; WAYS]; keys_max.div_ceil(WAYS).max(1)] }
    }

    /// Returns whether the key is known.
    pub fn contains(&self, key: u64) -> bool {
        self.buckets[self.bucket(key)].contains(&stored(key))
    }

    /// Makes the key the one that was used last; forgets the key of its bucket that was used longest ago.
    pub fn insert(&mut self, key: u64) {
        let bucket = self.bucket(key);
        let keys = &mut self.buckets[bucket];
        let at = keys.iter().position(|it| *it == stored(key)).unwrap_or(WAYS - 1);
        keys[at] = stored(key);
        keys[..=at].rotate_right(1);
    }

    fn bucket(&self, key: u64) -> usize {
        (key % self.buckets.len() as u64) as usize
    }
}

/// Returns the key as it is stored, where 0 means none.
const fn stored(key: u64) -> u64 {
    if key == 0 { 1 } else { key }
}
