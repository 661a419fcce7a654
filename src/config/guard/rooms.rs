//! Section `[rooms]`: the rate of live rooms, and how often they are written to their members.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::room_rules::{LAST_MAX, RoomRule, RoomRules, TICK_MS_MAX};

/// Rate of live rooms, and how often they are written to their members; see docs/rooms.md.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RoomsConfig {
    /// Messages per second of one room that are numbered and pushed, and as many again of senders with priority 2 and 3.
    /// What exceeds it is sampled by priority, and refused with LEFT_OUT. 0: no limit. 200 is more than people can read.
    pub rate: u32,
    /// Least time between two passes over the members of a room, in ms, such as 20 or 50. The messages of that time are
    /// written together, which costs less and makes them as much later. 0: each is written at once.
    pub tick_ms: u32,
    /// Recent messages that a member gets when it joins, at most 50 and 16 KiB; the node forgets those of a room without
    /// members. 0: none.
    pub last: u32,
    /// Whether members get the number of connections in their room, on all nodes, when it changed by 1 %, at most each 2 s.
    pub members: bool,
    /// Kinds of reactions that are accepted, such as `like`, at most 16. Empty: the first 16 kinds that the clients of a
    /// room use.
    pub reactions: Vec<String>,
    /// Rooms with settings of their own, such as `hall rate=500 tick_ms=50 last=20 members=1` or `stage-* rate=0`; the first
    /// that matches counts. At most 256.
    pub named: Vec<String>,
}

impl RoomsConfig {
    /// Returns the rules of rooms; those of a configuration that was checked are complete.
    pub fn rules(&self) -> RoomRules {
        self.parsed().unwrap_or_default()
    }

    fn parsed(&self) -> Result<RoomRules, String> {
        let tick = Duration::from_millis(self.tick_ms.into());
        let others = RoomRule { rate: self.rate, tick, last: self.last, members: self.members };
        RoomRules::parse(others, &self.named)
            .map_err(|error| format!("named: {error}"))?
            .with_reactions(&self.reactions)
            .map_err(|error| format!("reactions: {error}"))
    }

    pub(in crate::config) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(self.tick_ms <= TICK_MS_MAX, &format!("rooms.tick_ms: at most {TICK_MS_MAX}"));
        need(self.last <= LAST_MAX, &format!("rooms.last: at most {LAST_MAX}"));
        need(self.rate <= 1_000_000, "rooms.rate: at most 1000000");
        let parsed = self.parsed();
        need(parsed.is_ok(), &format!("rooms.{}", parsed.err().unwrap_or_default()));
    }
}
