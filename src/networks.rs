//! Networks of addresses, as operators write them: `10.0.0.0/8`, `2001:db8::/32`, or one address.

use std::net::IpAddr;

use anyhow::Context as _;
use ipnet::IpNet;

/// List of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Reads a list of networks and addresses.
    ///
    /// # Errors
    /// One of them is neither; the error names it.
    pub fn parse(texts: &[String]) -> anyhow::Result<Self> {
        let parse = |text: &String| {
            let one = text.trim();
            let network = one.parse().or_else(|_| one.parse::<IpAddr>().map(IpNet::from));
            network.with_context(|| format!("`{one}` is no address and no network such as 10.0.0.0/8"))
        };
        Ok(Self(texts.iter().map(parse).collect::<anyhow::Result<_>>()?))
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether one of the networks contains the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
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
}
