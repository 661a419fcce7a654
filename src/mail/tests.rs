//! Tests of connection keys, and of mailboxes at their limits.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::*;

fn letterbox(bytes_max: usize) -> (ShardHandle, Mailbox) {
    mailbox(Waker::noop().clone(), bytes_max)
}

/// Returns a mail with `count` answers of 64 bytes each.
fn answers(count: usize) -> Mail {
    let key = ConnKey { shard: 0, slot: 0, generation: 0 };
    Mail::Answers((0..count as u64).map(|ticket| (key, ticket, SubmitAnswer::Unknown)).collect())
}

#[test]
fn packed_key_unpacks_to_itself() {
    for key in [
        ConnKey { shard: 0, slot: 0, generation: 0 },
        ConnKey { shard: 63, slot: u32::MAX, generation: 0xff_ffff },
        ConnKey { shard: 7, slot: 12_345, generation: 99 },
    ] {
        assert_eq!(ConnKey::unpack(key.pack()), key);
    }
}

#[test]
fn mailbox_at_its_byte_limit_refuses_until_mail_is_taken() {
    let (handle, mut mailbox) = letterbox(10 * 64);
    assert!(handle.try_post(answers(6)));
    assert!(!handle.has_room(5 * 64) && handle.has_room(4 * 64));
    assert!(!handle.try_post(answers(5)));
    assert!(handle.try_post(answers(4)), "refused mail used no capacity");
    assert!(!handle.try_post(answers(1)));
    assert!(handle.try_post(Mail::Stop(Code::Draining)), "mail of weight 0 is bounded by its number only");
    let mut waits = pin!(handle.post(answers(5)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    mailbox.take().unwrap();
    assert!(matches!(waits.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
    assert!(!handle.has_room(2 * 64) && handle.has_room(64));
}

#[test]
fn oversized_mail_occupies_the_whole_mailbox() {
    let (handle, mut mailbox) = letterbox(640);
    assert!(handle.try_post(answers(1_000)));
    assert!(!handle.try_post(answers(1)));
    mailbox.take().unwrap();
    assert!(handle.try_post(answers(1)));
    assert!(!handle.try_post(answers(1_000)));
    mailbox.take().unwrap();
    assert!(handle.has_room(640), "all capacity was released");
}

#[test]
fn mailbox_full_of_mails_releases_the_bytes_of_a_refused_one() {
    let (handle, _mailbox) = letterbox(64);
    for _ in 0..MAILBOX_MAX {
        assert!(handle.try_post(Mail::Stop(Code::Draining)));
    }
    assert!(!handle.try_post(answers(1)));
    assert!(handle.has_room(64));
}

#[test]
fn waiting_post_fails_when_the_shard_stops() {
    let (handle, mailbox) = letterbox(64);
    assert!(handle.try_post(answers(1)));
    let mut waits = pin!(handle.post(answers(1)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(mailbox);
    assert!(matches!(waits.as_mut().poll(&mut context), Poll::Ready(Err(_))));
}

/// XP1, S66.
#[test]
fn xp1_urgent_mail_overtakes_what_waits_and_fits_into_a_full_mailbox() {
    let (handle, mut mailbox) = letterbox(640);
    assert!(handle.try_post(answers(10)));
    assert!(!handle.try_post(answers(1)), "full");
    assert!(handle.try_post(Mail::Drain(DrainCommand::Forget)));
    assert!(handle.try_post(Mail::ShedMemory));
    assert!(!mailbox.is_empty());
    assert!(matches!(mailbox.take_urgent(), Some(Mail::Drain(_))));
    assert!(matches!(mailbox.take(), Some(Mail::ShedMemory)));
    assert!(mailbox.take_urgent().is_none());
    assert!(matches!(mailbox.take(), Some(Mail::Answers(_))));
    for _ in 0..URGENT_MAX {
        assert!(handle.try_post(Mail::ShedMemory));
    }
    assert!(!handle.try_post(Mail::ShedMemory), "the lane is bounded");
}

fn frame_of(class: u8) -> Delivery {
    Delivery {
        conversation: ConversationId::parse("r:hall").unwrap(),
        seq: 1,
        audience: Audience::Members,
        frame: Arc::new(PushFrame::new(&pb::ServerFrame::default())),
        origin: None,
        tracked: false,
        class,
    }
}

#[test]
fn mails_of_lower_classes_leave_some_to_higher_ones() {
    let (handle, _mailbox) = letterbox(64 << 20);
    let hall = ConversationId::parse("r:hall").unwrap();
    let mut fitted = [0; 4];
    for class in 0..=3 {
        while handle.try_post(Mail::RoomFrames(vec![frame_of(class)])) {
            fitted[usize::from(class)] += 1;
        }
        assert!(!handle.try_post(Mail::RoomLoss(hall.clone(), 1)), "reports use no reserve");
        assert!(!handle.try_post(Mail::RoomFrames(vec![Delivery::left_out(&hall, 1)])));
    }
    let share = ROOM_MAILS_MAX / 16;
    assert_eq!(fitted, [ROOM_MAILS_MAX - 3 * share, share, share, share]);
}

#[test]
fn batch_of_frames_uses_no_reserve_that_one_of_them_may_not() {
    let (handle, _mailbox) = letterbox(64 << 20);
    while handle.try_post(Mail::RoomFrames(vec![frame_of(0)])) {}
    assert!(!handle.try_post(Mail::RoomFrames(vec![frame_of(3), frame_of(0)])));
    assert!(handle.try_post(Mail::RoomFrames(vec![frame_of(3), frame_of(1)])));
}

#[test]
fn report_of_left_out_messages_names_their_number() {
    let hall = ConversationId::parse("r:hall").unwrap();
    assert_eq!((Delivery::left_out(&hall, 7).left_out_count(), frame_of(0).left_out_count()), (7, 0));
}

/// S69.
#[test]
fn s69_room_frames_fill_a_lane_of_their_own() {
    let (handle, mut mailbox) = letterbox(640 * ROOM_BYTES_DIVISOR);
    let room = ConversationId::parse("r:hall").unwrap();
    let frame = |seq| Delivery {
        conversation: room.clone(),
        seq,
        audience: Audience::Members,
        frame: Arc::new(PushFrame::new(&pb::ServerFrame::default())),
        origin: None,
        tracked: false,
        class: 0,
    };
    let mut fitted = 0;
    while handle.try_post(Mail::RoomFrames(vec![frame(fitted + 1)])) {
        fitted += 1;
    }
    assert!(fitted > 0 && handle.has_room(640 * ROOM_BYTES_DIVISOR));
    assert!(handle.try_post(answers(10 * ROOM_BYTES_DIVISOR)), "other mail has all of its bytes");
    assert!(!handle.try_post(answers(1)));
    while handle.try_post(Mail::RoomLoss(room.clone(), 1)) {}
    assert!(matches!(mailbox.take(), Some(Mail::Answers(_))) && mailbox.take().is_none());
    for seq in 1..=fitted {
        let Some(Mail::RoomFrames(frames)) = mailbox.take_room_frames() else { panic!("a frame") };
        assert_eq!(frames[0].seq, seq);
    }
    assert!(!mailbox.is_empty());
    while let Some(mail) = mailbox.take_room_frames() {
        assert!(matches!(mail, Mail::RoomLoss(..)));
    }
    assert!(mailbox.is_empty());
}
