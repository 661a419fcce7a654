//! What a shard with a full mailbox gets in place of pushes.

use std::{future::Future, pin::pin, task};

use super::*;
use crate::mail::{Mailbox, mailbox};
use tidegate_protocol::{content::Content, id::NodeId};

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
    })
}

fn lag(conversation: &str, max_seq: u64) -> Lag {
    Lag { conversation: id(conversation), max_seq, audience: Audience::Members }
}

fn users() -> Arc<[UserId]> {
    [UserId::new("bob").unwrap()].into()
}

/// One shard whose mailbox nobody reads but the test.
fn outbound(bytes_max: usize) -> (mio::Poll, Outbound, Mailbox) {
    let poll = mio::Poll::new().unwrap();
    let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
    let (handle, mailbox) = mailbox(waker, bytes_max);
    let shards = ShardHandles::default();
    assert!(shards.set(vec![handle]).is_ok());
    let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
    (poll, Outbound::new(me, Arc::default(), shards, Arc::default()), mailbox)
}

/// False = it waits.
fn flush(out: &mut Outbound) -> bool {
    pin!(out.flush()).poll(&mut task::Context::from_waker(task::Waker::noop())).is_ready()
}

fn told(mailbox: &mut Mailbox) -> Vec<Lag> {
    let Some(Mail::Deliver(items)) = mailbox.take() else { panic!("a delivery") };
    items.into_iter().filter_map(|item| if let Item::Behind(lag) = item { Some(lag) } else { None }).collect()
}

#[test]
fn a_full_mailbox_gets_hints_and_holds_the_owner_up_only_when_it_is_full_of_those() {
    let (_poll, mut out, mut mailbox) = outbound(5_000);
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
    assert!((6..10).contains(&seq), "no room for a pair of pushes, but for some pairs of hints: {seq}");
    for _ in 1..=3 {
        assert_eq!(told(&mut mailbox), [], "these had room");
    }
    for n in 4..seq {
        assert_eq!(told(&mut mailbox), [lag("g:a", n), lag("g:b", n)]);
    }
    out.items = vec![vec![push("g:a", seq)]];
    assert!(flush(&mut out));
    assert_eq!(told(&mut mailbox), [], "room again, pushes again");
}

#[test]
fn hints_stay_between_the_changes_of_members_and_name_the_last_seq_left_out() {
    let kept = hints(vec![
        push("g:a", 1),
        push("g:b", 7),
        push("g:a", 2),
        Item::Part(id("g:a"), users()),
        push("g:a", 3),
        push("g:b", 8),
    ]);
    let told: Vec<Option<Lag>> =
        kept.into_iter().map(|item| if let Item::Behind(lag) = item { Some(lag) } else { None }).collect();
    assert_eq!(told, [Some(lag("g:a", 2)), Some(lag("g:b", 8)), None, Some(lag("g:a", 3))]);
}
