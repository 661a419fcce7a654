//! All rules that a node knows: those of its file, and those of the admin API, which come first.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    file::{RULES_MAX, RuleSet},
    form::KEYS_SUM_MAX,
    overlap,
    rule::{LimitRule, RuleForm, RuleSource},
};

/// Rules of a file and of the admin API.
#[derive(Default)]
pub(super) struct RuleBook {
    file: RuleSet,
    /// Rules of the admin API by id.
    stored: BTreeMap<String, StoredRule>,
}

/// Rule of the admin API as the store has it.
struct StoredRule {
    version: u64,
    /// Form as it is stored; `None` if this version can't read it.
    form: Option<RuleForm>,
    /// Rule of the form.
    ///
    /// # Errors
    /// It can't be in force on this node.
    rule: Result<LimitRule, Vec<String>>,
}

/// What becomes of a rule on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleState {
    /// The rule is in force.
    InForce,
    /// A rule of the admin API with this id is in force instead.
    Overridden,
    /// The rule can't be in force on this node, for these reasons.
    Unusable(Vec<String>),
}

/// Rule that a node knows.
#[derive(Clone, Debug)]
pub struct RuleView {
    /// Id.
    pub id: String,
    /// Place where the rule is written.
    pub source: RuleSource,
    /// As it is written; `None` if this version can't read it.
    pub form: Option<RuleForm>,
    /// Version in the store, for a rule of the admin API.
    pub version: Option<u64>,
    /// What becomes of the rule on this node.
    pub state: RuleState,
}

/// Result of a check of a rule that is not stored yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleDraft {
    /// Reasons for which it can't be in force on this node.
    pub problems: Vec<String>,
    /// Whether the reason is only that there are too many rules or subjects.
    pub is_full: bool,
    /// What is notable about it together with the rules in force: which one refuses first.
    pub overlaps: Vec<String>,
}

impl RuleBook {
    /// Replaces the rules of the file. Those of the admin API are checked again, against what the node allows now.
    pub(super) fn set_file(&mut self, file: RuleSet) {
        self.file = file;
        let wait_max = self.file.wait_max();
        for stored in self.stored.values_mut() {
            if let Some(form) = &stored.form {
                stored.rule = form.clone().rule(RuleSource::Api, wait_max);
            }
        }
    }

    /// Notes that the store has a rule, or another version of it.
    pub(super) fn put(&mut self, id: &str, version: u64, value: &[u8]) {
        let unreadable = || vec!["it can't be read; it may be of a newer version of Tidegate".to_owned()];
        let form: Option<RuleForm> = serde_json::from_slice(value).ok();
        let form = form.map(|form| RuleForm { id: Some(id.to_owned()), ..form });
        let rule = form.clone().ok_or_else(unreadable);
        let rule = rule.and_then(|form| form.rule(RuleSource::Api, self.file.wait_max()));
        self.stored.insert(id.to_owned(), StoredRule { version, form, rule });
    }

    /// Notes that the store has no such rule.
    pub(super) fn remove(&mut self, id: &str) {
        self.stored.remove(id);
    }

    /// Forgets the rules of the admin API that the store does not have any more.
    pub(super) fn retain(&mut self, ids: &BTreeSet<String>) {
        self.stored.retain(|id, _| ids.contains(id));
    }

    /// Returns the rules that are in force, and all that the node knows with what becomes of them: first those of the admin
    /// API by id, then those of the file. One for which there is no space is not in force, so the later ones are left out.
    pub(super) fn merged(&self) -> (Vec<LimitRule>, Vec<RuleView>) {
        let (mut rules, mut views): (Vec<LimitRule>, _) = (Vec::new(), Vec::new());
        for (id, stored) in &self.stored {
            let state = match &stored.rule {
                Ok(rule) => add(&mut rules, rule),
                Err(problems) => RuleState::Unusable(problems.clone()),
            };
            let form = stored.form.clone();
            let (id, version) = (id.clone(), Some(stored.version));
            views.push(RuleView { id, source: RuleSource::Api, form, version, state });
        }
        for rule in self.file.rules() {
            let state = match rules.iter().any(|other| other.id == rule.id) {
                true => RuleState::Overridden,
                false => add(&mut rules, rule),
            };
            let (id, form) = (rule.id.to_string(), Some((*rule.form).clone()));
            views.push(RuleView { id, source: RuleSource::File, form, version: None, state });
        }
        (rules, views)
    }

    /// Returns what would become of a rule if it were stored.
    pub(super) fn check(&self, id: &str, form: RuleForm) -> RuleDraft {
        let form = RuleForm { id: Some(id.to_owned()), ..form };
        let rule = match form.rule(RuleSource::Api, self.file.wait_max()) {
            Ok(rule) => rule,
            Err(problems) => return RuleDraft { problems, ..RuleDraft::default() },
        };
        let (mut rules, _) = self.merged();
        rules.retain(|other| *other.id != *id);
        match add(&mut rules, &rule) {
            RuleState::Unusable(problems) => RuleDraft { problems, is_full: true, overlaps: Vec::new() },
            _ => RuleDraft { overlaps: overlaps_of(&rules, id), ..RuleDraft::default() },
        }
    }

    /// Returns what is notable about the rules in force.
    pub(super) fn overlaps(&self) -> Vec<String> {
        let (rules, _) = self.merged();
        overlap::report(&rules.iter().collect::<Vec<_>>())
    }
}

