//! Conversion between figures and the messages of `link.proto`. A page that exceeds the bounds of a node is malformed.

use tidegate_protocol::{id::NodeId, pb};

use super::convert::{Malformed, all};
use crate::figures::{
    CODES_ROWS_MAX, CodesRow, FLOWS_EVERY_MS, FLOWS_PER_ROW_MAX, FLOWS_ROWS_MAX, FiguresPage, FiguresQuery,
    Flow, FlowsRow, STATS_ROWS_MAX, StatsRow,
};

/// Most values of a row; a later version may have more than this one.
const VALUES_MAX: usize = 256;

/// Most codes of a row; a later version may know more than this one.
const CODES_PER_ROW_MAX: usize = 256;

/// Largest number that clients of the console can represent; larger ones are cut to it.
const NUMBER_MAX: u64 = (1 << 53) - 1;

pub(super) fn put_query(query: FiguresQuery) -> pb::LinkFiguresQuery {
    let FiguresQuery { stats_from, codes_from, flows_after_ms } = query;
    pb::LinkFiguresQuery { stats_from, codes_from, flows_after_ms }
}

pub(super) fn query(sent: pb::LinkFiguresQuery) -> FiguresQuery {
    let pb::LinkFiguresQuery { stats_from, codes_from, flows_after_ms } = sent;
    FiguresQuery { stats_from, codes_from, flows_after_ms }
}

pub(super) fn put_page(page: FiguresPage) -> pb::LinkFigures {
    let stats = |row: StatsRow| pb::LinkStatsRow { at_ms: row.at_ms, values: row.values };
    let count = |(code, count)| pb::LinkCodeCount { code, count };
    let codes = |row: CodesRow| pb::LinkCodesRow {
        at_ms: row.at_ms,
        counts: row.counts.into_iter().map(count).collect(),
    };
    let name = |node: Option<NodeId>| node.map(|node| node.to_string()).unwrap_or_default();
    let flow = |flow: Flow| pb::LinkFlow { from: name(flow.from), to: name(flow.to), count: flow.count };
    let flows = |row: FlowsRow| pb::LinkFlowsRow {
        at_ms: row.at_ms,
        flows: row.flows.into_iter().map(flow).collect(),
    };
    pb::LinkFigures {
        now_ms: page.now_ms,
        stats: page.stats.into_iter().map(stats).collect(),
        stats_next: page.stats_next,
        codes: page.codes.into_iter().map(codes).collect(),
        codes_next: page.codes_next,
        flows: page.flows.into_iter().map(flows).collect(),
    }
}

pub(super) fn page(sent: pb::LinkFigures) -> Result<FiguresPage, Malformed> {
    let is_long = sent.stats.len() > STATS_ROWS_MAX
        || sent.codes.len() > CODES_ROWS_MAX
        || sent.flows.len() > FLOWS_ROWS_MAX;
    if is_long {
        return Err(Malformed("number of rows"));
    }
    // One row a second: more could not be summed in a bounded time.
    let second = |row: &pb::LinkFlowsRow| row.at_ms / FLOWS_EVERY_MS;
    if !sent.flows.is_sorted_by(|a, b| second(a) < second(b)) {
        return Err(Malformed("order of the flows"));
    }
    Ok(FiguresPage {
        now_ms: number(sent.now_ms),
        stats: all(sent.stats, stats_row)?,
        stats_next: sent.stats_next,
        codes: all(sent.codes, codes_row)?,
        codes_next: sent.codes_next,
        flows: all(sent.flows, flows_row)?,
    })
}

fn number(sent: u64) -> u64 {
    sent.min(NUMBER_MAX)
}

fn stats_row(sent: pb::LinkStatsRow) -> Result<StatsRow, Malformed> {
    if sent.values.len() > VALUES_MAX {
        return Err(Malformed("number of values"));
    }
    Ok(StatsRow { at_ms: number(sent.at_ms), values: sent.values.into_iter().map(number).collect() })
}

fn codes_row(sent: pb::LinkCodesRow) -> Result<CodesRow, Malformed> {
    if sent.counts.len() > CODES_PER_ROW_MAX {
        return Err(Malformed("number of codes"));
    }
    let counts = sent.counts.into_iter().map(|sent| (sent.code, number(sent.count))).collect();
    Ok(CodesRow { at_ms: number(sent.at_ms), counts })
}

