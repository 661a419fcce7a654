//! Start of the client port: what its configuration asks for before a shard gets a connection.

use std::{net::TcpListener, sync::Arc};

use super::Thread;
use crate::{
    accept::{AcceptScreen, Acceptor, Fairness, FirstBytes, FirstBytesPolicy, OpeningSettings, Stopper},
    budget::Admission,
    config::Config,
    live::Live,
    metrics::Metrics,
    net::tls::{CertificateName, Certificates},
    shard::DriverQueue,
    supervised,
};

/// Checks of a new connection before anything of it is read.
pub(super) struct AcceptLimits {
    /// Limits of connections.
    pub(super) admission: Arc<Admission>,
    /// Banned networks, and evidence of refused connections.
    pub(super) screen: AcceptScreen,
}

/// Starts to accept clients, each on one of the shards.
pub(super) fn start_acceptor(
    config: &Config,
    client: TcpListener,
    limits: AcceptLimits,
    newcomers: Vec<DriverQueue>,
    policy: Arc<Live<FirstBytesPolicy>>,
    certificates: Option<Arc<Certificates>>,
    metrics: Metrics,
) -> anyhow::Result<(Stopper, Thread)> {
    let first_bytes = Some(settings(config, policy, certificates));
    let (acceptor, stopper) = Acceptor::new(
        client,
        limits.admission,
        newcomers,
        first_bytes,
        limits.screen,
        config.socket.clone(),
        metrics,
    )?;
    let thread = supervised::spawn_thread("tidegate-accept", || acceptor.run())?;
    Ok((stopper, thread))
}

/// Returns what comes between the accept of a connection and its shard.
fn settings(
    config: &Config,
    policy: Arc<Live<FirstBytesPolicy>>,
    certificates: Option<Arc<Certificates>>,
) -> FirstBytes {
    let tls = &config.tls;
    // Handshakes need much CPU, but never all of it, so that connections which are there go on.
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    let settings = OpeningSettings {
        certificates,
        policy,
        client_name: CertificateName::named(&tls.client_name),
        deadline: tls.deadline(),
        openings_max: tls.handshakes_max.div_ceil(threads),
    };
    let fairness = Fairness::new(tls.handshakes_per_ip, tls.handshakes_per_second);
    FirstBytes { settings, threads, fairness: Arc::new(fairness) }
}
