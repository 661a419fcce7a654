//! `Scratch` adapter for Redis.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    id::{ConversationId, ConversationKind, DeviceId, MsgId, UserId},
    machine::{permit::Grant, storm::RECEIVE_SKEW_MS},
};

use super::{
    CHAINS_PER_USER_MAX, ChainChange, ChainSave, ChainState, ChainStep, DONE_IDS_MAX, MIRROR_MEMBERS_MAX,
    PermitAnswers, PermitCall, Scratch, ScratchError, WindowUpdate, permits::KEYS_PER_CALL_MAX,
};
use crate::{
    breaker::GuardedService,
    config,
    redis::{Call, CallError, ConnectError, RedisClient, RedisKey, Script},
};

static CHAIN_SAVE: Script =
    Script::new(concat!(include_str!("../redis/chain_index.lua"), include_str!("../redis/chain_save.lua")));
static CHAIN_STEP: Script =
    Script::new(concat!(include_str!("../redis/chain_index.lua"), include_str!("../redis/chain_step.lua")));
static CHAIN_LIST: Script = Script::new(include_str!("../redis/chain_list.lua"));
static STORM_MIRROR: Script = Script::new(include_str!("../redis/storm_mirror.lua"));
static GRANT: Script = Script::new(include_str!("../redis/grant.lua"));

/// Lifetime of a chain that is not saved again.
const CHAIN_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Prefixes of the fields with done and skipped ids, in a chain that was saved in steps.
const DONE_RING: char = 'd';
const SKIPPED_RING: char = 's';
/// Lifetime of a mirrored window without messages, as a multiple of the window, and the shortest one.
const MIRROR_TTL_WINDOWS: u32 = 5;
const MIRROR_TTL_MIN: Duration = Duration::from_secs(60);
/// Most parts by which the messages of a busy window are counted; longer windows have parts of several seconds.
const MIRROR_PARTS_MAX: u64 = 600;

/// Scratch store of profile `cluster`.
pub struct RedisScratch {
    client: Arc<RedisClient>,
    /// Client that writes the mirrors. A connection and a circuit breaker of its own keep their load away from logins.
    mirror: Arc<RedisClient>,
    /// Client that asks for permits, apart for the same reason.
    permits: Arc<RedisClient>,
    /// Prefix of mirrored windows; empty for that of the other keys.
    mirror_prefix: String,
}

/// Whole state of a chain, as a text.
#[derive(Deserialize, Serialize)]
struct SavedChain {
    expected: String,
    done: Vec<String>,
    #[serde(default)]
    skipped: Vec<String>,
}

impl RedisScratch {
    /// Creates a store on the configured servers. Connects with the first call, on the runtime of its caller.
    ///
    /// # Errors
    /// The configuration or one of its files is invalid. An unavailable server is an error of each call instead.
    pub fn connect(config: &config::RedisConfig) -> Result<Self, ConnectError> {
        Ok(Self::over(Arc::new(RedisClient::new(config)?)))
    }

    /// Creates a store on a shared client.
    pub(crate) fn over(client: Arc<RedisClient>) -> Self {
        let (mirror, permits) = (Arc::clone(&client), Arc::clone(&client));
        Self { mirror, permits, client, mirror_prefix: String::new() }
    }

    /// Writes the mirrors of windows with a client of their own and below that prefix; an empty one keeps the default.
    pub fn with_mirror(self, config: &config::RedisConfig, prefix: &str) -> Result<Self, ConnectError> {
        let mirror = Arc::new(RedisClient::new(config)?.reporting_as(GuardedService::RedisMirror));
        Ok(Self { mirror, mirror_prefix: prefix.to_owned(), ..self })
    }

    /// Asks for permits with a client of its own.
    pub fn with_permits(self, config: &config::RedisConfig) -> Result<Self, ConnectError> {
        let permits = RedisClient::new(config)?.reporting_as(GuardedService::RedisPermits);
        Ok(Self { permits: Arc::new(permits), ..self })
    }

    /// Returns the call that asks for permits of these keys, which are of one slot.
    fn grant_call(&self, calls: &[&PermitCall]) -> Call {
        let keys: Vec<String> =
            calls.iter().map(|it| self.permits.key(RedisKey::Permits, &it.key_name())).collect();
        calls.iter().fold(Call::script(&GRANT, keys), |call, it| {
            let request = it.limit.request(it.ask, 0);
            call.arg(request.want)
                .arg(request.charge)
                .arg(request.limit)
                .arg(request.window_us)
                .arg(request.life_us)
        })
    }

    fn chain_key(&self, user: &UserId, device: &DeviceId) -> String {
        self.client.key(RedisKey::Chain, &format!("{{{user}}}:{device}"))
    }

