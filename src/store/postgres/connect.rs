//! How to reach Postgres: address, login, TLS, and what each session is told at its start.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

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

use super::error::said;
use crate::{config, private};

/// A session that was durable enough for the operator stays as it was set; one that is not is made so.
const DURABLE: &str = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'";

/// Why there can't be a store, whatever is tried again.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of the configuration.
    #[error("postgres.{key}: {path}: {error}")]
    File {
        /// Which key names it.
        key: &'static str,
        /// The file.
        path: String,
        /// What is wrong with it.
        error: String,
    },
    /// An address or a certificate.
    #[error("postgres: {0}")]
    Config(String),
    /// The server is away: the same call may succeed later.
    #[error("postgres: {0}")]
    Away(String),
    /// The server knows no such login or database, or lets it do too little.
    #[error("postgres: {0}; see postgres.url and postgres.password_file")]
    Refused(String),
    /// A newer tidegate made the tables, or somebody changed how they are made.
    #[error("postgres: {0}")]
    Schema(String),
    /// An import fills the tables, or was cut off.
    #[error("postgres: {0}")]
    Importing(String),
    /// An import needs empty tables.
    #[error("postgres: {0}")]
    Filled(String),
}

impl From<tokio_postgres::Error> for OpenError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::of(&error, said(&error))
    }
}

impl OpenError {
    /// What such an error of the server means, in these words.
    pub(super) fn of(error: &tokio_postgres::Error, text: String) -> Self {
        let code = error.code().map_or("", SqlState::code);
        // Invalid authorization, and no such database.
        let is_refused = code.starts_with("28")
            || code.starts_with("3D")
            || code == SqlState::INSUFFICIENT_PRIVILEGE.code();
        if is_refused { Self::Refused(text) } else { Self::Away(text) }
    }
}

/// Where connections come from.
pub(super) struct Source {
    config: tokio_postgres::Config,
    tls: Option<MakeRustlsConnect>,
    /// How long a connection and its login may take.
    within: Duration,
}

impl Source {
    pub(super) fn new(settings: &config::Postgres) -> Result<Self, OpenError> {
        let url = settings.url.parse::<tokio_postgres::Config>();
        let mut config = url.map_err(|error| OpenError::Config(format!("postgres.url: {}", said(&error))))?;
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

    /// At most `size` connections that calls share.
    pub(super) fn pool(&self, settings: &config::Postgres, size: usize) -> Result<Pool, OpenError> {
        let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match &self.tls {
            Some(tls) => Manager::from_config(self.config.clone(), tls.clone(), fast),
            None => Manager::from_config(self.config.clone(), NoTls, fast),
        };
        let wait = Some(settings.connect());
        let within = settings.connect();
        let durable = Hook::async_fn(move |client, _| {
            Box::pin(async move {
                // The pool bounds what it does itself, and not this.
                let asked = timeout(within, client.batch_execute(DURABLE)).await;
                let asked =
                    asked.map_err(|_| HookError::message("a new connection did not answer in time"))?;
                asked.map_err(HookError::Backend)
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
        pool.map_err(|error| OpenError::Config(error.to_string()))
    }

    /// A connection of its own, for what takes long.
    pub(super) async fn alone(&self) -> Result<Client, OpenError> {
        let late = |_| OpenError::Away("no connection within postgres.connect_ms".to_owned());
        // The library bounds the first part of it alone.
        let client = match &self.tls {
            Some(tls) => {
                let connect = Box::pin(self.config.connect(tls.clone()));
                let (client, connection) = timeout(self.within, connect).await.map_err(late)??;
                tokio::spawn(connection);
                client
            }
            None => {
                let connect = Box::pin(self.config.connect(NoTls));
                let (client, connection) = timeout(self.within, connect).await.map_err(late)??;
                tokio::spawn(connection);
                client
            }
        };
        Ok(client)
    }
}

/// What each session runs under. Somebody who stops within a transaction is cut off, so that no zombie holds a row of
/// `partitions` (S10, S11); whoever waits for it waits longer than that. Plans use an index whatever the statistics
/// say: tables are new and empty when the first ones are made, and nothing here may ever read a whole table.
fn session(settings: &config::Postgres) -> String {
    format!(
        "-c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={} \
         -c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off \
         -c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c jit=off",
        settings.statement_ms,
        settings.lock_ms(),
        settings.stalled_ms
    )
}

fn tls(authority: &Path) -> Result<MakeRustlsConnect, OpenError> {
    let mut roots = RootCertStore::empty();
    match read("tls_ca_file", authority, |path| fs::read(path))? {
        Some(pem) => {
            let refused = |error: String| OpenError::File {
                key: "tls_ca_file",
                path: authority.display().to_string(),
                error,
            };
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| refused(error.to_string()))?;
                roots.add(certificate).map_err(|error| refused(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(refused("no certificate in it".to_owned()));
            }
        }
        None => {
            // Some of a system's certificates may be unreadable to us; those that are not are enough, or the handshake says so.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let client = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Config(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(client))
}

/// What a file has, if one is named; read `by` this.
fn read(
    key: &'static str,
    path: &Path,
    by: fn(&Path) -> io::Result<Vec<u8>>,
) -> Result<Option<Vec<u8>>, OpenError> {
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let file = |error: io::Error| OpenError::File {
        key,
        path: path.display().to_string(),
        error: error.to_string(),
    };
    by(path).map(Some).map_err(file)
}
