//! What groups and users may set, by name: typed, checked, and the same words everywhere (log, wire, admin API).
//!
//! A group's settings are ledger state and decide for everybody; a user's are wishes for the user's own view.

use std::{collections::BTreeMap, time::Duration};

use crate::pb;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident $word:literal)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word for it.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The one with that word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.word() == word)
            }

            /// All words, for people.
            pub fn words() -> String {
                Self::ALL.iter().map(|it| it.word()).collect::<Vec<_>>().join(", ")
            }
        }
    };
}

words! {
    /// How long messages are kept, or shown.
    Retention {
        /// Not longer than needed.
        None "none"
        /// A day.
        OneDay "1d"
        /// Seven days.
        SevenDays "7d"
        /// Thirty days.
        ThirtyDays "30d"
        /// As long as there is anything.
        #[default]
        Forever "forever"
    }
}

words! {
    /// What a user who comes into a group sees of what was said before.
    History {
        /// Nothing: the user's view begins with the join.
        #[default]
        Join "join"
        /// Everything that there is.
        All "all"
    }
}

words! {
    /// Who may talk in a group.
    Post {
        /// Every member.
        #[default]
        All "all"
        /// Admins and owners.
        Admins "admins"
    }
}

words! {
    /// What counts as unread for a user.
    Unread {
        /// The messages of others, everywhere.
        #[default]
        All "all"
        /// The messages of others in direct conversations; groups tell 0.
        Direct "direct"
        /// Nothing: all conversations tell 0.
        None "none"
    }
}

words! {
    /// Whether a user's messages may be put into a search index.
    Search {
        /// They may.
        #[default]
        On "on"
        /// They may not.
        Off "off"
    }
}

impl Retention {
    /// The longest age; none for the two ends, which know no age.
    pub const fn age(self) -> Option<Duration> {
        const DAY: u64 = 24 * 60 * 60;
        match self {
            Self::None | Self::Forever => None,
            Self::OneDay => Some(Duration::from_secs(DAY)),
            Self::SevenDays => Some(Duration::from_secs(7 * DAY)),
            Self::ThirtyDays => Some(Duration::from_secs(30 * DAY)),
        }
    }
}

/// The names of a group's settings.
pub const GROUP_SETTINGS: [&str; 3] = [HISTORY, RETENTION, POST];

const HISTORY: &str = "history";
const RETENTION: &str = "retention";
const POST: &str = "post";

/// The settings of a group that mean something to the broker, as its [head](crate::machine::ledger::Head) has them.
/// Absent is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSettings {
    /// What newcomers see; counts at the join.
    pub history: History,
    /// How long messages are kept.
    pub retention: Retention,
    /// Who may talk.
    pub post: Post,
}

/// A setting that has no such value, or is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: one of {words}")]
pub struct SettingError {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub words: String,
}

impl GroupSettings {
    /// What the settings say; a value that [`Self::check`] would not let in counts as absent.
    pub fn of(settings: &BTreeMap<String, String>) -> Self {
        let word = |name: &str| settings.get(name).map_or("", String::as_str);
        Self {
            history: History::from_word(word(HISTORY)).unwrap_or_default(),
            retention: Retention::from_word(word(RETENTION)).unwrap_or_default(),
            post: Post::from_word(word(POST)).unwrap_or_default(),
        }
    }

    /// Whether a change of settings has values that mean something; an empty one removes. Other names are not looked at.
    ///
    /// # Errors
    /// The first setting that has not.
    pub fn check(change: &BTreeMap<String, String>) -> Result<(), SettingError> {
        for (name, value) in change.iter().filter(|(_, value)| !value.is_empty()) {
            let (name, known, words) = match name.as_str() {
                HISTORY => (HISTORY, History::from_word(value).is_some(), History::words()),
                RETENTION => (RETENTION, Retention::from_word(value).is_some(), Retention::words()),
                POST => (POST, Post::from_word(value).is_some(), Post::words()),
                _ => continue,
            };
            if !known {
                return Err(SettingError { name, words });
            }
        }
        Ok(())
    }
}

