//! What the nodes of a cluster know of each other: peers, owned partitions, unarchived records, archive lag.

mod archive_lag;
mod barrier;
mod interest;
mod owned;
mod peers;
mod unarchived;

pub use archive_lag::{LagLimit, Lags};
pub use owned::{Owned, Progress};
pub use peers::{Peers, Seen};
pub use unarchived::{Ahead, Teller};
