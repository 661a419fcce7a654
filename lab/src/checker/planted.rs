//! Losses planted into a recorded history, each of which the checker has to name: what can't fail proves nothing.

use std::collections::HashSet;

use anyhow::{Context as _, bail};

use super::{Budget, History, check};

/// What was planted, the rules that have to name it, and the history with it.
type Plant = (&'static str, &'static [&'static str], String);

/// Checks the history, which has to be clean, and then each loss planted into it; how many were named.
///
/// # Errors
/// A promise is broken, a loss is not named, or the history has nothing that can be lost.
pub fn all_named(history: &str) -> anyhow::Result<usize> {
    check(&History::parse(history)?, Budget::default()).judge().context("as it was recorded")?;
    let plants = plants(history)?;
    for (what, rules, text) in &plants {
        let report = check(&History::parse(text)?, Budget::default());
        for rule in *rules {
            if !report.broken.contains_key(rule) {
                bail!("{what}: the checker does not name `{rule}`, but {:?}", report.broken);
            }
        }
        println!("planted: {what}: {:?}", report.broken);
    }
    Ok(plants.len())
}

fn plants(history: &str) -> anyhow::Result<Vec<Plant>> {
    Ok(vec![
        (
            "an acked message that the log does not have",
            &["lost-acked"],
            without_last(history, "log_message").context("nothing was stored")?,
        ),
        (
            "a message that was never sent",
            &["never-sent"],
            without_last(history, "\"send_inv\"").context("nothing was sent")?,
        ),
        (
            "a marker that was neither pushed nor pulled",
            &["not-delivered", "never-got"],
            without_the_last_push(history).context("nothing was pushed")?,
        ),
        (
            "a message missed while away and never pulled",
            &["never-got"],
            without_a_pull(history).context("no device missed a message and pulled it")?,
        ),
    ])
}

/// Without the last line that has this part.
fn without_last(history: &str, part: &str) -> Option<String> {
    let mut lines: Vec<&str> = history.lines().collect();
    let last = lines.iter().rposition(|line| line.contains(part))?;
    lines.remove(last);
    Some(lines.join("\n"))
}

/// What a device received, as a line of the history has it.
#[derive(PartialEq, Eq, Hash)]
struct Entry {
    user: String,
    device: String,
    conv: String,
    seq: u64,
}

/// The entry, how it came, and which message it is; none for lines of another kind.
fn entry(line: &str) -> Option<(Entry, String, Option<String>)> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let recv = event.get("recv")?;
    let text = |name: &str| recv[name].as_str().map(str::to_owned);
    let (user, device, conv) = (text("user")?, text("device")?, text("conv")?);
    Some((Entry { user, device, conv, seq: recv["seq"].as_u64()? }, text("via")?, text("cid")))
}

fn without_entry(history: &str, lost: &Entry) -> String {
    let kept = history.lines().filter(|line| entry(line).is_none_or(|(entry, ..)| entry != *lost));
    kept.collect::<Vec<_>>().join("\n")
}

fn without_the_last_push(history: &str) -> Option<String> {
    let last = history.lines().rev().filter_map(entry).find(|(_, via, _)| via == "push")?;
    Some(without_entry(history, &last.0))
}

/// Without another user's message that a device only received by asking.
fn without_a_pull(history: &str) -> Option<String> {
    let entries: Vec<_> = history.lines().filter_map(entry).collect();
    let pushed: HashSet<&Entry> =
        entries.iter().filter(|(_, via, _)| via == "push").map(|it| &it.0).collect();
    let is_own = |entry: &Entry, cid: &str| {
        let parts = [("cid", cid), ("user", &entry.user), ("device", &entry.device)]
            .map(|(name, value)| format!("\"{name}\":\"{value}\""));
        let mut sends = history.lines().filter(|line| line.contains("send_inv"));
        sends.any(|line| parts.iter().all(|part| line.contains(part.as_str())))
    };
    let pulled = entries.iter().find(|(entry, via, cid)| {
        via == "pull" && !pushed.contains(entry) && cid.as_ref().is_some_and(|cid| !is_own(entry, cid))
    });
    Some(without_entry(history, &pulled?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_in_which_nothing_happened_proves_nothing() {
        assert!(all_named("").is_err());
    }
}
