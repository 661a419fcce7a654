//! Conversion between connections, revocations and the messages of `link.proto`.

use std::time::Duration;

use tidegate_protocol::{codec::Wire, pb};

use super::convert::{self, Malformed, all, any_device, device, put_any_device, user};
use crate::{
    link::{CloseOrder, ConnectionPage, ConnectionQuery, ConnectionRow, ConnectionSort, Selected},
    priorities::CLASS_MAX,
    revocation::{Revocation, RevokedTokens, TOKEN_ID_BYTES_MAX},
};

/// Returns the reason for a client.
pub(super) fn reason(sent: String) -> Result<String, Malformed> {
    if sent.len() > CloseOrder::REASON_BYTES_MAX { Err(Malformed("reason")) } else { Ok(sent) }
}

fn put_selected(selected: &Selected) -> Option<pb::LinkSelected> {
    Some(match selected {
        Selected::All => pb::LinkSelected::default(),
        Selected::User(user, device) => {
            let device = put_any_device(device.as_ref());
            pb::LinkSelected { user: user.to_string(), device, key: None }
        }
        Selected::Key(key) => pb::LinkSelected { key: Some(*key), ..pb::LinkSelected::default() },
    })
}

fn selected(sent: Option<pb::LinkSelected>) -> Result<Selected, Malformed> {
    let pb::LinkSelected { user, device, key } = sent.ok_or(Malformed("selection"))?;
    Ok(match key {
        Some(key) => Selected::Key(key),
        None if user.is_empty() => Selected::All,
        None => Selected::User(convert::user(&user)?, any_device(&device)?),
    })
}

pub(super) fn put_query(query: &ConnectionQuery) -> pb::LinkConnectionQuery {
    pb::LinkConnectionQuery {
        selected: put_selected(&query.selected),
        by_outbox: query.sort == ConnectionSort::Outbox,
        limit: u32::try_from(query.limit).unwrap_or(u32::MAX),
        from_key: match query.sort {
            ConnectionSort::KeyFrom(key) => Some(key),
            ConnectionSort::Since | ConnectionSort::Outbox => None,
        },
    }
}

pub(super) fn query(sent: pb::LinkConnectionQuery) -> Result<ConnectionQuery, Malformed> {
    Ok(ConnectionQuery {
        selected: selected(sent.selected)?,
        sort: match sent.from_key {
            Some(key) => ConnectionSort::KeyFrom(key),
            None if sent.by_outbox => ConnectionSort::Outbox,
            None => ConnectionSort::Since,
        },
        limit: (sent.limit as usize).min(ConnectionQuery::LIMIT_MAX),
    })
}

pub(super) fn put_page(page: ConnectionPage) -> pb::LinkConnections {
    let row = |row: ConnectionRow| pb::LinkConnection {
        key: row.key,
        user: row.user.to_string(),
        device: row.device.to_string(),
        address: row.address.to_string(),
        wire: match row.wire {
            Wire::Tcp => pb::LinkWire::Tcp,
            Wire::JsonLine => pb::LinkWire::JsonLine,
            Wire::WsBinary => pb::LinkWire::WsBinary,
            Wire::WsText => pb::LinkWire::WsText,
        } as i32,
        since_ms: row.since_ms,
        outbox_bytes: row.outbox_bytes,
        unacked: row.unacked,
        expires_ms: row.expires_ms,
        room_class: row.class.into(),
        held: row.held,
        blocked_ms: row.blocked_ms,
    };
    pb::LinkConnections { rows: page.rows.into_iter().map(row).collect(), total: page.total }
}

/// Decodes a page; one with more rows than requested is malformed.
pub(super) fn page(sent: pb::LinkConnections, limit: usize) -> Result<ConnectionPage, Malformed> {
    if sent.rows.len() > limit {
        return Err(Malformed("number of connections"));
    }
    Ok(ConnectionPage { rows: all(sent.rows, row)?, total: sent.total })
}

