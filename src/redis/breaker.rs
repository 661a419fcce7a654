//! A breaker: after some failures in a row nobody waits for a server that is away; one probe at a time asks again.

use std::time::Duration;

use tidegate_protocol::Time;

/// Failures in a row that open it.
const FAILURES: u32 = 3;
/// How long it stays open at first.
const OPEN_FIRST: Duration = Duration::from_millis(100);
/// How long at most, doubled with each failed probe; short, so that a server that is back is used within a second.
const OPEN_MOST: Duration = Duration::from_millis(800);

/// Closed, open, or half open while a probe is out.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failed: u32,
    /// One of the failures since the last answer was more than an answer that did not come in time.
    broken: bool,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    until: Time,
    span: Duration,
    probing: bool,
}

/// Whether a call may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Go.
    Free,
    /// Go alone: what becomes of it decides.
    Probe,
    /// Fail at once.
    Refused,
}

impl Breaker {
    /// Asks before each call; a `Free` or `Probe` is followed by exactly one of the other methods.
    pub(super) fn pass(&mut self, now: Time) -> Pass {
        match &mut self.open {
            None => Pass::Free,
            Some(open) if now < open.until || open.probing => Pass::Refused,
            Some(open) => {
                open.probing = true;
                Pass::Probe
            }
        }
    }

    /// The server answered.
    pub(super) fn answered(&mut self, pass: Pass) {
        // An answer to a call of the time before it opened says nothing about now.
        if pass == Pass::Probe || self.open.is_none() {
            *self = Self::default();
        }
    }

    /// No answer in time (`late`), no connection, or an answer that says that the server can't serve. True if it opened now.
    pub(super) fn failed(&mut self, pass: Pass, late: bool, now: Time) -> bool {
        self.broken |= !late;
        match &mut self.open {
            Some(open) if pass == Pass::Probe => {
                let span = (open.span * 2).min(OPEN_MOST);
                *open = Open { until: now + span, span, probing: false };
                true
            }
            Some(_) => false,
            None => {
                self.failed += 1;
                if self.failed < FAILURES {
                    return false;
                }
                self.open = Some(Open { until: now + OPEN_FIRST, span: OPEN_FIRST, probing: false });
                true
            }
        }
    }

    /// Whether all that is held against the server is that it was late.
    pub(super) fn is_only_late(&self) -> bool {
        !self.broken
    }

    /// The caller gave up before there was an outcome.
    pub(super) fn dropped(&mut self, pass: Pass) {
        if let Some(open) = self.open.as_mut()
            && pass == Pass::Probe
        {
            open.probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_one_probe_closes_it() {
        let mut breaker = Breaker::default();
        for outcome in [false, false, true, false, false] {
            let pass = breaker.pass(at(0));
            assert_eq!(pass, Pass::Free);
            if outcome { breaker.answered(pass) } else { assert!(!breaker.failed(pass, true, at(0))) }
        }
        assert!(breaker.failed(Pass::Free, true, at(0)));
        assert_eq!(breaker.pass(at(99)), Pass::Refused);
        assert_eq!(breaker.pass(at(100)), Pass::Probe);
        assert_eq!(breaker.pass(at(100)), Pass::Refused, "one at a time");
        assert!(breaker.failed(Pass::Probe, true, at(150)));
        assert_eq!(breaker.pass(at(349)), Pass::Refused, "twice as long");
        assert_eq!(breaker.pass(at(350)), Pass::Probe);
        breaker.dropped(Pass::Probe);
        assert_eq!(breaker.pass(at(350)), Pass::Probe, "a probe that nobody waited for holds up nobody");
        breaker.answered(Pass::Free);
        assert_eq!(breaker.pass(at(350)), Pass::Refused, "an old answer closes nothing");
        breaker.answered(Pass::Probe);
        assert_eq!(breaker.pass(at(350)), Pass::Free);
    }

    #[test]
    fn it_is_only_late_until_something_else_is_wrong_and_then_until_an_answer() {
        let mut breaker = Breaker::default();
        let opened = [(); 3].map(|()| breaker.failed(Pass::Free, true, at(0)));
        assert_eq!(opened, [false, false, true]);
        assert_eq!((breaker.pass(at(0)), breaker.is_only_late()), (Pass::Refused, true));
        let probe = breaker.pass(at(100));
        breaker.failed(probe, false, at(100));
        assert_eq!((breaker.pass(at(100)), breaker.is_only_late()), (Pass::Refused, false));
        let probe = breaker.pass(at(300));
        breaker.failed(probe, true, at(500));
        assert!(!breaker.is_only_late(), "nor does a server that is late after that");
        let probe = breaker.pass(at(900));
        breaker.answered(probe);
        assert!(breaker.is_only_late());
    }

    proptest! {
        /// Whatever happens: never two probes at once, never refused for longer than the most, and closed by an
        /// answered probe.
        #[test]
        fn it_never_locks_itself_out(steps in prop::collection::vec((0_u64..400, 0_u8..4), 1..200)) {
            let (mut breaker, mut now, mut out, mut probes) = (Breaker::default(), 0, Vec::new(), 0);
            let mut refused_since = None;
            for (passed, what) in steps {
                now += passed;
                if what == 0 || out.is_empty() {
                    let pass = breaker.pass(at(now));
                    match pass {
                        Pass::Refused if probes == 0 => {
                            let since = *refused_since.get_or_insert(now);
                            prop_assert!(now - since < 800, "refused since {since}, now {now}");
                        }
                        Pass::Refused => {}
                        Pass::Probe | Pass::Free => {
                            probes += u32::from(pass == Pass::Probe);
                            prop_assert!(probes <= 1);
                            refused_since = None;
                            out.push(pass);
                        }
                    }
                    continue;
                }
                let pass = out.remove(0);
                probes -= u32::from(pass == Pass::Probe);
                match what {
                    1 => {
                        breaker.answered(pass);
                        if pass == Pass::Probe {
                            prop_assert!(breaker.open.is_none());
                        }
                    }
                    2 => {
                        breaker.failed(pass, what == 2, at(now));
                        refused_since = None;
                    }
                    _ => breaker.dropped(pass),
                }
            }
        }
    }
}
