//! Events of the stream, as text.

use std::fmt::Write as _;

use crate::figures::{CODES_EVERY_MS, CodesRow, StatsRow};

/// Appends the event with the rows of a node so far.
pub(super) fn put_past<'a>(
    node: &str,
    rows: impl Iterator<Item = &'a StatsRow>,
    width: usize,
    out: &mut String,
) {
    write!(out, "event: past\ndata: {{\"node\":\"{node}\",\"rows\":[").ok();
    put_list(rows, out, |row, out| put_stats(row, width, out));
    out.push_str("]}\n\n");
}

/// Appends the event with the next row of a node.
pub(super) fn put_now(node: &str, row: &StatsRow, width: usize, out: &mut String) {
    write!(out, "event: now\ndata: {{\"node\":\"{node}\",\"row\":").ok();
    put_stats(row, width, out);
    out.push_str("}\n\n");
}

/// Appends the event with rows of codes of a node.
pub(super) fn put_codes<'a>(node: &str, rows: impl Iterator<Item = &'a CodesRow>, out: &mut String) {
    write!(out, "event: codes\ndata: {{\"node\":\"{node}\",\"everyMs\":{CODES_EVERY_MS},\"rows\":[").ok();
    put_list(rows, out, |row, out| {
        write!(out, "[{},[", row.at_ms).ok();
        put_list(row.counts.iter(), out, |(code, count), out| {
            write!(out, "[{code},{count}]").ok();
        });
        out.push_str("]]");
    });
    out.push_str("]}\n\n");
}

/// Appends a row with `width` values. A peer of another version may know fewer names, or more, which come last.
fn put_stats(row: &StatsRow, width: usize, out: &mut String) {
    write!(out, "[{}", row.at_ms).ok();
    for value in row.values.iter().copied().chain(std::iter::repeat(0)).take(width) {
        write!(out, ",{value}").ok();
    }
    out.push(']');
}

fn put_list<T>(items: impl Iterator<Item = T>, out: &mut String, put: impl Fn(T, &mut String)) {
    for (nth, item) in items.enumerate() {
        if nth > 0 {
            out.push(',');
        }
        put(item, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_json_with_rows_of_one_width() {
        let rows = [StatsRow { at_ms: 1, values: vec![5] }, StatsRow { at_ms: 2, values: vec![6, 7, 8] }];
        let mut out = String::new();
        put_past("n1", rows.iter(), 2, &mut out);
        put_now("n1", &rows[1], 3, &mut out);
        put_codes("n2", [CodesRow { at_ms: 3, counts: vec![(4_014, 2), (4_017, 1)] }].iter(), &mut out);
        assert_eq!(
            out,
            "event: past\ndata: {\"node\":\"n1\",\"rows\":[[1,5,0],[2,6,7]]}\n\n\
             event: now\ndata: {\"node\":\"n1\",\"row\":[2,6,7,8]}\n\n\
             event: codes\ndata: {\"node\":\"n2\",\"everyMs\":10000,\"rows\":[[3,[[4014,2],[4017,1]]]]}\n\n"
        );
    }
}
