//! Tests of the outbox of one connection.

use super::*;

const CAPS: Caps = Caps { control: 20, data: 30 };

fn conversation(text: &str) -> ConversationId {
    ConversationId::parse(text).unwrap()
}

fn room(class: u8, frame: &'static [u8]) -> RoomFrame {
    RoomFrame {
        frame: Bytes::from_static(frame),
        room: conversation("r:r"),
        class,
        is_message: true,
        left_out: 0,
        missed: 0,
    }
}

/// Writes `step` bytes per call and `total` in all, then blocks.
fn drain(outbox: &mut Outbox, step: usize, total: usize) -> Vec<u8> {
    let mut out = Vec::new();
    outbox
        .write_with(|slices| {
            let room = step.min(total - out.len());
            if room == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let flat: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(room).collect();
            out.extend_from_slice(&flat);
            Ok(flat.len())
        })
        .unwrap();
    out
}

#[test]
fn control_overtakes_messages_but_not_a_frame_in_progress() {
    let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
    outbox.push_normal(Bytes::from_static(b"first"), &g, 1, CAPS);
    outbox.push_normal(Bytes::from_static(b"second"), &g, 2, CAPS);
    outbox.push_room(room(0, b"room"), CAPS);
    assert_eq!(drain(&mut outbox, 2, 2), b"fi");
    outbox.push_control(Bytes::from_static(b"!"), CAPS);
    assert_eq!(drain(&mut outbox, 3, 100), b"rst!secondroom");
    assert!(outbox.is_empty());
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn full_outbox_turns_a_conversation_into_one_behind_hint() {
    let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
    assert_eq!(outbox.push_normal(vec![0; 25].into(), &g, 1, CAPS), PushOutcome::Queued);
    assert_eq!(outbox.push_normal(vec![0; 25].into(), &g, 2, CAPS), PushOutcome::Behind);
    assert_eq!(
        outbox.push_normal(vec![0; 1].into(), &g, 3, CAPS),
        PushOutcome::Behind,
        "no seq after a hole"
    );
    assert_eq!(outbox.push_normal(vec![0; 1].into(), &conversation("g:h"), 9, CAPS), PushOutcome::Queued);
    assert!(outbox.take_hints().is_none(), "hints wait until the queues are empty");
    drain(&mut outbox, 100, 100);
    assert_eq!(outbox.take_hints(), Some(Hints { behind: vec![(g, 3)], ..Hints::default() }));
    assert!(outbox.is_empty());
}

#[test]
fn room_frames_are_dropped_and_counted() {
    let (mut outbox, r) = (Outbox::default(), conversation("r:r"));
    assert_eq!(outbox.push_room(room(0, &[0; 30]), CAPS), [0; 4]);
    assert_eq!(outbox.push_room(room(0, &[0; 1]), CAPS), [1, 0, 0, 0]);
    assert_eq!(outbox.push_room(room(0, &[0; 1]), CAPS), [1, 0, 0, 0]);
    // An unknown count is reported separately.
    [0, 3, 0].iter().for_each(|count| outbox.add_shed(&r, *count));
    drain(&mut outbox, 100, 100);
    assert_eq!(outbox.take_hints(), Some(Hints { shed: vec![(r.clone(), 5), (r, 0)], ..Hints::default() }));
}

#[test]
fn full_outbox_sheds_the_oldest_frames_of_the_lowest_class() {
    let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
    assert_eq!(outbox.push_normal(Bytes::from_static(b"0123456789"), &g, 1, CAPS), PushOutcome::Queued);
    for (class, frame, shed) in [
        (0, b"aaaaa", [0; 4]),
        (1, b"bbbbb", [0; 4]),
        (0, b"ccccc", [0; 4]),
        (2, b"ddddd", [0; 4]),
        (0, b"eeeee", [1, 0, 0, 0]),
        (3, b"fffff", [1, 0, 0, 0]),
        (1, b"ggggg", [1, 0, 0, 0]),
        (3, b"hhhhh", [0, 1, 0, 0]),
        (1, b"iiiii", [0, 1, 0, 0]),
    ] {
        assert_eq!(outbox.push_room(room(class, frame), CAPS), shed, "{frame:?}");
        assert_eq!(outbox.bytes(), outbox.slices().iter().map(|slice| slice.len()).sum::<usize>());
    }
    assert_eq!(drain(&mut outbox, 3, 100), b"0123456789dddddfffffggggghhhhh");
    assert_eq!((outbox.bytes(), outbox.rooms.is_none()), (0, true));
    assert_eq!(outbox.take_hints(), Some(Hints { shed: vec![(conversation("r:r"), 5)], ..Hints::default() }));
}

#[test]
fn report_of_left_out_messages_sheds_none_and_keeps_its_number() {
    let mut outbox = Outbox::default();
    let report = |left_out| RoomFrame { left_out, is_message: false, ..room(0, b"stats") };
    assert_eq!(outbox.push_room(room(0, &[0; 28]), CAPS), [0; 4]);
    assert_eq!(outbox.push_room(report(7), CAPS), [0; 4], "no message goes for it");
    assert_eq!(drain(&mut outbox, 100, 100).len(), 28);
    let hints =
        |left_out| Some(Hints { left_out: vec![(conversation("r:r"), left_out)], ..Hints::default() });
    assert_eq!(outbox.take_hints(), hints(7));
    // One that a message of a higher class displaces.
    assert_eq!(outbox.push_room(report(3), CAPS), [0; 4]);
    assert_eq!(outbox.push_room(room(1, &[0; 28]), CAPS), [0; 4]);
    drain(&mut outbox, 100, 100);
    assert_eq!(outbox.take_hints(), hints(3));
    assert!(outbox.is_empty());
    // Members and reactions are repeated by later frames.
    assert_eq!(outbox.push_room(room(0, &[0; 28]), CAPS), [0; 4]);
    assert_eq!(outbox.push_room(report(0), CAPS), [0; 4]);
    drain(&mut outbox, 100, 100);
    assert_eq!(outbox.take_hints(), None);
}

#[test]
fn messages_of_conversations_leave_no_capacity_to_room_frames() {
    let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
    outbox.push_normal(vec![0; 28].into(), &g, 1, CAPS);
    assert_eq!(outbox.push_room(room(3, &[0; 3]), CAPS), [0, 0, 0, 1]);
    assert_eq!((outbox.bytes(), outbox.rooms.is_none()), (28, true));
}

#[test]
fn final_frames_follow_everything_queued() {
    let (mut outbox, g) = (Outbox::default(), conversation("g:g"));
    outbox.push_normal(Bytes::from_static(b"message"), &g, 1, CAPS);
    outbox.push_final(Bytes::from_static(b"close"));
    assert_eq!(drain(&mut outbox, 100, 100), b"messageclose");
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn unread_replies_overflow_at_the_control_limit() {
    let mut outbox = Outbox::default();
    assert_eq!(outbox.push_control(vec![0; 20].into(), CAPS), PushOutcome::Queued);
    assert_eq!(outbox.push_control(vec![0; 1].into(), CAPS), PushOutcome::Overflow);
}

#[test]
fn frames_and_hints_of_a_room_are_dropped_and_those_of_others_stay() {
    let (mut outbox, g, r, other) =
        (Outbox::default(), conversation("g:g"), conversation("r:r"), conversation("r:other"));
    outbox.push_normal(Bytes::from_static(b"message"), &g, 1, CAPS);
    for frame in [room(0, b"aa"), RoomFrame { room: other.clone(), ..room(0, b"bb") }, room(3, b"cc")] {
        assert_eq!(outbox.push_room(frame, CAPS), [0; 4]);
    }
    for id in [&r, &other] {
        outbox.add_shed(id, 2);
        outbox.add_left_out(id, 3);
    }
    // Begun before, it can only end.
    assert_eq!(drain(&mut outbox, 100, 8), b"messagea");
    outbox.drop_room(&r);
    assert_eq!(outbox.bytes(), 3);
    assert_eq!(drain(&mut outbox, 100, 100), b"abb");
    let hints = Hints { shed: vec![(other.clone(), 2)], left_out: vec![(other, 3)], ..Hints::default() };
    assert_eq!((outbox.take_hints(), outbox.bytes(), outbox.is_empty()), (Some(hints), 0, true));
    outbox.push_room(room(1, b"dd"), CAPS);
    outbox.drop_room(&r);
    assert!(outbox.is_empty() && outbox.bytes() == 0);
}
