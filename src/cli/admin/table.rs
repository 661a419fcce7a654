//! Tables of values from a node, without characters that would act on a terminal.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns the items of a list in a response; none if there is no such list.
pub(in crate::cli) fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Renders a JSON value for a table: a string without quotes, and nothing for null.
pub(in crate::cli) fn cell(value: &Value) -> String {
    if value.is_null() {
        String::new()
    } else {
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    }
}

/// Returns a text on one line, with control characters as escapes: what users wrote must not act on a terminal.
pub(in crate::cli) fn printable(text: &str) -> String {
    let is_plain = |c: char| {
        !c.is_control()
            && !('\u{200e}'..='\u{200f}').contains(&c)
            && !('\u{202a}'..='\u{202e}').contains(&c)
            && !('\u{2066}'..='\u{2069}').contains(&c)
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) { shown.push(c) } else { shown.extend(c.escape_default()) }
    }
    shown
}

/// Renders columns as wide as their widest cell; an empty cell becomes a dash.
pub(in crate::cli) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let shown = |cell: &String| if cell.is_empty() { "-".to_owned() } else { printable(cell) };
    let width = |column: usize| rows.iter().map(|row| shown(&row[column]).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String can't fail.
            write!(line, "{:<width$}  ", shown(cell)).ok();
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_cells_and_shows_empty_ones_as_dashes() {
        let rows = [["NODE", "OWNS", "PEER"], ["n1", "", "x"], ["longer", "0-2", ""]];
        let rows = rows.map(|row| row.map(String::from));
        assert_eq!(table(&rows), "NODE    OWNS  PEER\nn1      -     x\nlonger  0-2   -\n");
    }

    #[test]
    fn texts_of_users_cannot_act_on_a_terminal() {
        assert_eq!(printable("a\u{1b}[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(printable("abc\u{202e}def"), "abc\\u{202e}def");
        assert_eq!(printable("Grüße 你好 👋"), "Grüße 你好 👋");
        let rows = [["A"], ["x\u{7}"]].map(|row| row.map(String::from));
        assert_eq!(table(&rows), "A\nx\\u{7}\n");
    }
}
