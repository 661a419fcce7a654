//! Stories of notices on a paused clock, over the store in memory: who gets one, when, and what it has.

mod bounds;
mod failures;
mod world;

use serde_json::{Value, json};
use tidegate_protocol::{record::mode, settings::Push};

use self::world::{Notices, form, mention, pass, silent};
use super::round::may_show;
use crate::{
    store::StoredRow,
    webhooks::{FoundEntry, WaitingForm, WaitingPreview, WaitingUnless, WebhookFilter},
};

#[tokio::test(start_paused = true)]
async fn direct_message_that_nobody_reads_is_one_notice_after_the_delay() {
    let mut world = Notices::start(form()).await;
    world.text("d:ann:bob").await;
    pass(4).await;
    assert_eq!(world.sent(), [""; 0], "not before the delay");
    pass(3).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/1 1"], "the sender gets none");
    world.text("d:ann:bob").await;
    world.text("d:ann:bob").await;
    pass(20).await;
    assert_eq!(world.sent().len(), 1, "not within the repeat interval");
    pass(20).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/1 1", "bob d:ann:bob/3 2"]);
    assert_eq!(world.last()["unread"], json!(3));
    pass(600).await;
    assert_eq!(world.sent().len(), 2, "nothing is repeated without a message");
}

#[tokio::test(start_paused = true)]
async fn notice_has_no_more_of_the_message_than_the_preview_allows() {
    let mut world = Notices::start(form()).await;
    world.text("d:ann:bob").await;
    pass(7).await;
    let plain = world.last();
    for name in ["from", "preview", "badge"] {
        assert_eq!(plain.get(name), None, "{name}");
    }
    assert_eq!((&plain["mentioned"], &plain["devices"]), (&json!(false), &json!([])));
    world.form = WaitingForm { preview: WaitingPreview::Sender, badge: true, ..form() };
    world.change(|_| {});
    for _ in 0..2 {
        world.say("d:bob:cat", "bob", |_| {}).await;
    }
    pass(7).await;
    assert_eq!((&world.last()["from"], &world.last()["badge"]), (&json!("bob"), &json!(2)));
    world.form = WaitingForm { preview: WaitingPreview::Content, ..form() };
    world.change(|_| {});
    let long = "ä".repeat(300);
    world.say("d:ann:dan", "ann", |it| it.content = prost_text(&long)).await;
    pass(7).await;
    let preview = world.last()["preview"].clone();
    assert_eq!(preview, json!({"text": "ä".repeat(256), "cut": true}));
}

fn prost_text(text: &str) -> bytes::Bytes {
    prost::Message::encode_to_vec(&tidegate_protocol::content::Content::text(text)).into()
}

#[tokio::test(start_paused = true)]
async fn members_of_a_small_group_get_notices_and_of_a_large_one_those_who_are_mentioned() {
    let mut world = Notices::start(form()).await;
    world.members("g:tea", &["ann", "bob", "cat"]);
    world.say("g:tea", "ann", mention(&["cat", "zoe"])).await;
    let many = ["ann", "bob", "cat", "dan", "eve"];
    world.members("g:all", &many);
    world.say("g:all", "bob", |_| {}).await;
    world.say("g:all", "bob", mention(&["dan", "zoe"])).await;
    world.members("g:big", &many);
    world.say("g:big", "bob", mention(&["*"])).await;
    pass(7).await;
    assert_eq!(
        world.sent_sorted(),
        ["bob g:tea/1 1", "cat g:tea/1 1", "dan g:all/2 1"],
        "only admins mention all"
    );
    let mentioned = |id: &str| world.world.script.data(id)["mentioned"].clone();
    assert_eq!(
        (mentioned("waiting/bob/g:tea/1"), mentioned("waiting/cat/g:tea/1")),
        (json!(false), json!(true))
    );
    world.say("g:big", "ann", mention(&["*"])).await;
    pass(7).await;
    let of_all: Vec<String> = world.sent().into_iter().filter(|it| it.contains("g:big")).collect();
    assert_eq!(of_all.len(), 4, "all but the sender: {of_all:?}");
}

#[tokio::test(start_paused = true)]
async fn push_setting_of_a_group_narrows_its_notices() {
    let mut world = Notices::start(form()).await;
    for (key, word) in [("g:all", "all"), ("g:some", "mentions"), ("g:none", "none"), ("g:odd", "loud")] {
        world.members(key, &["ann", "bob", "cat"]);
        world.push(key, word);
        world.say(key, "ann", mention(&["cat"])).await;
    }
    pass(7).await;
    let sent = world.sent_sorted();
    let expected = ["bob g:all/1 1", "bob g:odd/1 1", "cat g:all/1 1", "cat g:odd/1 1", "cat g:some/1 1"];
    assert_eq!(sent, expected, "a word of a newer version counts as absent");
}

