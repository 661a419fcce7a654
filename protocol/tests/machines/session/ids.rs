//! Ids that no URL can name: they name nothing new, and what exists stays readable.

use tidegate_protocol::{
    machine::session::Action,
    pb::{self, client_frame::Body as ClientBody},
};

use super::support::{Conn, send};

#[test]
fn dot_segments_name_no_new_room_and_still_name_a_group_that_exists() {
    let mut conn = Conn::plain();
    for (id, room) in [(2, "."), (3, "..")] {
        conn.frame(id, ClientBody::Join(pb::Join { room: room.to_owned() }));
        assert_eq!(conn.output(), [format!("{id} BAD_ID")], "{room}");
    }
    conn.frame(4, ClientBody::Send(send("g:..", "x")));
    assert_eq!(conn.submitted(), ["x"]);
    conn.frame(5, ClientBody::Pull(pb::Pull { conversation: "g:..".to_owned(), ..Default::default() }));
    assert!(matches!(conn.actions.as_slice(), [Action::Query { id: 5, .. }]), "{:?}", conn.output());
}
