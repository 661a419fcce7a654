//! Hook against a server in this process: lists, failures, and the order of answers.

use std::{future::ready, path::Path};

use serde_json::{Value, json};
use tidegate_protocol::{
    content::Content,
    id::{ConversationId, DeviceId, MsgId, UserId},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use super::*;
use crate::{
    breaker::GuardedService,
    hooks::{client::ClientSettings, signing::Signer},
    metrics,
};

/// Request that the server got, and what sends its response.
pub(in crate::hooks) struct Asked {
    pub(in crate::hooks) body: Value,
    stream: BufReader<TcpStream>,
}

impl Asked {
    /// Returns the ids of the messages.
    fn ids(&self) -> Vec<&str> {
        self.body["items"].as_array().unwrap().iter().map(|it| it["msgId"].as_str().unwrap()).collect()
    }

    pub(in crate::hooks) async fn respond(mut self, status: u16, body: &str) {
        let head =
            format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        self.stream.get_mut().write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
    }

    async fn allow(self) {
        let answers: Vec<_> = self.ids().iter().map(|id| json!({"allow": true, "msgId": id})).collect();
        let body = json!({ "items": answers }).to_string();
        self.respond(200, &body).await;
    }
}

/// Starts a server, and returns its URL and its requests.
pub(in crate::hooks) async fn server() -> (String, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/before", listener.local_addr().unwrap());
    let (asked, requests) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (mut stream, mut bytes) = (BufReader::new(stream), 0);
            let mut line = String::new();
            while stream.read_line(&mut line).await.unwrap() > 2 {
                let length = line.to_ascii_lowercase();
                let length = length.strip_prefix("content-length:").map(|it| it.trim().parse().unwrap());
                bytes = length.unwrap_or(bytes);
                line.clear();
            }
            let mut body = vec![0; bytes];
            stream.read_exact(&mut body).await.unwrap();
            let body = serde_json::from_slice(&body).unwrap();
            if asked.send(Asked { body, stream }).await.is_err() {
                return;
            }
        }
    });
    (url, requests)
}

