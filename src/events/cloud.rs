//! Encoding of an event as CloudEvents 1.0 JSON in structured mode; the same on Kafka, over HTTP and in `tail`.

use serde::Serialize;

use super::{Event, StormNotice, What, node::NodeData, security::SecurityData};
use crate::{audit::AuditView, clock::rfc3339, routes::Token};

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
    Audit(AuditView<'a>),
    Storm(StormData<'a>),
    Security(SecurityData<'a>),
    Node(NodeData<'a>),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StormData<'a> {
    conversation: &'a str,
    id: String,
    state: &'static str,
    count: u32,
    peak: u32,
    threshold: u32,
    window_ms: u64,
    since_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileData<'a>>,
}

/// Messages by part of a storm.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProfileData<'a> {
    start_ms: u64,
    part_ms: u64,
    counts: &'a [u32],
}

impl<'a> StormData<'a> {
    fn of(notice: &'a StormNotice) -> Self {
        let profile = notice.profile.as_ref().map(|profile| ProfileData {
            start_ms: profile.start_ms(),
            part_ms: profile.part_ms(),
            counts: profile.counts(),
        });
        Self {
            conversation: notice.id.conversation.as_str(),
            id: notice.id.to_string(),
            state: notice.state(),
            count: notice.report.count,
            peak: notice.report.peak,
            threshold: notice.rule.threshold(),
            window_ms: u64::try_from(notice.rule.window().as_millis()).unwrap_or(u64::MAX),
            since_ms: notice.report.since_ms,
            profile,
        }
    }
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
        What::Audit(entry) => {
            ("tidegate.audit", format!("audit/{}/{}", entry.node, entry.id), Data::Audit(entry.view()))
        }
        What::Storm(notice) => (
            "tidegate.storm",
            format!("storm/{}/{}", notice.id, notice.state()),
            Data::Storm(StormData::of(notice)),
        ),
        What::Security(notice) => ("tidegate.security", notice.id(), Data::Security(notice.data())),
        What::Node(notice) => (notice.change.kind(), notice.id(), Data::Node(notice.data())),
    };
    let subject = event.subject();
    let cloud = Cloud {
        specversion: "1.0",
        id,
        source,
        kind,
        subject: subject.as_str(),
        time: rfc3339(event.at_ms),
        datacontenttype: "application/json",
        partitionkey: subject.as_str(),
        data,
    };
    // Strings and numbers always serialize.
    serde_json::to_vec(&cloud).unwrap_or_default()
}
