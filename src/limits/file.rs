//! Rules as a file has them: reads `[[rule]]` tables, and collects all problems, each with its cure.

use std::{collections::BTreeSet, path::Path, time::Duration};

use ::config::{Config, File, FileFormat};
use serde::Deserialize;
use tidegate_protocol::id::check_id;

use super::{
    form::{DELAY_MAX, KEYS_DEFAULT, KEYS_SUM_MAX},
    overlap,
    rule::{LimitRule, RuleForm, RuleSource},
};
use crate::{config::without_values, private};

/// Largest file, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Most rules of a node. Each that concerns a request costs a lock.
pub(super) const RULES_MAX: usize = 64;

/// Rules that fit together.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// Rules in the order of the file.
    rules: Vec<LimitRule>,
    /// Longest wait that a rule may allow on this node.
    wait_max: Duration,
}

impl Default for RuleSet {
    fn default() -> Self {
        Self { rules: Vec::new(), wait_max: DELAY_MAX }
    }
}

impl RuleSet {
    /// Reads the rules of a file; none if the path is empty. No wait is longer than `wait_max`.
    ///
    /// # Errors
    /// The file can't be read or has problems; the error lists all of them.
    pub fn read(file: &Path, wait_max: Duration) -> Result<Self, Vec<String>> {
        if file.as_os_str().is_empty() {
            return Ok(Self { rules: Vec::new(), wait_max });
        }
        let text = read_text(file).map_err(|why| vec![why])?;
        Self::parse(&text, wait_max)
    }

    /// Parses the text of a file with rules. No wait is longer than `wait_max`.
    ///
    /// # Errors
    /// The text has problems; the error lists all of them.
    pub fn parse(text: &str, wait_max: Duration) -> Result<Self, Vec<String>> {
        let source = File::from_str(text, FileFormat::Toml);
        let parsed = Config::builder().add_source(source).build();
        // The library quotes lines, and the file may be one with a secret, named by mistake.
        let parsed = parsed.map_err(|error| vec![without_values(&error.to_string())])?;
        let mut problems = Vec::new();
        let tables = parsed.cache.clone().into_table().unwrap_or_default();
        let mut unknown: Vec<&String> = tables.keys().filter(|key| *key != "rule").collect();
        unknown.sort();
        problems.extend(unknown.into_iter().map(|key| format!("{key}: unknown; write [[rule]] tables")));
        let raw = match parsed.get_array("rule") {
            Ok(raw) => raw,
            Err(_) if !tables.contains_key("rule") => Vec::new(),
            Err(_) => {
                problems.push("rule: write [[rule]] tables".to_owned());
                Vec::new()
            }
        };
        if raw.len() > RULES_MAX {
            problems.push(format!("{} rules; at most {RULES_MAX}", raw.len()));
        }
        let mut rules = Vec::new();
        for (at, value) in raw.into_iter().take(RULES_MAX).enumerate() {
            let id = value.clone().into_table().ok();
            let id = id.and_then(|table| table.get("id")?.clone().into_string().ok());
            let id = id.filter(|id| check_id(id).is_ok());
            let form = RuleForm::deserialize(value).map_err(|error| vec![without_values(&error.to_string())]);
            match form.and_then(|form| form.rule(RuleSource::File, wait_max)) {
                Ok(rule) => rules.push(rule),
                Err(found) => {
                    let name = id.map_or_else(|| format!("rule {}", at + 1), |id| format!("rule `{id}`"));
                    problems.extend(found.into_iter().map(|why| format!("{name}: {why}")));
                }
            }
        }
        problems.extend(sums(&rules));
        if problems.is_empty() { Ok(Self { rules, wait_max }) } else { Err(problems) }
    }

    /// Returns the rules, in the order of the file.
    pub fn rules(&self) -> &[LimitRule] {
        &self.rules
    }

    /// Returns the longest wait that a rule may allow on this node.
    pub(super) const fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// Returns what is notable about rules that count the same requests: which of them never refuses anything, and which one
    /// refuses first.
    pub fn overlaps(&self) -> Vec<String> {
        let rules: Vec<&LimitRule> = self.rules.iter().collect();
        overlap::report(&rules)
    }
}

/// Reads a file that is not too large. The error names the cure, but not the file, which the caller adds.
fn read_text(file: &Path) -> Result<String, String> {
    private::refuse_pipe(file).map_err(|error| error.to_string())?;
    let bytes = private::read_public(file).map_err(|error| error.to_string())?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("{} bytes; at most {FILE_BYTES_MAX}, so remove rules or comments", bytes.len()));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8; name a TOML file".to_owned())
}

