//! Ring of rows, each with a number by which a reader continues.

use std::collections::VecDeque;

/// Bounded list of the newest rows. The first row ever pushed has the number 0.
#[derive(Debug)]
pub struct RowRing<T> {
    rows: VecDeque<T>,
    rows_max: usize,
    next: u64,
}

impl<T> RowRing<T> {
    /// Creates an empty ring of at most `rows_max` rows.
    pub const fn new(rows_max: usize) -> Self {
        Self { rows: VecDeque::new(), rows_max, next: 0 }
    }

    /// Adds a row, and drops the oldest one if the ring is full.
    pub fn push(&mut self, row: T) {
        if self.rows.len() >= self.rows_max {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
        self.next += 1;
    }

    /// Returns all rows, oldest first.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.rows.iter()
    }

    /// Returns the rows from a number on, oldest first; all rows if the number was not given out yet.
    pub fn from(&self, number: u64) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        let first = self.next - self.rows.len() as u64;
        let skipped = if number > self.next { 0 } else { number.saturating_sub(first) };
        self.rows.range(skipped as usize..)
    }

    /// Returns the number of the next row.
    pub const fn next(&self) -> u64 {
        self.next
    }
}
