//! Hints that a shard with a full mailbox gets instead of pushes.

use std::{future::Future, pin::pin, task};

use super::*;
use crate::mail::{Mailbox, mailbox};
use tidegate_protocol::{codec::PushFrame, content::Content, id::NodeId, pb::server_frame::Body as Frame};

fn id(text: &str) -> ConversationId {
    ConversationId::parse(text).unwrap()
}

fn push(conversation: &str, seq: u64) -> Item {
    let frame = PushFrame::new(&pb::ServerFrame {
        id: 0,
        body: Some(Frame::Push(pb::Push {
            content: Some(Content::text("x".repeat(1_000))),
            ..Default::default()
        })),
    });
    Item::Push(Delivery {
        conversation: id(conversation),
        seq,
        audience: Audience::Members,
        frame: Arc::new(frame),
        origin: None,
        tracked: false,
        class: 0,
    })
}

fn lag(conversation: &str, max_seq: u64) -> Lag {
    Lag { conversation: id(conversation), max_seq, audience: Audience::Members }
}

fn users() -> Arc<[UserId]> {
    [UserId::new("bob").unwrap()].into()
}

/// Returns an outbound with one shard, whose mailbox only the test reads.
fn outbound(bytes_max: usize) -> (LocalDispatcher, Mailbox) {
    let (handle, mailbox) = mailbox(task::Waker::noop().clone(), bytes_max);
    let shards = ShardHandles::default();
    assert!(shards.set(vec![handle]).is_ok());
    let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
    (LocalDispatcher::new(me, Arc::default(), shards, Arc::default()), mailbox)
}

/// Returns whether the flush completed; otherwise it waits.
fn flush(out: &mut LocalDispatcher) -> bool {
    pin!(out.flush()).poll(&mut task::Context::from_waker(task::Waker::noop())).is_ready()
}

fn lags_in(mailbox: &mut Mailbox) -> Vec<Lag> {
    let Some(Mail::Deliver(items)) = mailbox.take() else { panic!("a delivery") };
    items.into_iter().filter_map(|item| if let Item::Behind(lag) = item { Some(lag) } else { None }).collect()
}

#[test]
fn full_mailbox_gets_hints_and_blocks_only_when_full_of_them() {
    let (mut out, mut mailbox) = outbound(5_000);
    for seq in 1..=3 {
        out.items = vec![vec![push("g:a", seq)]];
        assert!(flush(&mut out));
    }
    let mut seq = 3;
    loop {
        seq += 1;
        out.items = vec![vec![push("g:a", seq), push("g:b", seq)]];
        if !flush(&mut out) {
            break;
        }
    }
    assert!((6..10).contains(&seq), "two pushes do not fit, some pairs of hints do: {seq}");
    for _ in 1..=3 {
        assert_eq!(lags_in(&mut mailbox), [], "these pushes fitted");
    }
    for n in 4..seq {
        assert_eq!(lags_in(&mut mailbox), [lag("g:a", n), lag("g:b", n)]);
    }
    out.items = vec![vec![push("g:a", seq)]];
    assert!(flush(&mut out));
    assert_eq!(lags_in(&mut mailbox), [], "with capacity there are pushes again");
}

#[test]
fn hints_name_the_last_seq_and_stay_between_member_changes() {
    let kept = hints(vec![
        push("g:a", 1),
        push("g:b", 7),
        push("g:a", 2),
        Item::Part(id("g:a"), users()),
        push("g:a", 3),
        push("g:b", 8),
    ]);
    let lags: Vec<Option<Lag>> =
        kept.into_iter().map(|item| if let Item::Behind(lag) = item { Some(lag) } else { None }).collect();
    assert_eq!(lags, [Some(lag("g:a", 2)), Some(lag("g:b", 8)), None, Some(lag("g:a", 3))]);
}

#[test]
fn references_of_unposted_mail_are_released() {
    let held = |out: &LocalDispatcher, group: &ConversationId| !out.directory.conversation(group).is_empty();
    let index_members = |out: &mut LocalDispatcher, group: &ConversationId| {
        out.directory.add_user(&users()[0], 0);
        let shards = out.shards_of(&users());
        out.index_members(group, shards, &users());
        assert!(held(out, group));
    };
    // An owner that is aborted with its batch.
    let (mut out, _mailbox) = outbound(5_000);
    let (directory, group) = (Arc::clone(&out.directory), id("g:a"));
    index_members(&mut out, &group);
    drop(out);
    assert!(directory.conversation(&group).is_empty());
    // An owner that is aborted while it waits for a mailbox.
    let (mut out, mut mailbox) = outbound(5_000);
    while flush(&mut out) {
        out.items = vec![vec![push("g:b", 1), push("g:c", 1)]];
    }
    index_members(&mut out, &group);
    assert!(!flush(&mut out));
    assert!(!held(&out, &group));
    let key = ConnKey { shard: 0, slot: 1, generation: 1 };
    {
        let mut waiting = pin!(out.memberships(key, vec![group.clone(); 200]));
        assert!(waiting.as_mut().poll(&mut task::Context::from_waker(task::Waker::noop())).is_pending());
    }
    assert!(!held(&out, &group));
    // A shard that has its mail releases the references itself.
    while mailbox.take().is_some() {}
    index_members(&mut out, &group);
    assert!(flush(&mut out) && held(&out, &group));
    let directory = Arc::clone(&out.directory);
    drop(out);
    assert!(!directory.conversation(&group).is_empty());
}
