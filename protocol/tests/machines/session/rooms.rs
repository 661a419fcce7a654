//! Removal from live rooms by an administrator.

use tidegate_protocol::{
    Code,
    id::RoomId,
    pb::{self, client_frame::Body as ClientBody},
};

use super::support::Conn;

#[test]
fn removed_client_is_notified_once_and_may_join_again() {
    let join = || ClientBody::Join(pb::Join { room: "a".to_owned() });
    let a = RoomId::new("a").expect("well formed");
    let mut conn = Conn::plain();
    conn.frame(1, join());
    // The join is not answered yet, and is refused.
    conn.input(|s, _, _, _| assert!(!s.is_removed_join(1, &a)));
    conn.input(|s, _, _, out| assert!(s.remove_from_room(&a, "spam", out)));
    conn.input(|s, _, _, out| assert!(!s.remove_from_room(&a, "spam", out), "it is in the room no more"));
    conn.input(|s, _, _, _| assert!(s.is_removed_join(1, &a)));
    conn.input(|s, l, now, out| s.joined(1, &a, Ok(()), l, now, out));
    assert_eq!(conn.output(), ["1 join a", "leave a", "0 ROOM_REMOVED", "1 NOT_A_MEMBER"]);
    conn.frame(2, join());
    conn.input(|s, l, now, out| s.joined(2, &a, Ok(()), l, now, out));
    assert_eq!(conn.output(), ["2 join a", "2 done"]);
    conn.input(|s, _, _, out| s.close(Code::Kicked, "", out));
    conn.input(|s, _, _, out| assert!(!s.remove_from_room(&a, "", out), "nothing follows the close"));
    assert_eq!(conn.output(), ["close KICKED"]);
}

#[test]
fn pending_joins_before_a_removal_are_refused_and_those_left_or_made_again_are_not() {
    let join = || ClientBody::Join(pb::Join { room: "a".to_owned() });
    let leave = || ClientBody::Leave(pb::Leave { room: "a".to_owned(), ..Default::default() });
    let a = RoomId::new("a").expect("well formed");
    let mut conn = Conn::plain();
    conn.limits.rooms_max = 9;
    conn.frame(1, join());
    conn.frame(2, leave());
    conn.frame(3, join());
    conn.input(|s, _, _, out| assert!(s.remove_from_room(&a, "", out)));
    conn.frame(4, join());
    conn.output();
    let removed = [1, 3, 4].map(|id| conn.session.is_removed_join(id, &a));
    assert_eq!(removed, [false, true, false]);
    // In whatever order the outcomes come.
    for id in [4, 3, 1] {
        conn.input(|s, l, now, out| s.joined(id, &a, Ok(()), l, now, out));
    }
    assert_eq!(conn.output(), ["4 done", "3 NOT_A_MEMBER", "1 done"]);
    assert_eq!(conn.session.rooms(), [a]);
}
