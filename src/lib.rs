//! Tidegate, a connection broker. The table lists the modules by layer; imports go down or stay on their layer.
//!
//! | layer | modules | what for |
//! |---|---|---|
//! | 8 | `main`, [`cli`], [`node`] | flags, subcommands, adapters and sockets: only `node` names adapters |
//! | 7 | [`broker`], [`accept`], [`api`], [`drain`], [`lease`] | composition between ports and listeners; client listener; admin HTTP; planned stop; lease of this run among the others |
//! | 6 | [`partition`], [`shard`] | owners of partitions: ledger, archive, publish; threads with their own connections |
//! | 5 | [`conversation`], [`login`], [`peer`] | queries, marks and changes by users; logins; calls from other nodes |
//! | 4 | [`ingest`], [`large_group`], [`event_publisher`] | appending sends to the log; groups with members on many nodes; CloudEvents |
//! | 3 | [`delivery`], [`room`] | pushes and replies to shards and peers; live rooms |
//! | 2 | [`bus`], [`store`], [`embedded`], [`ports`], [`cluster`], [`mail`], [`assign`], `ack_times` | durable ports, and the disk under them; the five ports together; the ports with what a node knows of the others; messages to shards; assignment of clients; times from send to ack |
//! | 1 | [`routes`], [`scratch`], [`link`], [`fault`], [`audit`], [`auth`], `backoff`, [`budget`], `clock`, [`config`], [`directory`], [`events`], [`figures`], [`inline`], [`keys`], [`limiter`], `log_limit`, [`metrics`], [`net`], [`networks`], [`private`], `queue_set`, [`redis`], [`supervised`], [`trace`] | ports that may lose what they hold; leaves |

pub mod accept;
mod ack_times;
pub mod api;
pub mod assign;
pub mod audit;
pub mod auth;
mod backoff;
pub mod broker;
pub mod budget;
pub mod bus;
pub mod cli;
mod clock;
pub mod cluster;
pub mod config;
pub mod conversation;
pub mod delivery;
pub mod directory;
pub mod drain;
pub mod embedded;
pub mod event_publisher;
pub mod events;
pub mod fault;
pub mod figures;
pub mod ingest;
pub mod inline;
pub mod keys;
pub mod large_group;
pub mod lease;
pub mod limiter;
pub mod link;
mod log_limit;
pub mod login;
pub mod mail;
pub mod metrics;
pub mod net;
pub mod networks;
pub mod node;
pub mod partition;
pub mod peer;
pub mod ports;
pub mod private;
mod queue_set;
pub mod redis;
pub mod room;
pub mod routes;
pub mod scratch;
pub mod shard;
pub mod store;
pub mod supervised;
pub mod trace;
