//! Stories of users with a bound of what they can read, and of mentions between other messages.

use tidegate_protocol::{
    id::ConversationId,
    machine::waiting::{MentionSeqs, WaitingMessage, WaitingNotice},
    settings::UserSettings,
};

use super::{
    world::{SMALL_MAX, user},
    *,
};
use crate::{
    clock::wall_ms,
    conversation::reader::Reader,
    waiting::{
        recipients::Recipients,
        standing::{ENTRIES_MAX, Standing, StandingQuery},
    },
};

fn of_user(world: &Notices, name: &str) -> Vec<String> {
    world.sent().into_iter().filter(|it| it.starts_with(&format!("{name} "))).collect()
}

#[tokio::test(start_paused = true)]
async fn notice_is_about_the_newest_message_within_the_bound() {
    let mut world = Notices::start(WaitingForm { preview: WaitingPreview::Content, ..form() }).await;
    world.members("g:tea", &["ann", "bob", "cat"]);
    world.text("g:tea").await;
    world.text("g:tea").await;
    world.say("g:tea", "cat", |_| {}).await;
    // Neither is a notice, nor is what bob sends.
    world.say("g:tea", "ann", silent).await;
    world.say("g:tea", "bob", |_| {}).await;
    world.bound("bob", "g:tea", Some(5)).await;
    world.text("g:tea").await;
    pass(7).await;
    assert_eq!(of_user(&world, "bob"), ["bob g:tea/3 3"]);
    let data = world.world.script.data("waiting/bob/g:tea/3");
    assert_eq!((&data["from"], &data["mentioned"]), (&json!("cat"), &json!(false)));
    assert_eq!(data["preview"], json!({"text": "hello"}));
}

#[tokio::test(start_paused = true)]
async fn mention_within_the_bound_counts_between_others_that_are_read_or_above_it() {
    let mut world = Notices::start(form()).await;
    world.members("g:tea", &["ann", "bob", "cat"]);
    world.prefer("bob", None, Push::Mentions).await;
    world.say("g:tea", "ann", mention(&["bob"])).await;
    world.read("bob", "g:tea", 1).await;
    world.say("g:tea", "ann", mention(&["bob"])).await;
    world.text("g:tea").await;
    world.bound("bob", "g:tea", Some(3)).await;
    world.say("g:tea", "ann", mention(&["bob"])).await;
    pass(7).await;
    assert_eq!(of_user(&world, "bob"), ["bob g:tea/3 2"]);
    assert_eq!(world.world.script.data("waiting/bob/g:tea/3")["mentioned"], json!(true));
}

#[tokio::test(start_paused = true)]
async fn member_of_a_large_group_gets_no_notice_of_what_mentions_others_below_the_bound() {
    let mut world = Notices::start(form()).await;
    world.members("g:all", &["ann", "bob", "cat", "dan", "eve"]);
    world.say("g:all", "bob", mention(&["dan"])).await;
    world.read("dan", "g:all", 1).await;
    // Of the two, only ann may mention all.
    world.say("g:all", "ann", mention(&["*"])).await;
    world.say("g:all", "bob", mention(&["*"])).await;
    world.say("g:all", "bob", mention(&["eve"])).await;
    world.bound("dan", "g:all", Some(4)).await;
    world.say("g:all", "bob", mention(&["dan"])).await;
    pass(7).await;
    assert_eq!(of_user(&world, "dan"), ["dan g:all/2 1"]);
    assert_eq!(world.world.script.data("waiting/dan/g:all/2")["mentioned"], json!(true));
}

#[tokio::test(start_paused = true)]
async fn mention_counts_between_others_that_are_read_or_hidden() {
    let mut world = Notices::start(form()).await;
    world.members("g:tea", &["ann", "bob"]);
    world.push("g:tea", "mentions");
    for _ in 1..=3 {
        world.say("g:tea", "ann", mention(&["bob"])).await;
    }
    world.text("g:tea").await;
    world.read("bob", "g:tea", 1).await;
    world.hide("bob", "g:tea", 3).await;
    pass(7).await;
    assert_eq!(world.sent(), ["bob g:tea/4 4"]);
    assert_eq!(world.last()["mentioned"], json!(true));
    world.say("g:tea", "ann", mention(&["bob"])).await;
    world.text("g:tea").await;
    world.hide("bob", "g:tea", 5).await;
    pass(60).await;
    assert_eq!(world.sent().len(), 1, "the only one is hidden");
}

