//! Tidegate: a connection broker. This page is the map of the house; arrows go down only.
//!
//! | floor | rooms | what for |
//! |---|---|---|
//! | 6 | `main`, [`cli`], `node` | flags, subcommands, composition root: only `node` names adapters |
//! | 5 | `net`, `api` | listeners, first bytes, WebSocket upgrade; admin HTTP |
//! | 4 | `shard` | a thread with its own connections: indexes, fan-out, sweep |
//! | 3 | `chat`, `room` | use-cases, one verb a file |
//! | 2 | [`bus`], [`store`] | ports that must hold |
//! | 1 | [`routes`], [`scratch`], [`link`], `config`, `auth`, `metrics` | ports that may be lost; leaves |

pub mod bus;
pub mod cli;
pub mod fault;
pub mod link;
pub mod routes;
pub mod scratch;
pub mod store;