fn flows_row(sent: pb::LinkFlowsRow) -> Result<FlowsRow, Malformed> {
    if sent.flows.len() > FLOWS_PER_ROW_MAX {
        return Err(Malformed("number of flows"));
    }
    let flow = |sent: pb::LinkFlow| {
        Ok(Flow { from: node(&sent.from)?, to: node(&sent.to)?, count: number(sent.count) })
    };
    Ok(FlowsRow { at_ms: number(sent.at_ms), flows: all(sent.flows, flow)? })
}

fn node(sent: &str) -> Result<Option<NodeId>, Malformed> {
    match sent {
        "" => Ok(None),
        name => NodeId::new(name).map(Some).map_err(|_| Malformed("name of a node")),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn id(name: &str) -> Option<NodeId> {
        Some(NodeId::new(name).unwrap())
    }

    fn sample() -> FiguresPage {
        FiguresPage {
            now_ms: 2_000,
            stats: vec![StatsRow { at_ms: 1_000, values: vec![3, 0, 300] }],
            stats_next: 7,
            codes: vec![CodesRow { at_ms: 0, counts: vec![(4_014, 2)] }],
            codes_next: 1,
            flows: vec![FlowsRow { at_ms: 1_000, flows: vec![Flow { from: id("n1"), to: None, count: 5 }] }],
        }
    }

    /// The bytes are those of the first version with this call.
    #[test]
    fn call_and_reply_keep_their_bytes() {
        use pb::{link_call, link_reply};
        let query = FiguresQuery { stats_from: Some(0), codes_from: Some(7), flows_after_ms: None };
        let body = Some(link_call::Body::Figures(put_query(query)));
        let call = pb::LinkCall { id: 1, body }.encode_to_vec();
        assert_eq!(call, *b"\x08\x01\x5a\x04\x08\x00\x10\x07");
        let body = Some(link_reply::Body::Figures(put_page(sample())));
        let reply = pb::LinkReply { id: 1, body }.encode_to_vec();
        let stats = b"\x08\xd0\x0f\x12\x09\x08\xe8\x07\x12\x04\x03\x00\xac\x02\x18\x07";
        let codes = b"\x22\x07\x12\x05\x08\xae\x1f\x10\x02\x28\x01";
        let flows = b"\x32\x0b\x08\xe8\x07\x12\x06\x0a\x02n1\x18\x05";
        let parts = [&b"\x08\x01\x5a\x28"[..], stats, codes, flows].concat();
        assert_eq!(reply, parts);
    }

    #[test]
    fn page_round_trips_and_a_larger_one_is_malformed() {
        assert_eq!(page(put_page(sample())), Ok(sample()));
        let spoil = |change: fn(&mut pb::LinkFigures)| {
            let mut sent = put_page(sample());
            change(&mut sent);
            page(sent)
        };
        let broken: [fn(&mut pb::LinkFigures); 9] = [
            |sent| sent.stats = vec![pb::LinkStatsRow::default(); STATS_ROWS_MAX + 1],
            |sent| sent.codes = vec![pb::LinkCodesRow::default(); CODES_ROWS_MAX + 1],
            |sent| sent.flows = vec![pb::LinkFlowsRow::default(); FLOWS_ROWS_MAX + 1],
            |sent| sent.stats[0].values = vec![0; VALUES_MAX + 1],
            |sent| sent.codes[0].counts = vec![pb::LinkCodeCount::default(); CODES_PER_ROW_MAX + 1],
            |sent| sent.flows[0].flows = vec![pb::LinkFlow::default(); FLOWS_PER_ROW_MAX + 1],
            |sent| {
                let again = pb::LinkFlowsRow { at_ms: sent.flows[0].at_ms + 1, flows: Vec::new() };
                sent.flows.push(again);
            },
            |sent| sent.flows[0].flows[0].from = "\"<script>".to_owned(),
            |sent| sent.flows[0].flows[0].to = "n".repeat(65),
        ];
        for (nth, change) in broken.into_iter().enumerate() {
            assert!(spoil(change).is_err(), "{nth}");
        }
        let cut = spoil(|sent| sent.stats[0].values[0] = u64::MAX).unwrap();
        assert_eq!(cut.stats[0].values[0], NUMBER_MAX);
    }
}
