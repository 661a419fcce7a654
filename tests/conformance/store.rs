//! The suite of `Store`.