#[tokio::test(start_paused = true)]
async fn device_that_acked_what_the_user_may_see_gets_no_notice() {
    for (acked_to, expected) in [(2, 1), (3, 0)] {
        let mut world = Notices::start(form()).await;
        world.members("g:tea", &["ann", "bob"]);
        for _ in 1..=3 {
            world.text("g:tea").await;
        }
        world.bound("bob", "g:tea", Some(3)).await;
        world.text("g:tea").await;
        world.connect("bob", Some(acked_to)).await;
        pass(7).await;
        assert_eq!(world.sent().len(), expected, "acked to {acked_to}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_not_read_below_the_bound_cost_a_notice_too_many() {
    let mut world = Notices::start(form()).await;
    for key in ["g:named", "g:plain"] {
        world.members(key, &["ann", "bob"]);
        world.push(key, if key == "g:named" { "mentions" } else { "all" });
        world.say(key, "ann", mention(&["bob"])).await;
    }
    world.read("bob", "g:named", 1).await;
    world.say("g:named", "ann", mention(&["bob"])).await;
    for key in ["g:named", "g:plain"] {
        for _ in 0..ENTRIES_MAX {
            world.say(key, "ann", silent).await;
        }
    }
    world.text("g:named").await;
    let (named, plain) = (ENTRIES_MAX + 3, ENTRIES_MAX + 1);
    world.bound("bob", "g:named", Some(named)).await;
    world.bound("bob", "g:plain", Some(plain)).await;
    for key in ["g:named", "g:plain"] {
        world.say(key, "ann", mention(&["bob"])).await;
    }
    pass(10).await;
    let found = world.sent_sorted();
    assert_eq!(found, [format!("bob g:named/{named} 4"), "bob g:plain/1 2".to_owned()]);
    let mentioned = |id: String| world.world.script.data(&id)["mentioned"].clone();
    assert_eq!(mentioned(format!("waiting/bob/g:named/{named}")), json!(true));
    // What lies above its bound is settled with it, and the oldest of the next one is above it, too.
    world.text("g:plain").await;
    pass(60).await;
    assert_eq!(world.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn right_to_mention_all_is_read_once_for_each_sender_and_not_after_a_mention() {
    let mut world = Notices::start(form()).await;
    world.members("g:tea", &["ann", "bob", "cat", "dan"]);
    world.say("g:tea", "ann", mention(&["bob"])).await;
    for _ in 0..9 {
        for name in ["cat", "dan"] {
            world.say("g:tea", name, mention(&["*"])).await;
        }
    }
    world.say("g:tea", "ann", mention(&["*"])).await;
    world.say("g:tea", "ann", mention(&["bob"])).await;
    world.read("bob", "g:tea", 1).await;
    let key = ConversationId::parse("g:tea").unwrap();
    let message = |seq| WaitingMessage {
        number: seq,
        conversation: key.clone(),
        seq,
        time: wall_ms(),
        sender: user("ann"),
    };
    let notice = WaitingNotice {
        user: user("bob"),
        oldest: message(1),
        newest: message(21),
        count: 21,
        mentioned: Some(MentionSeqs { oldest: 1, newest: 21 }),
        is_alone: false,
        has_failed: false,
    };
    let filter = WebhookFilter::new(&["x".to_owned()], &[], &[]).unwrap();
    let reader = Reader::with_settings(user("bob"), &UserSettings::default(), wall_ms());
    let store = world.world.faulty();
    // Only ann may mention all.
    for (bound, is_mentioned, reads) in [(19, false, 2), (20, true, 1)] {
        world.bound("bob", "g:tea", Some(bound)).await;
        let summary = store.summary(&key, Some(&reader.user)).await.unwrap();
        let before = world.world.faults.calls("summary");
        let recipients = Recipients::new(&*store, &filter, SMALL_MAX);
        let query = StandingQuery { recipients: &recipients, reader: &reader, push: None, notice: &notice };
        let Standing::Waits(unread) = query.run(summary).await.unwrap() else { panic!("nothing waits") };
        let read = world.world.faults.calls("summary") - before;
        assert_eq!((unread.is_mentioned, read), (is_mentioned, reads), "up to {bound}");
    }
}
