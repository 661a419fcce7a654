//! Client port of a node as commands name it: its address, and the options of TLS to it.

use std::{
    borrow::Cow,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// Options of TLS to client ports.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct TlsArgs {
    /// Speak TLS to the node; an address with wss://, tls:// or https:// before it does the same
    #[arg(long)]
    tls: bool,
    /// File with the authority of the node's certificate (PEM), with TLS; default: those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Name that the node's certificate has to be valid for, with TLS; default: the host of the address
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

/// TLS to all client ports of a command.
#[derive(Clone, Debug, Default)]
pub struct TlsClient {
    authority: Option<PathBuf>,
    name: Option<String>,
}

impl TlsArgs {
    /// Builds the options of a command that has more of its own. Its authority may be unused.
    pub(in crate::cli) fn new(
        tls: bool,
        authority: Option<PathBuf>,
        server_name: Option<String>,
        addresses: &[String],
    ) -> Self {
        let ca = authority.filter(|_| tls || addresses.iter().any(|it| is_tls(it)));
        Self { tls, ca, server_name }
    }

    /// Returns how TLS is spoken to these addresses and to those that a node names later; `None` if it is not.
    ///
    /// # Errors
    /// The options contradict the addresses, or have no effect.
    pub(in crate::cli) fn client(&self, addresses: &[String]) -> Result<Option<TlsClient>> {
        let plain = addresses.iter().find(|it| !is_tls(it) && it.contains("://"));
        let is_wanted = self.tls || addresses.iter().any(|it| is_tls(it));
        if let (true, Some(plain)) = (is_wanted, plain) {
            bail!("{plain} is an address without TLS: write wss:// before it, or leave TLS out everywhere");
        }
        if is_wanted {
            return Ok(Some(TlsClient { authority: self.ca.clone(), name: self.server_name.clone() }));
        }
        if self.ca.is_some() || self.server_name.is_some() {
            bail!(
                "--ca and --server-name are for connections with TLS: add --tls, or write wss:// before the address"
            );
        }
        Ok(None)
    }
}

impl TlsClient {
    /// Returns the file of the authority; `None` for those of the system.
    pub(super) fn authority(&self) -> Option<&Path> {
        self.authority.as_deref()
    }

    /// Returns the name that the certificate at an address has to be valid for.
    pub(super) fn name<'a>(&'a self, host_port: &'a str) -> &'a str {
        let host = host_port.rsplit_once(':').map_or(host_port, |(host, _)| host);
        self.name.as_deref().unwrap_or_else(|| host.trim_matches(['[', ']']))
    }
}

/// Returns whether the scheme of an address is one with TLS.
pub fn is_tls(address: &str) -> bool {
    address.split_once("://").is_some_and(|(scheme, _)| ["wss", "tls", "https"].contains(&scheme))
}

/// Returns host and port of `wss://h:1/x`, `tls://h:1`, `https://h:1`, `ws://h:1`, `tcp://h:1`, `http://h:1` or `h:1`.
///
/// # Errors
/// The scheme is another one, or the port is missing and the scheme has none of its own.
pub fn host_port(url: &str) -> Result<Cow<'_, str>> {
    let (own_port, rest) = match url.split_once("://") {
        Some(("http" | "ws", rest)) => (Some(80), rest),
        Some(("https" | "wss", rest)) => (Some(443), rest),
        Some(("tcp" | "tls", rest)) => (None, rest),
        Some((scheme, _)) => bail!("{url}: the scheme {scheme} is none of ws, wss, tcp, tls, http and https"),
        None => (None, url),
    };
    let host_port = rest.split('/').next().unwrap_or(rest);
    let has_port = host_port.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    // An address of version 6 without brackets has colons too.
    if has_port && host_port.parse::<IpAddr>().is_err() {
        return Ok(host_port.into());
    }
    let port = own_port.with_context(|| format!("{url}: name host and port, as HOST:PORT"))?;
    Ok(format!("{host_port}:{port}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_taken_from_every_supported_url() {
        for url in
            ["http://h:1", "http://h:1/", "ws://h:1/v1/ws", "tcp://h:1", "wss://h:1/x", "tls://h:1", "h:1"]
        {
            assert_eq!(host_port(url).expect("a supported scheme"), "h:1", "{url}");
        }
        assert_eq!(host_port("wss://chat.example/ws").expect("a port of its own"), "chat.example:443");
        assert_eq!(host_port("http://[::1]").expect("a port of its own"), "[::1]:80");
        for wrong in ["ftp://h:1", "h", "tls://h", "::1", "tls://[::1]"] {
            assert!(host_port(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tls_is_spoken_by_option_or_scheme_and_never_dropped() {
        let name = Some("chat.example".to_owned());
        let client = |tls, name: &Option<String>, addresses: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|it| (*it).to_owned()).collect();
            let args = TlsArgs { tls, ca: None, server_name: name.clone() };
            args.client(&addresses).map(|it| it.is_some())
        };
        assert_eq!(client(false, &None, &["h:1"]).ok(), Some(false));
        assert_eq!(client(true, &name, &["h:1"]).ok(), Some(true));
        assert_eq!(client(false, &name, &["https://h:1", "g:1"]).ok(), Some(true));
        for (tls, name, addresses) in [
            (true, &None, &["ws://h:1"][..]),
            (false, &None, &["https://h:1", "http://g:1"]),
            (false, &name, &["h:1"]),
        ] {
            let error = client(tls, name, addresses).expect_err("a contradiction").to_string();
            assert!(error.contains("wss://"), "{error}");
        }
        let named = TlsClient { authority: None, name: None };
        assert_eq!((named.name("h:1"), named.name("[::1]:1")), ("h", "::1"));
        assert_eq!(TlsClient { authority: None, name }.name("h:1"), "chat.example");
    }
}
