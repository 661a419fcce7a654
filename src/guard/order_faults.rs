//! Blocked chains by device, which lead to a suspension of those that block them again and again.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tidegate_protocol::{
    Time,
    id::{DeviceId, UserId},
};

use crate::bans::BanSubject;

/// Blocked chains of a device within [`WINDOW`] from which on it is suspended.
const FAULTS_MAX: usize = 3;

/// Window in which blocked chains count.
const WINDOW: Duration = Duration::from_secs(600);

/// Length of a first suspension; each further one within [`HISTORY`] is twice as long.
const SUSPENSION: Duration = Duration::from_secs(60);

/// Longest suspension.
const SUSPENSION_MAX: Duration = Duration::from_secs(3_600);

/// Time for which a suspension makes the next one longer.
const HISTORY: Duration = Duration::from_secs(24 * 3_600);

/// Most devices that are remembered; the one with the oldest fault is forgotten for a further one.
const DEVICES_MAX: usize = 4_096;

/// Blocked chains of devices.
#[derive(Default)]
pub(super) struct OrderFaults {
    devices: HashMap<(UserId, DeviceId), DeviceFaults>,
}

#[derive(Default)]
struct DeviceFaults {
    at: VecDeque<Time>,
    last: Time,
    suspensions: u32,
    suspended_at: Time,
}

impl OrderFaults {
    /// Forgets a device, or all devices of a user.
    pub(super) fn forget(&mut self, erased: &BanSubject) {
        let covers = |(user, device): &(UserId, DeviceId)| {
            erased.covers(&BanSubject::Device(user.clone(), device.clone()))
        };
        self.devices.retain(|device, _| !covers(device));
    }

    /// Notes a blocked chain; returns for how long to suspend the device, and after how many suspensions before.
    pub(super) fn note(&mut self, user: &UserId, device: &DeviceId, now: Time) -> Option<(Duration, u32)> {
        let key = (user.clone(), device.clone());
        if self.devices.len() >= DEVICES_MAX && !self.devices.contains_key(&key) {
            let oldest = self.devices.iter().min_by_key(|(_, faults)| faults.last);
            let oldest = oldest.map(|(device, _)| device.clone());
            oldest.and_then(|device| self.devices.remove(&device));
        }
        let faults = self.devices.entry(key).or_default();
        faults.last = now;
        faults.at.retain(|at| now.since(*at) < WINDOW);
        faults.at.push_back(now);
        if faults.at.len() < FAULTS_MAX {
            return None;
        }
        faults.at.clear();
        if faults.suspensions > 0 && now.since(faults.suspended_at) >= HISTORY {
            faults.suspensions = 0;
        }
        let former = faults.suspensions;
        let length = SUSPENSION.saturating_mul(2_u32.saturating_pow(former)).min(SUSPENSION_MAX);
        (faults.suspensions, faults.suspended_at) = (former + 1, now);
        Some((length, former))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_blocked_chain_within_ten_minutes_suspends_longer_each_time() {
        let (ann, phone) = ("ann".parse().unwrap(), "phone".parse().unwrap());
        let mut faults = OrderFaults::default();
        let mut note = |seconds: u64| faults.note(&ann, &phone, Time::from_millis(seconds * 1_000));
        assert_eq!([note(0), note(400), note(600)], [None; 3], "the first one has left the window");
        assert_eq!(note(601), Some((Duration::from_secs(60), 0)));
        assert_eq!([note(602), note(603)], [None; 2]);
        assert_eq!(note(604), Some((Duration::from_secs(120), 1)));
        let lengths: Vec<_> = (605..629).filter_map(&mut note).map(|(length, _)| length.as_secs()).collect();
        assert_eq!(lengths, [240, 480, 960, 1_920, 3_600, 3_600, 3_600, 3_600]);
        assert_eq!([note(90_000), note(90_001)], [None; 2]);
        assert_eq!(note(90_002), Some((Duration::from_secs(60), 0)), "a day later");
    }

    #[test]
    fn erased_user_or_device_begins_again() {
        let ids = ["phone", "desk"].map(|device| ("ann".parse().unwrap(), device.parse().unwrap()));
        let mut faults = OrderFaults::default();
        let mut note = |(user, device): &(UserId, DeviceId), erased: Option<&str>| {
            if let Some(subject) = erased {
                faults.forget(&subject.parse().unwrap());
            }
            assert_eq!([1, 2].map(|ms| faults.note(user, device, Time::from_millis(ms))), [None; 2]);
            faults.note(user, device, Time::from_millis(9)).map(|(_, former)| former)
        };
        assert_eq!([note(&ids[0], None), note(&ids[1], None)], [Some(0); 2]);
        assert_eq!([note(&ids[0], Some("device:ann/phone")), note(&ids[1], None)], [Some(0), Some(1)]);
        assert_eq!([note(&ids[0], Some("user:ann")), note(&ids[1], None)], [Some(0); 2]);
    }

    #[test]
    fn devices_are_bounded_and_the_oldest_is_forgotten() {
        let (ann, mut faults) = ("ann".parse().unwrap(), OrderFaults::default());
        for n in 0..DEVICES_MAX as u64 + 10 {
            let device = format!("d{n}").parse().unwrap();
            faults.note(&ann, &device, Time::from_millis(n));
        }
        assert_eq!(faults.devices.len(), DEVICES_MAX);
        assert!(!faults.devices.contains_key(&(ann, "d0".parse().unwrap())));
    }
}
