//! One rule as an operator writes it, in a file or for the admin API: all of its problems are found, each with its cure.

use std::{collections::BTreeSet, time::Duration};

use tidegate_protocol::{
    id::check_id,
    machine::{permit::CLUSTER_WINDOW_MIN, rate::RateLimit, threshold::DynamicLimit},
};

use super::{
    kinds::{CallSet, LimitCall, LimitLevel},
    rule::{Exceptions, IPV6_PREFIX_DEFAULT, LimitRule, LimitScope, RuleForm, RuleSource},
    subjects::LimitSubjects,
};
use crate::networks::Networks;

/// Shortest and longest window.
const WINDOW_MIN: Duration = Duration::from_millis(100);
const WINDOW_MAX: Duration = Duration::from_secs(86_400);

/// Longest window of a limit that follows the load: a longer one would shut subjects for what they used before.
const DYNAMIC_WINDOW_MAX: Duration = Duration::from_secs(60);

/// Largest limit.
const LIMIT_MAX: u32 = 1_000_000_000;

/// Longest wait of a message.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(10);

/// Subjects that a rule counts separately, if it does not say another number.
pub(super) const KEYS_DEFAULT: usize = 16_384;

/// Most subjects that all rules together count separately: 40 MiB while they are quiet, 120 MiB if all are busy.
pub(super) const KEYS_SUM_MAX: usize = 512 * 1_024;

/// Shortest prefix of IPv6 addresses: a provider has a /32.
const PREFIX_MIN: u8 = 32;

/// Most exceptions of a rule.
const EXCEPT_MAX: usize = 1_000;

impl RuleForm {
    /// Returns the rule that is written, from a source; no wait is longer than `wait_max`.
    ///
    /// # Errors
    /// The rule has problems; the error lists all of them.
    pub fn rule(self, source: RuleSource, wait_max: Duration) -> Result<LimitRule, Vec<String>> {
        let raw = self;
        let id = raw.id.clone().filter(|id| check_id(id).is_ok());
        let mut problems = Vec::new();
        if id.is_none() {
            problems.push("id: must match [A-Za-z0-9_.-]{1,64}".to_owned());
        }
        let level = LimitLevel::named(&raw.level);
        if level.is_none() {
            let names: Vec<&str> = LimitLevel::ALL.into_iter().map(LimitLevel::name).collect();
            problems.push(format!("level: one of {}", names.join(", ")));
        }
        let calls = calls(&raw, level, &mut problems);
        let window = duration(&raw.window).filter(|it| (WINDOW_MIN..=WINDOW_MAX).contains(it));
        if window.is_none() {
            problems.push("window: between 100ms and 1d, such as 500ms, 1s, 5m, 1h".to_owned());
        }
        let limit = u32::try_from(raw.limit).ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        if limit.is_none() {
            problems.push(format!("limit: between 1 and {LIMIT_MAX}"));
        }
        let max_wait = max_wait(&raw, calls, wait_max, &mut problems);
        let scope = scope(&raw, calls, window, &mut problems);
        let dynamic = dynamic(&raw, window, limit, &mut problems);
        let except = except(&raw, level, &mut problems);
        let is_one = level == Some(LimitLevel::Node);
        let keys_max = raw.keys_max.map_or(Some(KEYS_DEFAULT), |keys| usize::try_from(keys).ok());
        let keys_max = keys_max.filter(|keys| (1..=KEYS_SUM_MAX).contains(keys));
        if keys_max.is_none() || (is_one && raw.keys_max.is_some()) {
            problems.push(format!("keys_max: between 1 and {KEYS_SUM_MAX}; none for the level `node`"));
        }
        let prefix = prefix(&raw, level, &mut problems);
        match (id, level, window, limit, keys_max) {
            (Some(id), Some(level), Some(window), Some(limit), Some(keys_max)) if problems.is_empty() => {
                Ok(LimitRule {
                    id: id.into(),
                    source,
                    level,
                    scope,
                    calls,
                    limit: RateLimit::new(limit, window),
                    dynamic,
                    max_wait,
                    is_dry_run: raw.dry_run,
                    except,
                    keys_max: if is_one { 1 } else { keys_max },
                    prefix,
                    form: Box::new(raw),
                })
            }
            _ => Err(problems),
        }
    }
}

fn calls(raw: &RuleForm, level: Option<LimitLevel>, problems: &mut Vec<String>) -> CallSet {
    let mut all = CallSet::default();
    for name in &raw.calls {
        let mut named = CallSet::default();
        if !named.add(name) {
            problems.push(format!(
                "calls: `{name}` is none of connect, login, send, join, pull, sync, signal, react, recall, change, \
                 api:get, api:post, api:put, api:delete, api:send, api:* and *"
            ));
        } else if level.is_some_and(|level| !named.iter().any(|call| level.is_in(call))) {
            problems.push(format!("calls: `{name}` has no {}; remove it", raw.level));
        }
        all.add(name);
    }
    if raw.calls.is_empty() {
        problems.push("calls: name at least one".to_owned());
    }
    all
}

