//! Time: the wall clock of this machine, monotonic clocks, and the time of a shard's turn.

use std::time::{Instant, SystemTime};

use tidegate_protocol::Time;
use time::{Date, Month, OffsetDateTime};

/// Time of one turn, read once by the driver of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time since the start of the node, for deadlines.
    pub at: Time,
    /// Wall clock in ms since 1970, for display, times of messages, ages of entries and the expiry of tokens.
    pub wall_ms: u64,
}

/// Monotonic clock, which tests set.
pub(crate) type Clock = Box<dyn Fn() -> Time + Send + Sync>;

/// Returns a clock whose times are those since `start`.
pub(crate) fn clock_since(start: Instant) -> Clock {
    Box::new(move || time_since(start))
}

/// Returns the time since `start`, by the clock of the runtime, which a simulation sets.
pub(crate) fn time_since(start: Instant) -> Time {
    let elapsed = tokio::time::Instant::from_std(start).elapsed();
    Time::from_millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the wall clock in ms since 1970, which may jump; never for deadlines.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Formats a time in ms since 1970 by RFC 3339, in UTC.
pub(crate) fn rfc3339(ms: u64) -> String {
    let at =
        i64::try_from(ms / 1_000).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    // A clock set beyond the year 9999 gives the epoch.
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, (hour, minute, second)) = (at.date(), at.to_hms());
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
}

/// Parses a time that [`rfc3339`] has formatted, in ms since 1970; `None` if it has another form.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to).and_then(|digits| digits.parse::<u16>().ok());
    let small = |from: usize| number(from, from + 2).and_then(|number| u8::try_from(number).ok());
    let month = Month::try_from(small(5)?).ok()?;
    let date = Date::from_calendar_date(number(0, 4)?.into(), month, small(8)?).ok()?;
    let at = date.with_hms_milli(small(11)?, small(14)?, small(17)?, number(20, 23)?).ok()?;
    u64::try_from(at.assume_utc().unix_timestamp_nanos() / 1_000_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_calendar_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_763_712_000_123), "2025-11-21T08:00:00.123Z");
        assert_eq!(rfc3339(4_102_444_799_999), "2099-12-31T23:59:59.999Z");
        for ms in [0, 951_782_400_000, 1_763_712_000_123, 4_102_444_799_999] {
            assert_eq!(parse_rfc3339(&rfc3339(ms)), Some(ms));
        }
        assert_eq!(["", "2025-11-21", "2025-13-21T08:00:00.123Z"].map(parse_rfc3339), [None; 3]);
    }
}
