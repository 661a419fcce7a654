//! Placeholder: store is written next.
