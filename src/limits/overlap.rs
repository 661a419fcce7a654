//! Report on rules that count the same requests: which one refuses first.

use super::{
    kinds::LimitLevel,
    rule::{LimitRule, LimitScope},
};

/// Returns a line for each pair of rules in which one makes the other superfluous, and for each narrow rule whose subjects
/// together reach the limit of a rule of the node.
pub(super) fn report(rules: &[&LimitRule]) -> Vec<String> {
    let mut lines = Vec::new();
    for narrow in rules.iter().copied() {
        for wide in rules.iter().copied().filter(|wide| wide.id != narrow.id && counts_all_of(wide, narrow)) {
            if hides(wide, narrow) {
                lines.push(format!(
                    "rule `{}` never refuses anything: `{}` admits {} in {} ms",
                    narrow.id,
                    wide.id,
                    wide.limit.count(),
                    wide.limit.window().as_millis()
                ));
            } else if wide.level == LimitLevel::Node && narrow.level != LimitLevel::Node {
                lines.push(first(wide, narrow));
            }
        }
    }
    lines
}

/// Returns whether each request that `narrow` counts for one subject is one that `wide` counts for one subject, too.
fn counts_all_of(wide: &LimitRule, narrow: &LimitRule) -> bool {
    // A window of one node does not have the requests of others.
    let is_wide = wide.scope == narrow.scope || wide.scope == LimitScope::Cluster;
    // Only rules of addresses have different prefixes; a shorter one has larger subjects.
    let is_shorter = wide.level != narrow.level || wide.prefix <= narrow.prefix;
    is_wide
        && is_shorter
        && wide.level.contains(narrow.level)
        && wide.calls.has_all(narrow.calls)
        && wide.except.is_empty()
        && !wide.is_dry_run
}

/// Returns whether `wide` refuses whatever `narrow` would refuse. Of two that are the same, the later one is superfluous.
fn hides(wide: &LimitRule, narrow: &LimitRule) -> bool {
    let (of_wide, of_narrow) = (wide.limit, narrow.limit);
    let is_same = (wide.level, wide.prefix) == (narrow.level, narrow.prefix) && of_wide == of_narrow;
    of_wide.count() <= of_narrow.count()
        && of_wide.window() >= of_narrow.window()
        && (!is_same || wide.id < narrow.id)
}

/// Returns from how many subjects on the rule of the node refuses first.
fn first(wide: &LimitRule, narrow: &LimitRule) -> String {
    let rate = |rule: &LimitRule| f64::from(rule.limit.count()) / rule.limit.window().as_secs_f64();
    let subjects = (rate(wide) / rate(narrow)).floor() as u64 + 1;
    format!(
        "rule `{}` refuses first once {subjects} subjects use all of `{}` at the same time",
        wide.id, narrow.id
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::RuleSet;

    fn overlaps(rules: &[(&str, &str, &str, u32)]) -> Vec<String> {
        let text: String = rules
            .iter()
            .map(|(id, level, window, limit)| {
                format!(
                    "[[rule]]\nid = \"{id}\"\nlevel = \"{level}\"\ncalls = [\"send\"]\nwindow = \"{window}\"\nlimit = {limit}\n"
                )
            })
            .collect();
        RuleSet::parse(&text, Duration::from_secs(1)).unwrap().overlaps()
    }

    #[test]
    fn rule_of_the_node_below_the_sum_of_others_is_reported() {
        let found = overlaps(&[("node-1s", "node", "1s", 1_000), ("user-1s", "user", "1s", 20)]);
        assert_eq!(
            found,
            ["rule `node-1s` refuses first once 51 subjects use all of `user-1s` at the same time"]
        );
    }

    #[test]
    fn superfluous_rules_are_reported() {
        let found = overlaps(&[("wide", "user", "10s", 5), ("narrow", "device", "1s", 5)]);
        assert_eq!(found, ["rule `narrow` never refuses anything: `wide` admits 5 in 10000 ms"]);
        assert_eq!(overlaps(&[("a", "user", "1s", 5), ("b", "user", "1s", 5)]).len(), 1);
        assert!(overlaps(&[("a", "user", "1s", 5), ("b", "user", "10s", 20)]).is_empty());
        assert!(overlaps(&[("a", "org", "1s", 5), ("b", "user", "1s", 20)]).is_empty(), "tokens may differ");
    }

    #[test]
    fn longer_prefix_is_superfluous_if_the_limits_are_equal() {
        let found = |first: u8, second: u8| {
            let rule = |id: &str, prefix: u8| {
                format!(
                    "[[rule]]\nid = \"{id}\"\nlevel = \"address\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 5\nprefix = {prefix}\n"
                )
            };
            let text = rule("a", first) + &rule("b", second);
            RuleSet::parse(&text, Duration::from_secs(1)).unwrap().overlaps()
        };
        let superfluous = |narrow: &str, wide: &str| {
            vec![format!("rule `{narrow}` never refuses anything: `{wide}` admits 5 in 1000 ms")]
        };
        assert_eq!(found(56, 64), superfluous("b", "a"));
        assert_eq!(found(64, 56), superfluous("a", "b"));
        assert_eq!(found(64, 64), superfluous("b", "a"));
    }
}