fn max_wait(raw: &RuleForm, calls: CallSet, most: Duration, problems: &mut Vec<String>) -> Option<Duration> {
    let action = raw.action.as_deref().unwrap_or("reject");
    let given = raw.max_wait.as_deref();
    let most = most.min(DELAY_MAX);
    match action {
        "reject" => {
            if given.is_some() {
                problems.push("max_wait: only with action = \"delay\"".to_owned());
            }
            None
        }
        "delay" => {
            let wait =
                given.and_then(duration).filter(|wait| (Duration::from_millis(1)..=most).contains(wait));
            if wait.is_none() {
                problems.push(format!(
                    "max_wait: between 1ms and {} ms, which is at most 10 s, and half of the shortest of timing.reply_ms, \
                     timing.ack_timeout_ms and timing.heartbeat_ms",
                    most.as_millis()
                ));
            }
            if !calls.has(LimitCall::Send) {
                problems.push("action: `delay` is for calls with `send`; others are refused".to_owned());
            }
            wait
        }
        _ => {
            problems.push("action: `reject` or `delay`".to_owned());
            None
        }
    }
}

fn scope(raw: &RuleForm, calls: CallSet, window: Option<Duration>, problems: &mut Vec<String>) -> LimitScope {
    match raw.scope.as_deref().unwrap_or("node") {
        "node" => LimitScope::Node,
        "cluster" => {
            if window.is_some_and(|window| window < CLUSTER_WINDOW_MIN) {
                problems.push("window: at least 1s with scope = \"cluster\"".to_owned());
            }
            if calls.iter().any(is_decided_at_once) {
                problems
                    .push("scope: `cluster` is not for the calls `connect`, `signal` and `react`".to_owned());
            }
            LimitScope::Cluster
        }
        _ => {
            problems.push("scope: `node` or `cluster`".to_owned());
            LimitScope::Node
        }
    }
}

/// Returns whether requests of the kind can't wait for an answer of Redis.
const fn is_decided_at_once(call: LimitCall) -> bool {
    matches!(call, LimitCall::Connect | LimitCall::Signal | LimitCall::React)
}

fn dynamic(
    raw: &RuleForm,
    window: Option<Duration>,
    limit: Option<u32>,
    problems: &mut Vec<String>,
) -> Option<DynamicLimit> {
    let bounds = raw.dynamic?;
    if raw.scope.as_deref() == Some("cluster") {
        problems.push(
            "dynamic: only with scope = \"node\"; nodes with different loads can't have one limit in common"
                .to_owned(),
        );
    }
    if window.is_some_and(|window| window > DYNAMIC_WINDOW_MAX) {
        problems.push("dynamic: only with a window of at most 1m".to_owned());
    }
    let base = limit?;
    let bound = |number: i64| u32::try_from(number).ok().filter(|bound| (1..=LIMIT_MAX).contains(bound));
    match (bound(bounds.min), bound(bounds.max)) {
        (Some(min), Some(max)) if (min..=max).contains(&base) => Some(DynamicLimit::new(base, min, max)),
        _ => {
            problems
                .push(format!("dynamic: min between 1 and the limit, max between the limit and {LIMIT_MAX}"));
            None
        }
    }
}

fn prefix(raw: &RuleForm, level: Option<LimitLevel>, problems: &mut Vec<String>) -> u8 {
    let Some(prefix) = raw.prefix else { return IPV6_PREFIX_DEFAULT };
    let prefix = u8::try_from(prefix).ok().filter(|prefix| (PREFIX_MIN..=128).contains(prefix));
    if raw.dynamic.is_some() {
        problems.push("prefix: not with `dynamic`".to_owned());
    }
    if prefix.is_none() || level.is_some_and(|level| level != LimitLevel::Address) {
        problems.push(format!("prefix: between {PREFIX_MIN} and 128; for the level `address` alone"));
    }
    prefix.unwrap_or(IPV6_PREFIX_DEFAULT)
}

fn except(raw: &RuleForm, level: Option<LimitLevel>, problems: &mut Vec<String>) -> Exceptions {
    if raw.except.len() > EXCEPT_MAX {
        problems.push(format!("except: at most {EXCEPT_MAX}"));
        return Exceptions::default();
    }
    match level {
        Some(LimitLevel::Address) => match Networks::parse(&raw.except) {
            Ok(networks) => Exceptions { networks, ..Exceptions::default() },
            Err(error) => {
                problems.push(format!("except: {error}"));
                Exceptions::default()
            }
        },
        Some(LimitLevel::Node | LimitLevel::Content) if !raw.except.is_empty() => {
            problems.push(format!("except: not for the level `{}`", raw.level));
            Exceptions::default()
        }
        _ => {
            // The exceptions of a device rule are users.
            let level = level.map(|it| if it == LimitLevel::Device { LimitLevel::User } else { it });
            let is_name = |name: &str| level.is_none_or(|it| LimitSubjects::named(it, name).is_some());
            if let Some(wrong) = raw.except.iter().find(|name| !is_name(name)) {
                problems.push(format!("except: `{wrong}` is no name of this level"));
            }
            let names: BTreeSet<Box<str>> = raw.except.iter().map(|name| name.as_str().into()).collect();
            Exceptions { names, ..Exceptions::default() }
        }
    }
}

/// Returns the duration that the text names, such as `100ms`, `5s`, `2m`, `1h` or `1d`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().ok()?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(count.checked_mul(ms)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("100ms"), Some(Duration::from_millis(100)));
        assert_eq!(duration("1d"), Some(Duration::from_secs(86_400)));
        for wrong in ["", "5", "ms", "1w", "-1s", "1.5s", "99999999999999999999s", "9999999999999999d"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
