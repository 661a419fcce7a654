//! Keys of subjects: hashes by which windows are found, computed once for all rules of a request.

use std::{
    hash::{BuildHasher as _, Hasher, RandomState},
    net::IpAddr,
};

use aws_lc_rs::digest::{Context, SHA256};

use super::{
    kinds::{CONNECTION_LEVELS, ConnectionKeys, KeySet, LimitCall, LimitLevel},
    rule::{IPV6_PREFIX_DEFAULT, LimitRule},
    subjects::{LimitContent, LimitSubjects},
};
use crate::budget::prefix_of;

/// Bytes of a normal form from which on all users share a window of the text; a shorter one is counted for each user.
const SHARED_TEXT_BYTES_MIN: usize = 16;

/// Byte between the parts of a subject; no name has it.
const BETWEEN: u8 = 0xff;

/// Keys of the subjects of one request.
pub(super) struct SubjectKeys<'a> {
    /// SipHash under a random key, so that nobody can choose subjects that collide.
    hasher: &'a RandomState,
    call: LimitCall,
    subjects: &'a LimitSubjects<'a>,
    keys: KeySet,
}

impl<'a> SubjectKeys<'a> {
    /// Creates the keys of a request.
    pub(super) fn new(hasher: &'a RandomState, call: LimitCall, subjects: &'a LimitSubjects<'a>) -> Self {
        Self { hasher, call, subjects, keys: subjects.connection.map_or_else(KeySet::default, |of| of.0) }
    }

    /// Returns the keys of the subjects that the other requests of the connection have, too.
    pub(super) fn of_connection(&self) -> ConnectionKeys {
        let mut keys = KeySet::default();
        for level in CONNECTION_LEVELS {
            keys.set(level, self.key(level));
        }
        ConnectionKeys(keys)
    }

    /// Returns the key of the subject whose window the request counts in; `None` if the rule does not count it.
    #[inline]
    pub(super) fn of(&mut self, rule: &LimitRule) -> Option<u64> {
        let level = rule.level;
        let key = if level == LimitLevel::Address && rule.prefix != IPV6_PREFIX_DEFAULT {
            self.key_by(level, rule.prefix)
        } else {
            if !self.keys.has(level) {
                self.keys.set(level, self.key(level));
            }
            self.keys.get(level)
        };
        key.filter(|_| rule.except.is_empty() || !self.is_excepted(rule))
    }

    /// Returns a hash of the subject of a level that is the same on all nodes; 0 without a subject.
    pub(super) fn everywhere(&self, level: LimitLevel) -> u128 {
        self.everywhere_by(level, IPV6_PREFIX_DEFAULT)
    }

    /// Does what [`Self::everywhere`] does; IPv6 addresses count by their first `prefix` bits.
    pub(super) fn everywhere_by(&self, level: LimitLevel, prefix: u8) -> u128 {
        let mut hasher = ShaHasher(Context::new(&SHA256));
        hasher.write(level.name().as_bytes());
        hasher.write(&[BETWEEN]);
        let has_subject = write_subject(&mut hasher, level, self.call, self.subjects, prefix).is_some();
        let digest = hasher.0.finish();
        let half = digest.as_ref().first_chunk::<16>().filter(|_| has_subject);
        half.map_or(0, |half| u128::from_be_bytes(*half))
    }

    /// Returns the key of the subject of a level.
    pub(super) fn key(&self, level: LimitLevel) -> Option<u64> {
        self.key_by(level, IPV6_PREFIX_DEFAULT)
    }

    /// Returns the key of the subject of a level; IPv6 addresses count by their first `prefix` bits.
    fn key_by(&self, level: LimitLevel, prefix: u8) -> Option<u64> {
        if level == LimitLevel::Content
            && let Some(LimitContent::Key(key)) = self.subjects.content
        {
            return Some(key);
        }
        if level == LimitLevel::Node {
            // One of two subjects: nothing has to be hidden.
            return Some(u64::from(self.call.is_api()));
        }
        let mut hasher = self.hasher.build_hasher();
        write_subject(&mut hasher, level, self.call, self.subjects, prefix)?;
        Some(hasher.finish())
    }

    fn is_excepted(&self, rule: &LimitRule) -> bool {
        let has = |name: Option<&str>| name.is_some_and(|name| rule.except.has(name));
        match rule.level {
            LimitLevel::Node | LimitLevel::Content => false,
            LimitLevel::Organisation => has(self.subjects.organisation),
            LimitLevel::Channel => has(self.subjects.channel),
            LimitLevel::User | LimitLevel::Device => has(self.subjects.user),
            LimitLevel::Conversation => has(self.subjects.conversation),
            LimitLevel::Address => {
                self.subjects.address.is_some_and(|address| rule.except.has_address(address))
            }
            LimitLevel::Key => has(self.subjects.key),
        }
    }
}

/// SHA-256 of what is written, so that nobody can choose subjects that collide although the hash has no key.
struct ShaHasher(Context);

impl Hasher for ShaHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