fn row(sent: pb::LinkConnection) -> Result<ConnectionRow, Malformed> {
    let wire = match sent.wire() {
        pb::LinkWire::Tcp => Wire::Tcp,
        pb::LinkWire::JsonLine => Wire::JsonLine,
        pb::LinkWire::WsBinary => Wire::WsBinary,
        pb::LinkWire::WsText => Wire::WsText,
        pb::LinkWire::Unspecified => return Err(Malformed("wire, perhaps of a newer version")),
    };
    Ok(ConnectionRow {
        key: sent.key,
        user: user(&sent.user)?,
        device: device(&sent.device)?,
        address: sent.address.parse().map_err(|_| Malformed("address"))?,
        wire,
        since_ms: sent.since_ms,
        outbox_bytes: sent.outbox_bytes,
        unacked: sent.unacked,
        expires_ms: sent.expires_ms,
        class: u8::try_from(sent.room_class).unwrap_or(CLASS_MAX).min(CLASS_MAX),
        held: sent.held,
        blocked_ms: sent.blocked_ms,
    })
}

pub(super) fn put_order(order: CloseOrder) -> pb::LinkClose {
    let CloseOrder { selected, reason, reconnect_after } = order;
    let ms = |wait: Duration| u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    let (selected, reconnect_after_ms) = (put_selected(&selected), reconnect_after.map(ms));
    pb::LinkClose { selected, reason, reconnect_after_ms }
}

pub(super) fn order(sent: pb::LinkClose) -> Result<CloseOrder, Malformed> {
    let reason = reason(sent.reason)?;
    let reconnect_after = sent.reconnect_after_ms.map(|ms| Duration::from_millis(ms.into()));
    let selected = selected(sent.selected)?;
    if selected == Selected::All {
        return Err(Malformed("selection"));
    }
    Ok(CloseOrder { selected, reason, reconnect_after })
}

pub(super) fn put_revocation(revocation: Revocation) -> pb::LinkRevocation {
    let Revocation { user, tokens, at_ms, until_ms } = revocation;
    let sent = pb::LinkRevocation { user: user.to_string(), at_ms, until_ms, ..Default::default() };
    match tokens {
        RevokedTokens::Before(before) => pb::LinkRevocation { before_ms: Some(before), ..sent },
        RevokedTokens::Id(token_id) => pb::LinkRevocation { token_id, ..sent },
        RevokedTokens::Device(device, before) => {
            pb::LinkRevocation { before_ms: Some(before), device: device.to_string(), ..sent }
        }
        RevokedTokens::Cleared => pb::LinkRevocation { cleared: true, ..sent },
    }
}

