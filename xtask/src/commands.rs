//! Commands of `cargo xtask` that are not steps of the test run, or combine several steps.

pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod docs;
pub(crate) mod fuzz;
pub(crate) mod quick;
pub(crate) mod security;
pub(crate) mod soak;
