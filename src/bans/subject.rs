//! Subjects of bans: a network of addresses, a user, or a device of a user.

use std::{fmt, net::IpAddr, str::FromStr};

use tidegate_protocol::id::{DeviceId, UserId};

use crate::networks::Network;

/// Shortest prefix of a banned IPv4 and IPv6 network: a shorter one is a mistake rather than an attacker.
const PREFIX_V4_MIN: u8 = 8;
const PREFIX_V6_MIN: u8 = 24;

/// Longest prefix of a banned IPv6 network, in addition to a single address.
const PREFIX_V6_MAX: u8 = 64;

/// Divisor of the prefixes of IPv6: a check costs one probe for each prefix length in use.
const PREFIX_V6_STEP: u8 = 4;

/// Network, user or device that may be banned or suspended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BanSubject {
    /// All clients with an address in the network.
    Network(Network),
    /// All devices of a user.
    User(UserId),
    /// One device of a user.
    Device(UserId, DeviceId),
}

impl BanSubject {
    /// Creates the subject of a network.
    ///
    /// # Errors
    /// The prefix is not one of the allowed ones, which the error names.
    pub fn network(network: Network) -> Result<Self, String> {
        let prefix = network.prefix();
        let is_allowed = match network.address() {
            IpAddr::V4(_) => prefix >= PREFIX_V4_MIN,
            IpAddr::V6(_) if prefix.is_multiple_of(PREFIX_V6_STEP) => {
                (PREFIX_V6_MIN..=PREFIX_V6_MAX).contains(&prefix) || prefix == 128
            }
            IpAddr::V6(_) => false,
        };
        let why = || {
            format!(
                "`{network}`: use a prefix of {PREFIX_V4_MIN} to 32 bits for IPv4, and of {PREFIX_V6_MIN}, 28, 32 to {PREFIX_V6_MAX} or 128 bits for IPv6"
            )
        };
        if is_allowed { Ok(Self::Network(network.first())) } else { Err(why()) }
    }

    /// Returns whether a ban of this subject concerns all of the other one.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Network(wide), Self::Network(network)) => wide.includes(network),
            (Self::User(user), Self::User(of) | Self::Device(of, _)) => user == of,
            (Self::Device(..), Self::Device(..)) => self == other,
            _ => false,
        }
    }

    /// Returns the kind of the subject as a word.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Network(_) => "network",
            Self::User(_) => "user",
            Self::Device(..) => "device",
        }
    }
}

impl FromStr for BanSubject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}`: use network:<address>/<bits>, user:<id> or device:<user>/<device>");
        let (kind, name) = text.split_once(':').ok_or_else(form)?;
        match kind {
            "network" => Self::network(name.parse()?),
            "user" => name.parse().map(Self::User).map_err(|_| form()),
            "device" => {
                let (user, device) = name.split_once('/').ok_or_else(form)?;
                let user = user.parse().map_err(|_| form())?;
                Ok(Self::Device(user, device.parse().map_err(|_| form())?))
            }
            _ => Err(form()),
        }
    }
}

impl fmt::Display for BanSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => write!(f, "network:{network}"),
            Self::User(user) => write!(f, "user:{user}"),
            Self::Device(user, device) => write!(f, "device:{user}/{device}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_written_in_one_form() {
        for (text, form) in [
            ("network:192.0.2.77/24", "network:192.0.2.0/24"),
            ("network:192.0.2.7", "network:192.0.2.7/32"),
            ("network:::ffff:192.0.2.7", "network:192.0.2.7/32"),
            ("network:2001:db8:0:1::5/64", "network:2001:db8:0:1::/64"),
            ("network:2001:db8::5", "network:2001:db8::5/128"),
            ("user:ann", "user:ann"),
            ("device:ann/phone", "device:ann/phone"),
        ] {
            assert_eq!(text.parse::<BanSubject>().map(|it| it.to_string()).as_deref(), Ok(form));
        }
        for wrong in [
            "",
            "ann",
            "user:",
            "user:a b",
            "device:ann",
            "device:ann/a/b",
            "group:team",
            "network:0.0.0.0/0",
            "network:10.0.0.0/7",
            "network:2001::/23",
            "network:2001:db8::/33",
            "network:2001:db8::/68",
            "network:2001:db8::/127",
            "network:host",
        ] {
            assert!(wrong.parse::<BanSubject>().is_err(), "{wrong}");
        }
    }
}