/// What a user wishes, on all devices. A part that was never said is none, or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSettings {
    /// How long to wait for a delivery ack, in ms.
    pub ack_timeout_ms: u32,
    /// How often to send again.
    pub ack_tries: u32,
    /// The heartbeat, in ms.
    pub heartbeat_ms: u32,
    /// What counts as unread.
    pub unread: Option<Unread>,
    /// How long entries are shown to the user.
    pub retention: Option<Retention>,
    /// Whether the user's messages may be searched.
    pub search: Option<Search>,
}

/// How a user looks at conversations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Viewing {
    /// What counts as unread.
    pub unread: Unread,
    /// How long entries are shown.
    pub retention: Retention,
}

impl UserSettings {
    /// What a Hello says.
    ///
    /// # Errors
    /// The first setting that has no such value.
    pub fn of(said: &pb::Settings) -> Result<Self, SettingError> {
        fn one<T>(
            name: &'static str,
            word: &str,
            of: fn(&str) -> Option<T>,
            words: fn() -> String,
        ) -> Result<Option<T>, SettingError> {
            match word {
                "" => Ok(None),
                word => of(word).map(Some).ok_or_else(|| SettingError { name, words: words() }),
            }
        }
        Ok(Self {
            ack_timeout_ms: said.ack_timeout_ms,
            ack_tries: said.ack_tries,
            heartbeat_ms: said.heartbeat_ms,
            unread: one("unread", &said.unread, Unread::from_word, Unread::words)?,
            retention: one(RETENTION, &said.retention, Retention::from_word, Retention::words)?,
            search: one("search", &said.search, Search::from_word, Search::words)?,
        })
    }

    /// What is said now counts, the rest is as it was `before`.
    #[must_use]
    pub fn over(self, before: Self) -> Self {
        let number = |now: u32, before: u32| if now == 0 { before } else { now };
        Self {
            ack_timeout_ms: number(self.ack_timeout_ms, before.ack_timeout_ms),
            ack_tries: number(self.ack_tries, before.ack_tries),
            heartbeat_ms: number(self.heartbeat_ms, before.heartbeat_ms),
            unread: self.unread.or(before.unread),
            retention: self.retention.or(before.retention),
            search: self.search.or(before.search),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_word_means_what_it_says() {
        for it in Retention::ALL {
            assert_eq!(Retention::from_word(it.word()), Some(*it));
        }
        assert_eq!(Retention::words(), "none, 1d, 7d, 30d, forever");
        assert_eq!(Retention::from_word("2d"), None);
        assert_eq!(Retention::SevenDays.age(), Some(Duration::from_secs(604_800)));
    }

    #[test]
    fn a_group_has_defaults_and_takes_no_nonsense() {
        assert_eq!(GroupSettings::of(&map(&[("title", "Tea")])), GroupSettings::default());
        let set = map(&[("history", "all"), ("retention", "1d"), ("post", "admins")]);
        let all = GroupSettings { history: History::All, retention: Retention::OneDay, post: Post::Admins };
        assert_eq!(GroupSettings::of(&set), all);
        assert_eq!(GroupSettings::check(&set), Ok(()));
        assert_eq!(GroupSettings::check(&map(&[("history", ""), ("title", "x")])), Ok(()));
        let error = GroupSettings::check(&map(&[("retention", "2d")])).unwrap_err();
        assert_eq!(error.to_string(), "retention: one of none, 1d, 7d, 30d, forever");
    }

    #[test]
    fn wishes_are_kept_one_by_one() {
        let said = |unread: &str, retention: &str, heartbeat_ms| pb::Settings {
            unread: unread.to_owned(),
            retention: retention.to_owned(),
            heartbeat_ms,
            ..pb::Settings::default()
        };
        let before = UserSettings::of(&said("none", "1d", 9_000)).unwrap();
        let now = UserSettings::of(&said("", "forever", 0)).unwrap().over(before);
        assert_eq!(
            (now.unread, now.retention, now.heartbeat_ms),
            (Some(Unread::None), Some(Retention::Forever), 9_000)
        );
        assert_eq!(UserSettings::default().over(now), now);
        let error = UserSettings::of(&said("some", "", 0)).unwrap_err();
        assert_eq!(error.to_string(), "unread: one of all, direct, none");
    }
}
