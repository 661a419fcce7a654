//! The report that nextest writes: the tests that ran, the time of each, and those that failed.

use super::Cases;

/// The number of slowest tests that are kept.
const SLOWEST: usize = 20;

/// Reads `<testcase name="…" classname="…" time="…">` with its content. The format is that of one program, whose
/// version is pinned, so its attributes are found without a parser of XML.
pub(crate) fn read(text: &str) -> Cases {
    let mut cases = Cases::default();
    for piece in text.split("<testcase ").skip(1) {
        let (head, rest) = piece.split_once('>').unwrap_or((piece, ""));
        let name = format!("{} {}", attribute(head, "classname"), attribute(head, "name"));
        let seconds = attribute(head, "time").parse().unwrap_or(0.0);
        let own = rest.split("</testcase>").next().unwrap_or_default();
        let is_empty = head.ends_with('/');
        let has_failed = !is_empty && (own.contains("<failure") || own.contains("<error"));
        if has_failed {
            cases.failed.push(name.clone())
        } else {
            cases.passed += 1
        }
        cases.slowest.push((name, seconds));
    }
    cases.slowest.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    cases.slowest.truncate(SLOWEST);
    cases
}

/// The value of an attribute; empty if it isn't there.
fn attribute(head: &str, name: &str) -> String {
    // `name="` is also the end of `classname="`.
    let found =
        head.match_indices(&format!("{name}=\"")).find(|(at, _)| *at == 0 || head[..*at].ends_with(' '));
    let value = found.and_then(|(at, key)| head[at + key.len()..].split('"').next()).unwrap_or_default();
    value.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_failures_are_read() {
        let text = r#"<testsuite name="tidegate::stories" tests="3">
            <testcase name="a::b" classname="tidegate::stories" timestamp="x" time="0.5"/>
            <testcase name="c" classname="tidegate::stories" time="2.25">
              <failure message="no &lt;failure&gt;" type="test failure">why</failure></testcase>
            <testcase name="d" classname="tidegate::stories" time="1.0"><system-out>&lt;failure</system-out></testcase>"#;
        let cases = read(text);
        assert_eq!(cases.passed, 2);
        assert_eq!(cases.failed, ["tidegate::stories c"]);
        let slowest: Vec<&str> = cases.slowest.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(slowest, ["tidegate::stories c", "tidegate::stories d", "tidegate::stories a::b"]);
        assert_eq!(cases.slowest[0].1, 2.25);
    }
}
