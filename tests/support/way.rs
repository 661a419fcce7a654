//! A way to a server that a test can close: a proxy that lets through, hangs, or turns away.

use std::net::{SocketAddr, TcpListener};

use tokio::runtime::Runtime;

use super::{
    free_port,
    proxy::{Mode, Proxy},
    service_text,
};

/// A proxy in front of a server. Clients connect to [`Self::address`].
pub struct Way {
    proxy: Proxy,
    target: SocketAddr,
    /// Takes connections and never says anything.
    silent: TcpListener,
    _runtime: Runtime,
}

impl Way {
    /// To that address.
    pub fn to(target: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let proxy = runtime.block_on(Proxy::start(target)).expect("a proxy");
        let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self { proxy, target, silent, _runtime: runtime }
    }

    /// To a server of `services.json`.
    pub fn to_service(name: &str) -> Self {
        Self::to(service_text(name, "address").parse().expect("an address"))
    }

    /// Where to connect instead.
    pub fn address(&self) -> SocketAddr {
        self.proxy.address
    }

    /// Freezes all connections; new ones are accepted and get no byte.
    pub fn hang(&self) {
        self.proxy.set_target(self.silent.local_addr().expect("it is bound"));
        self.proxy.set(Mode::Freeze, || true);
    }

    /// All connections are reset, and new ones turned away.
    pub fn close(&self) {
        self.proxy.set_target(([127, 0, 0, 1], free_port()).into());
        self.proxy.set(Mode::Reset, || true);
    }

    /// New connections pass; those that hang are reset.
    pub fn open(&self) {
        self.proxy.set_target(self.target);
        self.proxy.set(Mode::Reset, || true);
    }
}
