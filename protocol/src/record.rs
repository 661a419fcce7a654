//! Placeholder: record is written next.
