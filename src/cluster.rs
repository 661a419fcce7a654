//! Cluster state as this node knows it: peers, owned partitions, unarchived records, archive lags.

mod archive_lag;
pub(crate) mod barrier_calls;
mod owned;
mod peers;
mod unarchived;

pub use archive_lag::{LagLimit, Lags};
pub use owned::{Owned, OwnerProgress};
pub use peers::{PeerSnapshot, Peers};
pub use unarchived::{Unarchived, UnarchivedMark};
