//! Commands that are not steps of `cargo xtask test`, and what is made of several steps.

pub(crate) mod bench;
pub(crate) mod docs;
pub(crate) mod fuzz;
pub(crate) mod quick;
pub(crate) mod soak;
