//! Device policy: how many sessions of a user may be connected at once, and which of them a new login replaces.

use std::{cmp::Reverse, collections::HashMap};

use tidegate_protocol::id::DeviceId;

use super::{Route, Token};

/// Most sessions that one login replaces; a next login replaces the rest. Bounds the run time of the script in Redis.
pub(super) const EVICTED_MAX: usize = 200;

/// Most digits of the number of a tab at the end of a device id.
const TAB_DIGITS_MAX: usize = 3;

/// Limits on the sessions of one user, over all nodes. The default limits nothing.
///
/// Each device has one session in any case. Of sessions that exclude each other the one with the highest epoch stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePolicy {
    /// Sessions that exclude each other.
    pub one_per: OnePer,
    /// Most devices with a session; 0 for no limit.
    pub max: usize,
    /// Whether a login at that limit replaces the oldest session, instead of being refused.
    pub replaces_oldest: bool,
}

/// What may have one session at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnePer {
    /// Each device.
    #[default]
    Device,
    /// Each class of devices: the part of the device id before its first hyphen.
    Class,
    /// The user.
    User,
}

impl OnePer {
    /// Parses the word of the configuration.
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "each" => Some(Self::Device),
            "class" => Some(Self::Class),
            "user" => Some(Self::User),
            _ => None,
        }
    }

    /// Returns the word that `route_set.lua` takes.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Class => "class",
            Self::User => "user",
        }
    }

    /// Returns the name of the devices that exclude each other, unless they are tabs of one installation.
    fn rivals(self, device: &DeviceId) -> Option<&str> {
        match self {
            Self::Device => None,
            Self::Class => Some(class(device.as_str())),
            Self::User => Some(""),
        }
    }
}

/// Returns the class of a device: `web` of `web-7f3a-2`.
fn class(device: &str) -> &str {
    device.split('-').next().unwrap_or(device)
}

/// Returns the device id without the number of a tab: `web-7f3a` of `web-7f3a-2`.
fn installation(device: &str) -> &str {
    match device.rsplit_once('-') {
        Some((installation, tab))
            if (1..=TAB_DIGITS_MAX).contains(&tab.len()) && tab.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            installation
        }
        _ => device,
    }
}

/// Sessions of one user from the newest to the oldest, as far as they are visited.
struct NewestFirst<'a> {
    policy: DevicePolicy,
    /// Installation of the newest session of each group of rivals, and whether a later one is of another installation.
    rivals: HashMap<&'a str, (&'a str, bool)>,
    /// Number of sessions that stay.
    staying: usize,
}

impl<'a> NewestFirst<'a> {
    fn new(policy: DevicePolicy) -> Self {
        Self { policy, rivals: HashMap::new(), staying: 0 }
    }

    /// Visits the next session, and returns whether a newer one takes its place.
    fn is_replaced(&mut self, device: &'a DeviceId) -> bool {
        let installation = installation(device.as_str());
        let is_rival = self.policy.one_per.rivals(device).is_some_and(|name| {
            let (newest, is_mixed) = self.rivals.entry(name).or_insert((installation, false));
            *is_mixed |= *newest != installation;
            *is_mixed
        });
        let DevicePolicy { max, replaces_oldest, .. } = self.policy;
        let is_replaced = is_rival || (max > 0 && replaces_oldest && self.staying >= max);
        self.staying += usize::from(!is_replaced);
        is_replaced
    }
}

impl DevicePolicy {
    /// Returns the sessions of other devices that a login of `device` replaces, or `None` if it is refused. `rows` are
    /// all rows of the user.
    pub(super) fn evicted(
        &self,
        device: &DeviceId,
        rows: &[(DeviceId, Token)],
    ) -> Option<Vec<(DeviceId, Token)>> {
        let mut others: Vec<&(DeviceId, Token)> = rows.iter().filter(|(other, _)| other != device).collect();
        others.sort_by_key(|(_, token)| Reverse(token.epoch));
        let is_known = others.len() < rows.len();
        let mut sessions = NewestFirst::new(*self);
        sessions.is_replaced(device);
        let mut evicted: Vec<_> =
            others.into_iter().filter(|(other, _)| sessions.is_replaced(other)).cloned().collect();
        if self.max > 0 && !self.replaces_oldest && !is_known && sessions.staying > self.max {
            return None;
        }
        evicted.truncate(EVICTED_MAX);
        Some(evicted)
    }

