//! Repeated texts: the form in which texts are compared, and the filter of those that occurred once.

use std::{ops::Deref, time::Duration};

use tidegate_protocol::Time;

/// Bytes of a text that are compared.
const TEXT_BYTES_MAX: usize = 512;

/// Bytes of a text that are read to compare it: one that is mostly spaces costs no more.
const READ_BYTES_MAX: usize = 2_048;

/// Generations of a filter: one that takes new keys, and those of the last window.
const GENERATIONS: usize = 5;

/// Generations that a window lasts.
const PER_WINDOW: u32 = GENERATIONS as u32 - 1;

/// Words of a generation, 4 KiB.
const WORDS: usize = 512;

/// Bits that each key sets in a generation.
const BITS: u32 = 4;

/// Most keys of a generation.
const KEYS_MAX: usize = 512;

/// Start of a text without regard to case, to the number of spaces, to the values of digits and to characters that are not
/// shown. What is no UTF-8 is compared byte by byte.
pub(super) struct NormalForm {
    bytes: [u8; TEXT_BYTES_MAX],
    len: usize,
}

impl Deref for NormalForm {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl NormalForm {
    /// Returns the form of a text.
    pub(super) fn of(text: &[u8]) -> Self {
        let read = &text[..text.len().min(READ_BYTES_MAX)];
        let mut form = Self { bytes: [0; TEXT_BYTES_MAX], len: 0 };
        if read.is_ascii() {
            form.push_ascii(read);
            return form;
        }
        match str::from_utf8(read) {
            Ok(valid) => form.push_text(valid),
            // The cut may have split the last character.
            Err(error) if error.error_len().is_none() && read.len() < text.len() => {
                form.push_text(str::from_utf8(&read[..error.valid_up_to()]).unwrap_or_default());
            }
            Err(_) => form.push(read),
        }
        form
    }

