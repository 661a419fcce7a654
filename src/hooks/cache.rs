//! Cache of a hook's answers, bounded in bytes.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, RandomState},
    mem,
    time::Instant,
};

use parking_lot::Mutex;

/// Most bytes of one generation; there are two.
const GENERATION_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Bytes that an entry takes in addition to its key and answer.
const ENTRY_BYTES: usize = 96;

/// Answers with the time until which each holds, in two generations: the older one is dropped when the newer one is
/// full.
pub(super) struct AnswerMap<K, V> {
    halves: Mutex<Halves<K, V>>,
    generation_bytes_max: usize,
}

struct Halves<K, V> {
    new: HashMap<K, (V, Instant), RandomState>,
    old: HashMap<K, (V, Instant), RandomState>,
    new_bytes: usize,
}

impl<K: Hash + Eq, V: Clone> AnswerMap<K, V> {
    /// Creates an empty cache.
    pub(super) fn new() -> Self {
        Self::with_bytes(GENERATION_BYTES_MAX)
    }

    fn with_bytes(generation_bytes_max: usize) -> Self {
        let halves = Halves { new: HashMap::default(), old: HashMap::default(), new_bytes: 0 };
        Self { halves: Mutex::new(halves), generation_bytes_max }
    }

    /// Returns the answer that holds at `now`.
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.find(key, now, |value| Some(value.clone()))
    }

    /// Returns what `read` takes from the answer that holds at `now`.
    fn find<T>(&self, key: &K, now: Instant, read: impl FnOnce(&V) -> Option<T>) -> Option<T> {
        let halves = self.halves.lock();
        let (value, until) = halves.new.get(key).or_else(|| halves.old.get(key))?;
        if now < *until { read(value) } else { None }
    }

    /// Stores an answer of about `bytes` until that time.
    pub(super) fn insert(&self, key: K, value: V, until: Instant, bytes: usize) {
        let mut halves = self.halves.lock();
        let bytes = bytes + ENTRY_BYTES;
        if halves.new_bytes + bytes > self.generation_bytes_max {
            halves.old = mem::take(&mut halves.new);
            halves.new_bytes = 0;
        }
        halves.new_bytes += bytes;
        halves.new.insert(key, (value, until));
    }
}

/// Number of parts of a [`PairMap`], so that shards rarely wait for each other.
const PARTS: usize = 16;

/// Question about a pair of texts.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct PairQuestion<'a, A> {
    pub(super) about: A,
    pub(super) one: &'a str,
    pub(super) two: &'a str,
}

/// Answers to questions about pairs of texts. A lookup allocates nothing.
pub(super) struct PairMap<A, V> {
    hasher: RandomState,
    /// Each by the hash of the question, which is compared, too: of two with the same hash the newer one is kept.
    parts: [AnswerMap<u64, PairAnswer<A, V>>; PARTS],
}

#[derive(Clone)]
struct PairAnswer<A, V> {
    about: A,
    /// Both texts, one after the other.
    texts: Box<str>,
    /// Length of the first one.
    split: usize,
    value: V,
}

impl<A: Hash + Eq + Copy, V: Clone> PairMap<A, V> {
    /// Creates an empty cache.
    pub(super) fn new() -> Self {
        let parts = std::array::from_fn(|_| AnswerMap::with_bytes(GENERATION_BYTES_MAX / PARTS));
        Self { hasher: RandomState::new(), parts }
    }

    fn part(&self, question: &PairQuestion<'_, A>) -> (u64, &AnswerMap<u64, PairAnswer<A, V>>) {
        let hash = self.hasher.hash_one(question);
        (hash, &self.parts[hash as usize % PARTS])
    }

    /// Returns the answer that holds at `now`.
    pub(super) fn get(&self, question: &PairQuestion<'_, A>, now: Instant) -> Option<V> {
        let (hash, part) = self.part(question);
        let PairQuestion { about, one, two } = *question;
        part.find(&hash, now, |found| {
            let is_same = found.about == about
                && found.split == one.len()
                && found.texts.len() == one.len() + two.len()
                && found.texts.starts_with(one)
                && found.texts.ends_with(two);
            is_same.then(|| found.value.clone())
        })
    }

    /// Stores an answer of about `bytes` in addition to the texts until that time.
    pub(super) fn insert(&self, question: &PairQuestion<'_, A>, value: V, until: Instant, bytes: usize) {
        let (hash, part) = self.part(question);
        let PairQuestion { about, one, two } = *question;
        let texts: Box<str> = [one, two].concat().into();
        let bytes = bytes + texts.len();
        part.insert(hash, PairAnswer { about, texts, split: one.len(), value }, until, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn answers_expire_and_memory_is_bounded() {
        let (cache, now) = (AnswerMap::new(), Instant::now());
        let until = now + Duration::from_secs(1);
        cache.insert(0_u64, true, until, 0);
        assert_eq!((cache.get(&0, now), cache.get(&0, until), cache.get(&1, now)), (Some(true), None, None));
        let most = GENERATION_BYTES_MAX / (ENTRY_BYTES + 4) + 1;
        for n in 0..3 * most as u64 {
            cache.insert(n, true, until, 4);
        }
        let halves = cache.halves.lock();
        assert!(halves.new.len() <= most && halves.old.len() <= most);
        drop(halves);
        assert_eq!((cache.get(&(3 * most as u64 - 1), now), cache.get(&0, now)), (Some(true), None));
    }

    const fn about<'a>(about: u8, one: &'a str, two: &'a str) -> PairQuestion<'a, u8> {
        PairQuestion { about, one, two }
    }

    #[test]
    fn answer_about_a_pair_is_of_exactly_that_question_and_pair() {
        let (cache, now) = (PairMap::new(), Instant::now());
        let until = now + Duration::from_secs(1);
        let question = about(1, "ann", "bob");
        cache.insert(&question, true, until, 0);
        assert_eq!((cache.get(&question, now), cache.get(&question, until)), (Some(true), None));
        for other in
            [about(2, "ann", "bob"), about(1, "bob", "ann"), about(1, "annb", "ob"), about(1, "", "annbob")]
        {
            assert_eq!(cache.get(&other, now), None, "{other:?}");
        }
        cache.insert(&question, false, until, 0);
        assert_eq!(cache.get(&question, now), Some(false));
    }

    #[test]
    fn pair_with_the_hash_of_another_one_is_not_taken_for_it() {
        let (cache, now) = (PairMap::new(), Instant::now());
        let until = now + Duration::from_secs(1);
        let question = about(1, "ann", "bob");
        let (hash, part) = cache.part(&question);
        for (texts, split) in [("evebob", 3), ("anndan", 3), ("annbob", 4), ("annxbob", 3)] {
            let answer = PairAnswer { about: 1, texts: texts.into(), split, value: true };
            part.insert(hash, answer, until, 0);
            assert_eq!(cache.get(&question, now), None, "{texts}");
        }
    }
}
