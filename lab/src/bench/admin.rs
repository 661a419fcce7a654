//! Requests of the bench to an admin port, for groups and metrics; and the tokens of its users.

use anyhow::{Context, Result, ensure};
use std::{ops::Range, thread, time::Duration};

use data_encoding::HEXLOWER_PERMISSIVE;
use serde_json::{Value, json};

use tidegate::{auth, cli::admin::AdminClient};

/// Members that one request may add.
const MEMBERS_MAX: usize = 1000;

/// Attempts of a change.
const TRIES: usize = 5;
/// Delay after an attempt that was temporarily refused.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Returns an HS256 token of `user` that is valid for a day.
pub(super) fn token(key: &[u8], user: &str) -> String {
    auth::sign(key, user, None, Duration::from_secs(86_400))
}

/// Decodes hex.
pub(super) fn hex(text: &str) -> Result<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).context("no hex")
}

/// Creates group `id` with `extra` and users `u<from>`…`u<to>`.
pub(super) fn create_group(
    admin: &mut AdminClient,
    id: &str,
    extra: &[String],
    users: Range<usize>,
) -> Result<()> {
    let all: Vec<String> = extra.iter().cloned().chain(users.map(|user| format!("u{user}"))).collect();
    let mut parts = all.chunks(MEMBERS_MAX);
    let first = parts.next().unwrap_or_default();
    let request = |nth: usize| format!("{id}-{nth}");
    post(admin, "/v1/groups", &json!({"id": id, "members": first, "requestId": request(0)}))?;
    for (nth, part) in (1..).zip(parts) {
        let change = json!({"add": part, "requestId": request(nth)});
        post(admin, &format!("/v1/groups/{id}/members"), &change)?;
    }
    Ok(())
}

/// Returns the value of a metric without labels, if the server has it.
pub(super) fn metric(admin: &mut AdminClient, name: &str) -> Option<f64> {
    let (status, body) = admin.request("GET", "/metrics", "").ok()?;
    (status == 200).then(|| {
        body.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok()).next()
    })?
}

/// Posts a change, and repeats it while the answer asks for that: its request has an id.
fn post(admin: &mut AdminClient, path: &str, body: &Value) -> Result<()> {
    for left in (0..TRIES).rev() {
        let (status, answer) = admin.request("POST", path, &body.to_string())?;
        if (200..300).contains(&status) {
            break;
        }
        ensure!(status == 503 && left > 0, "POST {path}: {status} {}", answer.trim());
        thread::sleep(RETRY_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_tokens() {
        assert_eq!(hex("00ff10\n").expect("hex"), [0, 255, 16]);
        assert!(hex("0g").is_err());
        let token = token(&[7; 32], "u1");
        assert_eq!(token.split('.').count(), 3);
    }
}
