//! Start of the client port: what its configuration asks for before a shard gets a connection, and the watch of the
//! certificates.

use std::{iter, net::TcpListener, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;

use super::Thread;
use crate::{
    accept::{Acceptor, FirstBytes, OpeningSettings, Stopper},
    budget::Admission,
    config::{Config, TlsConfig},
    metrics::Metrics,
    net::tls::{Certificates, TlsFiles},
    networks::Networks,
    shard::DriverQueue,
    supervised,
};

/// Interval at which the certificate files are looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Looks after which an expiry is reported again.
const LOOKS_PER_DAY: u32 = 86_400;

/// Starts to accept clients, each on one of the shards.
pub(super) fn start_acceptor(
    config: &Config,
    client: TcpListener,
    admission: &Arc<Admission>,
    newcomers: Vec<DriverQueue>,
    metrics: Metrics,
) -> anyhow::Result<(Stopper, Thread)> {
    let first_bytes = settings(config, &metrics)?;
    let (acceptor, stopper) =
        Acceptor::new(client, Arc::clone(admission), newcomers, first_bytes, config.socket.clone(), metrics)?;
    let acceptor = acceptor.with_forwarders(Networks::parse(&config.listen.forwarders)?);
    let thread = supervised::spawn_thread("tidegate-accept", || acceptor.run())?;
    Ok((stopper, thread))
}

/// Returns what comes between the accept of a connection and its shard; `None` if that is nothing. Reads the
/// certificates, and watches their files. Must run in the services runtime.
///
/// # Errors
/// A certificate or key can't be used.
fn settings(config: &Config, metrics: &Metrics) -> anyhow::Result<Option<FirstBytes>> {
    let proxies = Networks::parse(&config.listen.proxies).context("listen.proxies")?;
    let certificates = match files(&config.tls) {
        Some(files) => Some(Arc::new(Certificates::load(files).context("TLS of the client port")?)),
        None => None,
    };
    if certificates.is_none() && proxies.is_empty() {
        return Ok(None);
    }
    if let Some(certificates) = &certificates {
        metrics.tls_expires.set(certificates.expires() as f64);
        report_expiry(certificates);
        supervised::spawn("the watch of certificates", watch(Arc::clone(certificates), metrics.clone()));
    }
    // Handshakes need much CPU, but never all of it, so that connections which are there go on.
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    let settings = OpeningSettings {
        certificates,
        is_tls_required: config.tls.required,
        deadline: config.tls.deadline(),
        forwarders: Networks::parse(&config.listen.forwarders).context("listen.forwarders")?,
        openings_max: config.tls.handshakes_max.div_ceil(threads),
    };
    Ok(Some(FirstBytes { settings, proxies, threads }))
}

/// Returns the files of the client port's certificates; `None` if it has no TLS.
pub(super) fn files(tls: &TlsConfig) -> Option<TlsFiles> {
    let pairs: Vec<(PathBuf, PathBuf)> = iter::zip(tls.cert_files.clone(), tls.key_files.clone()).collect();
    (!pairs.is_empty()).then(|| TlsFiles { pairs, is_tls12_accepted: tls.min_version != "1.3" })
}

/// Reads changed certificates, for as long as the node runs.
async fn watch(certificates: Arc<Certificates>, metrics: Metrics) {
    let mut tick = tokio::time::interval(WATCH_INTERVAL);
    for looks in 1_u32.. {
        tick.tick().await;
        if looks.is_multiple_of(LOOKS_PER_DAY) {
            report_expiry(&certificates);
        }
        let shared = Arc::clone(&certificates);
        let reloaded = supervised::run_blocking(move || shared.have_changed().then(|| shared.reload())).await;
        match reloaded {
            Ok(None) => {}
            Ok(Some(Ok(()))) => {
                metrics.tls_reloads.increment(1);
                metrics.tls_expires.set(certificates.expires() as f64);
                tracing::info!("the changed certificates of the client port are in force");
                report_expiry(&certificates);
            }
            Ok(Some(Err(error))) => {
                metrics.tls_reload_errors.increment(1);
                tracing::error!(
                    error = format!("{error:#}"),
                    "the changed certificates of the client port can't be used; the former ones stay in force"
                );
            }
            Err(_) => return,
        }
    }
}

/// Logs that a certificate has expired, or will within a week.
fn report_expiry(certificates: &Certificates) {
    let days = (certificates.expires() - (crate::clock::wall_ms() / 1_000) as i64).div_euclid(86_400);
    match days {
        ..0 => tracing::error!(
            "a certificate of the client port has expired: clients refuse it; replace its file"
        ),
        0..7 => tracing::warn!(days, "a certificate of the client port expires soon; replace its file"),
        _ => {}
    }
}