#[tokio::test(start_paused = true)]
async fn preference_for_the_conversation_precedes_the_group_and_that_one_the_preference_for_all() {
    let mut world = Notices::start(form()).await;
    let names = ["ann", "bob", "cat", "dan"];
    for (key, word) in [("g:plain", None), ("g:none", Some("none"))] {
        world.members(key, &names);
        if let Some(word) = word {
            world.push(key, word);
        }
    }
    for key in ["g:plain", "g:none"] {
        world.prefer("bob", Some(key), Push::All).await;
    }
    world.prefer("bob", None, Push::None).await;
    world.prefer("cat", None, Push::Mentions).await;
    for key in ["g:plain", "g:none"] {
        world.say(key, "ann", mention(&["cat"])).await;
        world.say(key, "ann", |_| {}).await;
    }
    world.text("d:ann:bob").await;
    world.text("d:ann:cat").await;
    world.text("d:ann:dan").await;
    // It counts when the notice is decided.
    world.prefer("dan", Some("g:plain"), Push::Mentions).await;
    pass(7).await;
    assert_eq!(
        world.sent_sorted(),
        ["bob g:none/2 2", "bob g:plain/2 2", "cat g:plain/2 2", "dan d:ann:dan/1 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn preference_for_mentions_lets_direct_messages_through_that_mention_the_user_or_all() {
    let mut world = Notices::start(form()).await;
    for (user, mentions) in [("bob", vec!["bob"]), ("cat", vec!["*"]), ("dan", vec!["ann"]), ("eve", vec![])]
    {
        world.prefer(user, None, Push::Mentions).await;
        world.say(&format!("d:ann:{user}"), "ann", mention(&mentions)).await;
    }
    pass(7).await;
    assert_eq!(world.sent_sorted(), ["bob d:ann:bob/1 1", "cat d:ann:cat/1 1"]);
    assert_eq!(world.last()["mentioned"], json!(true));
}

#[tokio::test(start_paused = true)]
async fn message_above_the_bound_of_the_user_is_no_notice() {
    let mut world = Notices::start(WaitingForm { badge: true, ..form() }).await;
    world.members("g:tea", &["ann", "bob", "cat"]);
    world.text("g:tea").await;
    world.bound("bob", "g:tea", Some(1)).await;
    world.text("g:tea").await;
    world.say("g:tea", "ann", mention(&["bob"])).await;
    world.text("d:ann:bob").await;
    pass(7).await;
    let sent = world.sent_sorted();
    assert_eq!(sent, ["bob d:ann:bob/1 1", "bob g:tea/1 1", "cat g:tea/3 3"], "the first is below it");
    let badge = world.world.script.data("waiting/bob/d:ann:bob/1")["badge"].clone();
    assert_eq!(badge, json!(2), "one of them in the group");
    world.text("g:tea").await;
    pass(40).await;
    assert!(!world.sent().iter().any(|it| it.starts_with("bob g:tea/4")), "{:?}", world.sent());
    world.bound("bob", "g:tea", None).await;
    world.text("g:tea").await;
    pass(40).await;
    assert!(world.sent().iter().any(|it| it.starts_with("bob g:tea/5")), "{:?}", world.sent());
}

#[tokio::test(start_paused = true)]
async fn messages_above_the_bound_do_not_silence_a_mention_below_it() {
    let mut world = Notices::start(WaitingForm { preview: WaitingPreview::Content, ..form() }).await;
    world.members("g:tea", &["ann", "bob", "cat"]);
    world.prefer("bob", None, Push::Mentions).await;
    world.say("g:tea", "cat", mention(&["bob"])).await;
    world.say("g:tea", "ann", mention(&["bob"])).await;
    world.bound("bob", "g:tea", Some(1)).await;
    pass(7).await;
    let sent: Vec<String> = world.sent().into_iter().filter(|it| it.starts_with("bob")).collect();
    assert_eq!(sent, ["bob g:tea/1 1"]);
    let data = world.world.script.data("waiting/bob/g:tea/1");
    assert_eq!(
        (&data["from"], &data["unread"], &data["mentioned"]),
        (&json!("cat"), &json!(1), &json!(true))
    );
}

#[tokio::test(start_paused = true)]
async fn mention_that_was_read_counts_no_more() {
    let mut world = Notices::start(form()).await;
    for (key, word) in [("g:some", "mentions"), ("g:all", "all")] {
        world.members(key, &["ann", "bob"]);
        world.push(key, word);
        world.say(key, "ann", mention(&["bob"])).await;
        world.say(key, "ann", |_| {}).await;
        world.read("bob", key, 1).await;
    }
    pass(7).await;
    assert_eq!(world.sent(), ["bob g:all/2 2"]);
    assert_eq!(world.last()["mentioned"], json!(false));
}

#[tokio::test(start_paused = true)]
async fn content_of_an_edit_after_the_membership_was_read_is_not_shown() {
    let mut world = Notices::start(form()).await;
    let (_, row) = world.world.message("g:tea");
    let stored = |edited| StoredRow { row: row.clone(), recalled: None, edited };
    let may = |edited| may_show(&FoundEntry::Row(Box::new(stored(edited)), None), 5);
    assert_eq!([may(None), may(Some((5, 1))), may(Some((6, 1)))], [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn silent_unpushed_and_recalled_messages_are_no_notice() {
    let mut world = Notices::start(form()).await;
    world.say("d:ann:bob", "ann", silent).await;
    world.say("d:ann:bob", "ann", |it| it.flags = mode::NO_PUSH).await;
    world.text("d:ann:cat").await;
    world.recall("d:ann:cat", 1).await;
    world.text("d:ann:dan").await;
    pass(7).await;
    assert_eq!(world.sent(), ["dan d:ann:dan/1 1"]);
}

#[tokio::test(start_paused = true)]
async fn message_that_is_read_or_acked_in_time_is_no_notice() {
    let mut world = Notices::start(form()).await;
    for key in ["d:ann:bob", "d:ann:cat", "d:ann:dan"] {
        world.text(key).await;
    }
    world.read("bob", "d:ann:bob", 1).await;
    world.connect("cat", Some(1)).await;
    pass(7).await;
    assert_eq!(world.sent(), ["dan d:ann:dan/1 1"]);
    let asked: Vec<usize> = world.peer.ack_queries.lock().iter().map(Vec::len).collect();
    assert_eq!(asked, [1], "one call, of those whom the node has and who have not read it");
    world.text("d:ann:cat").await;
    pass(7).await;
    assert_eq!(world.sent().len(), 2, "the second one is not acked");
    assert_eq!(world.last()["devices"], json!([{"device": "phone", "seen": "unacked"}]));
}

#[tokio::test(start_paused = true)]
async fn condition_of_the_endpoint_decides_what_counts_as_seen() {
    for (unless, acked_to, count) in [
        (WaitingUnless::Read, Some(1), 1),
        (WaitingUnless::Acked, Some(1), 0),
        (WaitingUnless::Acked, Some(0), 1),
        (WaitingUnless::Online, Some(0), 0),
        (WaitingUnless::Online, None, 1),
    ] {
        let mut world = Notices::start(WaitingForm { unless, ..form() }).await;
        world.text("d:ann:bob").await;
        world.connect("bob", acked_to).await;
        pass(10).await;
        assert_eq!(world.sent().len(), count, "{unless:?} {acked_to:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn filter_of_the_endpoint_counts_for_notices() {
    let mut world = Notices::start(form()).await;
    let filter = |conversations: &[&str], users: &[&str]| {
        let owned = |some: &[&str]| some.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        WebhookFilter::new(&owned(&["x"]), &owned(conversations), &owned(users)).unwrap()
    };
    world.change(|plan| plan.filter = filter(&["d:*"], &["cat"]));
    world.members("g:tea", &["ann", "cat"]);
    for (key, sender) in [("d:ann:bob", "ann"), ("d:ann:cat", "ann"), ("d:cat:dan", "cat"), ("g:tea", "ann")]
    {
        world.say(key, sender, |_| {}).await;
    }
    pass(7).await;
    assert_eq!(world.sent_sorted(), ["cat d:ann:cat/1 1", "dan d:cat:dan/1 1"]);
}

#[tokio::test(start_paused = true)]
async fn endpoint_without_notices_gets_none_and_one_that_begins_later_those_after_its_start() {
    let mut world = Notices::start(form()).await;
    world.change(|plan| plan.waiting = None);
    world.text("d:ann:bob").await;
    pass(60).await;
    assert_eq!(world.sent(), [""; 0]);
    world.change(|plan| plan.waiting.as_mut().unwrap().start = crate::webhooks::WebhookStart::Now);
    pass(1).await;
    world.text("d:ann:cat").await;
    pass(7).await;
    let sent = world.sent();
    assert!(sent.contains(&"cat d:ann:cat/1 1".to_owned()), "{sent:?}");
    world.change(|plan| plan.is_paused = true);
    world.text("d:ann:dan").await;
    pass(60).await;
    assert_eq!(world.sent(), sent, "it is paused");
    world.change(|_| {});
    pass(7).await;
    assert_eq!(world.last()["user"], Value::from("dan"));
}
