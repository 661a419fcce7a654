//! Placeholder: routes is written next.
