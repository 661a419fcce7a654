//! Everything that measures, breaks and judges a node from outside. Arrows go down only; nothing in `tidegate` knows this crate.
//!
//! | floor | rooms | what for |
//! |---|---|---|
//! | 3 | `main`, [`cli`] | subcommands |
//! | 2 | [`bench`](mod@bench), [`chaos`] | load against baselines of the same run; faults under load |
//! | 1 | [`checker`], [`link`], [`node_binary`], [`ports`], [`proxy`] | the rules that a recorded history is held against; a client's connection; the program under test; where it listens; a network that fails on request |

pub mod bench;
pub mod chaos;
pub mod checker;
pub mod cli;
mod link;
mod node_binary;
mod ports;
pub mod proxy;