pub(super) fn revocation(sent: pb::LinkRevocation) -> Result<Revocation, Malformed> {
    let tokens = match (sent.before_ms, any_device(&sent.device)?, sent.token_id) {
        (None, None, id) if sent.cleared && id.is_empty() => RevokedTokens::Cleared,
        _ if sent.cleared => return Err(Malformed("revocation that also takes back others")),
        (Some(before), None, id) if id.is_empty() => RevokedTokens::Before(before),
        (Some(before), Some(device), id) if id.is_empty() => RevokedTokens::Device(device, before),
        (None, None, id) if (1..=TOKEN_ID_BYTES_MAX).contains(&id.len()) => RevokedTokens::Id(id),
        _ => return Err(Malformed("revocation, perhaps of a newer version")),
    };
    Ok(Revocation { user: user(&sent.user)?, tokens, at_ms: sent.at_ms, until_ms: sent.until_ms })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tidegate_protocol::id::{DeviceId, UserId};

    use super::*;

    fn ann() -> UserId {
        UserId::new("ann").unwrap()
    }

    fn phone() -> DeviceId {
        DeviceId::new("phone").unwrap()
    }

    fn page_of(address: &str) -> ConnectionPage {
        let row = ConnectionRow {
            key: 7,
            user: ann(),
            device: phone(),
            address: address.parse().unwrap(),
            wire: Wire::WsText,
            since_ms: 1,
            outbox_bytes: 2,
            unacked: 3,
            expires_ms: 4,
            class: 0,
            held: 0,
            blocked_ms: 0,
        };
        ConnectionPage { rows: vec![row], total: 9 }
    }

    /// The bytes are those of the first version with these calls.
    #[test]
    fn calls_and_replies_keep_their_bytes() {
        use pb::{link_call::Body as Call, link_reply::Body as Reply};
        let call = |body| pb::LinkCall { id: 1, body: Some(body) }.encode_to_vec();
        let selected = Selected::User(ann(), None);
        let query = ConnectionQuery { selected, sort: ConnectionSort::Outbox, limit: 50 };
        let bytes = call(Call::Connections(put_query(&query)));
        assert_eq!(bytes, b"\x08\x01\x62\x0b\x0a\x05\x0a\x03ann\x10\x01\x18\x32");
        let order = CloseOrder {
            selected: Selected::Key(0),
            reason: "x".into(),
            reconnect_after: Some(Duration::from_secs(5)),
        };
        let bytes = call(Call::Close(put_order(order)));
        assert_eq!(bytes, b"\x08\x01\x6a\x0a\x0a\x02\x18\x00\x12\x01x\x18\x88\x27");
        let tokens = RevokedTokens::Before(3);
        let revoked = Revocation { user: ann(), tokens, at_ms: 1, until_ms: None };
        let bytes = call(Call::Revoke(put_revocation(revoked)));
        assert_eq!(bytes, b"\x08\x01\x72\x09\x0a\x03ann\x10\x01\x20\x03");
        let body = Some(Reply::Connections(put_page(page_of("::1"))));
        let reply = pb::LinkReply { id: 1, body }.encode_to_vec();
        let row = b"\x08\x07\x12\x03ann\x1a\x05phone\x22\x03::1\x28\x04\x30\x01\x38\x02\x40\x03\x48\x04";
        assert_eq!(reply, [&b"\x08\x01\x62\x21\x0a\x1d"[..], row, b"\x10\x09"].concat());
    }

    #[test]
    fn messages_round_trip_and_others_are_malformed() {
        for selected in [Selected::All, Selected::User(ann(), Some(phone())), Selected::Key(0)] {
            for sort in [ConnectionSort::Since, ConnectionSort::KeyFrom(0), ConnectionSort::KeyFrom(9)] {
                let query = ConnectionQuery { selected: selected.clone(), sort, limit: 3 };
                assert_eq!(self::query(put_query(&query)), Ok(query));
            }
        }
        let sent = put_page(page_of("10.0.0.1"));
        assert_eq!(page(sent.clone(), 1), Ok(page_of("10.0.0.1")));
        assert!(page(sent.clone(), 0).is_err(), "more than requested");
        let spoil = |change: fn(&mut pb::LinkConnection)| {
            let mut sent = sent.clone();
            change(&mut sent.rows[0]);
            page(sent, 1).is_err()
        };
        assert!(spoil(|row| row.user = "a b".into()) && spoil(|row| row.device = String::new()));
        assert!(spoil(|row| row.address = "here".into()) && spoil(|row| row.wire = 9));
        let order = |selected| CloseOrder { selected, reason: "spam".into(), reconnect_after: None };
        let kick = order(Selected::User(ann(), None));
        assert_eq!(self::order(put_order(kick.clone())), Ok(kick));
        assert!(self::order(put_order(order(Selected::All))).is_err(), "never all connections");
        let long = pb::LinkClose { reason: "x".repeat(121), ..put_order(order(Selected::Key(1))) };
        assert!(self::order(long).is_err());
        for tokens in [
            RevokedTokens::Before(0),
            RevokedTokens::Id("t".into()),
            RevokedTokens::Device(phone(), 5),
            RevokedTokens::Cleared,
        ] {
            let revoked = Revocation { user: ann(), tokens, at_ms: 1, until_ms: Some(2) };
            assert_eq!(revocation(put_revocation(revoked.clone())), Ok(revoked));
        }
        let none = pb::LinkRevocation { user: "ann".into(), ..Default::default() };
        assert!(revocation(none.clone()).is_err(), "of no tokens");
        let both = pb::LinkRevocation { before_ms: Some(1), token_id: "t".into(), ..none.clone() };
        assert!(revocation(both).is_err());
        let both = pb::LinkRevocation { before_ms: Some(1), cleared: true, ..none.clone() };
        assert!(revocation(both).is_err());
        assert!(revocation(pb::LinkRevocation { token_id: "t".repeat(129), ..none }).is_err());
    }
}
