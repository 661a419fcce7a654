//! Tidegate, a connection broker. The table lists the modules by layer; imports go down or stay on their layer.
//!
//! | layer | modules | what for |
//! |---|---|---|
//! | 8 | `main`, [`cli`], [`node`] | flags, subcommands, adapters and sockets: only `node` names adapters |
//! | 7 | [`broker`], [`accept`], [`api`], [`drain`], [`lease`] | composition between ports and listeners; client listener; admin HTTP; planned stop; lease of this run among the others |
//! | 6 | [`partition`], [`shard`] | owners of partitions: ledger, archive, publish; threads with their own connections |
//! | 5 | [`conversation`], [`login`], [`peer`], [`waiting`] | queries, marks and changes by users; logins; calls from other nodes; notices that messages wait |
//! | 4 | [`ingest`], [`large_group`], [`event_publisher`], [`webhooks`] | appending sends to the log; groups with members on many nodes; CloudEvents; delivery of the feed to endpoints |
//! | 3 | [`connections`], [`delivery`], [`guard`], [`presence`], [`room`] | connections of users over all nodes: list, close, revoke; pushes and replies to shards and peers; rules that all nodes share; who of a conversation is online; live rooms |
//! | 2 | [`bus`], [`store`], [`embedded`], [`ports`], [`cluster`], [`mail`], [`assign`], `ack_times` | durable ports, and the disk under them; the five ports together; the ports with what a node knows of the others; messages to shards; assignment of clients; times from send to ack |
//! | 1 | [`routes`], [`scratch`], [`link`], [`fault`], [`audit`], [`auth`], `backoff`, [`bans`], [`breaker`], [`budget`], `clock`, [`config`], [`directory`], [`entry_board`], [`events`], [`evidence`], [`figures`], [`hooks`], [`inline`], [`keys`], [`limiter`], [`limits`], [`live`], [`load`], `log_limit`, [`metrics`], [`net`], [`networks`], [`priorities`], [`private`], `queue_set`, [`redis`], [`revocation`], [`room_rules`], [`room_tallies`], [`storms`], [`supervised`], [`trace`] | ports that may lose what they hold; leaves |

pub mod accept;
mod ack_times;
pub mod api;
pub mod assign;
pub mod audit;
pub mod auth;
mod backoff;
pub mod bans;
pub mod breaker;
pub mod broker;
pub mod budget;
pub mod bus;
pub mod cli;
mod clock;
pub mod cluster;
pub mod config;
pub mod connections;
pub mod conversation;
pub mod delivery;
pub mod directory;
pub mod drain;
pub mod embedded;
pub mod entry_board;
pub mod event_publisher;
pub mod events;
pub mod evidence;
pub mod fault;
pub mod figures;
pub mod guard;
pub mod hooks;
pub mod ingest;
pub mod inline;
pub mod keys;
pub mod large_group;
pub mod lease;
pub mod limiter;
pub mod limits;
pub mod link;
pub mod live;
pub mod load;
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
pub mod presence;
pub mod priorities;
pub mod private;
mod queue_set;
pub mod redis;
pub mod revocation;
pub mod room;
pub mod room_rules;
pub mod room_tallies;
pub mod routes;
pub mod scratch;
pub mod shard;
pub mod store;
pub mod storms;
pub mod supervised;
pub mod trace;
pub mod waiting;
pub mod webhooks;
