//! Networks of addresses, as operators write them: `10.0.0.0/8`, `2001:db8::/32`, or one address.

use std::{fmt, net::IpAddr, str::FromStr};

use anyhow::anyhow;
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

/// Bits before an IPv4 address that is mapped into IPv6.
const MAPPED_BITS: u8 = 96;

/// Addresses with a common prefix. One that is mapped into IPv6, such as `::ffff:10.0.0.0/104`, is that of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network(IpNet);

impl Network {
    /// Returns the network of this prefix around an address; the address alone if the prefix is too long. An IPv4
    /// address mapped into IPv6 counts as IPv4.
    pub fn around(address: IpAddr, prefix: u8) -> Self {
        let address = address.to_canonical();
        Self(IpNet::new(address, prefix).unwrap_or_else(|_| IpNet::from(address)).trunc())
    }

    /// Returns whether the address is in the network. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns whether all addresses of the other network are in this one.
    pub fn includes(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }

    /// Returns the network with its first address, in which networks that contain the same addresses are equal.
    pub fn first(&self) -> Self {
        Self(self.0.trunc())
    }

    /// Returns the address before the prefix length.
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the length of the prefix, in bits.
    pub fn prefix(&self) -> u8 {
        self.0.prefix_len()
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = text.trim();
        let wrong = || format!("`{one}` is no address and no network such as 10.0.0.0/8");
        let network: IpNet =
            one.parse().or_else(|_| one.parse::<IpAddr>().map(IpNet::from)).map_err(|_| wrong())?;
        let IpAddr::V4(mapped) = network.addr().to_canonical() else { return Ok(Self(network)) };
        let bits = match network {
            IpNet::V4(_) => Some(network.prefix_len()),
            // A wider one also contains addresses that are not mapped.
            IpNet::V6(_) => network.prefix_len().checked_sub(MAPPED_BITS),
        };
        let network = bits.and_then(|bits| Ipv4Net::new(mapped, bits).ok()).ok_or_else(wrong)?;
        Ok(Self(network.into()))
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

/// List of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<Network>);

impl Networks {
    /// Reads a list of networks and addresses.
    ///
    /// # Errors
    /// One of them is neither; the error names it.
    pub fn parse(texts: &[String]) -> anyhow::Result<Self> {
        let parse = |text: &String| text.parse().map_err(|why: String| anyhow!(why));
        Ok(Self(texts.iter().map(parse).collect::<anyhow::Result<_>>()?))
    }

    /// Returns the networks of both lists.
    pub fn with(&self, others: &Self) -> Self {
        Self([&self.0[..], &others.0[..]].concat())
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether one of the networks includes all of another one.
    pub fn includes(&self, other: &Network) -> bool {
        self.0.iter().any(|network| network.includes(other))
    }

    /// Returns whether one of the networks contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_networks_of_both_families_are_found() {
        let networks =
            Networks::parse(&["10.0.0.0/8".into(), "::1".into(), " 2001:db8::/32 ".into()]).unwrap();
        for inside in ["10.255.0.1", "::ffff:10.0.0.1", "::1", "2001:db8:1::1"] {
            assert!(networks.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.1", "::2", "2001:db9::1"] {
            assert!(!networks.contains(outside.parse().unwrap()), "{outside}");
        }
        assert!(!Networks::default().contains([127, 0, 0, 1].into()));
        let error = Networks::parse(&["10.0.0.0/33".into()]).unwrap_err();
        assert!(error.to_string().contains("`10.0.0.0/33`"), "{error}");
    }

    #[test]
    fn address_is_in_a_network_by_its_first_bits() {
        let within = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        for (network, address) in [
            ("10.0.0.0/8", "::ffff:10.1.2.3"),
            ("::ffff:10.0.0.0/104", "10.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("192.0.2.7", "192.0.2.7"),
            ("192.0.2.4/31", "192.0.2.5"),
            ("192.0.2.5/31", "192.0.2.4"),
            ("0.0.0.0/0", "8.8.8.8"),
            ("::ffff:0.0.0.0/96", "8.8.8.8"),
            ("2001:db8::/32", "2001:db8:ffff::1"),
            ("::/0", "2001:db8::1"),
        ] {
            assert!(within(network, address), "{address} in {network}");
        }
        for (network, address) in [
            ("192.0.2.7", "192.0.2.6"),
            ("192.0.2.4/31", "192.0.2.6"),
            ("::ffff:10.0.0.0/104", "11.0.0.1"),
            ("0.0.0.0/0", "::1"),
            ("::/0", "127.0.0.1"),
            ("2001:db8::/32", "2001:db9::1"),
        ] {
            assert!(!within(network, address), "{address} in {network}");
        }
    }

    #[test]
    fn malformed_networks_are_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/x",
            "::/129",
            "10.0.0/8",
            "host/8",
            "::ffff:10.0.0.0/95",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        assert_eq!("::1".parse::<Network>().unwrap().to_string(), "::1/128");
        assert_eq!("::ffff:10.0.0.0/104".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
    }
}
