//! Placeholder: window is written next.
