//! Question of a node whether devices that are connected to a peer have acked a message.

use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

/// Most queries of one call.
pub const ACK_QUERIES_MAX: usize = 1_000;

/// Most devices in the answer to a query. A user has fewer connections by `limits.devices`; further ones are left out.
pub const DEVICES_PER_QUERY_MAX: usize = 256;

/// Message to a user, of which a node asks whether the user's devices have acked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckQuery {
    /// Recipient.
    pub user: UserId,
    /// Conversation of the message.
    pub conversation: ConversationId,
    /// Seq of the message.
    pub seq: u64,
}

/// Connected device of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAck {
    /// Device.
    pub device: DeviceId,
    /// Whether the device has acked the message or a later one of its conversation, as far as its node remembers.
    pub has_acked: bool,
}