fn hook(url: &str, fails_open: bool, in_flight_max: usize, timeout_ms: u64) -> BeforeHook {
    let settings = BeforeSettings {
        timeout: Duration::from_millis(timeout_ms),
        fails_open,
        rooms: vec!["r:hall".to_owned(), "r:news.*".to_owned()],
        in_flight_max,
        waiting_max: 100,
        content_bytes_max: 1_000,
    };
    let client = ClientSettings {
        // Longer than the time of a question, which is what ends a request.
        timeout: Duration::from_secs(5),
        in_flight_max,
        waiting_max: 100,
        answer_bytes_max: answer_bytes_max(settings.content_bytes_max),
    };
    let signer = Arc::new(Signer::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
    let client = HookClient::new(url, Path::new(""), signer, client, GuardedService::HookBefore).unwrap();
    BeforeHook::new(client, settings, metrics::install().0)
}

fn question(sender: &str, id: &str) -> BeforeQuestion {
    use prost::Message as _;
    BeforeQuestion {
        conversation: ConversationId::parse("g:team").unwrap(),
        sender: UserId::new(sender).unwrap(),
        device: DeviceId::new("phone").unwrap(),
        msg_id: MsgId::new(id).unwrap(),
        attempt: 0,
        content: Content::text("hi").encode_to_vec().into(),
        flags: 2,
        of: None,
    }
}

#[tokio::test]
async fn questions_that_wait_are_one_request_and_each_gets_its_answer() {
    let (url, mut requests) = server().await;
    let hook = Arc::new(hook(&url, false, 1, 5_000));
    let ask = |n: usize| {
        let hook = Arc::clone(&hook);
        let question = question(&format!("u{n}"), &format!("m{n}"));
        tokio::spawn(async move { hook.decide(question, ready(Some(true))).await })
    };
    let first = ask(0);
    let held = requests.recv().await.unwrap();
    let item = json!({"conversation": "g:team", "sender": "u0", "device": "phone", "msgId": "m0", "attempt": 0,
        "content": {"text": "hi"}, "flags": ["silent"], "first": false});
    assert_eq!(held.body, json!({ "items": [item] }));
    let mut others = Vec::new();
    for n in 1..=40 {
        others.push(ask(n));
        // In the order of the calls.
        while hook.shared.queue.len() < n {
            tokio::task::yield_now().await;
        }
    }
    held.allow().await;
    assert_eq!(first.await.unwrap(), BeforeVerdict::Allowed);
    let second = requests.recv().await.unwrap();
    let expected: Vec<_> = (1..=32).map(|n| format!("m{n}")).collect();
    assert_eq!(second.ids(), expected);
    let answers: Vec<_> = (1..=32)
        .map(|n| match n % 3 {
            0 => json!({"deny": {"code": 5_000 + n, "message": "no"}}),
            1 => json!({"replace": {"content": {"text": format!("t{n}")}}}),
            _ => json!({"allow": true}),
        })
        .collect();
    second.respond(200, &json!({ "items": answers }).to_string()).await;
    let third = requests.recv().await.unwrap();
    assert_eq!(third.ids().len(), 8);
    third.allow().await;
    for (n, other) in (1..).zip(others) {
        match (other.await.unwrap(), n % 3) {
            (BeforeVerdict::Denied(denial), 0) if n <= 32 => assert_eq!(denial.code.number(), 5_000 + n),
            (BeforeVerdict::Replaced(content), 1) if n <= 32 => {
                use prost::Message as _;
                assert_eq!(content, Content::text(format!("t{n}")).encode_to_vec());
            }
            (BeforeVerdict::Allowed, kind) => assert!(kind == 2 || n > 32, "{n}"),
            other => panic!("{n}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn request_without_a_valid_answer_fails_as_the_settings_say() {
    let (url, mut requests) = server().await;
    let huge = json!({"items": [{"allow": true}], "more": "x".repeat(1024 * 1024)}).to_string();
    let shape = json!([{"allow": true}]).to_string();
    let other = json!({"items": [{"allow": true, "msgId": "m2"}]}).to_string();
    let cases =
        [(500, "", true), (200, "", false), (200, &*shape, false), (200, &*huge, false), (302, "", false)];
    // Answers that are none may be caused by a message, so they never open.
    let cases =
        cases.into_iter().chain([(200, &*other, false), (429, "", true), (403, "", false), (413, "", false)]);
    for (status, body, may_open) in cases {
        for fails_open in [true, false] {
            let hook = hook(&url, fails_open, 1, 5_000);
            let answer = async { requests.recv().await.unwrap().respond(status, body).await };
            let (verdict, ()) = tokio::join!(hook.decide(question("ann", "m1"), ready(Some(true))), answer);
            let is_open = fails_open && may_open;
            let expected = if is_open { BeforeVerdict::Unchecked } else { BeforeVerdict::Unavailable };
            assert_eq!(verdict, expected, "{status} {}", &body[..body.len().min(40)]);
            assert_eq!(verdict.flags(2), if is_open { 2 + 65_536 } else { 2 });
        }
    }
}

#[tokio::test]
async fn wait_for_others_never_opens_and_a_slow_server_does() {
    let (url, mut requests) = server().await;
    let hook = hook(&url, true, 1, 50);
    let slow = hook.decide(question("ann", "m1"), ready(Some(true)));
    let held = async {
        let held = requests.recv().await.unwrap();
        let waits = hook.decide(question("bob", "m2"), ready(Some(true))).await;
        (held, waits)
    };
    let (slow, (_held, waits)) = tokio::join!(slow, held);
    assert_eq!((slow, waits), (BeforeVerdict::Unchecked, BeforeVerdict::Unavailable));
    let full = hook_with_share_taken(&hook).await;
    assert_eq!(full, BeforeVerdict::Unavailable);
}

/// Asks for a user whose share is in use.
async fn hook_with_share_taken(hook: &BeforeHook) -> BeforeVerdict {
    let cy = UserId::new("cy").unwrap();
    let mut taken = Vec::new();
    while let Some(question) = hook.shared.questions.admit(&cy) {
        taken.push(question);
    }
    hook.decide(question("cy", "m3"), ready(Some(true))).await
}

#[tokio::test]
async fn first_message_of_two_users_is_named_until_they_have_one() {
    let (url, mut requests) = server().await;
    let hook = hook(&url, false, 1, 5_000);
    let direct = || BeforeQuestion {
        conversation: ConversationId::parse("d:ann:bob").unwrap(),
        ..question("ann", "m1")
    };
    for (has_messages, is_first) in [(false, true), (true, false), (false, false)] {
        let answer = async {
            let asked = requests.recv().await.unwrap();
            assert_eq!(asked.body["items"][0]["first"], is_first);
            asked.allow().await;
        };
        tokio::join!(hook.decide(direct(), ready(Some(has_messages))), answer);
    }
}

#[test]
fn rooms_are_asked_about_only_if_they_are_named() {
    let named = |room: &str| ["r:hall", "r:news.*"].iter().any(|it| names_room(it, room));
    assert!(named("hall") && named("news.") && named("news.7"));
    assert!(!named("hal") && !named("hall2") && !named("new") && !named("r:hall"));
    assert!(names_room("r:*", "any") && !names_room("hall", "hall"));
}

#[tokio::test(start_paused = true)]
async fn slow_store_and_silent_server_take_the_time_of_one_question_together() {
    // It accepts no connection, so the clock moves on at once.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = hook(&format!("http://{}/before", listener.local_addr().unwrap()), true, 1, 1_000);
    let question =
        BeforeQuestion { conversation: ConversationId::parse("d:ann:bob").unwrap(), ..question("ann", "m1") };
    let began = Deadline::now();
    assert_eq!(hook.decide(question, std::future::pending()).await, BeforeVerdict::Unchecked);
    assert!(began.elapsed() < Duration::from_millis(1_100), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn request_after_a_slow_store_ends_with_its_question() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = hook(&format!("http://{}/before", listener.local_addr().unwrap()), false, 1, 1_000);
    let question =
        BeforeQuestion { conversation: ConversationId::parse("d:ann:bob").unwrap(), ..question("ann", "m1") };
    assert_eq!(hook.decide(question, std::future::pending()).await, BeforeVerdict::Unavailable);
    timeout_at(Deadline::now() + Duration::from_millis(10), std::future::pending::<()>()).await.ok();
    assert_eq!(hook.shared.queue.senders(), 0, "the request has ended");
}

#[tokio::test(start_paused = true)]
async fn request_of_a_question_that_waited_has_half_of_the_time() {
    let hook = hook("http://127.0.0.1:1/", false, 1, 1_000);
    let end = |deadline| {
        let item = Waiting::new(Vec::new(), MsgId::new("m1").unwrap(), deadline).0;
        hook.shared.request_deadline(&[item])
    };
    let now = Deadline::now();
    let time = |ms| now + Duration::from_millis(ms);
    assert_eq!((end(time(900)), end(time(10))), (time(900), time(500)));
}

#[tokio::test(start_paused = true)]
async fn cut_requests_open_no_breaker_and_whole_ones_in_between_find_a_silent_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = hook(&format!("http://{}/before", listener.local_addr().unwrap()), true, 1, 1_000);
    let request = async || {
        let began = Deadline::now();
        // It has waited for others, and nearly to its end.
        let (item, _answer) =
            Waiting::new(b"{}".to_vec(), MsgId::new("m1").unwrap(), began + Duration::from_millis(100));
        let failure = hook.shared.request(&[item]).await.err();
        (failure, began.elapsed() < Duration::from_millis(750))
    };
    for _ in 0..5 {
        assert_eq!(request().await, (Some(HookFailure::Timeout), true), "half of the time");
        assert_eq!(request().await, (Some(HookFailure::Timeout), false), "the whole time");
    }
    assert_eq!(request().await, (Some(HookFailure::Open), true), "five that had the whole time");
}

#[tokio::test]
async fn server_that_takes_more_than_half_of_the_time_is_asked_however_long_questions_waited() {
    let (url, mut requests) = server().await;
    let hook = hook(&url, true, 1, 300);
    let server = tokio::spawn(async move {
        while let Some(asked) = requests.recv().await {
            let at = Deadline::now() + Duration::from_millis(200);
            tokio::spawn(async move {
                timeout_at(at, std::future::pending::<()>()).await.ok();
                asked.allow().await;
            });
        }
    });
    for n in 0..12 {
        let (item, _answer) = Waiting::new(
            format!(r#"{{"msgId":"m{n}"}}"#).into_bytes(),
            MsgId::new(&format!("m{n}")).unwrap(),
            Deadline::now() + Duration::from_millis(10),
        );
        let answers = hook.shared.request(&[item]).await;
        assert_ne!(answers.err(), Some(HookFailure::Open), "{n}");
    }
    server.abort();
}
