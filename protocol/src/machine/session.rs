//! Placeholder: session is written next.
