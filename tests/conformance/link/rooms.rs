//! Queries of live rooms.

use tidegate::link::{LinkError, RoomCount, RoomMember, RoomRemoval, RoomsPage, RoomsQuery};
use tidegate_protocol::id::{ConversationId, RoomId};

use super::{World, ended_run};
use crate::{device, user};

fn room(id: &str) -> ConversationId {
    ConversationId::parse(&format!("r:{id}")).unwrap()
}

fn member(name: &str) -> RoomMember {
    RoomMember { user: user(name), device: device("phone") }
}

/// Returns what the called end has.
pub(super) fn page(query: &RoomsQuery) -> RoomsPage {
    match query {
        RoomsQuery::All { .. } | RoomsQuery::One(_) => {
            RoomsPage::Rooms(vec![RoomCount { room: room("hall"), connections: u64::MAX }])
        }
        RoomsQuery::Members { .. } => RoomsPage::Members(vec![member("ann"), member("bob")]),
    }
}

pub(super) async fn rooms_and_members_arrive_as_found(world: &World) {
    let queries = [
        RoomsQuery::All { after: None, limit: 1 },
        RoomsQuery::All { after: Some(room("a")), limit: RoomsQuery::LIMIT_MAX },
        RoomsQuery::One(room("hall")),
        RoomsQuery::Members { room: room("hall"), after: None, limit: 2 },
        RoomsQuery::Members { room: room("hall"), after: Some(member("ann")), limit: 3 },
    ];
    for query in &queries {
        assert_eq!(world.link.rooms(&world.there, query.clone()).await, Ok(page(query)), "{query:?}");
    }
    assert_eq!(*world.end.room_queries.lock().unwrap(), queries);
    let ended = world.link.rooms(&ended_run(), queries[0].clone()).await;
    assert!(matches!(ended, Err(LinkError::NotHere | LinkError::Unavailable(_))), "{ended:?}");
}

pub(super) async fn removals_from_rooms_arrive_unchanged(world: &World) {
    let hall = RoomId::new("hall").unwrap();
    let all = RoomRemoval { room: hall, user: user("ann"), device: None, reason: String::new() };
    let one = RoomRemoval { device: Some(device("phone")), reason: "spam".to_owned(), ..all.clone() };
    for removal in [&all, &one] {
        assert_eq!(world.link.remove_from_room(&world.there, removal.clone()).await, Ok(2));
    }
    assert_eq!(*world.end.removals.lock().unwrap(), [all.clone(), one]);
    let ended = world.link.remove_from_room(&ended_run(), all).await;
    assert!(matches!(ended, Err(LinkError::NotHere | LinkError::Unavailable(_))), "{ended:?}");
}
