//! Connections to Redis: one server, the master named by sentinels, or a cluster; over RESP3, with TLS if configured.

use std::{io, path::Path, time::Duration};

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, TlsCertificates, TlsMode,
    aio::MultiplexedConnection,
    cluster::{ClusterClient, ClusterClientBuilder},
    cluster_async::ClusterConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use tokio::sync::Mutex;

use crate::{config, private};

/// Error of the configuration, which prevents any connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Unreadable file of the configuration.
    #[error("redis.{key}: {path} can't be used: {error}")]
    File {
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: String,
        /// Error of reading the file.
        error: std::io::Error,
    },
    /// Invalid address or certificate.
    #[error("redis: {0}")]
    Config(#[from] RedisError),
}

/// Factory of connections, for one server, sentinels or a cluster.
pub(super) enum Source {
    Standalone(redis::Client),
    Sentinel(Mutex<SentinelClient>),
    Cluster(ClusterClient),
}

/// Connection shared by many callers.
#[derive(Clone)]
pub(super) enum Conn {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Conn {
    /// Returns the run id of the connected server. `None` in a cluster, or if the user may not query it.
    pub(super) async fn server(&mut self) -> Option<String> {
        let Self::One(conn) = self else { return None };
        let about: String = redis::cmd("INFO").arg("server").query_async(conn).await.ok()?;
        about.lines().find_map(|line| line.strip_prefix("run_id:")).map(|id| id.trim().to_owned())
    }
}

impl Source {
    pub(super) fn new(config: &config::RedisConfig) -> Result<Self, ConnectError> {
        if config.tls {
            // Several crates may bring a TLS provider; this one is the default. An error means that one is already set.
            drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        }
        let certificates = certificates(config)?;
        let login = login(config)?;
        let urls: Vec<String> = config.urls.iter().map(|url| with_scheme(url, config.tls)).collect();
        match config.mode.as_str() {
            "sentinel" => {
                let addresses = addresses(&urls)?;
                let mut builder = SentinelClientBuilder::new(
                    addresses,
                    config.sentinel_master.clone(),
                    SentinelServerType::Master,
                )?
                .set_client_to_redis_protocol(ProtocolVersion::RESP3);
                if let Some(username) = login.username() {
                    builder = builder.set_client_to_redis_username(username);
                }
                if let Some(password) = login.password() {
                    builder = builder.set_client_to_redis_password(password);
                }
                if config.tls {
                    builder = builder
                        .set_client_to_redis_tls_mode(TlsMode::Secure)
                        .set_client_to_sentinel_tls_mode(TlsMode::Secure);
                }
                if let Some(certificates) = certificates {
                    builder = builder
                        .set_client_to_redis_certificates(certificates.clone())
                        .set_client_to_sentinel_certificates(certificates);
                }
                Ok(Self::Sentinel(Mutex::new(builder.build()?)))
            }
            "cluster" => {
                let timeout = config.timeout();
                let mut builder = ClusterClientBuilder::new(urls)
                    .use_protocol(ProtocolVersion::RESP3)
                    .connection_timeout(timeout)
                    .response_timeout(timeout);
                if let Some(username) = login.username() {
                    builder = builder.username(username);
                }
                if let Some(password) = login.password() {
                    builder = builder.password(password);
                }
                if let Some(certificates) = certificates {
                    builder = builder.certs(certificates);
                }
                Ok(Self::Cluster(builder.build()?))
            }
            _ => {
                let url = urls.first().map_or("", String::as_str);
                let info = url.into_connection_info()?;
                let database = info.redis_settings().db();
                let info = info.set_redis_settings(login.set_db(database));
                let client = match certificates {
                    Some(certificates) => redis::Client::build_with_tls(info, certificates)?,
                    None => redis::Client::open(info)?,
                };
                Ok(Self::Standalone(client))
            }
        }
    }

    /// Opens a connection. The caller must limit the time, since `timeout` applies to each server that is tried.
    pub(super) async fn connect(&self, timeout: Duration) -> Result<Conn, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(Some(timeout));
        match self {
            Self::Standalone(client) => {
                client.get_multiplexed_async_connection_with_config(&config).await.map(Conn::One)
            }
            Self::Sentinel(client) => {
                client.lock().await.get_async_connection_with_config(&config).await.map(Conn::One)
            }
            Self::Cluster(client) => client.get_async_connection().await.map(Conn::Cluster),
        }
    }
}

fn with_scheme(url: &str, tls: bool) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    format!("{}://{rest}", if tls { "rediss" } else { "redis" })
}

fn addresses(urls: &[String]) -> Result<Vec<ConnectionAddr>, RedisError> {
    let info =
        |url: &String| url.as_str().into_connection_info().map(|info: ConnectionInfo| info.addr().clone());
    urls.iter().map(info).collect()
}

fn login(config: &config::RedisConfig) -> Result<RedisConnectionInfo, ConnectError> {
    let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
    if !config.username.is_empty() {
        login = login.set_username(&config.username);
    }
    if let Some(password) = read("password_file", &config.password_file, private::read)? {
        login = login.set_password(String::from_utf8_lossy(&password).trim_end());
    }
    Ok(login)
}

fn certificates(config: &config::RedisConfig) -> Result<Option<TlsCertificates>, ConnectError> {
    let root_cert = read("tls_ca_file", &config.tls_ca_file, private::read_public)?;
    Ok(config.tls.then_some(TlsCertificates { client_tls: None, root_cert }))
}

/// Returns the contents of a file, using `read_file`; `None` if the path is empty.
fn read(
    key: &'static str,
    path: &Path,
    read_file: fn(&Path) -> io::Result<Vec<u8>>,
) -> Result<Option<Vec<u8>>, ConnectError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let file = |error| ConnectError::File { key, path: path.display().to_string(), error };
    read_file(path).map(Some).map_err(file)
}
