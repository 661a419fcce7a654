//! Placeholder: ws is written next.
