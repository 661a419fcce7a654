//! HttpEndpoint of an HTTP server that the node calls: its URL, and how to connect to it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    sync::Arc,
};

use hyper::Uri;
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
};
use tokio_rustls::TlsConnector;

use super::tls::read_authorities;

/// Connection to an endpoint, with or without TLS.
pub(crate) trait EndpointStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> EndpointStream for T {}

/// Addresses that may be called. They are checked at each connection, after the name was resolved, so that a name can't change
/// them later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressRule {
    /// All.
    Any,
    /// All except those of the link, those of the metadata servers of clouds, and those that name no host.
    Routed,
    /// Of these, the private ones and loopback.
    Private,
}

/// Addresses of metadata servers, and of agents of the host, which no rule of [`Ipv4Addr`] excludes.
const METADATA: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

impl AddressRule {
    /// Returns whether the address may be called. One that stands for an address of IPv4 is judged by that.
    pub(crate) fn allows(self, address: IpAddr) -> bool {
        let (is_host, is_private) = match address.to_canonical() {
            IpAddr::V4(v4) => (is_host_v4(v4), v4.is_private() || v4.is_loopback()),
            IpAddr::V6(v6) => (is_host_v6(v6), v6.is_unique_local() || v6.is_loopback()),
        };
        match self {
            Self::Any => true,
            Self::Routed => is_host,
            Self::Private => is_host && is_private,
        }
    }
}

fn is_host_v4(address: Ipv4Addr) -> bool {
    let names_none = address.is_unspecified() || address.is_multicast() || address.is_broadcast();
    !address.is_link_local() && !names_none && !METADATA.contains(&address)
}

fn is_host_v6(address: Ipv6Addr) -> bool {
    let names_none = address.is_unspecified() || address.is_multicast();
    // fd00:ec2::/32 and fd20:ce::/32 have the servers of two clouds.
    let is_metadata = matches!(address.segments(), [0xfd00, 0xec2, ..] | [0xfd20, 0xce, ..]);
    let embedded = embedded_v4(address).is_none_or(is_host_v4);
    !address.is_unicast_link_local() && !names_none && !is_metadata && embedded
}

/// Returns the address of IPv4 that one of NAT64 (RFC 6052), of a local NAT64 (RFC 8215), of 6to4, or of the deprecated form
/// `::a.b.c.d` leads to.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        _ if address.is_loopback() => None,
        [0x64, 0xff9b, 0 | 1, .., high, low] | [0, 0, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some(v4(high, low))
        }
        _ => None,
    }
}

/// Authorities of the certificates of servers, as they were read from a file.
#[derive(Clone)]
pub(crate) struct ServerTrust(TlsConnector);

impl ServerTrust {
    /// Reads the authorities; of an empty path, those of the system.
    ///
    /// # Errors
    /// The file can't be read, or has no certificate.
    pub(crate) fn read(ca_file: &Path) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        if ca_file.as_os_str().is_empty() {
            // Some system certificates may be unreadable. If the others are not enough, the handshake fails.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        } else {
            roots = read_authorities(ca_file)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

/// Server and path of a URL.
pub(crate) struct HttpEndpoint {
    uri: Uri,
    host: String,
    port: u16,
    rule: AddressRule,
    tls: Option<TlsConnector>,
}

impl HttpEndpoint {
    /// Prepares connections to `url`. `ca_file` names the authorities of its certificate; empty for those of the system.
    ///
    /// # Errors
    /// The URL is invalid, or the file can't be read.
    pub(crate) fn new(url: &str, ca_file: &Path) -> io::Result<Self> {
        Self::trusting(url, || ServerTrust::read(ca_file))
    }

    /// Prepares connections to `url`; `trust` is asked for the authorities of its certificate if it has one.
    ///
    /// # Errors
    /// The URL is invalid, or there are no authorities.
    pub(crate) fn trusting(url: &str, trust: impl FnOnce() -> io::Result<ServerTrust>) -> io::Result<Self> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {why}"));
        let uri: Uri = url.parse().map_err(|_| wrong("no URL"))?;
        let host = uri.host().ok_or_else(|| wrong("no host in it"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("begin with https:// or http://")),
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = is_tls.then(trust).transpose()?.map(|trust| trust.0);
        Ok(Self { uri, host, port, rule: AddressRule::Any, tls })
    }

    /// Restricts the addresses to which it connects.
    pub(crate) fn restricted(self, rule: AddressRule) -> Self {
        Self { rule, ..self }
    }

    /// Returns the path and query of a request.
    pub(crate) fn path(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    /// Returns the value of the header `Host`.
    pub(crate) fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    /// Connects to the server.
    ///
    /// # Errors
    /// The server can't be reached, or has no trusted certificate; the text says which.
    pub(crate) async fn connect(&self) -> Result<Box<dyn EndpointStream>, String> {
        let failed = |error: io::Error| format!("no connection: {error}");
        let found = lookup_host((self.host.as_str(), self.port)).await.map_err(failed)?;
        let addresses: Vec<_> = found.filter(|it| self.rule.allows(it.ip())).collect();
        if addresses.is_empty() {
            return Err(format!("no connection: {} has no address that may be called", self.host));
        }
        let stream = TcpStream::connect(&addresses[..]).await.map_err(failed)?;
        // Small requests must not wait for others.
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|error| format!("no TLS: {error}"))?;
        Ok(Box::new(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_link_are_never_called_and_private_ones_can_be_demanded() {
        let allowed = |address: &str| {
            let address = address.parse().unwrap();
            (AddressRule::Routed.allows(address), AddressRule::Private.allows(address))
        };
        for link in [
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.1.1",
            "0.0.0.0",
            "::",
            "255.255.255.255",
            "224.0.0.1",
            "ff02::1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "::169.254.169.254",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "::ffff:100.100.100.200",
            "64:ff9b::168.63.129.16",
        ] {
            assert_eq!(allowed(link), (false, false), "{link}");
        }
        for public in
            ["203.0.113.1", "2001:db8::1", "172.32.0.1", "64:ff9b::203.0.113.1", "64:ff9b::10.0.0.1"]
        {
            assert_eq!(allowed(public), (true, false), "{public}");
        }
        for private in
            ["10.1.2.3", "172.16.0.1", "192.168.0.1", "127.0.0.1", "::1", "fd00::1", "::ffff:10.0.0.1"]
        {
            assert_eq!(allowed(private), (true, true), "{private}");
        }
    }

    #[tokio::test]
    async fn address_is_judged_after_the_name_was_resolved() {
        // A number is a name that the resolver understands, and that no check of the URL recognises.
        let hosts = ["2852039166", "0xa9fea9fe", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"];
        for host in hosts {
            for rule in [AddressRule::Routed, AddressRule::Private] {
                let endpoint = HttpEndpoint::new(&format!("http://{host}/"), Path::new("")).unwrap();
                let refused = endpoint.restricted(rule).connect().await.err().unwrap();
                assert!(refused.contains("no address that may be called"), "{host}: {refused}");
            }
        }
    }
}
