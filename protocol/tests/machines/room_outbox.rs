//! Tests of the outbox of room frames: by example, and against a naive list.

use proptest::prelude::*;
use tidegate_protocol::machine::room_outbox::RoomOutbox;

#[test]
fn room_outbox_drops_the_oldest_of_the_lowest_class_below() {
    let mut outbox = RoomOutbox::default();
    for (class, name) in [(1, "a"), (0, "b"), (2, "c"), (0, "d")] {
        assert!(outbox.push(class, 10, name, 40).is_empty());
    }
    assert_eq!(outbox.push(0, 10, "e", 40), ["e"], "nothing is below");
    assert_eq!(outbox.push(1, 10, "f", 40), ["b"]);
    assert_eq!(outbox.push(3, 20, "g", 40), ["d", "a"]);
    assert_eq!(outbox.push(3, 31, "h", 40), ["h"], "what is below is not enough");
    assert_eq!((outbox.len(), outbox.bytes(), outbox.take_dropped()), (3, 40, [3, 1, 0, 1]));
    let written: Vec<_> = std::iter::from_fn(|| outbox.pop()).collect();
    assert_eq!(written, ["c", "f", "g"]);
    assert!(outbox.is_empty() && outbox.take_dropped() == [0; 4]);
}

#[test]
fn room_outbox_holds_one_frame_however_large() {
    let mut outbox = RoomOutbox::default();
    assert!(outbox.push(0, 1_000, 1, 40).is_empty());
    assert_eq!(outbox.push(0, 1, 2, 40), [2]);
    assert_eq!(outbox.push(9, 2_000, 3, 40), [1], "a larger class counts as 3");
    assert_eq!((outbox.pop(), outbox.pop()), (Some(3), None));
}

proptest! {
    #[test]
    fn room_outbox_agrees_with_a_naive_list(
        steps in prop::collection::vec((0_u8..6, 0_usize..30, 20_usize..120), 1..300),
    ) {
        let mut outbox = RoomOutbox::default();
        // Class, bytes and number, in order.
        let mut list = Vec::<(u8, usize, usize)>::new();
        for (number, (class, bytes, most)) in steps.into_iter().enumerate() {
            if class == 4 {
                let first = (!list.is_empty()).then(|| list.remove(0).2);
                prop_assert_eq!(outbox.pop(), first);
                continue;
            }
            if class == 5 {
                // A third of the frames goes, whatever their classes.
                outbox.retain(|number| number % 3 != bytes % 3);
                list.retain(|it| it.2 % 3 != bytes % 3);
                let bytes = list.iter().map(|it| it.1).sum::<usize>();
                prop_assert_eq!((outbox.len(), outbox.bytes()), (list.len(), bytes));
                continue;
            }
            let before = list.clone();
            let mut dropped = Vec::new();
            let total = |list: &[(u8, usize, usize)]| list.iter().map(|it| it.1).sum::<usize>();
            let is_new_lost = loop {
                if total(&list) + bytes <= most || total(&list) == 0 {
                    break false;
                }
                let lowest = list.iter().map(|it| it.0).min().unwrap_or(0);
                let Some(at) = list.iter().position(|it| it.0 == lowest && lowest < class) else { break true };
                dropped.push(list.remove(at).2);
            };
            if is_new_lost {
                list = before;
                dropped = vec![number];
            } else {
                list.push((class, bytes, number));
            }
            prop_assert_eq!(outbox.push(class, bytes, number, most), dropped);
            prop_assert_eq!((outbox.len(), outbox.bytes()), (list.len(), total(&list)));
        }
        let left: Vec<_> = std::iter::from_fn(|| outbox.pop()).collect();
        prop_assert_eq!(left, list.iter().map(|it| it.2).collect::<Vec<_>>());
    }
}
