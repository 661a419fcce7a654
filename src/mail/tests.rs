//! Keys that pack and unpack, and a mailbox that is full in bytes or in mails.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::*;

fn letterbox(bytes_max: usize) -> (mio::Poll, ShardHandle, Mailbox) {
    let poll = mio::Poll::new().unwrap();
    let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
    let (handle, mailbox) = mailbox(waker, bytes_max);
    (poll, handle, mailbox)
}

/// Weighs 64 bytes for each.
fn answers(count: usize) -> Mail {
    let key = ConnKey { shard: 0, slot: 0, generation: 0 };
    Mail::Answers((0..count as u64).map(|ticket| (key, ticket, Answer::Unknown)).collect())
}

#[test]
fn a_packed_key_unpacks_to_itself() {
    for key in [
        ConnKey { shard: 0, slot: 0, generation: 0 },
        ConnKey { shard: 63, slot: u32::MAX, generation: 0xff_ffff },
        ConnKey { shard: 7, slot: 12_345, generation: 99 },
    ] {
        assert_eq!(ConnKey::unpack(key.pack()), key);
    }
}

#[test]
fn a_mailbox_is_full_in_bytes_long_before_it_is_in_mails() {
    let (_poll, handle, mut mailbox) = letterbox(10 * 64);
    assert!(handle.try_post(answers(6)));
    assert!(!handle.has_room(5 * 64) && handle.has_room(4 * 64));
    assert!(!handle.try_post(answers(5)));
    assert!(handle.try_post(answers(4)), "what was refused took no room");
    assert!(!handle.try_post(answers(1)));
    assert!(handle.try_post(Mail::ShedMemory), "what weighs nothing is bounded by its number");
    let mut waits = pin!(handle.post(answers(5)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    mailbox.take().unwrap();
    assert!(matches!(waits.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    assert!(!handle.has_room(2 * 64) && handle.has_room(64));
}

#[test]
fn a_mail_larger_than_the_mailbox_has_it_for_itself() {
    let (_poll, handle, mut mailbox) = letterbox(640);
    assert!(handle.try_post(answers(1_000)));
    assert!(!handle.try_post(answers(1)));
    mailbox.take().unwrap();
    assert!(handle.try_post(answers(1)));
    assert!(!handle.try_post(answers(1_000)));
    mailbox.take().unwrap();
    assert!(handle.has_room(640), "all of it was given back");
}

#[test]
fn a_mailbox_is_full_in_mails_and_gives_the_bytes_of_what_it_refuses_back() {
    let (_poll, handle, _mailbox) = letterbox(64);
    for _ in 0..MAILBOX_MAX {
        assert!(handle.try_post(Mail::ShedMemory));
    }
    assert!(!handle.try_post(answers(1)));
    assert!(handle.has_room(64));
}

#[test]
fn who_waits_for_a_shard_that_stops_is_told() {
    let (_poll, handle, mailbox) = letterbox(64);
    assert!(handle.try_post(answers(1)));
    let mut waits = pin!(handle.post(answers(1)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(mailbox);
    assert!(matches!(waits.as_mut().poll(&mut context), Poll::Ready(Err(_))));
}
