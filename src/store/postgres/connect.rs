//! Connections to Postgres: address, login, TLS, and the settings of each session.

use std::{io, path::Path, sync::Arc, time::Duration};

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Pool, PoolConfig, QueueMode, RecyclingMethod, Runtime, Timeouts,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::time::timeout;
use tokio_postgres::{
    Client, NoTls,
    config::{SslMode, TargetSessionAttrs},
    error::SqlState,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::text_of;
use crate::{config, private, supervised};

/// Turns on `synchronous_commit` if it is off; any durable setting of the operator is kept.
const ENSURE_DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// Error of opening the store on Postgres.
#[derive(Debug, thiserror::Error)]
pub enum PostgresOpenError {
    /// A file named in the configuration can't be used.
    #[error("postgres.{key}: {path} can't be used: {error}")]
    File {
        /// Configuration key that names the file.
        key: &'static str,
        /// Path of the file.
        path: String,
        /// Description of the fault.
        error: String,
    },
    /// An address or a certificate is invalid.
    #[error("postgres: {0}")]
    Config(String),
    /// The server is unavailable: the same call may succeed later.
    #[error("postgres: {0}")]
    Unavailable(String),
    /// The login or database does not exist, or the login lacks privileges.
    #[error("postgres: {0}; see postgres.url and postgres.password_file")]
    Refused(String),
    /// The tables were created by a newer tidegate, or by other migrations.
    #[error("postgres: {0}")]
    Schema(String),
    /// An import is running, or was interrupted.
    #[error("postgres: {0}")]
    Importing(String),
    /// The tables are not empty, as an import requires.
    #[error("postgres: {0}")]
    Filled(String),
}

impl From<tokio_postgres::Error> for PostgresOpenError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::of(&error, text_of(&error))
    }
}

impl PostgresOpenError {
    /// Classifies an error of the server, with `text` as its description.
    pub(super) fn of(error: &tokio_postgres::Error, text: String) -> Self {
        let code = error.code().map_or("", SqlState::code);
        // SQLSTATE classes of invalid authorization and of a missing database.
        let is_refused = code.starts_with("28")
            || code.starts_with("3D")
            || code == SqlState::INSUFFICIENT_PRIVILEGE.code();
        if is_refused { Self::Refused(text) } else { Self::Unavailable(text) }
    }
}

/// Factory of connections, with the settings of the configuration.
pub(super) struct Source {
    config: tokio_postgres::Config,
    tls: Option<MakeRustlsConnect>,
    /// Timeout of connecting, including the login.
    within: Duration,
}

impl Source {
    pub(super) fn new(settings: &config::PostgresConfig) -> Result<Self, PostgresOpenError> {
        let url = settings.url.parse::<tokio_postgres::Config>();
        let mut config =
            url.map_err(|error| PostgresOpenError::Config(format!("postgres.url: {}", text_of(&error))))?;
        if let Some(password) = read("password_file", &settings.password_file, private::read)? {
            config.password(password.trim_ascii_end());
        }
        if config.get_application_name().is_none() {
            config.application_name("tidegate");
        }
        let given = config.get_options().unwrap_or_default().to_owned();
        config
            .options(format!("{} {given}", session(settings)).trim_end())
            .ssl_mode(if settings.tls { SslMode::Require } else { SslMode::Disable })
            .connect_timeout(settings.connect())
            .keepalives_idle(Duration::from_secs(10))
            .tcp_user_timeout(settings.statement())
            .target_session_attrs(TargetSessionAttrs::ReadWrite);
        Ok(Self {
            config,
            tls: settings.tls.then(|| tls(&settings.tls_ca_file)).transpose()?,
            within: settings.connect(),
        })
    }

    /// Creates a pool of at most `size` connections.
    pub(super) fn pool(
        &self,
        settings: &config::PostgresConfig,
        size: usize,
    ) -> Result<Pool, PostgresOpenError> {
        let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match &self.tls {
            Some(tls) => Manager::from_config(self.config.clone(), tls.clone(), fast),
            None => Manager::from_config(self.config.clone(), NoTls, fast),
        };
        let wait = Some(settings.connect());
        let within = settings.connect();
        let durable = Hook::async_fn(move |client, _| {
            Box::pin(async move {
                // The timeouts of the pool do not cover this hook.
                let done = timeout(within, client.batch_execute(ENSURE_DURABLE)).await;
                let done = done.map_err(|_| HookError::message("a new connection did not answer in time"))?;
                done.map_err(HookError::Backend)
            })
        });
        let pool = Pool::builder(manager)
            .config(PoolConfig {
                max_size: size,
                timeouts: Timeouts { wait, create: wait, recycle: wait },
                queue_mode: QueueMode::Lifo,
            })
            .runtime(Runtime::Tokio1)
            .post_create(durable)
            .build();
        pool.map_err(|error| PostgresOpenError::Config(error.to_string()))
    }

    /// Opens a connection outside the pools, for long operations.
    pub(super) async fn dedicated(&self) -> Result<Client, PostgresOpenError> {
        let late = |_| PostgresOpenError::Unavailable("no connection within postgres.connect_ms".to_owned());
        // The timeout of the library covers only the first part of this.
        let client = match &self.tls {
            Some(tls) => {
                let connect = Box::pin(self.config.connect(tls.clone()));
                let (client, connection) = timeout(self.within, connect).await.map_err(late)??;
                supervised::spawn("a connection to Postgres", connection);
                client
            }
            None => {
                let connect = Box::pin(self.config.connect(NoTls));
                let (client, connection) = timeout(self.within, connect).await.map_err(late)??;
                supervised::spawn("a connection to Postgres", connection);
                client
            }
        };
        Ok(client)
    }
}

/// Returns the server settings of each session.
///
/// A session that freezes within a transaction is cut off, so that it does not hold a row of `partitions` (flaws S10,
/// S11); other sessions wait longer than that for a lock. Plans always use an index: the first plans are made while the
/// tables are empty, and no statement here may ever read a whole table.
fn session(settings: &config::PostgresConfig) -> String {
    format!(
        "-c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={} \
         -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off \
         -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off",
        settings.statement_ms,
        settings.lock_ms(),
        settings.stalled_ms
    )
}

fn tls(authority: &Path) -> Result<MakeRustlsConnect, PostgresOpenError> {
    let mut roots = RootCertStore::empty();
    match read("tls_ca_file", authority, private::read_public)? {
        Some(pem) => {
            let refused = |error: String| PostgresOpenError::File {
                key: "tls_ca_file",
                path: authority.display().to_string(),
                error,
            };
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| refused(private::pem_problem(&error)))?;
                roots.add(certificate).map_err(|error| refused(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(refused("no certificate in it; name a PEM file with one".to_owned()));
            }
        }
        None => {
            // Some system certificates may be unreadable. If the others are not enough, the handshake fails.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| PostgresOpenError::Config(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(client))
}

/// Returns the contents of a file, read with `by`; `None` if no file is named.
fn read(
    key: &'static str,
    path: &Path,
    by: fn(&Path) -> io::Result<Vec<u8>>,
) -> Result<Option<Vec<u8>>, PostgresOpenError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let file = |error: io::Error| PostgresOpenError::File {
        key,
        path: path.display().to_string(),
        error: error.to_string(),
    };
    by(path).map(Some).map_err(file)
}
