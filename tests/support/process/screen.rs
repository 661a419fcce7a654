//! The lines that a program writes, collected while it runs.

use std::{
    io::{BufRead as _, BufReader, Read},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

use super::{WAIT_MAX, becomes};

/// Lines received from one or more streams.
#[derive(Clone, Default)]
pub struct Screen(Arc<Mutex<Vec<String>>>);

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
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let mut lines = screen.0.lock();
                // A terminal ends lines with both characters.
                lines.push(line.trim_end_matches('\r').to_owned());
            }
        });
    }

    /// Returns the lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Waits for a line that fits.
    pub fn line(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        becomes(WAIT_MAX, what, || self.lines(), |lines| lines.iter().any(|line| fits(line)));
        self.lines().into_iter().find(|line| fits(line)).expect("lines do not go away")
    }
}
