//! Conversion between storms and the messages of `link.proto`. A page that exceeds the bounds of a node is malformed.

use tidegate_protocol::{
    id::ConversationId,
    machine::storm::{PROFILE_PARTS_MAX, StormPhase},
    pb::{self, LinkStormPhase as Sent},
};

use super::convert::{Malformed, all};
use crate::storms::{STORMS_PER_PAGE_MAX, StormDetails, StormParts, StormView, StormsPage, StormsQuery};

pub(super) fn put_query(query: StormsQuery) -> pb::LinkStormsQuery {
    pb::LinkStormsQuery { conversation: query.group.map(|group| group.to_string()).unwrap_or_default() }
}

pub(super) fn query(sent: pb::LinkStormsQuery) -> Result<StormsQuery, Malformed> {
    let group = Some(sent.conversation).filter(|group| !group.is_empty());
    Ok(StormsQuery { group: group.map(|group| conversation(&group)).transpose()? })
}

pub(super) fn put_page(page: StormsPage) -> pb::LinkStorms {
    let profile = |it: StormParts| pb::LinkStormProfile {
        start_ms: it.start_ms,
        part_ms: it.part_ms,
        counts: it.counts,
    };
    let details = |it: StormDetails| pb::LinkStormDetails {
        seq: it.seq,
        since_ms: it.since_ms,
        peak: it.peak,
        profile: it.profile.map(profile),
    };
    let storm = |it: StormView| pb::LinkStorm {
        conversation: it.conversation.to_string(),
        phase: put_phase(it.phase).into(),
        count: it.count,
        threshold: it.threshold,
        window_ms: it.window_ms,
        storm: it.storm.map(details),
    };
    pb::LinkStorms { storms: page.storms.into_iter().map(storm).collect(), total: page.total }
}

pub(super) fn page(sent: pb::LinkStorms) -> Result<StormsPage, Malformed> {
    if sent.storms.len() > STORMS_PER_PAGE_MAX {
        return Err(Malformed("number of storms"));
    }
    Ok(StormsPage { storms: all(sent.storms, view)?, total: sent.total })
}

fn view(sent: pb::LinkStorm) -> Result<StormView, Malformed> {
    Ok(StormView {
        conversation: conversation(&sent.conversation)?,
        phase: phase(sent.phase)?,
        count: sent.count,
        threshold: sent.threshold,
        window_ms: sent.window_ms,
        storm: sent.storm.map(details).transpose()?,
    })
}

fn details(sent: pb::LinkStormDetails) -> Result<StormDetails, Malformed> {
    if sent.profile.as_ref().is_some_and(|it| it.counts.len() > PROFILE_PARTS_MAX) {
        return Err(Malformed("profile of a storm"));
    }
    let profile =
        sent.profile.map(|it| StormParts { start_ms: it.start_ms, part_ms: it.part_ms, counts: it.counts });
    Ok(StormDetails { seq: sent.seq, since_ms: sent.since_ms, peak: sent.peak, profile })
}

fn conversation(sent: &str) -> Result<ConversationId, Malformed> {
    ConversationId::parse(sent).map_err(|_| Malformed("conversation"))
}

fn put_phase(phase: StormPhase) -> Sent {
    match phase {
        StormPhase::Unknown => Sent::Unknown,
        StormPhase::Quiet => Sent::Quiet,
        StormPhase::Storm => Sent::Storm,
        StormPhase::Cooling => Sent::Cooling,
    }
}

fn phase(sent: i32) -> Result<StormPhase, Malformed> {
    match Sent::try_from(sent) {
        Ok(Sent::Unknown) => Ok(StormPhase::Unknown),
        Ok(Sent::Quiet) => Ok(StormPhase::Quiet),
        Ok(Sent::Storm) => Ok(StormPhase::Storm),
        Ok(Sent::Cooling) => Ok(StormPhase::Cooling),
        Ok(Sent::Unspecified) | Err(_) => Err(Malformed("phase of a storm")),
    }
}