    fn chain_index_key(&self, user: &UserId) -> String {
        self.client.key(RedisKey::ChainIndex, &format!("{{{user}}}"))
    }

    fn step_call(&self, step: &ChainStep) -> Call {
        let call = Call::script(&CHAIN_STEP, [self.chain_key(&step.user, &step.device)])
            .arg(step.epoch)
            .arg(step.number)
            .arg(&step.expected)
            .arg(CHAIN_TTL.as_millis());
        match &step.change {
            ChainChange::ExpectedDone => call,
            ChainChange::Done(id) => call.arg(DONE_RING).arg(id),
            ChainChange::Skipped(id) => call.arg(SKIPPED_RING).arg(id),
        }
    }

    /// Returns the keys of a group's mirror, both in one slot. A prefix of another system is followed by the plain name
    /// of the group, as that system expects it.
    fn mirror_keys(&self, group: &ConversationId) -> [String; 2] {
        if self.mirror_prefix.is_empty() {
            let name = format!("{{{group}}}");
            let seconds = self.mirror.key(RedisKey::StormSeconds, &format!("{name}:seconds"));
            return [self.mirror.key(RedisKey::Storm, &name), seconds];
        }
        let key = match group.kind() {
            ConversationKind::Group(id) => format!("{}{id}", self.mirror_prefix),
            _ => format!("{}{group}", self.mirror_prefix),
        };
        let seconds = format!("{{{key}}}:seconds");
        [key, seconds]
    }

    fn mirror_call(&self, window: Duration, update: &WindowUpdate) -> Call {
        let parts = window.as_secs().div_ceil(MIRROR_PARTS_MAX).max(1);
        let call = Call::script(&STORM_MIRROR, self.mirror_keys(&update.group))
            .arg(window.as_millis())
            .arg((window * MIRROR_TTL_WINDOWS).max(MIRROR_TTL_MIN).as_millis())
            .arg(MIRROR_MEMBERS_MAX)
            .arg(parts)
            .arg(RECEIVE_SKEW_MS);
        update
            .entries
            .iter()
            .fold(call, |call, entry| call.arg(entry.seq).arg(entry.messages).arg(entry.received_ms))
    }
}

fn saved_text(state: &ChainState) -> String {
    let newest = |ids: &[MsgId]| {
        ids[ids.len().saturating_sub(DONE_IDS_MAX)..].iter().map(ToString::to_string).collect()
    };
    let saved = SavedChain {
        expected: state.expected.to_string(),
        done: newest(&state.done),
        skipped: newest(&state.skipped),
    };
    serde_json::to_string(&saved).unwrap_or_default()
}

/// Parses a saved chain, in either form. `None` if there is none or this version can't parse it, which callers treat as
/// lost.
fn saved_state(fields: &HashMap<String, String>) -> Option<ChainState> {
    let epoch = fields.get("epoch")?.parse().ok()?;
    let changes = fields.get("at").map_or(Ok(0), |at| at.parse()).ok()?;
    // Version 0.1.0 writes this field over a chain that was saved in steps.
    let Some(text) = fields.get("state") else {
        let expected = MsgId::new(fields.get("next")?).ok()?;
        let (done, skipped) = (ring(fields, DONE_RING), ring(fields, SKIPPED_RING));
        return Some(ChainState { epoch, changes, expected, done, skipped });
    };
    let saved: SavedChain = serde_json::from_str(text).ok()?;
    let ids = |ids: Vec<String>| ids.iter().map(|id| MsgId::new(id)).collect::<Result<_, _>>().ok();
    Some(ChainState {
        epoch,
        changes,
        expected: MsgId::new(&saved.expected).ok()?,
        done: ids(saved.done)?,
        skipped: ids(saved.skipped)?,
    })
}

/// Returns the ids of the numbered fields with that prefix, by number.
fn ring(fields: &HashMap<String, String>, prefix: char) -> Vec<MsgId> {
    let numbered = |(name, id): (&String, &String)| {
        Some((name.strip_prefix(prefix)?.parse::<u64>().ok()?, MsgId::new(id).ok()?))
    };
    let mut ids: Vec<(u64, MsgId)> = fields.iter().filter_map(numbered).collect();
    ids.sort_unstable_by_key(|(number, _)| *number);
    ids.into_iter().map(|(_, id)| id).collect()
}

impl From<CallError> for ScratchError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(why) | CallError::Slow(why) => Self::Unavailable(why),
            CallError::Unknown(why) | CallError::Late(why) => Self::Unknown(why),
        }
    }
}

