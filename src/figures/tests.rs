//! Tests of the kept figures: bounds, periods, and where a reader continues.

use tidegate_protocol::{Code, id::NodeId};

use super::{flows::SharedRows, *};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn stats(at_ms: u64) -> StatsRow {
    StatsRow { at_ms, values: vec![at_ms; 3] }
}

fn stats_from(figures: &Figures, from: u64) -> (Vec<u64>, u64) {
    let page = figures.page(FiguresQuery { stats_from: Some(from), ..FiguresQuery::default() });
    (page.stats.iter().map(|row| row.at_ms).collect(), page.stats_next)
}

/// Returns the flows of complete seconds as (time, from, to, count).
fn flows_at(flows: &Flows, now_ms: u64, after_ms: u64) -> Vec<(u64, String, String, u64)> {
    let text = |node: &Option<NodeId>| node.as_ref().map_or(String::new(), ToString::to_string);
    let (_, rows) = flows.complete_at(|| now_ms, Some(after_ms));
    let of = |row: FlowsRow| {
        row.flows
            .into_iter()
            .map(move |flow| (row.at_ms, text(&flow.from), text(&flow.to), flow.count))
            .collect::<Vec<_>>()
    };
    rows.into_iter().flat_map(of).collect()
}

/// Returns all rows of flows, complete or not.
fn rows(flows: &Flows) -> Vec<FlowsRow> {
    flows.shared_at(|| 0).1.iter().cloned().collect()
}

#[test]
fn reader_continues_at_the_next_row_and_skips_lost_ones() {
    let figures = Figures::default();
    assert_eq!(stats_from(&figures, 0), (vec![], 0));
    (0..3).for_each(|n| figures.push_stats(stats(n)));
    assert_eq!(stats_from(&figures, 0), (vec![0, 1, 2], 3));
    assert_eq!(stats_from(&figures, 3), (vec![], 3));
    // A number of another run gets everything.
    assert_eq!(stats_from(&figures, 4), (vec![0, 1, 2], 3));
    (3..STATS_ROWS_MAX as u64 + 5).for_each(|n| figures.push_stats(stats(n)));
    let (rows, next) = stats_from(&figures, 3);
    assert_eq!((rows.len(), rows[0], next), (STATS_ROWS_MAX, 5, STATS_ROWS_MAX as u64 + 5));
    assert_eq!(stats_from(&figures, next - 1), (vec![next - 1], next));
    assert!(figures.page(FiguresQuery::default()).stats.is_empty(), "only what is queried");
}

#[test]
fn page_that_is_too_large_lacks_its_oldest_rows() {
    let figures = Figures::default();
    let wide = PAGE_BYTES_MAX / 16 / 4;
    (0..9).for_each(|at_ms| figures.push_stats(StatsRow { at_ms, values: vec![1; wide] }));
    assert_eq!(stats_from(&figures, 0), (vec![6, 7, 8], 9));
}

#[test]
fn codes_are_counted_by_period() {
    let (counts, mut periods) = (CodeCounts::default(), CodePeriods::default());
    assert_eq!(periods.take(&counts, 12_345), None);
    counts.count(Code::RateLimited);
    counts.count(Code::Malformed);
    counts.count_number(4_014);
    counts.count(Code::Bye);
    [0, 999, 5_000, u32::MAX].iter().for_each(|number| counts.count_number(*number));
    assert_eq!(periods.take(&counts, 19_999), None);
    let row = CodesRow { at_ms: 20_000, counts: vec![(1_000, 1), (4_014, 2)] };
    assert_eq!(periods.take(&counts, 20_010), Some(row));
    assert_eq!(periods.take(&counts, 30_000), None, "a period without a code has no row");
    Code::ALL.iter().for_each(|code| counts.count(*code));
    let all = periods.take(&counts, 40_000).unwrap().counts;
    assert_eq!(all.len(), Code::ALL.len() - 1);
    assert!(all.iter().all(|(_, count)| *count == 1), "{all:?}");
}

