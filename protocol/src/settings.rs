//! Settings of groups and users: typed, validated, with the same words in the log, on the wire and in the admin API.
//!
//! A group's settings are ledger state and apply to all members; a user's settings affect only the user's own view
//! (ADR 7).

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
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the word for this value.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// Returns the value with this word, `None` if there is none.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.word() == word)
            }

            /// Returns the value of a setting with this name; `None` if the word is empty.
            ///
            /// # Errors
            /// No value has the word.
            pub fn of_setting(name: &'static str, word: &str) -> Result<Option<Self>, SettingError> {
                match word {
                    "" => Ok(None),
                    word => {
                        let unknown = || SettingError { name, words: Self::words() };
                        Self::from_word(word).map(Some).ok_or_else(unknown)
                    }
                }
            }

            /// Lists all words, for error texts.
            pub fn words() -> String {
                Self::ALL.iter().map(|it| it.word()).collect::<Vec<_>>().join(", ")
            }
        }
    };
}

words! {
    /// Retention time of messages: how long a group keeps them, or how long a user sees them.
    Retention {
        /// No longer than needed.
        None "none"
        /// One day.
        OneDay "1d"
        /// Seven days.
        SevenDays "7d"
        /// Thirty days.
        ThirtyDays "30d"
        /// Without limit.
        #[default]
        Forever "forever"
    }
}

words! {
    /// History that a new member of a group sees.
    History {
        /// Nothing before the join.
        #[default]
        Join "join"
        /// All messages that are still kept.
        All "all"
    }
}

words! {
    /// Members who may post in a group.
    Post {
        /// Every member.
        #[default]
        All "all"
        /// Admins and owners.
        Admins "admins"
    }
}

words! {
    /// Messages of a conversation that make notices for push providers.
    Push {
        /// All messages.
        #[default]
        All "all"
        /// Messages that mention the user.
        Mentions "mentions"
        /// None.
        None "none"
    }
}

words! {
    /// Conversations that count unread messages for a user.
    Unread {
        /// All conversations; only other users' messages count.
        #[default]
        All "all"
        /// Direct conversations; groups report 0.
        Direct "direct"
        /// None; all conversations report 0.
        None "none"
    }
}

words! {
    /// Permission to put a user's messages into a search index.
    Search {
        /// Allowed.
        #[default]
        On "on"
        /// Not allowed.
        Off "off"
    }
}

words! {
    /// Permission to show others that a user is online.
    Visibility {
        /// Allowed.
        #[default]
        On "on"
        /// Not allowed.
        Off "off"
    }
}

impl Retention {
    /// Returns the maximum age of a message, `None` for [`Self::None`] and [`Self::Forever`].
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

/// Names of the group settings that the broker interprets.
pub const GROUP_SETTINGS: [&str; 4] = [HISTORY, RETENTION, POST, PUSH];

const HISTORY: &str = "history";
const RETENTION: &str = "retention";

/// Name of the group setting for the members who may post.
pub const POST: &str = "post";

/// Name of the group setting for notices of push providers. The ledger does not know it; [`Push::check`] is for callers.
pub const PUSH: &str = "push";

/// Name of the group setting in which the broker keeps the value of [`POST`] from before a storm, with the seq of the
/// storm, as `<value>@<seq>`. Clients and callers can't set it.
pub const STORM_POST: &str = "storm.post";

/// Group settings that the broker interprets, from the group's [head](crate::machine::ledger::Head). An absent setting
/// has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSettings {
    /// History for new members; the value at the join applies.
    pub history: History,
    /// Retention time of messages.
    pub retention: Retention,
    /// Members who may post.
    pub post: Post,
}

/// Error for an invalid value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: one of {words}")]
pub struct SettingError {
    /// Name of the setting.
    pub name: &'static str,
    /// Valid values.
    pub words: String,
}

impl GroupSettings {
    /// Reads the settings; a value that [`Self::check`] refuses counts as absent.
    pub fn of(settings: &BTreeMap<String, String>) -> Self {
        let word = |name: &str| settings.get(name).map_or("", String::as_str);
        Self {
            history: History::from_word(word(HISTORY)).unwrap_or_default(),
            retention: Retention::from_word(word(RETENTION)).unwrap_or_default(),
            post: Post::from_word(word(POST)).unwrap_or_default(),
        }
    }

    /// Checks the values of a settings change. An empty value removes a setting; unknown names are not checked.
    ///
    /// # Errors
    /// The first setting with an invalid value.
    pub fn check(change: &BTreeMap<String, String>) -> Result<(), SettingError> {
        change.iter().try_for_each(|(name, value)| match name.as_str() {
            HISTORY => History::of_setting(HISTORY, value).map(drop),
            RETENTION => Retention::of_setting(RETENTION, value).map(drop),
            POST => Post::of_setting(POST, value).map(drop),
            _ => Ok(()),
        })
    }
}

impl Push {
    /// Reads the setting of a group, `None` if it has none; a value that [`Self::check`] refuses counts as absent.
    pub fn of_group(settings: &BTreeMap<String, String>) -> Option<Self> {
        settings.get(PUSH).and_then(|word| Self::from_word(word))
    }

