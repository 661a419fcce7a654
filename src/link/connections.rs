//! Connections of a node, as the admin API lists and closes them over the link.

use std::{cmp::Reverse, net::IpAddr, time::Duration};

use tidegate_protocol::{
    codec::Wire,
    id::{DeviceId, UserId},
};

/// Connections that a call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// All connections of the node.
    All,
    /// Those of a user, on one device or on all.
    User(UserId, Option<DeviceId>),
    /// Connection with this packed key.
    Key(u64),
}

/// Order of a list of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSort {
    /// By the time of the login, the newest first.
    Since,
    /// By the bytes that wait to be written, the most first.
    Outbox,
    /// By the key, ascending, from this one on. The order of two connections never changes.
    KeyFrom(u64),
}

/// Query of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionQuery {
    /// Connections that count.
    pub selected: Selected,
    /// Order of the list.
    pub sort: ConnectionSort,
    /// Most connections that are listed, the first of that order.
    pub limit: usize,
}

impl ConnectionQuery {
    /// Most connections that one query lists.
    pub const LIMIT_MAX: usize = 1_000;
}

/// Connections of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPage {
    /// Listed connections, in order.
    pub rows: Vec<ConnectionRow>,
    /// Number of all connections that count.
    pub total: u64,
}

impl ConnectionPage {
    /// Adds the connections of another page, and keeps the first of both.
    pub fn merge(&mut self, other: Self, query: &ConnectionQuery) {
        self.total = self.total.saturating_add(other.total);
        self.rows.extend(other.rows);
        query.sort.cut(&mut self.rows, query.limit);
    }
}

impl ConnectionSort {
    /// Sorts the connections, and keeps the first.
    pub fn cut(self, rows: &mut Vec<ConnectionRow>, limit: usize) {
        self.cut_by(rows, limit, |row| row);
    }

    /// Sorts values by their connections, and keeps the first.
    pub fn cut_by<T>(self, all: &mut Vec<T>, limit: usize, row: impl Fn(&T) -> &ConnectionRow) {
        let first = |row: &ConnectionRow| match self {
            Self::Since => row.since_ms,
            Self::Outbox => row.outbox_bytes,
            Self::KeyFrom(_) => 0,
        };
        if let Self::KeyFrom(from) = self {
            all.retain(|it| row(it).key >= from);
        }
        all.sort_by_key(|it| (Reverse(first(row(it))), row(it).key));
        all.truncate(limit);
    }
}

/// Connection that is logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRow {
    /// Packed key, unique in the run of its node.
    pub key: u64,
    /// User.
    pub user: UserId,
    /// Device of the user.
    pub device: DeviceId,
    /// Address of the client, or of the proxy that forwards it.
    pub address: IpAddr,
    /// Wire of the connection.
    pub wire: Wire,
    /// Time of the login, in ms since 1970.
    pub since_ms: u64,
    /// Bytes that wait to be written.
    pub outbox_bytes: u64,
    /// Number of pushes without an ack.
    pub unacked: u64,
    /// End of its token, in ms since 1970.
    pub expires_ms: u64,
    /// Class in live rooms, 0 to 3.
    pub class: u8,
    /// Number of messages that its chain holds; 0 from a node of an older version.
    pub held: u64,
    /// Time for which these wait for one that is missing, in ms; 0 if they do not, or from a node of an older version.
    pub blocked_ms: u64,
}

/// Request to close connections with `KICKED`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseOrder {
    /// Connections to close.
    pub selected: Selected,
    /// Reason for the client; empty for the description of the code.
    pub reason: String,
    /// Time after which the clients may reconnect; `None` if never by themselves.
    pub reconnect_after: Option<Duration>,
}

impl CloseOrder {
    /// Largest reason, in bytes: it fits into the close frame of a WebSocket.
    pub const REASON_BYTES_MAX: usize = 120;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: u64, since_ms: u64, outbox_bytes: u64) -> ConnectionRow {
        ConnectionRow {
            key,
            user: UserId::new("ann").unwrap(),
            device: DeviceId::new("phone").unwrap(),
            address: IpAddr::from([127, 0, 0, 1]),
            wire: Wire::Tcp,
            since_ms,
            outbox_bytes,
            unacked: 0,
            expires_ms: 0,
            class: 0,
            held: 0,
            blocked_ms: 0,
        }
    }

    #[test]
    fn merged_page_has_the_first_of_both_and_counts_all() {
        let page = |rows: Vec<ConnectionRow>, total| ConnectionPage { rows, total };
        let keys = |page: &ConnectionPage| page.rows.iter().map(|row| row.key).collect::<Vec<_>>();
        for (sort, expected) in [
            (ConnectionSort::Since, [2, 3]),
            (ConnectionSort::Outbox, [1, 3]),
            (ConnectionSort::KeyFrom(0), [1, 2]),
            (ConnectionSort::KeyFrom(3), [3, 4]),
        ] {
            let query = ConnectionQuery { selected: Selected::All, sort, limit: 2 };
            let mut all = page(vec![row(1, 5, 90), row(4, 1, 0)], 7);
            all.merge(page(vec![row(2, 9, 1), row(3, 9, 50)], 3), &query);
            assert_eq!((keys(&all), all.total), (expected.to_vec(), 10));
        }
    }
}