#[async_trait]
impl Scratch for RedisScratch {
    async fn save_chains(&self, saves: Vec<ChainSave>) -> Result<(), ScratchError> {
        let save = |save: &ChainSave| {
            Call::script(&CHAIN_SAVE, [self.chain_key(&save.user, &save.device)])
                .arg(save.state.epoch)
                .arg(saved_text(&save.state))
                .arg(CHAIN_TTL.as_millis())
                .arg(save.state.changes)
        };
        let _: Vec<i64> = self.client.all(saves.iter().map(save).collect()).await?;
        Ok(())
    }

    async fn advance_chain(&self, step: ChainStep) -> Result<bool, ScratchError> {
        let saved: i64 = self.client.one(self.step_call(&step)).await?;
        Ok(saved == 1)
    }

    async fn load_chain(&self, user: &UserId, device: &DeviceId) -> Result<Option<ChainState>, ScratchError> {
        let call = Call::command(["HGETALL", &self.chain_key(user, device)]);
        let fields: HashMap<String, String> = self.client.one(call).await?;
        Ok(saved_state(&fields))
    }

    async fn chain_devices(&self, user: &UserId) -> Result<Vec<DeviceId>, ScratchError> {
        let call = Call::script(&CHAIN_LIST, [self.chain_index_key(user)]);
        let names: Vec<String> = self.client.one(call).await?;
        Ok(names.iter().filter_map(|name| DeviceId::new(name).ok()).take(CHAINS_PER_USER_MAX).collect())
    }

    async fn forget_chain(&self, user: &UserId, device: &DeviceId) -> Result<bool, ScratchError> {
        let removal = Call::command(["DEL", &self.chain_key(user, device)]);
        let of_index = Call::command(["ZREM", &self.chain_index_key(user), device.as_str()]);
        let removed: Vec<i64> = self.client.all(vec![removal, of_index]).await?;
        Ok(removed.first().is_some_and(|count| *count > 0))
    }

    async fn mirror_windows(
        &self,
        window: Duration,
        updates: &[WindowUpdate],
    ) -> Result<Vec<u64>, ScratchError> {
        let calls = updates.iter().map(|update| self.mirror_call(window, update)).collect();
        Ok(self.mirror.all(calls).await?)
    }

    async fn grant_permits(&self, calls: &[PermitCall]) -> Result<PermitAnswers, ScratchError> {
        let mut by_slot: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for (at, call) in calls.iter().enumerate() {
            by_slot.entry(call.slot()).or_default().push(at);
        }
        let parts: Vec<&[usize]> = by_slot.values().flat_map(|of| of.chunks(KEYS_PER_CALL_MAX)).collect();
        let of_part = |part: &&[usize]| {
            self.grant_call(&part.iter().filter_map(|at| calls.get(*at)).collect::<Vec<_>>())
        };
        let replies: Vec<Vec<u64>> = self.permits.all(parts.iter().map(of_part).collect()).await?;
        let mut grants = vec![Grant { granted: 0, wait_us: 0, used: 0 }; calls.len()];
        for (part, reply) in parts.iter().zip(replies) {
            let (triples, rest) = reply.as_chunks::<3>();
            if !rest.is_empty() || triples.len() != part.len() {
                return Err(ScratchError::Unknown("unexpected reply from Redis".to_owned()));
            }
            for (at, [granted, wait_us, used]) in part.iter().zip(triples) {
                let granted = u32::try_from(*granted).unwrap_or(0);
                grants[*at] = Grant { granted, wait_us: *wait_us, used: *used };
            }
        }
        Ok(PermitAnswers { grants, server: self.permits.changes() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(letter: char, length: usize) -> String {
        std::iter::repeat_n(letter, length).collect()
    }

    /// Returns the bytes of a save of one message in a chain of ids of the largest length.
    fn bytes(names: usize, change: ChainChange) -> usize {
        let client = RedisClient::new(&config::RedisConfig::default()).unwrap();
        let step = ChainStep {
            user: UserId::new(&text('u', names)).unwrap(),
            device: DeviceId::new(&text('d', names)).unwrap(),
            epoch: 1_795_522_376_375_432,
            number: 9_999_999_999,
            change,
            expected: MsgId::new(&text('m', 64)).unwrap(),
        };
        RedisScratch::over(Arc::new(client)).step_call(&step).sent_bytes()
    }

    /// Covers flaw S59.
    #[test]
    fn x10_change_of_a_chain_sends_one_id() {
        let usual = bytes(36, ChainChange::ExpectedDone);
        assert!(usual <= 300, "{usual} bytes");
        let longest = bytes(64, ChainChange::ExpectedDone);
        assert!(longest <= 350, "{longest} bytes with the longest names");
        let skip = bytes(64, ChainChange::Skipped(MsgId::new(&text('s', 64)).unwrap()));
        assert!(skip <= 430, "{skip} bytes with a second id");
    }
}
