//! Check of fjall's journals before fjall opens them.
//!
//! fjall's recovery cuts a journal at the first entry that it can't read, so damage in the middle would silently remove
//! everything after it. This check distinguishes a torn end from damage in the middle (ADR 5). Only bytes that were not
//! synced can be torn: the last batch, and the batches before it that it notes as unsynced ([`super::batch`]).

use std::{
    fs::{self, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_64;

use super::batch::UNSYNCED_NOTE;

// Tags and sizes of fjall's journal format 3.
const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const START_BYTES: usize = 13;
const ITEM_BYTES: usize = 21;
const CLEAR_BYTES: usize = 9;
const TRAILER: &[u8] = b"FJL\x03";
/// Kind of an item that removes its key.
const REMOVAL: u8 = 1;

/// Condition of a journal. A range holds the bytes that may not be synced.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Valid batches, followed by nothing or zeros.
    Whole(Range<usize>),
    /// Valid batches, followed by invalid bytes that no later batch proves to have been synced.
    Torn(Range<usize>),
    /// Invalid bytes at this offset that were synced before a later batch.
    Damaged(usize),
}

/// Location of damage in the middle of a journal.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) file: PathBuf,
    pub(super) at: usize,
}

/// Checks all journals of a database, cuts a torn end off the newest and syncs it. `Ok(Err(..))` is damage.
///
/// Bytes that may not be synced are written again: after a failed sync the page cache shows bytes that are not on the
/// disk, and the system considers them written.
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
        let journal = fs::read(&file)?;
        let (unsure, is_torn) = match verdict(&journal) {
            // fjall syncs a journal before it starts the next one.
            Verdict::Whole(_) if Some(number) != newest => continue,
            Verdict::Whole(unsure) => (unsure, false),
            Verdict::Torn(unsure) if Some(number) == newest => (unsure, true),
            Verdict::Torn(Range { end: at, .. }) | Verdict::Damaged(at) => {
                return Ok(Err(Damage { file, at }));
            }
        };
        let file = OpenOptions::new().write(true).open(&file)?;
        if is_torn {
            tracing::warn!(
                valid_bytes = unsure.end,
                journal = number,
                "journal has a torn end; cutting it off (it was never confirmed, unless the disk corrupted it later)"
            );
            file.set_len(unsure.end as u64)?;
        }
        file.write_all_at(&journal[unsure.clone()], unsure.start as u64)?;
        file.sync_all()?;
    }
    Ok(Ok(()))
}

fn verdict(journal: &[u8]) -> Verdict {
    let (mut at, mut before, mut synced) = (0, None, 0);
    while let Some(end) = batch_end(journal, at) {
        // fjall's checksum does not cover the batch's number, but numbers rise.
        let number = number(journal, at + 5, 8);
        if number <= before {
            return Verdict::Damaged(at);
        }
        synced = synced_before(journal, at);
        (at, before) = (end, number);
    }
    let rest = &journal[at..];
    if rest.iter().all(|byte| *byte == 0) {
        return Verdict::Whole(synced..at);
    }
    let begins = |from: usize| {
        journal[from] == START && matches!(journal.get(from + START_BYTES), Some(&ITEM | &CLEAR))
    };
    let proves_sync =
        |from: usize| begins(from) && batch_end(journal, from).is_some() && synced_before(journal, from) > at;
    if (at + 1..journal.len()).any(proves_sync) { Verdict::Damaged(at) } else { Verdict::Torn(synced..at) }
}

/// Returns the offset up to which the journal was synced when the valid batch at `at` was started.
fn synced_before(journal: &[u8], at: usize) -> usize {
    let item = at + START_BYTES;
    let is_removal = journal.get(item..item + 2) == Some(&[ITEM, REMOVAL]);
    let key = number(journal, item + 11, 2).filter(|length| is_removal && *length == 9);
    let key = key.and_then(|length| journal.get(item + ITEM_BYTES..item + ITEM_BYTES + length));
    let noted = match key {
        Some([UNSYNCED_NOTE, count @ ..]) => {
            count.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
        }
        // Without a note, everything before the batch was synced.
        _ => 0,
    };
    at.saturating_sub(noted)
}

