//! Tidegate: a connection broker. This page is the map of the house; arrows go down only.
//!
//! | floor | rooms | what for |
//! |---|---|---|
//! | 6 | `main`, [`cli`], [`node`] | flags, subcommands, composition root: only `node` names adapters |
//! | 5 | [`accept`], [`api`], [`drain`], [`member`] | the door for clients; admin HTTP; leaving; the node among others |
//! | 4 | [`shard`] | a thread with its own connections: indexes, fan-out, sweep |
//! | 3 | [`chat`], [`room`] | use-cases, one verb a file |
//! | 2 | [`bus`], [`store`], [`embedded`], [`ports`], [`mail`], [`assign`] | ports that must hold, and the disk under them; what shards are told; where clients are sent |
//! | 1 | [`routes`], [`scratch`], [`link`], [`fault`], [`auth`], [`budget`], [`config`], [`directory`], [`events`], [`inline`], [`metrics`], [`net`], [`private`], [`redis`], [`trace`] | ports that may be lost; leaves |

pub mod accept;
pub mod api;
pub mod assign;
pub mod auth;
pub mod budget;
pub mod bus;
pub mod chat;
pub mod cli;
pub mod config;
pub mod directory;
pub mod drain;
pub mod embedded;
pub mod events;
pub mod fault;
pub mod inline;
pub mod link;
pub mod mail;
pub mod member;
pub mod metrics;
pub mod net;
pub mod node;
pub mod ports;
pub mod private;
pub mod redis;
pub mod room;
pub mod routes;
pub mod scratch;
pub mod shard;
pub mod store;
pub mod trace;