#[test]
fn moves_are_summed_by_second_and_returned_once_it_is_over() {
    let (flows, [n1, n2]) = (Flows::default(), ["n1", "n2"].map(node));
    for _ in 0..3 {
        flows.count(|| 5_100, Some(&n1), Some(&n2));
    }
    flows.count(|| 5_900, None, Some(&n2));
    flows.count(|| 6_000, Some(&n2), None);
    let row = |at, from: &str, to: &str, count| (at, from.to_owned(), to.to_owned(), count);
    let first = vec![row(5_000, "n1", "n2", 3), row(5_000, "", "n2", 1)];
    assert_eq!(flows_at(&flows, 5_999, 0), []);
    assert_eq!(flows_at(&flows, 6_000, 0), first);
    assert_eq!(flows_at(&flows, 7_000, 5_000), [row(6_000, "n2", "", 1)]);
    // A clock that was set back changes no second that was returned.
    flows.count(|| 4_000, None, Some(&n2));
    assert_eq!(
        flows_at(&flows, 7_000, 0),
        [first, vec![row(6_000, "n2", "", 1), row(6_000, "", "n2", 1)]].concat()
    );
    assert_eq!(flows.complete_at(|| 9_000, None), (9_000, vec![]));
}

#[test]
fn clock_that_was_far_ahead_for_a_while_loses_only_its_own_seconds() {
    let (flows, n1) = (Flows::default(), node("n1"));
    for second in [5_000, 7_205_000, 6_000, 7_000] {
        flows.count(|| second, None, Some(&n1));
    }
    let times: Vec<u64> = flows_at(&flows, 8_000, 0).iter().map(|row| row.0).collect();
    // The jump ahead has made the row before it too old to keep.
    assert_eq!(times, [6_000, 7_000]);
}

#[test]
fn rows_of_a_reader_are_shared_and_do_not_change() {
    let (flows, me) = (Flows::default(), node("me"));
    (1..=3).for_each(|n| flows.count(|| n * 1_000, None, Some(&me)));
    let (_, before) = flows.shared_at(|| 3_000);
    let again = flows.shared_at(|| 3_000).1;
    assert!(
        before.iter().zip(again.iter()).all(|(one, other)| std::ptr::eq(one, other)),
        "nothing is copied"
    );
    drop(again);
    flows.count(|| 3_000, None, Some(&me));
    flows.count(|| 4_000, None, Some(&me));
    let counts = |rows: &SharedRows| rows.iter().map(|row| row.flows[0].count).collect::<Vec<_>>();
    assert_eq!(counts(&before), [1, 1, 1]);
    let (_, after) = flows.shared_at(|| 4_000);
    assert_eq!(counts(&after), [1, 1, 2, 1]);
    assert!(std::ptr::eq(before.iter().next().unwrap(), after.iter().next().unwrap()));
    let mut ring = RowRing::new(2);
    ring.push(1);
    let earlier = ring.clone();
    [2, 3].into_iter().for_each(|row| ring.push(row));
    assert_eq!(earlier.rows().collect::<Vec<_>>(), [&1]);
    assert_eq!(ring.rows().collect::<Vec<_>>(), [&2, &3]);
}

#[test]
fn connection_to_the_same_node_is_no_move() {
    let (flows, n1) = (Flows::default(), node("n1"));
    flows.came(Some(&n1), &n1);
    assert!(rows(&flows).is_empty());
    flows.came(Some(&node("n2")), &n1);
    flows.came(None, &n1);
    flows.left(&n1);
    assert_eq!(rows(&flows).iter().map(|row| row.flows.len()).sum::<usize>(), 3);
}

#[test]
fn kept_flows_are_bounded_in_seconds_and_names() {
    let (flows, me) = (Flows::default(), node("me"));
    for n in 0..=FLOWS_ROWS_MAX as u64 {
        flows.count(|| n * 1_000, None, Some(&me));
    }
    let now = FLOWS_KEEP_MS + 1_000;
    assert_eq!(rows(&flows).len(), FLOWS_ROWS_MAX);
    assert_eq!(flows_at(&flows, now + 10_000, 0).len(), FLOWS_ROWS_MAX - 11, "old rows are not returned");
    flows.count(|| 10 * FLOWS_KEEP_MS, None, Some(&me));
    assert_eq!(rows(&flows).len(), 1, "a row that is too old gives way");
    for n in 0..200 {
        let from = node(&format!("n{n}"));
        for _ in 0..2 {
            flows.count(|| 10 * FLOWS_KEEP_MS, Some(&from), Some(&me));
            flows.count(|| 10 * FLOWS_KEEP_MS, Some(&from), None);
        }
    }
    let found = flows_at(&flows, 10 * FLOWS_KEEP_MS + 1_000, 0);
    assert!(found.len() <= FLOWS_PER_ROW_MAX, "{}", found.len());
    assert_eq!(found.iter().map(|(.., count)| count).sum::<u64>(), 801, "each client is counted once");
    assert!(found.iter().any(|(_, from, ..)| from == "other"), "{found:?}");
}