/// Writes the parts of a subject into a hasher; `None` if the request has no subject of the level.
fn write_subject(
    hasher: &mut impl Hasher,
    level: LimitLevel,
    call: LimitCall,
    subjects: &LimitSubjects<'_>,
    prefix: u8,
) -> Option<()> {
    match level {
        // Clients can't use up what the admin API has.
        LimitLevel::Node => hasher.write(&[u8::from(call.is_api())]),
        LimitLevel::Organisation => hasher.write(subjects.organisation?.as_bytes()),
        LimitLevel::Channel => hasher.write(subjects.channel?.as_bytes()),
        LimitLevel::User => hasher.write(subjects.user?.as_bytes()),
        LimitLevel::Conversation => {
            hasher.write(subjects.conversation?.as_bytes());
            if subjects.is_stranger {
                hasher.write(&[BETWEEN]);
                hasher.write(subjects.user?.as_bytes());
            }
        }
        LimitLevel::Key => hasher.write(subjects.key?.as_bytes()),
        LimitLevel::Device => {
            hasher.write(subjects.user?.as_bytes());
            hasher.write(&[BETWEEN]);
            hasher.write(subjects.device?.as_bytes());
        }
        LimitLevel::Address => {
            // Loopback is exempt: proxies and tools have these addresses.
            let address = subjects.address.filter(|it| !it.to_canonical().is_loopback())?;
            match prefix_of(address.to_canonical(), prefix) {
                IpAddr::V4(network) => hasher.write(&network.octets()),
                IpAddr::V6(network) => {
                    hasher.write(&network.octets());
                    // A network of another length is another subject, even if it begins at the same address.
                    hasher.write(&[prefix]);
                }
            }
        }
        LimitLevel::Content => {
            let normal = subjects.content?.normal_form();
            // A short text is what everybody writes: one user could use up the window of all.
            let is_short = normal.len() < SHARED_TEXT_BYTES_MIN;
            hasher.write(&normal);
            if is_short {
                hasher.write(&[BETWEEN]);
                hasher.write(subjects.user?.as_bytes());
            }
            hasher.write(&[u8::from(is_short)]);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::file::RuleSet, *};

    fn rule(level: LimitLevel, more: &str) -> LimitRule {
        let level = level.name();
        let call = if level == "key" { "api:get" } else { "send" };
        let text = format!(
            "[[rule]]\nid = \"r\"\nlevel = \"{level}\"\ncalls = [\"{call}\"]\nwindow = \"1s\"\nlimit = 5\n{more}"
        );
        RuleSet::parse(&text, Duration::from_secs(1)).unwrap().rules()[0].clone()
    }

    fn of_address(address: &str) -> LimitSubjects<'static> {
        LimitSubjects { address: Some(address.parse().unwrap()), ..LimitSubjects::default() }
    }

    #[test]
    fn keys_that_a_connection_keeps_are_those_of_its_subjects() {
        let hasher = RandomState::new();
        let mut subjects = LimitSubjects {
            organisation: Some("acme"),
            user: Some("ann"),
            device: Some("phone"),
            ..of_address("2001:db8::1")
        };
        let kept = SubjectKeys::new(&hasher, LimitCall::Send, &subjects).of_connection();
        subjects.conversation = Some("g:team");
        let with = LimitSubjects { connection: Some(&kept), ..subjects };
        let rules: [(&str, &[LimitLevel]); 2] =
            [("", &LimitLevel::ALL), ("prefix = 48\n", &[LimitLevel::Address])];
        for (more, levels) in rules {
            for level in levels {
                let rule = rule(*level, more);
                let key = |subjects| SubjectKeys::new(&hasher, LimitCall::Send, subjects).of(&rule);
                assert_eq!(key(&subjects), key(&with), "{level:?}");
                let is_present =
                    !matches!(level, LimitLevel::Channel | LimitLevel::Content | LimitLevel::Key);
                assert_eq!(key(&with).is_some(), is_present, "{level:?}");
            }
        }
    }

    #[test]
    fn ipv6_addresses_count_by_the_prefix_of_their_rule() {
        let hasher = RandomState::new();
        let is_same = |more: &str, one: &str, other: &str| {
            let rule = rule(LimitLevel::Address, more);
            let of = |address: &str| {
                let subjects = of_address(address);
                let mut keys = SubjectKeys::new(&hasher, LimitCall::Send, &subjects);
                (keys.of(&rule).unwrap(), keys.everywhere_by(rule.level, rule.prefix))
            };
            let (one, other) = (of(one), of(other));
            assert_eq!(one.0 == other.0, one.1 == other.1, "here as on all nodes");
            one == other
        };
        let (first, same_64) = ("2001:db8:0:1::1", "2001:db8:0:1::2");
        let (same_56, same_48) = ("2001:db8:0:2::1", "2001:db8:0:100::1");
        for (more, sames) in [
            ("", [true, false, false]),
            ("prefix = 64\n", [true, false, false]),
            ("prefix = 56\n", [true, true, false]),
            ("prefix = 48\n", [true, true, true]),
            ("prefix = 128\n", [false, false, false]),
        ] {
            assert_eq!([same_64, same_56, same_48].map(|it| is_same(more, first, it)), sames, "{more}");
            assert!(!is_same(more, "192.0.2.1", "192.0.2.2"), "IPv4 addresses count alone");
            assert!(is_same(more, "192.0.2.1", "::ffff:192.0.2.1"));
        }
        let everywhere = |prefix| {
            let subjects = of_address(first);
            SubjectKeys::new(&hasher, LimitCall::Send, &subjects).everywhere_by(LimitLevel::Address, prefix)
        };
        assert_ne!(everywhere(48), everywhere(47), "both begin at the same address");
        for wrong in ["prefix = 31\n", "prefix = 129\n", "prefix = -1\n"] {
            let text = format!(
                "[[rule]]\nid = \"r\"\nlevel = \"address\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 5\n{wrong}"
            );
            let problems = RuleSet::parse(&text, Duration::from_secs(1)).unwrap_err();
            assert!(problems[0].contains("prefix: between 32 and 128"), "{problems:?}");
            let of_users = text.replace("address", "user").replace(wrong, "prefix = 56\n");
            assert!(RuleSet::parse(&of_users, Duration::from_secs(1)).is_err());
        }
    }
}