    /// Checks the value of a settings change. An empty value removes the setting.
    ///
    /// # Errors
    /// The value is invalid.
    pub fn check(change: &BTreeMap<String, String>) -> Result<(), SettingError> {
        change.get(PUSH).map_or(Ok(()), |word| Self::of_setting(PUSH, word).map(drop))
    }

    /// Returns whether a message makes a notice, which mentions the user or not.
    pub const fn wants(self, is_mentioned: bool) -> bool {
        match self {
            Self::All => true,
            Self::Mentions => is_mentioned,
            Self::None => false,
        }
    }
}

/// Persisted preferences of a user, shared by all devices. A setting that was never set is `None` or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSettings {
    /// Time to wait for the client's ack of a push, in ms.
    pub ack_timeout_ms: u32,
    /// Number of times a push is resent.
    pub ack_tries: u32,
    /// Heartbeat interval, in ms.
    pub heartbeat_ms: u32,
    /// Conversations that count unread messages.
    pub unread: Option<Unread>,
    /// Retention time of entries in the user's view.
    pub retention: Option<Retention>,
    /// Permission to index the user's messages for search.
    pub search: Option<Search>,
    /// Messages that make notices for push providers. The admin API sets it, no client.
    pub push: Option<Push>,
    /// Permission to show others that the user is online.
    pub presence: Option<Visibility>,
}

/// Settings that affect how a user sees conversations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Viewing {
    /// Conversations that count unread messages.
    pub unread: Unread,
    /// Retention time of entries in the user's view.
    pub retention: Retention,
}

impl UserSettings {
    /// Reads the settings of a Hello.
    ///
    /// # Errors
    /// The first setting with an invalid value.
    pub fn of(settings: &pb::Settings) -> Result<Self, SettingError> {
        Ok(Self {
            ack_timeout_ms: settings.ack_timeout_ms,
            ack_tries: settings.ack_tries,
            heartbeat_ms: settings.heartbeat_ms,
            unread: Unread::of_setting("unread", &settings.unread)?,
            retention: Retention::of_setting(RETENTION, &settings.retention)?,
            search: Search::of_setting("search", &settings.search)?,
            push: None,
            presence: Visibility::of_setting("presence", &settings.presence)?,
        })
    }

    /// Returns whether others may see that the user is online.
    pub fn is_visible(&self) -> bool {
        self.presence.unwrap_or_default() == Visibility::On
    }

    /// Returns these settings, with those that are not set taken from `before`.
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
            push: self.push.or(before.push),
            presence: self.presence.or(before.presence),
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
    fn words_round_trip_and_unknown_words_are_refused() {
        for it in Retention::ALL {
            assert_eq!(Retention::from_word(it.word()), Some(*it));
        }
        assert_eq!(Retention::words(), "none, 1d, 7d, 30d, forever");
        assert_eq!(Retention::from_word("2d"), None);
        assert_eq!(Retention::SevenDays.age(), Some(Duration::from_secs(604_800)));
    }

    #[test]
    fn group_settings_have_defaults_and_refuse_invalid_values() {
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
    fn push_of_a_group_is_checked_apart_from_the_ledger() {
        let of = |word: &str| map(&[("push", word)]);
        assert_eq!(GroupSettings::check(&of("loud")), Ok(()), "its rules do not know the setting");
        assert_eq!(Push::check(&of("loud")).unwrap_err().to_string(), "push: one of all, mentions, none");
        assert!(Push::check(&of("")).is_ok() && Push::check(&of("none")).is_ok());
        assert_eq!((Push::of_group(&of("loud")), Push::of_group(&of("none"))), (None, Some(Push::None)));
        let wants = |push: Push| (push.wants(true), push.wants(false));
        assert_eq!(
            Push::ALL.iter().map(|it| wants(*it)).collect::<Vec<_>>(),
            [(true, true), (true, false), (false, false)]
        );
    }

    #[test]
    fn user_settings_are_merged_one_by_one() {
        let settings = |unread: &str, retention: &str, heartbeat_ms| pb::Settings {
            unread: unread.to_owned(),
            retention: retention.to_owned(),
            heartbeat_ms,
            ..pb::Settings::default()
        };
        let before = UserSettings::of(&settings("none", "1d", 9_000)).unwrap();
        let now = UserSettings::of(&settings("", "forever", 0)).unwrap().over(before);
        assert_eq!(
            (now.unread, now.retention, now.heartbeat_ms),
            (Some(Unread::None), Some(Retention::Forever), 9_000)
        );
        assert_eq!(UserSettings::default().over(now), now);
        let hidden = pb::Settings { presence: "off".to_owned(), ..pb::Settings::default() };
        let hidden = UserSettings::of(&hidden).unwrap().over(now);
        assert_eq!((hidden.is_visible(), now.is_visible()), (false, true));
        assert_eq!((hidden.unread, UserSettings::default().over(hidden)), (Some(Unread::None), hidden));
        let error = UserSettings::of(&settings("some", "", 0)).unwrap_err();
        assert_eq!(error.to_string(), "unread: one of all, direct, none");
    }
}