    /// Returns whether newer sessions among the user's `rows` replace the session of this route.
    pub fn is_replaced(&self, route: &Route, rows: &[(DeviceId, Token)]) -> bool {
        let mut newer: Vec<&(DeviceId, Token)> =
            rows.iter().filter(|(_, token)| token.epoch > route.token.epoch).collect();
        newer.sort_by_key(|(_, token)| Reverse(token.epoch));
        let mut sessions = NewestFirst::new(*self);
        for (device, _) in &newer {
            sessions.is_replaced(device);
        }
        sessions.is_replaced(&route.device) || newer.iter().any(|(device, _)| *device == route.device)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_protocol::id::{NodeId, UserId};

    use super::*;
    use crate::routes::NodeBoot;

    fn device(name: &str) -> DeviceId {
        DeviceId::new(name).unwrap()
    }

    fn rows(all: &[(&str, u64)]) -> Vec<(DeviceId, Token)> {
        let at = NodeBoot { node: NodeId::new("a").unwrap(), boot: 1 };
        all.iter().map(|(name, epoch)| (device(name), Token { at: at.clone(), epoch: *epoch })).collect()
    }

    fn names(evicted: Option<Vec<(DeviceId, Token)>>) -> Option<Vec<String>> {
        Some(evicted?.into_iter().map(|(device, _)| device.to_string()).collect())
    }

    #[test]
    fn class_is_before_the_first_hyphen_and_tabs_of_a_browser_stay_together() {
        for (a, b, by_class, by_user) in [
            ("phone", "phone-x", true, true),
            ("phone-a", "phone-b", true, true),
            ("phone-a", "desktop-a", false, true),
            ("web-7f3a-1", "web-7f3a-2", false, false),
            ("web-7f3a-1", "web-7f3a", false, false),
            ("web-7f3a-1", "web-99cc-1", true, true),
            ("web-1", "web-2", false, false),
            ("web-1234", "web-1235", true, true),
            ("web-7f3a", "webcam", false, true),
        ] {
            for (x, y) in [(a, b), (b, a)] {
                let replaces = |one_per| {
                    let policy = DevicePolicy { one_per, ..DevicePolicy::default() };
                    policy.evicted(&device(x), &rows(&[(y, 1)])).is_some_and(|evicted| !evicted.is_empty())
                };
                assert_eq!(replaces(OnePer::Class), by_class, "{x} {y}");
                assert_eq!(replaces(OnePer::User), by_user, "{x} {y}");
                assert!(!replaces(OnePer::Device), "{x} {y}");
            }
        }
    }

    #[test]
    fn oldest_sessions_are_replaced_at_the_limit_or_the_login_is_refused() {
        let present = rows(&[("phone", 3), ("web", 1), ("desktop", 2)]);
        let refusing = DevicePolicy { max: 3, ..DevicePolicy::default() };
        let replacing = DevicePolicy { replaces_oldest: true, ..refusing };
        assert_eq!(names(refusing.evicted(&device("watch"), &present)), None);
        assert_eq!(names(refusing.evicted(&device("web"), &present)), Some(Vec::new()), "it is counted");
        assert_eq!(names(replacing.evicted(&device("watch"), &present)), Some(vec!["web".to_owned()]));
        assert_eq!(names(replacing.evicted(&device("web"), &present)), Some(Vec::new()));
        let lowered = DevicePolicy { max: 1, ..replacing };
        assert_eq!(
            names(lowered.evicted(&device("watch"), &present)),
            Some(["phone", "desktop", "web"].map(str::to_owned).to_vec())
        );
    }

    fn policies() -> impl Strategy<Value = DevicePolicy> {
        let one_per = prop_oneof![Just(OnePer::Device), Just(OnePer::Class), Just(OnePer::User)];
        (one_per, 0..4_usize).prop_map(|(one_per, max)| DevicePolicy { one_per, max, replaces_oldest: true })
    }

    proptest! {
        /// Logins in the order of their epochs, whose stops may find nothing because a session is not indexed yet: its
        /// own check then agrees with what the later logins decided.
        #[test]
        fn login_and_own_check_agree_and_the_newest_stays(
            policy in policies(),
            logins in proptest::collection::vec("(phone|web)(-[ab])?(-1)?", 1..8),
        ) {
            let user = UserId::new("ann").unwrap();
            let mut present: Vec<(DeviceId, Token)> = Vec::new();
            let mut evicted = Vec::new();
            for (epoch, name) in logins.iter().enumerate() {
                let new = rows(&[(name, epoch as u64 + 1)]).remove(0);
                evicted.extend(policy.evicted(&new.0, &present).expect("replaces"));
                evicted.extend(present.iter().filter(|(device, _)| *device == new.0).cloned());
                present.retain(|(device, _)| *device != new.0);
                present.push(new);
            }
            for (device, token) in &present {
                let route = Route { user: user.clone(), device: device.clone(), token: token.clone() };
                let is_evicted = evicted.contains(&(device.clone(), token.clone()));
                prop_assert!(!policy.is_replaced(&route, &present) || is_evicted, "{device} {present:?}");
            }
            let (device, token) = present.last().cloned().expect("one login");
            let newest = Route { user, device, token };
            prop_assert!(!policy.is_replaced(&newest, &present));
        }
    }
}
