//! Ring of rows, each with a number by which a reader continues.

use std::{collections::VecDeque, sync::Arc};

/// Bounded list of the newest rows. The first row ever pushed has the number 0.
///
/// A clone shares the rows and costs the same however many there are, so that a reader takes one under a lock, and
/// copies rows after it.
#[derive(Debug)]
pub struct RowRing<T> {
    /// Copied, as pointers, by the next push after a clone.
    rows: Arc<VecDeque<Arc<T>>>,
    rows_max: usize,
    next: u64,
}

// Not derived: rows need no `Clone` to be shared.
impl<T> Clone for RowRing<T> {
    fn clone(&self) -> Self {
        Self { rows: Arc::clone(&self.rows), rows_max: self.rows_max, next: self.next }
    }
}

impl<T> RowRing<T> {
    /// Creates an empty ring of at most `rows_max` rows.
    pub fn new(rows_max: usize) -> Self {
        Self { rows: Arc::default(), rows_max, next: 0 }
    }

    /// Adds a row, and drops the oldest one if the ring is full.
    pub fn push(&mut self, row: T) {
        let rows = Arc::make_mut(&mut self.rows);
        if rows.len() >= self.rows_max {
            rows.pop_front();
        }
        rows.push_back(Arc::new(row));
        self.next += 1;
    }

    /// Returns all rows, oldest first.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.rows.iter().map(AsRef::as_ref)
    }

    /// Returns the rows from a number on, oldest first; all rows if the number was not given out yet.
    pub fn from(&self, number: u64) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        let first = self.next - self.rows.len() as u64;
        let skipped = if number > self.next { 0 } else { number.saturating_sub(first) };
        self.rows.range(skipped as usize..).map(AsRef::as_ref)
    }

    /// Returns the number of the next row.
    pub const fn next(&self) -> u64 {
        self.next
    }
}
