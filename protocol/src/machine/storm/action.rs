//! Actions about a storm, as operators write them.

use std::{fmt, time::Duration};

/// Shortest and longest interval between two messages of a user in slow mode.
pub const SLOW_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// See [`SLOW_INTERVAL_MIN`].
pub const SLOW_INTERVAL_MAX: Duration = Duration::from_secs(600);

/// Restriction of a group while it has a storm, in addition to the report of the storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormAction {
    /// One message per user and interval; admins and owners are exempt.
    Slow(Duration),
    /// Only admins and owners may post.
    Admins,
}

impl StormAction {
    /// Parses a list of actions: `alert`, which is always done, and at most one of `slow:<interval>` and `admins`.
    ///
    /// # Errors
    /// The cure, in words.
    pub fn parse_list<'a>(actions: impl IntoIterator<Item = &'a str>) -> Result<Option<Self>, &'static str> {
        let mut found = None;
        for text in actions {
            let action = match text {
                "alert" => continue,
                _ => Self::parse(text).ok_or("use alert, slow:<interval> from 100ms to 10m, or admins")?,
            };
            if found.replace(action).is_some() {
                return Err("use one of slow:<interval> and admins");
            }
        }
        Ok(found)
    }

    /// Parses `slow:<interval>`, with an interval such as `500ms`, `5s` or `1m`, or `admins`; `None` for another text.
    pub fn parse(text: &str) -> Option<Self> {
        let Some(interval) = text.strip_prefix("slow:") else {
            return (text == "admins").then_some(Self::Admins);
        };
        let digits = interval.bytes().take_while(u8::is_ascii_digit).count();
        let (count, unit) = interval.split_at_checked(digits)?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            _ => return None,
        };
        let interval = Duration::from_millis(count.parse::<u64>().ok()?.checked_mul(unit_ms)?);
        (SLOW_INTERVAL_MIN..=SLOW_INTERVAL_MAX).contains(&interval).then_some(Self::Slow(interval))
    }

    /// Returns the word for the action, without its interval.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Slow(_) => "slow",
            Self::Admins => "admins",
        }
    }

    /// Returns the interval in ms; 0 if the action has none.
    pub fn interval_ms(self) -> u64 {
        match self {
            Self::Slow(interval) => u64::try_from(interval.as_millis()).unwrap_or(u64::MAX),
            Self::Admins => 0,
        }
    }
}

impl fmt::Display for StormAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow(_) => write!(f, "slow:{}ms", self.interval_ms()),
            Self::Admins => f.write_str("admins"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_restriction_is_read_from_a_list() {
        let slow = |ms| Ok(Some(StormAction::Slow(Duration::from_millis(ms))));
        assert_eq!(StormAction::parse_list([]), Ok(None));
        assert_eq!(StormAction::parse_list(["alert"]), Ok(None));
        assert_eq!(StormAction::parse_list(["alert", "slow:5s"]), slow(5_000));
        assert_eq!(StormAction::parse_list(["slow:250ms"]), slow(250));
        assert_eq!(StormAction::parse_list(["admins", "alert"]), Ok(Some(StormAction::Admins)));
        assert!(StormAction::parse_list(["admins", "slow:5s"]).is_err());
        for wrong in [
            "",
            "slow",
            "slow:",
            "slow:5",
            "slow:s",
            "slow:99ms",
            "slow:11m",
            "slow:5h",
            "Admins",
            "slow:-1s",
        ] {
            assert!(StormAction::parse_list([wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn text_of_an_action_is_read_as_the_same_action() {
        for action in [StormAction::Admins, StormAction::Slow(Duration::from_millis(1_500))] {
            assert_eq!(StormAction::parse(&action.to_string()), Some(action));
        }
    }
}