    /// Adds what fits.
    fn push(&mut self, bytes: &[u8]) {
        let taken = bytes.len().min(TEXT_BYTES_MAX - self.len);
        self.bytes[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
    }

    fn push_text(&mut self, text: &str) {
        let mut is_after_space = true;
        for shown in text.chars().filter(|c| !is_hidden(*c)) {
            let is_space = shown.is_whitespace();
            if is_space && !is_after_space {
                self.push(b" ");
            } else if shown.is_numeric() {
                self.push(b"0");
            } else if !is_space {
                for lower in shown.to_lowercase() {
                    self.push(lower.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            is_after_space = is_space;
            if self.len == TEXT_BYTES_MAX {
                break;
            }
        }
        self.trim_end();
    }

    /// Does what [`Self::push_text`] does for a text that is ASCII, at a small part of the cost.
    fn push_ascii(&mut self, text: &[u8]) {
        let mut is_after_space = true;
        if let Some(whole) = self.bytes.get_mut(..text.len()) {
            // Both loops handle many bytes at once.
            for (to, from) in whole.iter_mut().zip(text) {
                *to = ascii_form(*from);
            }
            let after = whole.get(1..).unwrap_or_default();
            let is_run = |(a, b): (&u8, &u8)| (*a == b' ') & (*b == b' ');
            let has_run = whole.iter().zip(after).fold(false, |has, pair| has | is_run(pair));
            self.len = text.len();
            if has_run || whole.first() == Some(&b' ') {
                self.len = 0;
                for at in 0..text.len() {
                    let normal = self.bytes[at];
                    self.bytes[self.len] = normal;
                    self.len += usize::from((normal != b' ') | !is_after_space);
                    is_after_space = normal == b' ';
                }
            }
            return self.trim_end();
        }
        let mut len = 0;
        for byte in text {
            let normal = ascii_form(*byte);
            if (normal != b' ') | !is_after_space {
                let Some(place) = self.bytes.get_mut(len) else { break };
                *place = normal;
                len += 1;
            }
            is_after_space = normal == b' ';
        }
        self.len = len;
        self.trim_end();
    }

    fn trim_end(&mut self) {
        if self.len > 0 && self.bytes[self.len - 1] == b' ' {
            self.len -= 1;
        }
    }
}

/// Returns what an ASCII character is compared as.
const fn ascii_form(byte: u8) -> u8 {
    let is_space = (byte == b' ') | (byte.wrapping_sub(b'\t') < 5);
    let is_digit = byte.wrapping_sub(b'0') < 10;
    let is_upper = byte.wrapping_sub(b'A') < 26;
    let lower = if is_upper { byte | 0x20 } else { byte };
    let shown = if is_digit { b'0' } else { lower };
    if is_space { b' ' } else { shown }
}

/// Returns whether a character is not shown: soft hyphen, marks of zero width and of direction, joiners, and the byte order
/// mark.
const fn is_hidden(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

/// Keys that occurred once within a window, in a fixed amount of memory.
///
/// A Bloom filter in generations. It forgets no key before its window is over, and each at most a quarter of a window later.
/// It may report a key that never occurred, as if it had occurred once: fewer than one in 10,000. Therefore it takes at most
/// 512 keys in a quarter of a window.
#[derive(Debug)]
pub(super) struct SeenOnce {
    window: Duration,
    generations: Vec<Generation>,
    /// Generation that takes new keys.
    newest: usize,
}

#[derive(Debug)]
struct Generation {
    bits: Box<[u64; WORDS]>,
    keys: usize,
    /// Time from which it took keys; `None` if it is empty.
    since: Option<Time>,
}

impl SeenOnce {
    /// Creates an empty filter.
    pub(super) fn new(window: Duration) -> Self {
        let generations =
            (0..GENERATIONS).map(|_| Generation { bits: Box::new([0; WORDS]), keys: 0, since: None });
        Self { window, generations: generations.collect(), newest: 0 }
    }

    /// Adds a key. Returns whether it did: the present generation may be full.
    pub(super) fn insert(&mut self, key: u64, now: Time) -> bool {
        self.turn(now);
        let newest = &mut self.generations[self.newest];
        if newest.keys == KEYS_MAX {
            return false;
        }
        newest.since.get_or_insert(now);
        newest.keys += 1;
        for (word, bit) in places(key) {
            newest.bits[word] |= bit;
        }
        true
    }

    /// Returns the latest time at which the key may have occurred; `None` if it has not within the window.
    pub(super) fn last(&mut self, key: u64, now: Time) -> Option<Time> {
        self.turn(now);
        let (window, part) = (self.window, self.part());
        let count = self.generations.len();
        let newest_first = (0..count).map(|back| (self.newest + count - back) % count);
        newest_first.map(|at| &self.generations[at]).find_map(|generation| {
            let end = generation.since? + part;
            let has_key = places(key).all(|(word, bit)| generation.bits[word] & bit != 0);
            (has_key && end + window >= now).then(|| end.min(now))
        })
    }

    fn part(&self) -> Duration {
        self.window / PER_WINDOW
    }

    /// Begins a generation if the newest one has had its time. The one that it replaces is older than the window.
    fn turn(&mut self, now: Time) {
        let part = self.part();
        if self.generations[self.newest].since.is_some_and(|since| since + part <= now) {
            self.newest = (self.newest + 1) % self.generations.len();
            let oldest = &mut self.generations[self.newest];
            oldest.bits.fill(0);
            oldest.keys = 0;
            oldest.since = None;
        }
    }
}

/// Returns the word and the bit of each place of a key.
fn places(key: u64) -> impl Iterator<Item = (usize, u64)> {
    let mixed = (key ^ (key >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BITS).map(move |n| {
        let place = (mixed >> (16 * n)) as usize % (WORDS * 64);
        (place / 64, 1 << (place % 64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn key(n: u64) -> u64 {
        n.wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    fn normalised(text: &[u8]) -> Vec<u8> {
        NormalForm::of(text).to_vec()
    }

    #[test]
    fn texts_are_compared_without_case_spaces_and_digits() {
        let same = |one: &str, other: &str| normalised(one.as_bytes()) == normalised(other.as_bytes());
        assert!(same("Win  100 EUR\nnow ", " win 923 eur now"));
        assert!(!same("win 10", "win 100") && !same("a b", "ab"));
        let long = "x".repeat(TEXT_BYTES_MAX);
        assert!(same(&format!("{long}a"), &format!("{long}b")));
        assert!(normalised(b" \n ").is_empty() && normalised(b"").is_empty());
        assert!(same("ПРИВЕТ\u{a0}мир ٣", "привет  м\u{200b}ир 7"));
        assert_eq!(normalised(b"A\xff 1"), b"A\xff 1");
        let spaces = format!("{}a", " ".repeat(READ_BYTES_MAX));
        assert!(normalised(spaces.as_bytes()).is_empty());
        let cut = format!("{}é", "x".repeat(READ_BYTES_MAX - 1));
        assert_eq!(normalised(cut.as_bytes()).len(), TEXT_BYTES_MAX);
        let every: String = (0..128_u8).map(char::from).collect();
        for ascii in
            [every.clone(), every.repeat(5), "  a\t\u{b}b ".to_owned(), " ".repeat(600), "x ".repeat(256)]
        {
            let other = normalised(format!("{ascii}\u{200b}").as_bytes());
            assert_eq!(normalised(ascii.as_bytes()), other, "the fast path gives the same: {ascii:?}");
        }
    }

    #[test]
    fn filter_forgets_a_key_after_its_window_and_not_before() {
        for first in [0, 1, 249, 250, 251, 999] {
            let mut filter = SeenOnce::new(Duration::from_secs(1));
            filter.insert(key(1), at(0));
            filter.insert(key(2), at(first));
            for now in (first..first + 1_000).step_by(7) {
                let last = filter.last(key(2), at(now)).expect("within its window");
                assert!(last >= at(first) && last <= at(now.min(first + 250)), "{first} {now} {last}");
                filter.insert(key(1_000 + now), at(now));
            }
            assert_eq!(filter.last(key(2), at(first + 1_251)), None, "{first}");
        }
    }

    #[test]
    fn filter_reports_few_other_keys() {
        let mut filter = SeenOnce::new(Duration::from_secs(1));
        let taken = (0..4_000).filter(|n| filter.insert(key(*n), at(n / 4))).count();
        assert!((4 * KEYS_MAX..=5 * KEYS_MAX).contains(&taken), "{taken}");
        let wrong = (10_000..20_000).filter(|n| filter.last(key(*n), at(999)).is_some()).count();
        assert!(wrong <= 10, "{wrong}");
    }
}
