//! Certificates of the node's ports: which files each port names, and the watch that reads changed ones.

use std::{iter, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;

use crate::{
    clock::wall_ms,
    config::{AdminConfig, TlsConfig},
    link::GrpcLink,
    metrics::Metrics,
    net::tls::{Certificates, ClientAuthority, TlsFiles, WatchedCertificates},
    supervised,
};

/// Interval at which the files are looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Looks after which an expiry is reported again.
const LOOKS_PER_DAY: u32 = 86_400;

/// Application protocols of the client port: that of WebSocket, and that of the other wires.
const CLIENT_PROTOCOLS: &[&[u8]] = &[b"http/1.1", b"tidegate/1"];

/// Application protocol of the admin and the monitor port.
const ADMIN_PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// Port with certificates, under its name in logs.
type WatchedPort = (&'static str, Arc<dyn WatchedCertificates>);

/// Returns the files of the client port; `None` if it has no TLS.
fn client_files(tls: &TlsConfig) -> Option<TlsFiles> {
    let pairs: Vec<(PathBuf, PathBuf)> = iter::zip(tls.cert_files.clone(), tls.key_files.clone()).collect();
    let has_authority = !tls.client_ca.as_os_str().is_empty();
    (!pairs.is_empty()).then(|| TlsFiles {
        pairs,
        is_tls12_accepted: tls.min_version != "1.3",
        protocols: CLIENT_PROTOCOLS,
        clients: has_authority.then(|| ClientAuthority {
            file: tls.client_ca.clone(),
            is_required: tls.client_certificates == "required",
        }),
    })
}

/// Returns the files of the admin port; `None` if it has no TLS.
fn admin_files(admin: &AdminConfig) -> Option<TlsFiles> {
    admin.is_encrypted().then(|| TlsFiles {
        pairs: vec![(admin.tls_cert.clone(), admin.tls_key.clone())],
        is_tls12_accepted: true,
        protocols: ADMIN_PROTOCOLS,
        clients: None,
    })
}

/// Reads the certificates of the client port; `None` if it has no TLS.
///
/// # Errors
/// A file can't be used; the error names the settings, the file and the cure.
pub(super) fn of_clients(tls: &TlsConfig) -> anyhow::Result<Option<Arc<Certificates>>> {
    load(client_files(tls)).context("tls.cert_files, tls.key_files")
}

/// Reads the certificate of the admin port; `None` if it has no TLS.
///
/// # Errors
/// A file can't be used; the error names the settings, the file and the cure.
pub(super) fn of_admin(admin: &AdminConfig) -> anyhow::Result<Option<Arc<Certificates>>> {
    load(admin_files(admin)).context("admin.tls_cert, admin.tls_key")
}

fn load(files: Option<TlsFiles>) -> anyhow::Result<Option<Arc<Certificates>>> {
    files.map(|files| Certificates::load(files).map(Arc::new)).transpose()
}

/// Returns the ports whose certificates may change.
pub(super) fn watched_ports(
    clients: Option<&Arc<Certificates>>,
    admin: Option<&Arc<Certificates>>,
    link: Option<&GrpcLink>,
) -> Vec<WatchedPort> {
    let mut ports: Vec<WatchedPort> = Vec::new();
    for (port, certificates) in [("client", clients), ("admin", admin)] {
        ports.extend(certificates.map(|it| (port, Arc::clone(it) as Arc<dyn WatchedCertificates>)));
    }
    ports.extend(link.and_then(GrpcLink::certificates).map(|it| ("link", it)));
    ports
}

/// Reports when the certificates expire, and reads changed ones, for as long as the node runs. Must run in the services
/// runtime.
pub(super) fn watch(ports: Vec<WatchedPort>, metrics: Metrics) {
    if ports.is_empty() {
        return;
    }
    report(&ports, &metrics);
    supervised::spawn("the watch of certificates", follow(ports, metrics));
}

async fn follow(ports: Vec<WatchedPort>, metrics: Metrics) {
    let mut tick = tokio::time::interval(WATCH_INTERVAL);
    for looks in 1_u32.. {
        tick.tick().await;
        let mut is_due = looks.is_multiple_of(LOOKS_PER_DAY);
        for (port, certificates) in &ports {
            let shared = Arc::clone(certificates);
            let reloaded =
                supervised::run_blocking(move || shared.have_changed().then(|| shared.reload())).await;
            match reloaded {
                Ok(None) => {}
                Ok(Some(Ok(()))) => {
                    metrics.tls_reloads.increment(1);
                    tracing::info!(port, "the changed certificates are in force");
                    is_due = true;
                }
                Ok(Some(Err(error))) => {
                    metrics.tls_reload_errors.increment(1);
                    tracing::error!(
                        port,
                        error = format!("{error:#}"),
                        "the changed certificates can't be used; the former ones stay in force"
                    );
                }
                Err(_) => return,
            }
        }
        if is_due {
            report(&ports, &metrics);
        }
    }
}

/// Sets the metric of the first expiry, and logs certificates that have expired, or will within a week.
fn report(ports: &[WatchedPort], metrics: &Metrics) {
    let mut first = i64::MAX;
    for (port, certificates) in ports {
        let expires = certificates.expires();
        first = first.min(expires);
        match (expires - (wall_ms() / 1_000) as i64).div_euclid(86_400) {
            ..0 => tracing::error!(port, "a certificate has expired, and is refused; replace its file"),
            days @ 0..7 => tracing::warn!(port, days, "a certificate expires soon; replace its file"),
            _ => {}
        }
    }
    metrics.tls_expires.set(first as f64);
}
