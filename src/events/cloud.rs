//! Encoding of an event as CloudEvents 1.0 JSON in structured mode; the same on Kafka, over HTTP and in `tail`.

use serde::Serialize;
use time::OffsetDateTime;

use super::{Event, What};
use crate::routes::Token;

/// Event with the attributes of CloudEvents.
#[derive(Serialize)]
struct Cloud<'a> {
    specversion: &'static str,
    id: String,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    subject: &'a str,
    time: String,
    datacontenttype: &'static str,
    /// Extension attribute that selects the partition.
    partitionkey: &'a str,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Presence {
        user: &'a str,
        device: &'a str,
        #[serde(flatten)]
        token: Owner<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        replaced: Option<Owner<'a>>,
    },
    Read {
        user: &'a str,
        conversation: &'a str,
        seq: u64,
    },
    Order {
        user: &'a str,
        device: &'a str,
        #[serde(flatten)]
        token: Owner<'a>,
        expected: &'a str,
    },
}

/// Route token in the event's data.
#[derive(Serialize)]
struct Owner<'a> {
    node: &'a str,
    boot: String,
    epoch: u64,
}

impl<'a> Owner<'a> {
    fn of(token: &'a Token) -> Self {
        Self { node: token.at.node.as_str(), boot: format!("{:x}", token.at.boot), epoch: token.epoch }
    }
}

pub(super) fn encode(source: &str, event: &Event) -> Vec<u8> {
    let (kind, id, data) = match &event.what {
        What::Online(route, replaced) => (
            "tidegate.online",
            format!("online/{}", route.token),
            Data::Presence {
                user: route.user.as_str(),
                device: route.device.as_str(),
                token: Owner::of(&route.token),
                replaced: replaced.as_ref().map(Owner::of),
            },
        ),
        What::Offline(route) => (
            "tidegate.offline",
            format!("offline/{}", route.token),
            Data::Presence {
                user: route.user.as_str(),
                device: route.device.as_str(),
                token: Owner::of(&route.token),
                replaced: None,
            },
        ),
        What::Read(user, conversation, seq) => (
            "tidegate.read",
            format!("read/{conversation}/{user}/{seq}"),
            Data::Read { user: user.as_str(), conversation: conversation.as_str(), seq: *seq },
        ),
        What::OrderBlocked(route, expected) => (
            "tidegate.order-blocked",
            format!("order-blocked/{}/{expected}", route.token),
            Data::Order {
                user: route.user.as_str(),
                device: route.device.as_str(),
                token: Owner::of(&route.token),
                expected: expected.as_str(),
            },
        ),
    };
    let user = event.user().as_str();
    let cloud = Cloud {
        specversion: "1.0",
        id,
        source,
        kind,
        subject: user,
        time: rfc3339(event.at_ms),
        datacontenttype: "application/json",
        partitionkey: user,
        data,
    };
    // Strings and numbers always serialize.
    serde_json::to_vec(&cloud).unwrap_or_default()
}

/// Formats a time in ms since 1970 by RFC 3339, in UTC.
fn rfc3339(ms: u64) -> String {
    let at =
        i64::try_from(ms / 1_000).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    // A clock set beyond the year 9999 gives the epoch.
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, (hour, minute, second)) = (at.date(), at.to_hms());
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_calendar_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_763_712_000_123), "2025-11-21T08:00:00.123Z");
        assert_eq!(rfc3339(4_102_444_799_999), "2099-12-31T23:59:59.999Z");
    }
}
