//! Looks through fjall's journals before fjall does.
//!
//! Its own recovery cuts a journal at the first thing it can't read, wherever that is: damage in the middle would
//! silently take away everything behind it. Here a torn end and damage in the middle are told apart: only the last
//! batch can be torn, because none is begun before the one before it is synced.

use std::{
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_64;

/// Tags of fjall's format version 3.
const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const START_BYTES: usize = 13;
const ITEM_BYTES: usize = 21;
const CLEAR_BYTES: usize = 9;
const TRAILER: &[u8] = b"FJL\x03";

/// What a journal is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Batches, then nothing or zeros.
    Whole,
    /// Batches up to here, then something that is none, and no batch after it.
    Torn(usize),
    /// Something here is no batch, but batches follow.
    Damaged(usize),
}

/// A journal with damage in the middle.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) file: PathBuf,
    pub(super) at: usize,
}

/// Checks all journals of a database and cuts a torn end off the newest. `Ok(Err(..))` is damage.
pub(super) fn check(database: &Path) -> io::Result<Result<(), Damage>> {
    let mut journals: Vec<(u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(database)? {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        if let Some(number) = number
            && path.extension().is_some_and(|extension| extension == "jnl")
        {
            journals.push((number, path));
        }
    }
    journals.sort_unstable();
    let newest = journals.last().map(|(number, _)| *number);
    for (number, file) in journals {
        match verdict(&fs::read(&file)?) {
            Verdict::Whole => {}
            Verdict::Torn(valid) if Some(number) == newest => {
                tracing::warn!(
                    valid,
                    journal = number,
                    "the end of the journal is torn: what was being written is cut off; it was never confirmed, \
                     unless the disk changed it afterwards"
                );
                let file = OpenOptions::new().write(true).open(&file)?;
                file.set_len(valid as u64)?;
                file.sync_all()?;
            }
            Verdict::Torn(at) | Verdict::Damaged(at) => return Ok(Err(Damage { file, at })),
        }
    }
    Ok(Ok(()))
}

fn verdict(journal: &[u8]) -> Verdict {
    let (mut at, mut before) = (0, None);
    while let Some(end) = batch_end(journal, at) {
        // fjall's checksum leaves the batch's own number out; numbers rise.
        let number = number(journal, at + 5, 8);
        if number <= before {
            return Verdict::Damaged(at);
        }
        (at, before) = (end, number);
    }
    let rest = &journal[at..];
    if rest.iter().all(|byte| *byte == 0) {
        return Verdict::Whole;
    }
    let begins = |from: usize| {
        journal[from] == START && matches!(journal.get(from + START_BYTES), Some(&ITEM | &CLEAR))
    };
    if (at + 1..journal.len()).any(|from| begins(from) && batch_end(journal, from).is_some()) {
        Verdict::Damaged(at)
    } else {
        Verdict::Torn(at)
    }
}

/// Where the batch that begins at `at` ends, if it is whole.
fn batch_end(journal: &[u8], at: usize) -> Option<usize> {
    if *journal.get(at)? != START {
        return None;
    }
    let count = number(journal, at + 1, 4)?;
    let first = at + START_BYTES;
    let mut next = first;
    for _ in 0..count {
        next = match *journal.get(next)? {
            ITEM => {
                let (key, value) = (number(journal, next + 11, 2)?, number(journal, next + 17, 4)?);
                next.checked_add(ITEM_BYTES)?.checked_add(key)?.checked_add(value)?
            }
            CLEAR => next.checked_add(CLEAR_BYTES)?,
            _ => return None,
        };
    }
    let items = journal.get(first..next)?;
    let whole = *journal.get(next)? == END
        && journal.get(next + 1..next + 9)? == xxh3_64(items).to_le_bytes()
        && journal.get(next + 9..next + 13)? == TRAILER;
    whole.then_some(next + 13)
}

fn number(journal: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let part = journal.get(at..at.checked_add(bytes)?)?;
    Some(part.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(number: u64, values: &[&[u8]]) -> Vec<u8> {
        let mut items = Vec::new();
        for value in values {
            items.extend([ITEM, 0, 0]);
            items.extend(7_u64.to_le_bytes());
            items.extend(1_u16.to_le_bytes());
            items.extend((value.len() as u32).to_le_bytes());
            items.extend((value.len() as u32).to_le_bytes());
            items.push(b'k');
            items.extend(*value);
        }
        let mut all = vec![START];
        all.extend((values.len() as u32).to_le_bytes());
        all.extend(number.to_le_bytes());
        all.extend(&items);
        all.push(END);
        all.extend(xxh3_64(&items).to_le_bytes());
        all.extend(TRAILER);
        all
    }

    #[test]
    fn a_flip_in_the_last_batch_is_a_torn_end_and_in_an_earlier_one_damage() {
        let (one, two) = (batch(1, &[b"first", b"second"]), batch(2, &[b"third"]));
        let mut journal = [&one[..], &two[..]].concat();
        journal.extend([0; 64]);
        assert_eq!(verdict(&journal), Verdict::Whole);
        for at in 0..one.len() + two.len() {
            let mut flipped = journal.clone();
            flipped[at] ^= 0x10;
            let in_number = |start: usize| (start + 5..start + 13).contains(&at);
            let expected = match at {
                // Higher than the one after it; of the last one nobody can tell.
                _ if in_number(0) => Verdict::Damaged(one.len()),
                _ if in_number(one.len()) => Verdict::Whole,
                _ if at < one.len() => Verdict::Damaged(0),
                _ => Verdict::Torn(one.len()),
            };
            assert_eq!(verdict(&flipped), expected, "byte {at}");
        }
        for length in one.len() + 1..one.len() + two.len() {
            assert_eq!(verdict(&journal[..length]), Verdict::Torn(one.len()), "cut at {length}");
        }
        assert_eq!(verdict(&journal[..one.len()]), Verdict::Whole);
        assert_eq!(verdict(&[]), Verdict::Whole);
    }
}
