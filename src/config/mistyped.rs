//! Settings of a wrong type: each is found, so that they are reported together with all other problems.

use config::{Map, Value, ValueKind};
use serde::Deserialize as _;

use super::{Config, file::without_values};

/// Setting, or whole section, whose value has a wrong type.
pub(super) struct Mistyped {
    /// Key, or name of the section.
    key: String,
    /// Reason, without the value.
    reason: String,
}

impl Mistyped {
    /// Returns the problem as text.
    pub(super) fn problem(&self) -> String {
        format!("{}: {}", self.key, self.reason)
    }

    /// Returns whether another problem is about this setting. It may come of the default value that was checked in its
    /// place.
    pub(super) fn is_named_in(&self, problem: &str) -> bool {
        let is_part = |at: usize| {
            let next = problem[at + self.key.len()..].bytes().next();
            next.is_some_and(|next| next.is_ascii_alphanumeric() || next == b'_')
        };
        problem.match_indices(&self.key).any(|(at, _)| !is_part(at))
    }
}

/// Removes the settings of a wrong type, which leaves their defaults. Returns the rest and those.
pub(super) fn split_mistyped(raw: Value) -> (Value, Vec<Mistyped>) {
    // Without an error there is nothing to look for.
    if Config::deserialize(raw.clone()).is_ok() {
        return (raw, Vec::new());
    }
    let Value { kind: ValueKind::Table(sections), .. } = raw else { return (raw, Vec::new()) };
    let (mut kept, mut mistyped) = (Map::new(), Vec::new());
    let mut is_sound = |key: String, only: &Value| match Config::deserialize(only.clone()) {
        Ok(_) => true,
        Err(error) => {
            let reason = without_values(&error.to_string()).replace(&format!(" for key `{key}`"), "");
            mistyped.push(Mistyped { key, reason });
            false
        }
    };
    let mut names: Vec<&String> = sections.keys().collect();
    names.sort();
    for name in names {
        let section = &sections[name];
        let in_section = |value: Value| table([(name.clone(), value)]);
        let ValueKind::Table(settings) = &section.kind else {
            if is_sound(name.clone(), &in_section(section.clone())) {
                kept.insert(name.clone(), section.clone());
            }
            continue;
        };
        let mut keys: Vec<&String> = settings.keys().collect();
        keys.sort();
        let sound = keys.into_iter().filter(|key| {
            let alone = in_section(table([((*key).clone(), settings[*key].clone())]));
            is_sound(format!("{name}.{key}"), &alone)
        });
        let sound: Vec<(String, Value)> = sound.map(|key| (key.clone(), settings[key].clone())).collect();
        kept.insert(name.clone(), table(sound));
    }
    (table(kept), mistyped)
}

fn table(entries: impl IntoIterator<Item = (String, Value)>) -> Value {
    Value::new(None, ValueKind::Table(entries.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str, sets: &[&str]) -> Vec<String> {
        let file = std::env::temp_dir().join(format!(
            "tidegate-mistyped-{}-{:?}.toml",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&file, text).unwrap();
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let found = Config::load(Some(&file), &sets).unwrap_err().0;
        std::fs::remove_file(file).ok();
        found
    }

    #[test]
    fn wrong_types_are_reported_with_all_other_problems() {
        let found = problems(
            "[limits]\nframe_bytes_max = \"hidden\"\nin_flight_max = 0\n[redis]\nurls = \"redis://:hidden@r1\"\n\
             [listen]\nbacklog = [1]\nbacklogs = 1\n[timing]\nreply_ms = true\n",
            &["log.format=nonsense", "drain.deadline_ms=x"],
        );
        for key in [
            "limits.frame_bytes_max",
            "limits.in_flight_max",
            "redis.urls",
            "listen.backlog",
            "listen.backlogs",
            "drain.deadline_ms",
            "log.format",
        ] {
            let count = found.iter().filter(|it| it.split(": ").next() == Some(key)).count();
            assert_eq!(count, 1, "{key} in {found:?}");
        }
        assert!(!found.iter().any(|it| it.contains("hidden") || it.contains("for key")), "{found:?}");
        let wrong = found.iter().find(|it| it.starts_with("limits.frame_bytes_max")).unwrap();
        assert!(wrong.contains("expected"), "{wrong}");
    }

    #[test]
    fn default_of_a_mistyped_setting_is_no_further_problem() {
        let found = problems("[kafka]\nbrokers = 5\n[node]\nprofile = \"cluster\"\n[node.id]\nx = 1\n", &[]);
        assert!(found.iter().all(|it| !it.contains("needs kafka.brokers")), "{found:?}");
        let whole = problems("limits = 5\n[timing]\nlinger_ms = 99999\n", &[]);
        assert!(whole[0].starts_with("limits: ") && whole[1].starts_with("timing.linger_ms: "), "{whole:?}");
    }

    #[test]
    fn longer_key_is_another_one() {
        let it = Mistyped { key: "limits.conns".to_owned(), reason: String::new() };
        assert!(it.is_named_in("limits.conns: at least 1") && it.is_named_in("raise limits.conns"));
        assert!(!it.is_named_in("limits.conns_max: at least 1"));
    }
}
