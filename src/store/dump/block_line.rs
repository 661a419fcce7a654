//! Line of an export with an entry of a block list.

use serde::{Deserialize, Serialize};
use tidegate_protocol::id::UserId;

use super::form;

/// Block of a user. The version is not exported: another store counts from its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockLine {
    /// User whose list it is.
    #[serde(with = "form::text")]
    pub user: UserId,
    /// Blocked user.
    #[serde(with = "form::text")]
    pub other: UserId,
    /// Time of the block, in ms since 1970.
    pub time: u64,
}
