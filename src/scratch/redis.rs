//! `Scratch` adapter for Redis.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tidegate_protocol::id::{DeviceId, MsgId, UserId};

use super::{
    ChainChange, ChainSave, ChainState, ChainStep, DONE_IDS_MAX, Hit, Scratch, ScratchError, WindowRule,
};
use crate::{
    config,
    redis::{Call, CallError, ConnectError, RedisClient, Script},
};

static CHAIN_SAVE: Script =
    Script::new(concat!(include_str!("../redis/chain_index.lua"), include_str!("../redis/chain_save.lua")));
static CHAIN_STEP: Script =
    Script::new(concat!(include_str!("../redis/chain_index.lua"), include_str!("../redis/chain_step.lua")));
static WINDOW_COUNTED: Script = Script::new(include_str!("../redis/window_counted.lua"));
static WINDOW_EXACT: Script = Script::new(include_str!("../redis/window_exact.lua"));

/// Lifetime of a chain that is not saved again.
const CHAIN_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Prefixes of the fields with done and skipped ids, in a chain that was saved in steps.
const DONE_RING: char = 'd';
const SKIPPED_RING: char = 's';
/// Largest limit for which each hit is stored, which is exact. Larger limits count hits in two buckets.
const EXACT_LIMIT_MAX: u32 = 256;

/// Scratch store of profile `cluster`.
///
/// Windows of different keys are in different slots. A hit that some rules allow and another refuses is therefore
/// counted for the duration of one call, then taken back. Meanwhile another hit may be refused because of it, but never
/// wrongly allowed.
pub struct RedisScratch {
    client: Arc<RedisClient>,
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
        Self { client }
    }

    fn chain_key(&self, user: &UserId, device: &DeviceId) -> String {
        self.client.key("chain", &format!("{{{user}}}:{device}"))
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

    fn window_key(&self, rule: &WindowRule) -> String {
        let kind = if is_exact(rule) { "hits" } else { "count" };
        self.client.key(kind, &format!("{}:{}", rule.window.as_micros(), rule.key))
    }

    fn hit_call(&self, rule: &WindowRule, name: &str) -> Call {
        let (script, name) = if is_exact(rule) { (&WINDOW_EXACT, name) } else { (&WINDOW_COUNTED, "hit") };
        Call::script(script, [self.window_key(rule)])
            .arg(rule.window.as_micros().max(1))
            .arg(rule.limit)
            .arg(name)
    }

    fn undo_call(&self, rule: &WindowRule, name: &str) -> Call {
        let key = self.window_key(rule);
        if is_exact(rule) {
            Call::command(["ZREM", &key, name])
        } else {
            Call::script(&WINDOW_COUNTED, [key])
                .arg(rule.window.as_micros().max(1))
                .arg(rule.limit)
                .arg("undo")
        }
    }
}

fn is_exact(rule: &WindowRule) -> bool {
    rule.limit <= EXACT_LIMIT_MAX
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

    async fn hit(&self, rules: &[WindowRule]) -> Result<Hit, ScratchError> {
        // S31: random names from the caller, so that no two hits collide.
        let name = format!("{:032x}", rand::random::<u128>());
        let checked: Vec<&WindowRule> = rules.iter().filter(|rule| rule.limit > 0).collect();
        let calls = checked.iter().map(|rule| self.hit_call(rule, &name)).collect();
        let mut waits = self.client.all::<u64>(calls).await?.into_iter();
        let mut longest: Option<(Duration, usize)> = None;
        let mut counted = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let wait = if rule.limit == 0 {
                rule.window
            } else {
                Duration::from_micros(waits.next().unwrap_or_default())
            };
            if wait.is_zero() {
                counted.push(rule);
            } else if longest.is_none_or(|(most, _)| wait > most) {
                longest = Some((wait, index));
            }
        }
        let Some((retry_after, rule)) = longest else { return Ok(Hit::Allowed) };
        if !counted.is_empty() {
            let undo = counted.iter().map(|rule| self.undo_call(rule, &name)).collect();
            // The refusal holds even if this fails; the hit then expires with its window.
            if let Err(error) = self.client.all::<u64>(undo).await {
                tracing::debug!(?error, "failed to take back a refused hit; counted until its window ends");
            }
        }
        Ok(Hit::Refused { rule, retry_after })
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
