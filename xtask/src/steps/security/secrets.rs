//! Search for planted secrets in all that the node under test has written and answered. Tests of the process plant them
//! in more inputs; here the node has been flooded and tested before.

use std::fs;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{
    http,
    planted::{hex, random},
    target::{self, TargetNode},
};

/// Sends requests with secrets in them to both ports, searches all outputs, and returns the number of secrets.
pub(super) fn run(target: &mut TargetNode) -> anyhow::Result<usize> {
    let user = format!("marked-{}", hex(&random::<4>()?));
    let mut answers = plant_in_messages(target, &user)?;
    answers.push_str(&plant_in_requests(target, &user)?);
    let planted = &target.planted;
    planted.check("an answer", &answers, "welcome")?;
    let get = |path: &str| target.ask("GET", path, "").map(|answer| answer.body().to_owned());
    let trace = get(&format!("/v1/trace?user={user}"))?;
    planted.check("the traces", &trace, "m-marked")?;
    planted.check("the events", &events(target)?, &user)?;
    planted.check("the metrics", &get("/metrics")?, "tidegate_")?;
    planted.check("the nodes", &get("/v1/nodes")?, "boot")?;
    planted.check("the description of the API", &get("/v1/openapi.json")?, "paths")?;
    let read = |name: &str| fs::read_to_string(target.node.data().join(name));
    planted.check("node.json", &read("node.json")?, "admin")?;
    let rotated = (1..=3).map(|nth| read(&format!("audit.jsonl.{nth}")).unwrap_or_default());
    let audit = rotated.chain([read("audit.jsonl")?]).collect::<String>();
    planted.check("the audit log", &audit, &user)?;
    let secrets = planted.check_log(&target.node)?;
    println!("{secrets} secrets: in no output");
    Ok(secrets)
}

/// Returns all events that the node keeps.
fn events(target: &TargetNode) -> anyhow::Result<String> {
    let (mut all, mut after) = (String::new(), String::new());
    loop {
        let page = target.ask("GET", &format!("/v1/events{after}"), "")?;
        let parsed: Value = serde_json::from_str(page.body()).context("events are JSON")?;
        all.push_str(page.body());
        if parsed["events"].as_array().is_none_or(Vec::is_empty) {
            return Ok(all);
        }
        after = format!("?after={}", parsed["cursor"].as_str().context("a cursor")?);
    }
}

/// Logs in with a token and with credentials that are refused, and sends a message. Returns the answers.
fn plant_in_messages(target: &mut TargetNode, user: &str) -> anyhow::Result<String> {
    let token = target.node.token(user)?;
    // The node traces the messages of this user; a long run under load would fill the memory for traces otherwise.
    let watched = target.ask("POST", "/v1/trace", &json!({"user": user}).to_string())?;
    ensure!(watched.status == 200, "POST /v1/trace: {}", watched.text);
    let planted = &mut target.planted;
    planted.add_token(&token);
    let send = |id: u32, to: &str, content: String| {
        json!({"id": id, "send": {"toUser": to, "msgId": "m-marked", "content": {"text": content}}})
            .to_string()
    };
    let sent = [
        target::hello(&token, "phone"),
        send(2, "bob", planted.secret("a message")?),
        send(3, "no id of a user", planted.secret("a refused message")?),
    ];
    let forged = format!("{}{}", &token[..token.len() - 40], planted.secret("a forged signature")?);
    let refused = [
        target::hello(&forged, "phone"),
        target::hello(&planted.secret("a credential for the hook")?, "phone"),
        format!("{{\"id\":1,\"hello\":{{\"token\":\"{}\",\"nosuch\":1", planted.secret("a malformed frame")?),
        // `talk` appends the newline that ends the head.
        format!(
            "GET /v1/ws?own={} HTTP/1.1\r\nHost: localhost\r\nCookie: {}\r\nAuthorization: Bearer {}\r\n\r",
            planted.secret("a query")?,
            planted.secret("a cookie")?,
            planted.secret("a token for the client port")?
        ),
    ];
    let mut answers = target.talk(&sent)?;
    for line in refused {
        answers.push_str(&target.talk(&[line])?);
    }
    Ok(answers)
}

/// Sends requests with secrets in all their parts to the admin port. Returns the answers.
fn plant_in_requests(target: &mut TargetNode, user: &str) -> anyhow::Result<String> {
    let (admin, key) = (target.admin.clone(), target.key.clone());
    let planted = &mut target.planted;
    let mut answers = String::new();
    let mut ask = |line: String, fields: String, body: String| -> anyhow::Result<()> {
        let head = format!("{line} HTTP/1.1\r\nContent-Type: application/json\r\n{fields}");
        answers.push_str(&http::ask(&admin, &head, &body)?.text);
        Ok(())
    };
    let with_key = || format!("Authorization: Bearer {key}");
    let post = |path: &str| format!("POST {path}");
    let group = format!("g-{user}");
    ask(post("/v1/groups"), with_key(), json!({"id": group, "members": [user]}).to_string())?;
    let unknown = json!({"id": group, "own": planted.secret("an unknown field")?}).to_string();
    ask(post("/v1/groups"), with_key(), unknown)?;
    let malformed = format!("{{\"id\": {}", planted.secret("a malformed body")?);
    ask(post("/v1/groups"), with_key(), malformed)?;
    let fields = format!(
        "{}\r\nCookie: {}\r\nX-Own: {}",
        with_key(),
        planted.secret("a cookie of the admin port")?,
        planted.secret("a header of the admin port")?
    );
    let path = format!("GET /v1/nodes?own={}", planted.secret("a query of the admin port")?);
    ask(path, fields, String::new())?;
    let wrong = format!("Authorization: Bearer {}{}", &key[..13], planted.secret("a wrong key")?);
    ask("GET /v1/nodes".to_owned(), wrong, String::new())?;
    let token = planted.secret("the id of a revoked token")?;
    let revoked = json!({"tokenId": token}).to_string();
    ask(post(&format!("/v1/users/{user}/revoke")), with_key(), revoked)?;
    Ok(answers)
}
