//! Proxy in front of a server: it forwards, hangs, or refuses connections.

use std::net::{SocketAddr, TcpListener};

use tokio::runtime::Runtime;

use super::{
    free_port,
    proxy::{Mode, Proxy},
    service_text,
};

/// Proxy in front of a server. Clients connect to [`Self::address`].
pub struct ServiceProxy {
    proxy: Proxy,
    target: SocketAddr,
    /// Accepts connections and never sends a byte.
    silent: TcpListener,
    _runtime: Runtime,
}

impl ServiceProxy {
    /// Starts a proxy for that address.
    pub fn to(target: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let proxy = runtime.block_on(Proxy::start(target)).expect("a proxy");
        let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self { proxy, target, silent, _runtime: runtime }
    }

    /// Starts a proxy for a server of `services.json`.
    pub fn to_service(name: &str) -> Self {
        Self::to(service_text(name, "address").parse().expect("an address"))
    }

    /// Returns the address for clients.
    pub fn address(&self) -> SocketAddr {
        self.proxy.address
    }

    /// Freezes all connections; new ones are accepted and get no byte.
    pub fn hang(&self) {
        self.proxy.set_target(self.silent.local_addr().expect("the socket is bound"));
        self.proxy.set(Mode::Freeze, || true);
    }

    /// Resets all connections, and refuses new ones.
    pub fn close(&self) {
        self.proxy.set_target(([127, 0, 0, 1], free_port()).into());
        self.proxy.set(Mode::Reset, || true);
    }

    /// Forwards new connections, and resets frozen ones.
    pub fn open(&self) {
        self.proxy.set_target(self.target);
        self.proxy.set(Mode::Reset, || true);
    }
}