/// Returns the end of the batch at `at`; `None` if it is invalid.
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

    fn item(kind: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut item = vec![ITEM, kind, 0];
        item.extend(7_u64.to_le_bytes());
        item.extend((key.len() as u16).to_le_bytes());
        item.extend((value.len() as u32).to_le_bytes());
        item.extend((value.len() as u32).to_le_bytes());
        item.extend(key);
        item.extend(value);
        item
    }

    /// Returns a batch that notes `unsynced` bytes before it.
    fn batch_after(unsynced: usize, number: u64, values: &[&[u8]]) -> Vec<u8> {
        let mut items: Vec<_> = values.iter().map(|value| item(0, b"k", value)).collect();
        if unsynced > 0 {
            let note = [&[UNSYNCED_NOTE][..], &(unsynced as u64).to_be_bytes()].concat();
            items.insert(0, item(REMOVAL, &note, &[]));
        }
        let mut all = vec![START];
        all.extend((items.len() as u32).to_le_bytes());
        all.extend(number.to_le_bytes());
        let items = items.concat();
        all.extend(&items);
        all.push(END);
        all.extend(xxh3_64(&items).to_le_bytes());
        all.extend(TRAILER);
        all
    }

    fn batch(number: u64, values: &[&[u8]]) -> Vec<u8> {
        batch_after(0, number, values)
    }

    #[test]
    fn flip_in_the_last_batch_is_torn_and_in_an_earlier_one_damage() {
        let (one, two) = (batch(1, &[b"first", b"second"]), batch(2, &[b"third"]));
        let (middle, end) = (one.len(), one.len() + two.len());
        let mut journal = [&one[..], &two[..]].concat();
        journal.extend([0; 64]);
        assert_eq!(verdict(&journal), Verdict::Whole(middle..end));
        for at in 0..end {
            let mut flipped = journal.clone();
            flipped[at] ^= 0x10;
            let in_number = |start: usize| (start + 5..start + 13).contains(&at);
            let expected = match at {
                // The number is higher than that of the next batch; in the last batch it can't be detected.
                _ if in_number(0) => Verdict::Damaged(middle),
                _ if in_number(middle) => Verdict::Whole(middle..end),
                _ if at < middle => Verdict::Damaged(0),
                _ => Verdict::Torn(0..middle),
            };
            assert_eq!(verdict(&flipped), expected, "byte {at}");
        }
        for length in middle + 1..end {
            assert_eq!(verdict(&journal[..length]), Verdict::Torn(0..middle), "cut at {length}");
        }
        assert_eq!(verdict(&journal[..middle]), Verdict::Whole(0..middle));
        assert_eq!(verdict(&[]), Verdict::Whole(0..0));
    }

    /// After a failed sync the page cache may show bytes that are not on the disk.
    #[test]
    fn possibly_unsynced_bytes_are_written_again() {
        let path = std::env::temp_dir().join(format!("tidegate-journal-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let file = path.join("0.jnl");
        let journal = [batch(1, &[b"first"]), batch(2, &[b"second"])].concat();
        fs::write(&file, &journal).unwrap();
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
        check(&path).unwrap().unwrap();
        assert!(fs::metadata(&file).unwrap().modified().unwrap() > old);
        assert_eq!(fs::read(&file).unwrap(), journal);
        fs::remove_dir_all(path).unwrap();
    }

    /// Returns a journal of two synced batches, three unsynced ones and one whose sync did not complete, with their
    /// ends.
    fn half_synced() -> (Vec<u8>, Vec<usize>) {
        let mut journal = Vec::new();
        let mut ends = vec![0];
        let mut synced = 0;
        for number in 1..=6_u8 {
            journal.extend(batch_after(
                journal.len() - synced,
                number.into(),
                &[&[number; 30], &[number; 9]],
            ));
            ends.push(journal.len());
            synced = if number <= 2 { journal.len() } else { synced };
        }
        (journal, ends)
    }

    #[test]
    fn power_cut_leaves_a_torn_end_and_no_synced_loss() {
        let (journal, ends) = half_synced();
        let synced = ends[2];
        for page in [8, 16, 64, 128] {
            let pages = (journal.len() - synced).div_ceil(page);
            // All subsets of the pages if there are few, else a sample.
            for kept in
                (0..1_u64 << pages.min(40)).step_by(if pages <= 12 { 1 } else { (1 << pages.min(40)) / 999 })
            {
                let mut left = journal.clone();
                for (index, byte) in left.iter_mut().enumerate().skip(synced) {
                    if kept >> ((index - synced) / page % 40) & 1 == 0 {
                        *byte = 0;
                    }
                }
                match verdict(&left) {
                    Verdict::Whole(unsure) | Verdict::Torn(unsure) => {
                        assert!(unsure.end >= synced && ends.contains(&unsure.end), "{unsure:?} of {ends:?}");
                    }
                    Verdict::Damaged(at) => panic!("{at}, pages of {page}: {kept:b}, {ends:?}"),
                }
            }
        }
    }

    #[test]
    fn flip_in_synced_bytes_is_damage_and_after_them_a_torn_end() {
        let (journal, ends) = half_synced();
        for at in 0..journal.len() {
            let start = *ends.iter().rfind(|end| **end <= at).expect("the first is 0");
            if (start + 5..start + 13).contains(&at) {
                continue;
            }
            let mut flipped = journal.clone();
            flipped[at] ^= 0x10;
            let found = verdict(&flipped);
            let is_damage = matches!(found, Verdict::Damaged(it) if it == start);
            let is_torn = matches!(&found, Verdict::Torn(unsure) if unsure.end == start);
            assert!(if at < ends[2] { is_damage } else { is_torn }, "byte {at}: {found:?}");
        }
        // A batch without a note proves that everything before it was synced.
        let (synced, after) = (journal.len(), batch(7, &[b"after"]));
        let mut journal = [&journal[..], &after[..]].concat();
        assert_eq!(verdict(&journal), Verdict::Whole(synced..journal.len()));
        journal[ends[2] + 40] ^= 0x10;
        assert_eq!(verdict(&journal), Verdict::Damaged(ends[2]));
    }
}
