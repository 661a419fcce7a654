//! Tests of what events have: of messages with their edits, of what was removed, and for which users they are.

use serde_json::json;
use tidegate_protocol::{
    content::Content,
    id::{DeviceId, MsgId, UserId},
    machine::ledger::{Edited, Row},
    record::{Edit, MemberAction, MemberChange, mode},
};

use super::*;
use crate::webhooks::WebhookFilter;

/// Edits a message.
async fn edit(world: &mut World, key: &str, of: u64, text: &str) {
    let row = world.row(key, |conversation| {
        Body::Edit(Edit {
            conversation,
            seq: of,
            by: Some(UserId::new("bob").unwrap()),
            device: DeviceId::new("phone").unwrap(),
            msg_id: MsgId::new("e").unwrap(),
            content: bytes::Bytes::new(),
            body_hash: [0; 16],
            denied: None,
        })
    });
    let content = prost::Message::encode_to_vec(&Content::text(text)).into();
    let edited = Edited { conversation: row.0.clone(), seq: of, at: (row.1.seq, row.1.time), content };
    world.archive(vec![row], |delta| delta.edited.push(edited)).await;
}

async fn recall(world: &mut World, key: &str, of: u64) {
    let row = world.row(key, |conversation| Body::Recall(Recall { conversation, seq: of, by: None }));
    let recalled = Recalled { conversation: row.0.clone(), seq: of, by: (row.1.seq, row.1.time) };
    world.archive(vec![row], |delta| delta.recalled.push(recalled)).await;
}

async fn prune(world: &mut World, key: &str, up_to: u64) {
    let conversation = ConversationId::parse(key).unwrap();
    let (offset, time) = (world.position.offset, world::BEGIN_MS);
    let head = Head { last_seq: world.seqs[&conversation], pruned_to: up_to, ..Head::default() };
    world
        .archive(Vec::new(), |delta| {
            delta.heads = vec![(conversation.clone(), head)];
            delta.pruned.push(Pruned { conversation, up_to, offset, time });
        })
        .await;
}

fn change(world: &mut World, key: &str, action: MemberAction, by: &str, user: &str) -> (ConversationId, Row) {
    world.row(key, |conversation| {
        Body::Member(MemberChange {
            conversation,
            action,
            users: vec![UserId::new(user).unwrap()],
            role: None,
            by: Some(UserId::new(by).unwrap()),
            settings: Default::default(),
            request_id: MsgId::new("r").unwrap(),
        })
    })
}

#[tokio::test(start_paused = true)]
async fn edit_has_the_newest_content_of_its_message_and_so_has_the_message() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a", "g:a"]).await;
    edit(&mut world, "g:a", 1, "one").await;
    edit(&mut world, "g:a", 1, "two").await;
    edit(&mut world, "g:a", 2, "gone").await;
    recall(&mut world, "g:a", 2).await;
    world.start(&["tidegate.*"]);
    pass(1).await;
    let (first, edited) = (world.script.data("g:a/1"), world.script.data("g:a/4"));
    assert_eq!((&first["content"]["text"], &edited["content"]["text"]), (&json!("two"), &json!("two")));
    assert_eq!((&edited["of"], &edited["by"]), (&json!(1), &json!("bob")));
    assert_eq!(first["edited"], json!({"seq": 5, "time": world.script.data("g:a/5")["time"]}));
    assert_eq!(world.script.data("g:a/3").get("edited"), None);
    let of_recalled = world.script.data("g:a/6");
    assert_eq!((&of_recalled["gone"], of_recalled.get("content")), (&json!("recalled"), None));
    world.kill();
    prune(&mut world, "g:a", 1).await;
    world.change(|_| {});
    world.script.bodies.lock().clear();
    let orders = vec![crate::webhooks::WebhookOrder {
        number: 1,
        action: crate::webhooks::WebhookAction::Replay(WebhookStart::Oldest),
    }];
    world.start_with(WebhookPlan { orders, with_content: false, ..world.plan(&["tidegate.*"]) });
    pass(5).await;
    let of_pruned = world.script.data("g:a/4");
    assert_eq!((&of_pruned["gone"], &of_pruned["of"]), (&json!("pruned"), &json!(1)));
    assert_eq!(world.script.data("g:a/3").get("content"), None, "not wanted");
}

#[tokio::test(start_paused = true)]
async fn edits_whose_messages_do_not_fit_into_a_request_come_with_the_next() {
    let mut world = World::new().await;
    let large = "x".repeat(REQUEST_BYTES_MAX * 2 / 5);
    world.messages(&["g:a"; 4]).await;
    for of in (1..=4).rev() {
        edit(&mut world, "g:a", of, &large).await;
    }
    world.start_with(WebhookPlan { start: WebhookStart::At(world::BEGIN_MS + 4_000), ..world.plan(&["*"]) });
    pass(10).await;
    assert_eq!(world.script.ids(), ["g:a/5", "g:a/6", "g:a/7", "g:a/8"]);
    assert!(world.script.requests.lock().len() > 1);
    assert_eq!(world.script.data("g:a/8")["content"]["text"], json!(large));
}

