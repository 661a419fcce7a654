//! Kinds of the keys in Redis. The page `docs/redis.md` describes each.

macro_rules! redis_keys {
    ($($(#[$doc:meta])* $kind:ident $name:literal $rest:literal)*) => {
        /// Kind of a key in Redis: what follows the prefix.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RedisKey {
            $($(#[$doc])* $kind,)*
        }

        impl RedisKey {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Returns the word that follows the prefix.
            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Returns what follows the prefix, with the names of its parts, such as `route:{user}`. The part in braces
            /// selects the slot of a Redis Cluster.
            pub fn pattern(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!($name, ":", $rest),)*
                }
            }
        }
    };
}

redis_keys! {
    /// Routes of a user's devices.
    Route "route" "{user}"
    /// Announcement and lease of a node's run.
    Run "run" "{run}"
    /// Routes that a run holds.
    RunRows "rows" "{run}"
    /// Runs that may hold routes.
    Runs "runs" "all"
    /// Request to a run to compare its sessions with the routes.
    Recheck "recheck" "{run}"
    /// Runs with members of a large group or a live room.
    Interest "interest" "{conversation}"
    /// Claim of a node's id.
    NodeClaim "id" "{node}"
    /// Saved chain of a device.
    Chain "chain" "{user}:device"
    /// Devices of a user with a saved chain; the scripts of the chains build this key.
    ChainIndex "chains" "{user}"
    /// Numbers of a live room.
    Numbers "seq" "{room}"
    /// Mirrored window of a group.
    Storm "storm" "{group}"
    /// Messages of a mirrored window by second.
    StormSeconds "storm" "{group}:seconds"
    /// Permits of a subject of a rule in cluster scope.
    Permits "limit" "{slot}:rule:subject"
}
