//! Banned users and devices as logins find them.

use std::collections::HashMap;

use foldhash::quality::RandomState;
use tidegate_protocol::id::{DeviceId, UserId};

use super::BanSubject;

/// Banned users and devices with the ends of their bans.
#[derive(Default)]
pub(super) struct People {
    pub(super) users: HashMap<UserId, u64, RandomState>,
    pub(super) devices: HashMap<UserId, Vec<(DeviceId, u64)>, RandomState>,
}

impl People {
    /// Sets the end of a subject; `None` if it is not banned.
    pub(super) fn set(&mut self, subject: &BanSubject, end: Option<u64>) {
        match (subject, end) {
            (BanSubject::Network(_), _) => {}
            (BanSubject::User(user), Some(end)) => drop(self.users.insert(user.clone(), end)),
            (BanSubject::User(user), None) => drop(self.users.remove(user)),
            (BanSubject::Device(user, device), end) => {
                let devices = self.devices.entry(user.clone()).or_default();
                devices.retain(|(id, _)| id != device);
                devices.extend(end.map(|end| (device.clone(), end)));
                if devices.is_empty() {
                    self.devices.remove(user);
                }
            }
        }
    }
}
