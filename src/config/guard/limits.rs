//! `[limits]`: what clients may use.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits on connections, frames, queues, disk and memory.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct LimitsConfig {
    /// Connections of this node. 0: the limit of open files, less 640.
    pub conns_max: usize,
    /// Connections from one IPv4 address or one IPv6 /64. 0: no limit.
    pub conns_per_ip: usize,
    /// Devices of one user that are connected at once, to any node; login.devices_full says what a further one does.
    /// Must be the same on all nodes. 0: no limit.
    pub devices_per_user: usize,
    /// Largest frame a client may send, in bytes.
    pub frame_bytes_max: usize,
    /// Largest frame of a client that is not logged in, in bytes; its token must fit.
    pub hello_bytes_max: usize,
    /// Largest content of a message, in bytes.
    pub content_bytes_max: usize,
    /// Unanswered sends per connection; at the limit the node stops reading from it.
    pub in_flight_max: u32,
    /// Messages held for their predecessor, per connection.
    pub hold_max: u32,
    /// Bytes held for their predecessor, per connection.
    pub hold_bytes_max: u32,
    /// Outbox bytes per connection for messages and room frames.
    pub outbox_bytes_max: usize,
    /// Outbox bytes per connection for replies; above it the connection is closed with SLOW.
    pub control_bytes_max: usize,
    /// Unacked pushes per connection; further ones are replaced by Behind.
    pub window_max: usize,
    /// Bytes of unacked pushes per connection; further ones are replaced by Behind.
    pub window_bytes_max: usize,
    /// Live rooms per connection.
    pub rooms_max: u32,
    /// Most members of a small group, whose pushes are tracked until acked and which accepts signals. In a cluster,
    /// larger groups are pushed through node topics. Must be the same on all nodes.
    pub small_group_max: usize,
    /// Largest content of a signal, in bytes.
    pub signal_bytes_max: usize,
    /// Signals per second and connection, also all at once, and twice as many of a user on a node; more are dropped.
    /// 0: none are accepted.
    pub signals_per_second: u32,
    /// Conversations of which clients of this node watch who is online; a direct one counts for each of its two users.
    /// 0: none can be watched, and welcome.features does not name `watch`.
    pub watched_max: usize,
    /// Whether clients may watch who is online in direct conversations, too. false: in groups alone. Must be the same on
    /// all nodes.
    pub watch_direct: bool,
    /// Members of all conversations that clients of this node watch, and watches, together; each takes about 480 bytes.
    pub watched_members_max: usize,
    /// Conversations that all connections of one user to this node watch together.
    pub watches_per_user: usize,
    /// Users of watched conversations that this node looks up per second. With more of them, reports take longer to come.
    pub presence_users_per_second: usize,
    /// Frames per second and connection, accepted sends (not those to live rooms) and due acks aside; those of 4 s may come at once. 0: no limit.
    pub frames_per_second: u32,
    /// Refused tokens per second from one IPv4 address or one IPv6 /64, in logins and in `GET /v1/assign`. Valid and
    /// expired ones do not count; loopback is exempt. 0: no limit.
    pub address_logins_per_second: u32,
    /// Logins per second of one user, on this node. 0: no limit.
    pub user_logins_per_second: u32,
    /// Joins of live rooms per second of one device. 0: no limit.
    pub joins_per_second: u32,
    /// Queries per second of one user, on this node: `pull`, `sync`, `ping` with positions, `read`, `recall`, `clear`,
    /// `hide`, `watch` and `leave` of a group. 0: no limit.
    pub queries_per_second: u32,
    /// Messages per second of one user, on this node. 0: no limit.
    pub sends_per_second: u32,
    /// Direct conversations per minute to which one user writes first, or again after a long time. 0: no limit.
    pub new_conversations_per_minute: u32,
    /// File with `[[rule]]` tables: limits in sliding windows by node, organisation, channel, user, device, conversation,
    /// address, repeated text and admin key; see docs/limits.md. A reload reads it again. Empty: none.
    pub rules_file: PathBuf,
    /// How long a sender may recall a message, in ms. 0: never. Owners and admins of a group always may.
    pub recall_ms: u64,
    /// How long a sender may edit a message, in ms. 0: never. Owners and admins of a group always may.
    pub edit_ms: u64,
    /// Permanent refusals before the connection is closed with TOO_MANY_ERRORS; temporary ones do not count.
    pub errors_max: u32,
    /// Bytes of sends that wait for the log, for the whole node; above it sends are refused with BUSY.
    pub intake_bytes_max: usize,
    /// Bytes queued for one shard; above it pushes are replaced by Behind and room frames are shed.
    pub mailbox_bytes_max: usize,
    /// Free bytes on the disk below which sends are refused; leaves space for compaction.
    pub disk_free_min_bytes: u64,
    /// Memory budget in bytes, kernel socket memory included. 0: the smallest limit of the cgroups around the node,
    /// or the machine's memory.
    pub memory_bytes: u64,
    /// Whether the kernel's TCP memory counts towards the budget: that of the node's cgroup (v2), else that of the
    /// whole network namespace. Set it to false if other programs share that.
    pub memory_counts_sockets: bool,
    /// Memory for rows of recent conversations that the owners of the node's partitions keep, in bytes. Less costs more
    /// reads of the store. 0: an eighth of the memory budget, at most 1 GiB. Falls by itself while memory is short.
    pub ledger_cache_bytes_max: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            conns_max: 0,
            conns_per_ip: 2_000,
            devices_per_user: 32,
            frame_bytes_max: 64 * 1024,
            hello_bytes_max: 4 * 1024,
            content_bytes_max: 32 * 1024,
            in_flight_max: 256,
            hold_max: 256,
            hold_bytes_max: 256 * 1024,
            outbox_bytes_max: 256 * 1024,
            control_bytes_max: 128 * 1024,
            window_max: 256,
            window_bytes_max: 256 * 1024,
            rooms_max: 100,
            small_group_max: 500,
            signal_bytes_max: 1_024,
            signals_per_second: 10,
            watched_max: 10_000,
            watch_direct: true,
            watched_members_max: 500_000,
            watches_per_user: 128,
            presence_users_per_second: 2_000,
            frames_per_second: 500,
            address_logins_per_second: 20,
            user_logins_per_second: 20,
            joins_per_second: 10,
            queries_per_second: 200,
            sends_per_second: 0,
            new_conversations_per_minute: 100,
            rules_file: PathBuf::new(),
            recall_ms: 120_000,
            edit_ms: 900_000,
            errors_max: 100,
            intake_bytes_max: 64 * 1024 * 1024,
            mailbox_bytes_max: 16 * 1024 * 1024,
            disk_free_min_bytes: 256 * 1024 * 1024,
            memory_bytes: 0,
            memory_counts_sockets: true,
            ledger_cache_bytes_max: 0,
        }
    }
}
