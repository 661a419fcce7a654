//! Reasons for which a request to the application's server has no valid answer.

/// Largest answer in bytes, unless a hook takes contents.
pub(super) const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Reason for which a hook gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HookFailure {
    /// Too many requests wait, or one has waited too long for others.
    Full,
    /// Too many requests are for one user.
    UserFull,
    /// Calls have failed lately, so none is made for a while.
    Open,
    /// No answer in time.
    Timeout,
    /// The server can't be reached, or ended the connection.
    Unreachable(String),
    /// Another status than 200; redirects are not followed.
    Status(u16),
    /// Larger than the hook takes.
    TooLarge,
    /// Not the JSON that is expected.
    BadAnswer,
}

impl HookFailure {
    /// Returns the reason in words.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Full => "too many requests wait (hooks.in_flight_max, hooks.waiting_max)".into(),
            Self::UserFull => "too many requests for one user".into(),
            Self::Open => "calls have failed lately".into(),
            Self::Timeout => "no answer in time".into(),
            Self::Unreachable(why) => why.clone(),
            Self::Status(status) => format!("status {status}"),
            Self::TooLarge => "answer too large".into(),
            Self::BadAnswer => "answer is not the expected JSON".into(),
        }
    }

    /// Returns whether the server answered, though not as expected: the request may be the cause, so that such answers
    /// don't open the breaker.
    pub(crate) const fn is_answered(&self) -> bool {
        match self {
            Self::Status(status) => *status < 500,
            Self::TooLarge | Self::BadAnswer => true,
            Self::Full | Self::UserFull | Self::Open | Self::Timeout | Self::Unreachable(_) => false,
        }
    }

    /// Returns whether the server refused the request by its status.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Status(400..=499)) && !self.is_busy()
    }

    /// Returns whether the server asked to wait, which says nothing about the request.
    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self, Self::Status(408 | 429))
    }

    /// Returns whether requests of users are the cause, which must not open what a hook protects.
    pub(crate) const fn is_full(&self) -> bool {
        matches!(self, Self::Full | Self::UserFull)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_server_count_for_the_breaker() {
        for (status, is_refusal) in
            [(204, false), (302, false), (400, true), (401, true), (408, false), (429, false), (499, true)]
        {
            assert!(HookFailure::Status(status).is_answered(), "{status}");
            assert_eq!(HookFailure::Status(status).is_refusal(), is_refusal, "{status}");
        }
        assert!(HookFailure::BadAnswer.is_answered() && HookFailure::TooLarge.is_answered());
        let (status, unreachable) = (HookFailure::Status, HookFailure::Unreachable(String::new()));
        for failure in [status(500), status(503), HookFailure::Timeout, unreachable] {
            assert!(!failure.is_answered() && !failure.is_refusal(), "{failure:?}");
        }
    }
}