#[tokio::test(start_paused = true)]
async fn removed_entry_has_the_type_of_what_it_was() {
    let mut world = World::new().await;
    world.messages(&["g:a"]).await;
    edit(&mut world, "g:a", 1, "two").await;
    recall(&mut world, "g:a", 1).await;
    let joined = change(&mut world, "g:a", MemberAction::Join, "ann", "bob");
    world.archive(vec![joined], |_| {}).await;
    prune(&mut world, "g:a", 4).await;
    world.start(&["*"]);
    pass(1).await;
    let types = ["g:a/1", "g:a/2", "g:a/3", "g:a/4"].map(|id| {
        assert_eq!(world.script.data(id)["gone"], json!("pruned"));
        world.script.kind(id)
    });
    let accepted = ["message.accepted", "message.edited", "message.recalled", "group.changed"];
    assert_eq!(types, accepted.map(|it| format!("tidegate.{it}")));
}

#[tokio::test(start_paused = true)]
async fn message_says_what_it_is_and_to_whom_it_goes() {
    let mut world = World::new().await;
    let mut content = Content::text("hi");
    (content.kind, content.reply_to, content.mentions) = ("card".into(), 7, vec!["bob".into()]);
    let (key, mut row) = world.message_of("d:ann:bob", "bob", content);
    let Body::Message(message) = &mut row.body else { panic!("a message") };
    (message.flags, message.mode.is_silent) = (mode::SILENT | mode::NO_PUSH, true);
    let plain = world.message("g:a");
    world.archive(vec![(key, row), plain], |_| {}).await;
    world.start(&["*"]);
    pass(1).await;
    let data = world.script.data("d:ann:bob/1");
    let expected = json!({"to": "ann", "type": "card", "replyTo": 7, "mentions": ["bob"], "flags": ["silent", "noPush"]});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&data[name], value, "{name}");
    }
    let plain = world.script.data("g:a/1");
    assert!(expected.as_object().unwrap().keys().all(|name| plain.get(name).is_none()), "{plain}");
}

#[tokio::test(start_paused = true)]
async fn users_are_senders_recipients_and_subjects() {
    let mut world = World::new().await;
    let text = || Content::text("x");
    let rows = vec![
        world.message_of("g:a", "bob", text()),
        world.message_of("g:a", "carol", text()),
        world.message_of("d:ann:bob", "ann", text()),
        world.message_of("d:ann:carol", "ann", text()),
        change(&mut world, "g:b", MemberAction::Join, "ann", "bob"),
        change(&mut world, "g:b", MemberAction::Kick, "bob", "ann"),
        change(&mut world, "g:b", MemberAction::Join, "ann", "carol"),
    ];
    world.archive(rows, |_| {}).await;
    recall(&mut world, "g:a", 1).await;
    recall(&mut world, "g:a", 2).await;
    let other = world.message_of("g:c", "carol", text());
    world.archive(vec![other], |_| {}).await;
    prune(&mut world, "g:c", 1).await;
    let filter = |users: &[&str]| {
        let users: Vec<String> = users.iter().map(|it| (*it).to_owned()).collect();
        WebhookFilter::new(&["*".to_owned()], &[], &users)
    };
    world.start_with(WebhookPlan { filter: filter(&["bob"]).unwrap(), ..world.plan(&["*"]) });
    pass(5).await;
    let mut ids = world.script.ids();
    ids.sort();
    assert_eq!(ids, ["d:ann:bob/1", "g:a/1", "g:a/3", "g:b/1", "g:b/2", "pruned/g:c/1"]);
    assert_eq!(world.shown().behind, 0);
    assert!(filter(&["bob"; 64]).is_ok() && filter(&["bob"; 65]).is_err() && filter(&["a b"]).is_err());
}

#[tokio::test(start_paused = true)]
async fn events_that_a_filter_drops_do_not_end_a_failing_state() {
    let mut world = World::new().await;
    for seq in 1..=40 {
        world.script.refuse(&format!("g:a/{seq}"), WebhookOutcome::Failed(WebhookFailure::Timeout));
    }
    let filter = WebhookFilter::new(&["*".to_owned()], &[], &["ann".to_owned()]).unwrap();
    world.start_with(WebhookPlan { filter, ..world.plan(&["*"]) });
    let mut states = Vec::new();
    for _ in 0..40 {
        let others = ["g:b", "g:c"].map(|key| world.message_of(key, "carol", Content::text("x")));
        let mut rows = vec![world.message("g:a")];
        rows.extend(others);
        world.archive(rows, |_| {}).await;
        pass(10).await;
        states.push(world.shown().state);
    }
    let failing = states.iter().filter(|it| **it == WebhookState::Failing).count();
    assert!(failing > 30, "{states:?}");
}

#[test]
fn debug_output_shows_no_secret() {
    let secrets = ["whsec_verysecret".to_owned()];
    let settings = crate::hooks::SenderSettings {
        name: "crm",
        secrets: &secrets,
        trust: &|| Err(std::io::ErrorKind::NotFound.into()),
        timeout: Duration::from_secs(1),
    };
    assert!(!format!("{settings:?}").contains("very"));
    let json = b"very-secret".to_vec();
    let (id, key) = ("g:a/1".to_owned(), "g:a".to_owned());
    let event = crate::hooks::EncodedEvent { id, key, json, entry_ms: None };
    assert!(
        !format!("{:?}", crate::hooks::WebhookBody::Single(event)).contains("115"),
        "bytes of the content"
    );
    let target = crate::hooks::WebhookTarget::new(
        "https://crm.example/hook/very-secret?token=very-secret",
        &[("authorization".to_owned(), "very-secret".to_owned())],
        false,
    )
    .unwrap();
    let shown = format!("{target:?}");
    assert!(shown.contains("crm.example") && shown.contains("authorization"), "{shown}");
    assert!(!shown.contains("very-secret"), "{shown}");
}
