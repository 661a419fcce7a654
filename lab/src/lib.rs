//! Load generator, chaos and checker: measure, break and judge a node from outside. `tidegate` does not depend on this
//! crate. The table lists the modules by layer; imports go down or stay on their layer.
//!
//! | layer | modules | what for |
//! |---|---|---|
//! | 3 | `main`, [`cli`] | subcommands |
//! | 2 | [`attack`], [`bench`](mod@bench), [`chaos`], [`hostile`], [`kit`] | hostile clients that a node has to stop; load against baselines of the same run; faults under load; what hostile clients cost honest ones; whether a client library keeps the protocol |
//! | 1 | `adapter`, [`checker`], [`cluster_sets`], [`link`], [`node_binary`], [`node_store`], [`person`], [`ports`], [`proc_stat`], [`proxy`], [`rows`] | process of an adapter of a client library; rules that a recorded history must keep; settings of a cluster; connection of a client; program under test, its store, a user of it and its ports; CPU and memory of a process; network that fails on request; log at the end |

mod adapter;
pub mod attack;
pub mod bench;
pub mod chaos;
pub mod checker;
pub mod cli;
#[path = "../../tests/support/cluster/sets.rs"]
mod cluster_sets;
pub mod hostile;
pub mod kit;
mod link;
mod node_binary;
mod node_store;
pub mod person;
mod ports;
mod proc_stat;
pub mod proxy;
pub mod rows;
mod webhook_request;
