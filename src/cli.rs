//! Placeholder: cli is written next.
