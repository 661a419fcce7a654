//! Placeholder: bus is written next.
