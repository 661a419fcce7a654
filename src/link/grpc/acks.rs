//! Conversion between questions about acks and the messages of `link.proto`.

use tidegate_protocol::pb;

use super::convert::{Malformed, all, conversation, device, user};
use crate::link::{ACK_QUERIES_MAX, AckQuery, DEVICES_PER_QUERY_MAX, DeviceAck};

pub(super) fn put_queries(queries: Vec<AckQuery>) -> pb::LinkAckQueries {
    let put = |it: AckQuery| pb::LinkAckQuery {
        user: it.user.to_string(),
        conversation: it.conversation.to_string(),
        seq: it.seq,
    };
    pb::LinkAckQueries { queries: queries.into_iter().map(put).collect() }
}

pub(super) fn queries(sent: pb::LinkAckQueries) -> Result<Vec<AckQuery>, Malformed> {
    if sent.queries.len() > ACK_QUERIES_MAX {
        return Err(Malformed("number of queries"));
    }
    all(sent.queries, |it| {
        Ok(AckQuery { user: user(&it.user)?, conversation: conversation(&it.conversation)?, seq: it.seq })
    })
}

pub(super) fn put_devices(devices: Vec<Vec<DeviceAck>>) -> pb::LinkAcks {
    let put = |it: DeviceAck| pb::LinkDeviceAck { device: it.device.to_string(), has_acked: it.has_acked };
    let of_query = |of: Vec<DeviceAck>| pb::LinkDeviceAcks { devices: of.into_iter().map(put).collect() };
    pb::LinkAcks { of_queries: devices.into_iter().map(of_query).collect() }
}

pub(super) fn devices(sent: pb::LinkAcks) -> Result<Vec<Vec<DeviceAck>>, Malformed> {
    all(sent.of_queries, |of| {
        if of.devices.len() > DEVICES_PER_QUERY_MAX {
            return Err(Malformed("number of devices"));
        }
        all(of.devices, |it| Ok(DeviceAck { device: device(&it.device)?, has_acked: it.has_acked }))
    })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

    use super::*;

    fn query(seq: u64) -> AckQuery {
        let (user, conversation) = (UserId::new("ann").unwrap(), ConversationId::parse("g:a").unwrap());
        AckQuery { user, conversation, seq }
    }

    /// The bytes are those of the first version with this call.
    #[test]
    fn call_and_reply_keep_their_bytes() {
        let body = pb::link_call::Body::Acks(put_queries(vec![query(7)]));
        let call = pb::LinkCall { id: 1, body: Some(body) }.encode_to_vec();
        assert_eq!(call, b"\x08\x01\x8a\x01\x0e\x0a\x0c\x0a\x03ann\x12\x03g:a\x18\x07");
        let device = DeviceAck { device: DeviceId::new("tv").unwrap(), has_acked: true };
        let body = pb::link_reply::Body::Acks(put_devices(vec![vec![device], Vec::new()]));
        let reply = pb::LinkReply { id: 1, body: Some(body) }.encode_to_vec();
        assert_eq!(reply, b"\x08\x01\x82\x01\x0c\x0a\x08\x0a\x06\x0a\x02tv\x10\x01\x0a\x00");
    }

    #[test]
    fn messages_round_trip_within_their_bounds() {
        let some = vec![query(1), query(2)];
        assert_eq!(queries(put_queries(some.clone())), Ok(some));
        assert!(queries(put_queries(vec![query(1); ACK_QUERIES_MAX + 1])).is_err());
        let mut bad = put_queries(vec![query(1)]);
        bad.queries[0].conversation = "x".to_owned();
        assert!(queries(bad).is_err());
        let device = |name: &str| DeviceAck { device: DeviceId::new(name).unwrap(), has_acked: false };
        let many = vec![vec![device("a"), device("b")], Vec::new()];
        assert_eq!(devices(put_devices(many.clone())), Ok(many));
        assert!(devices(put_devices(vec![vec![device("a"); DEVICES_PER_QUERY_MAX + 1]])).is_err());
    }
}
