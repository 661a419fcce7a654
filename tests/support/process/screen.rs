//! The lines that a program writes, collected while it runs.

use std::{
    io::{BufRead as _, BufReader, Read},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::Mutex;

use super::{WAIT_MAX, becomes};

/// Lines received from one or more streams.
#[derive(Clone, Default)]
pub struct Screen {
    lines: Arc<Mutex<Vec<String>>>,
    /// Number of streams that have not ended.
    open: Arc<AtomicUsize>,
}

impl Screen {
    /// Collects the lines of a stream until its end.
    pub fn of(from: impl Read + Send + 'static) -> Self {
        let screen = Self::default();
        screen.add(from);
        screen
    }

    /// Collects the lines of one more stream.
    pub fn add(&self, from: impl Read + Send + 'static) {
        let screen = self.clone();
        self.open.fetch_add(1, Ordering::SeqCst);
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let mut lines = screen.lines.lock();
                // A terminal ends lines with both characters.
                lines.push(line.trim_end_matches('\r').to_owned());
            }
            screen.open.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Returns the lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Returns whether all streams have ended, so that no line follows.
    pub fn has_ended(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0
    }

    /// Waits for a line that fits.
    pub fn line(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        becomes(WAIT_MAX, what, || self.lines(), |lines| lines.iter().any(|line| fits(line)));
        self.lines().into_iter().find(|line| fits(line)).expect("lines do not go away")
    }
}
