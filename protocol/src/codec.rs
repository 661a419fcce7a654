//! Placeholder: codec is written next.
