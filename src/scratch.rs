//! Placeholder: scratch is written next.
