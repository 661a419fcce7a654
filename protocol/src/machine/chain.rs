//! Placeholder: chain is written next.
