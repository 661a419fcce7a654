//! Forecast of a drain, for an operator who is about to begin one.

use std::time::Duration;

use tidegate_protocol::machine::drain::{self, Settings};

/// Expected course of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Clients of the node.
    pub clients: usize,
    /// Clients that get a slot per second.
    pub per_second: u32,
    /// Time for load balancers, in which clients notice nothing.
    pub delay: Duration,
    /// Time from the notice to the end of the last slot.
    pub slots: Duration,
    /// Time from the start until the last client has left; 0 without clients.
    pub expected: Duration,
    /// Time from the start after which the process ends in any case.
    pub deadline: Duration,
    /// Whether the deadline forces a higher pace than the settings and the other nodes allow.
    pub is_raised: bool,
}

impl Forecast {
    /// Returns the forecast for this number of clients; `others_accept` is how many the other nodes accept per second.
    pub(super) fn new(clients: usize, settings: Settings, others_accept: Option<u32>) -> Self {
        let max_rate = others_accept.map_or(settings.max_rate, |accept| accept.min(settings.max_rate));
        let plan = drain::plan(clients, &Settings { max_rate, ..settings });
        let (delay, slots) = (settings.cordon(), plan.window + plan.handover);
        Self {
            clients,
            per_second: plan.rate,
            delay,
            slots,
            expected: if clients == 0 { Duration::ZERO } else { delay + slots },
            deadline: settings.deadline,
            is_raised: plan.raised,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forecast_is_that_of_the_settings_and_of_what_others_accept() {
        let ms = Duration::from_millis;
        let settings = Settings {
            lb_delay: ms(5_000),
            spread: ms(30_000),
            max_rate: 500,
            flush: ms(5_000),
            deadline: ms(50_000),
        };
        let none = Forecast::new(0, settings, None);
        assert_eq!((none.expected, none.slots, none.is_raised), (ms(0), ms(0), false));
        // Few clients get 50 slots a second.
        let few = Forecast::new(100, settings, Some(1_000));
        assert_eq!((few.per_second, few.slots, few.expected), (50, ms(3_000), ms(8_000)));
        let many = Forecast::new(10_000, settings, None);
        assert_eq!((many.clients, many.per_second, many.delay), (10_000, 334, ms(5_000)));
        assert_eq!((many.expected, many.deadline, many.is_raised), (ms(36_000), ms(50_000), false));
        // 10,000 clients at 200 a second take longer than the deadline leaves.
        let slow = Forecast::new(10_000, settings, Some(200));
        assert!(slow.is_raised && slow.per_second > 200 && slow.expected < slow.deadline, "{slow:?}");
    }
}