/// Adds a rule if there is space for it.
fn add(rules: &mut Vec<LimitRule>, rule: &LimitRule) -> RuleState {
    let keys = rules.iter().map(LimitRule::weight).sum::<usize>() + rule.weight();
    if rules.len() == RULES_MAX {
        return RuleState::Unusable(vec![format!(
            "there are {RULES_MAX} rules, the most for a node; remove one"
        )]);
    }
    if keys > KEYS_SUM_MAX {
        let why =
            format!("keys_max: {keys} for all rules together; at most {KEYS_SUM_MAX}; lower those of some");
        return RuleState::Unusable(vec![why]);
    }
    rules.push(rule.clone());
    RuleState::InForce
}

/// Returns what is notable about one rule: the lines that name it.
fn overlaps_of(rules: &[LimitRule], id: &str) -> Vec<String> {
    let name = format!("`{id}`");
    let lines = overlap::report(&rules.iter().collect::<Vec<_>>());
    lines.into_iter().filter(|line| line.contains(&name)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RULE: &str = r#"{"level":"user","calls":["send"],"window":"1s","limit":7}"#;

    fn of_file(ids: &[&str]) -> RuleSet {
        let rule = |id: &&str| {
            format!(
                "[[rule]]\nid = \"{id}\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 5\nkeys_max = 1\n"
            )
        };
        RuleSet::parse(&ids.iter().map(rule).collect::<String>(), Duration::from_secs(1)).unwrap()
    }

    fn form(text: &str) -> RuleForm {
        serde_json::from_str(text).unwrap()
    }

    /// Returns the rules in force, with their limits.
    fn in_force(book: &RuleBook) -> String {
        let rules = book.merged().0;
        rules.iter().map(|it| format!("{}={}@{} ", it.id, it.limit.count(), it.source.name())).collect()
    }

    fn states(book: &RuleBook) -> Vec<(String, &'static str, bool)> {
        let views = book.merged().1;
        views.into_iter().map(|it| (it.id, it.source.name(), it.state == RuleState::InForce)).collect()
    }

    #[test]
    fn rule_of_the_api_wins_by_id_and_its_removal_brings_that_of_the_file_back() {
        let mut book = RuleBook::default();
        book.set_file(of_file(&["a", "b"]));
        assert_eq!(in_force(&book), "a=5@file b=5@file ");
        book.put("a", 1, RULE.as_bytes());
        assert_eq!(in_force(&book), "a=7@api b=5@file ");
        assert_eq!(
            states(&book),
            [("a".into(), "api", true), ("a".into(), "file", false), ("b".into(), "file", true)]
        );
        book.set_file(of_file(&["b"]));
        assert_eq!(in_force(&book), "a=7@api b=5@file ");
        book.set_file(of_file(&["a", "b"]));
        book.put("c", 2, RULE.as_bytes());
        book.retain(&BTreeSet::from(["c".to_owned()]));
        assert_eq!(in_force(&book), "c=7@api a=5@file b=5@file ");
        book.remove("c");
        assert_eq!(in_force(&book), "a=5@file b=5@file ");
    }

    #[test]
    fn stored_rule_that_can_not_be_used_leaves_that_of_the_file_in_force() {
        let mut book = RuleBook::default();
        book.set_file(of_file(&["a"]));
        for wrong in
            ["{", r#"{"level":"planet"}"#, &RULE.replace("7", "0"), &RULE.replace("}", r#","new":1}"#)]
        {
            book.put("a", 1, wrong.as_bytes());
            assert_eq!(in_force(&book), "a=5@file ", "{wrong}");
            assert!(matches!(&book.merged().1[0].state, RuleState::Unusable(why) if !why.is_empty()));
        }
        // A wait that this node allows only after a reload.
        let delay = RULE.replace("}", r#","action":"delay","max_wait":"2s"}"#);
        book.put("a", 2, delay.as_bytes());
        assert_eq!(in_force(&book), "a=5@file ");
        book.set_file(RuleSet::parse("", Duration::from_secs(2)).unwrap());
        assert_eq!(in_force(&book), "a=7@api ");
    }

    #[test]
    fn rules_have_a_bound_that_those_of_the_api_reach_first() {
        let mut book = RuleBook::default();
        let names: Vec<String> = (0..RULES_MAX).map(|n| format!("f{n}")).collect();
        book.set_file(of_file(&names.iter().map(String::as_str).collect::<Vec<_>>()));
        let draft = book.check("a", form(RULE));
        assert!(draft.is_full && draft.problems[0].contains("64 rules"), "{draft:?}");
        assert!(book.check("f1", form(RULE)).problems.is_empty(), "it replaces one");
        let small = RULE.replace("}", r#","keys_max":1}"#);
        book.put("a", 1, small.as_bytes());
        let (rules, views) = book.merged();
        assert_eq!((rules.len(), &*rules[0].id), (RULES_MAX, "a"));
        assert!(matches!(views.last().unwrap().state, RuleState::Unusable(_)));
        let mut book = RuleBook::default();
        let large = format!(r#","keys_max":{KEYS_SUM_MAX}}}"#);
        book.put("a", 1, RULE.replace("}", &large).as_bytes());
        assert!(book.check("b", form(RULE)).problems[0].starts_with("keys_max: "));
    }

    #[test]
    fn check_names_which_rule_refuses_first_and_keeps_nothing() {
        let mut book = RuleBook::default();
        book.put("node", 1, RULE.replace("user", "node").as_bytes());
        book.put("other", 1, RULE.replace("7", "2").replace("user", "org").as_bytes());
        let draft = book.check("mine", form(&RULE.replace("7", "3")));
        assert_eq!(
            draft.overlaps,
            ["rule `node` refuses first once 3 subjects use all of `mine` at the same time"]
        );
        assert!(book.check("a b", form(RULE)).problems[0].starts_with("id: "));
        assert_eq!(states(&book).len(), 2);
    }
}
