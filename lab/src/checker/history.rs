//! A history: events with short names, read from and written to JSON lines.

use foldhash::HashMap;

use super::event::{HistoryEvent, Stamped};

/// Number that stands for a name in a history.
pub type Id = u32;

/// Recorded events, in order.
#[derive(Clone, Debug, Default)]
pub struct History {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, Id>,
    /// The events.
    pub events: Vec<Stamped<Id>>,
}

/// A line that is not an event.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the history: {error}")]
pub struct JsonError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Error of the parser.
    pub error: serde_json::Error,
}

impl History {
    /// Adds an event with its names in full.
    pub fn push<S: AsRef<str>>(&mut self, at: u64, event: HistoryEvent<S>) {
        let event = event.map(|name| self.number(name.as_ref()));
        self.events.push(Stamped { at, event });
    }

    /// Returns the number of a name, and adds the name if it is new.
    pub fn number(&mut self, name: &str) -> Id {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = Id::try_from(self.names.len()).unwrap_or(Id::MAX);
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        number
    }

    /// Returns the number of a known name.
    pub fn find(&self, name: &str) -> Option<Id> {
        self.numbers.get(name).copied()
    }

    /// Returns the name with that number.
    pub fn name(&self, id: Id) -> &str {
        self.names.get(id as usize).map_or("?", |name| name)
    }

    /// Returns an event as a line of JSON, without its end.
    ///
    /// # Errors
    /// No event causes an error.
    pub fn line(&self, event: &Stamped<Id>) -> serde_json::Result<String> {
        let event = Stamped { at: event.at, event: event.event.map(|id| self.name(id)) };
        serde_json::to_string(&event)
    }

    /// Reads JSON lines; empty ones are skipped.
    ///
    /// # Errors
    /// Fails at the first line that is not an event.
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        let mut history = Self::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let event: Stamped<String> =
                serde_json::from_str(line).map_err(|error| JsonError { line: index + 1, error })?;
            history.push(event.at, event.event);
        }
        Ok(history)
    }
}
