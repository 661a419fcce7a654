//! Work on the connections of a shard, as the admin API orders it.

use std::sync::Arc;

use tidegate_protocol::id::UserId;
use tokio::sync::oneshot;

use crate::{
    link::{
        AckQuery, CloseOrder, ConnectionPage, ConnectionQuery, DeviceAck, RoomRemoval, RoomsPage, RoomsQuery,
    },
    networks::Network,
    revocation::Revocation,
};

/// Work on the connections of a shard, with the sender of its reply.
pub enum ConnectionOrder {
    /// Lists connections from this slot on; replies with them, and with the slot to continue from, if there may be more.
    List(ConnectionQuery, u32, oneshot::Sender<(ConnectionPage, Option<u32>)>),
    /// Lists live rooms, or members of one; replies `None` if it must be asked again, because the shard still sorts them.
    Rooms(RoomsQuery, oneshot::Sender<Option<RoomsPage>>),
    /// Finds the devices of users; replies with those of each query, in order.
    Acks(Arc<Vec<AckQuery>>, oneshot::Sender<Vec<Vec<DeviceAck>>>),
    /// Closes connections; replies how many.
    Close(Arc<CloseOrder>, oneshot::Sender<u64>),
    /// Removes connections from a live room; replies how many.
    RemoveFromRoom(Arc<RoomRemoval>, oneshot::Sender<u64>),
    /// Closes the connections whose token the revocation names; replies how many.
    Revoke(Arc<Revocation>, oneshot::Sender<u64>),
    /// Lists users with a connection from a network, from this slot on; replies with them, and with the slot to continue
    /// from.
    UsersOf(Network, u32, oneshot::Sender<(Vec<UserId>, Option<u32>)>),
}
