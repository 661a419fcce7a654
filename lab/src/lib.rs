//! Everything that measures, breaks and judges a node from outside. Arrows go down only; nothing in `tidegate` knows this crate.
//!
//! | floor | rooms | what for |
//! |---|---|---|
//! | 3 | `main`, [`cli`] | subcommands |
//! | 2 | [`bench`](mod@bench), [`chaos`] | load against baselines of the same run; faults under load |
//! | 1 | [`checker`], [`cluster_sets`], [`link`], [`node_binary`], [`node_store`], [`ports`], [`proc_stat`], [`proxy`] | the rules that a recorded history is held against; the settings of a cluster; a client's connection; the program under test, what it stored and where it listens; what the kernel says of a process; a network that fails on request |

pub mod bench;
pub mod chaos;
pub mod checker;
pub mod cli;
#[path = "../../tests/support/cluster/sets.rs"]
mod cluster_sets;
mod link;
mod node_binary;
mod node_store;
mod ports;
mod proc_stat;
pub mod proxy;