/// Returns the problems of the rules together.
fn sums(rules: &[LimitRule]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut ids = BTreeSet::new();
    for rule in rules {
        if !ids.insert(&rule.id) {
            problems.push(format!("rule `{}`: another rule has this id", rule.id));
        }
    }
    let keys: usize = rules.iter().map(LimitRule::weight).sum();
    if keys > KEYS_SUM_MAX {
        problems.push(format!(
            "keys_max: {keys} for all rules together, with {KEYS_DEFAULT} where a rule has none; at most {KEYS_SUM_MAX}"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::{
        super::kinds::{LimitCall, LimitLevel},
        *,
    };

    const WAIT_MAX: Duration = Duration::from_millis(2_500);

    fn problems(text: &str) -> Vec<String> {
        RuleSet::parse(text, WAIT_MAX).unwrap_err()
    }

    #[test]
    fn rules_are_read_with_their_defaults() {
        let set = RuleSet::parse(
            r#"
            [[rule]]
            id = "user-1s"
            level = "user"
            calls = ["send", "recall"]
            window = "1s"
            limit = 20
            action = "delay"
            max_wait = "2s"
            except = ["robot"]
            [[rule]]
            id = "all"
            level = "node"
            calls = ["*"]
            window = "1d"
            limit = 10000
            dry_run = true
            "#,
            WAIT_MAX,
        )
        .unwrap();
        let [user, all] = set.rules() else { panic!("two rules") };
        assert_eq!(
            (user.level, user.limit.count(), user.limit.window()),
            (LimitLevel::User, 20, Duration::from_secs(1))
        );
        assert_eq!((user.max_wait, user.is_dry_run), (Some(Duration::from_secs(2)), false));
        assert!(user.except.has("robot") && !user.except.has("ann"));
        assert!(user.calls.has(LimitCall::Send) && !user.calls.has(LimitCall::Join));
        assert_eq!((all.keys_max, all.max_wait, all.is_dry_run), (1, None, true));
        assert!(RuleSet::parse("", WAIT_MAX).unwrap().rules().is_empty());
    }

    #[test]
    fn all_problems_are_listed() {
        let found = problems(
            r#"
            colour = "red"
            [[rule]]
            id = "a b"
            level = "planet"
            calls = ["fly"]
            window = "5"
            limit = 0
            [[rule]]
            id = "late"
            level = "user"
            calls = ["send"]
            window = "50ms"
            limit = 1
            action = "delay"
            max_wait = "3s"
            [[rule]]
            id = "odd"
            level = "content"
            calls = ["login"]
            window = "1s"
            limit = 1
            except = ["x"]
            speed = 3
            [[rule]]
            id = "net"
            level = "address"
            calls = []
            window = "1s"
            limit = 1
            except = ["here"]
            max_wait = "1s"
            [[rule]]
            id = "part"
            level = "user"
            calls = ["send"]
            window = "1s"
            limit = 1.5
            [[rule]]
            id = "pair"
            level = "conversation"
            calls = ["send"]
            window = "1s"
            limit = 1
            except = ["d:bob:ann"]
            "#,
        );
        for part in [
            "colour: unknown",
            "rule 1: id:",
            "rule 1: level: one of node, org",
            "rule 1: calls: `fly`",
            "rule 1: window:",
            "rule 1: limit:",
            "rule `late`: window:",
            "rule `late`: max_wait: between 1ms and 2500 ms",
            "rule `odd`: ",
            "rule `net`: calls: name at least one",
            "rule `net`: except: `here`",
            "rule `net`: max_wait: only with",
            "a whole number",
            "rule `pair`: except: `d:bob:ann` is no name",
        ] {
            assert!(found.iter().any(|it| it.contains(part)), "{part} in {found:#?}");
        }
        assert!(found.iter().any(|it| it.contains("speed")), "{found:#?}");
    }

    #[test]
    fn problems_quote_no_secret_of_a_file_that_is_none_of_rules() {
        for secret in ["whsec_hidden", "0123hidden", "password = \"hidden"] {
            let found = problems(secret);
            assert!(!found.is_empty() && found.iter().all(|it| !it.contains("hidden")), "{found:?}");
        }
    }

    #[test]
    fn rules_fit_together() {
        let rule = |id: &str, keys: usize| {
            format!(
                "[[rule]]\nid = \"{id}\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 5\nkeys_max = {keys}\n"
            )
        };
        let twice = problems(&(rule("a", 1) + &rule("a", 1)));
        assert_eq!(twice, ["rule `a`: another rule has this id"]);
        let large = problems(&(rule("a", KEYS_SUM_MAX) + &rule("b", 1)));
        assert!(large[0].starts_with("keys_max: "), "{large:?}");
        let many: String = (0..=RULES_MAX).map(|n| rule(&format!("r{n}"), 1)).collect();
        assert_eq!(problems(&many), ["65 rules; at most 64"]);
    }
}
