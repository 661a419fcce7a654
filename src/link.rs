//! Placeholder: link is written next.
