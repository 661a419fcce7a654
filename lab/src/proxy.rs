//! A TCP proxy that disturbs connections on request: it delays, freezes, dribbles single bytes, and cuts with RST or
//! FIN.
//!
//! It changes no byte and no order, so a bad network could do all that clients see through it.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// Concurrent connections; more are refused.
const LINKS_MAX: usize = 4_096;

/// Bytes in flight in one direction of a connection.
const BUFFER: usize = 16 * 1024;

/// Bytes of a chunk that are sent one by one while dribbling; the rest follows at once, so that the chunk ends in time.
const DRIBBLE_MAX: usize = 512;

/// Treatment of the bytes of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Bytes pass.
    #[default]
    Pass,
    /// Each chunk waits this long.
    Delay(Duration),
    /// Bytes are held back.
    Freeze,
    /// Bytes are written one by one.
    Dribble,
    /// The connection ends with a reset: bytes in flight are lost.
    Reset,
    /// The connection ends in order, as seen from both sides.
    Finish,
}

/// A running proxy, which ends when it is dropped.
pub struct Proxy {
    /// Address for clients.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    links: Mutex<BTreeMap<u64, watch::Sender<Mode>>>,
    next: AtomicU64,
}

impl Proxy {
    /// Listens on a free port of loopback, for connections to `target`.
    ///
    /// # Errors
    /// Fails when the socket does.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        Self::start_at(([127, 0, 0, 1], 0).into(), target).await
    }

    /// Listens on an address, for connections to `target`.
    ///
    /// # Errors
    /// Fails when the socket does.
    pub async fn start_at(address: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared =
            Arc::new(Shared { target: Mutex::new(target), links: Mutex::default(), next: AtomicU64::new(0) });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Sets the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.shared.links().len()
    }

    /// Returns whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the mode of each connection that `choose` accepts. Returns how many there are.
    pub fn set(&self, mode: Mode, mut choose: impl FnMut() -> bool) -> usize {
        let links = self.shared.links();
        let chosen: Vec<_> = links.values().filter(|_| choose()).collect();
        for link in &chosen {
            link.send_replace(mode);
        }
        chosen.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        // Connections end with their channel of modes.
        self.shared.links().clear();
    }
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, watch::Sender<Mode>>> {
        self.links.lock()
    }

    fn target(&self) -> SocketAddr {
        *self.target.lock()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let (orders, mode) = watch::channel(Mode::Pass);
        {
            let mut links = shared.links();
            if links.len() >= LINKS_MAX {
                continue;
            }
            links.insert(number, orders);
        }
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            if let Err(error) = link(client, shared.target(), mode).await {
                tracing::debug!(%error, "a connection through the proxy ended");
            }
            shared.links().remove(&number);
        });
    }
}

/// Runs one connection to its end.
async fn link(mut client: TcpStream, target: SocketAddr, mode: watch::Receiver<Mode>) -> io::Result<()> {
    // A client is reset when there is no node to connect to.
    SockRef::from(&client).set_linger(Some(Duration::ZERO))?;
    let mut server = TcpStream::connect(target).await?;
    SockRef::from(&client).set_linger(None)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut orders = mode.clone();
    let cut = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let up = pump(from_client, to_server, mode.clone());
        let down = pump(from_server, to_client, mode);
        tokio::select! {
            result = async { tokio::try_join!(up, down) } => match result {
                Ok(_) => return Ok(()),
                // When one side breaks, the other one is reset.
                Err(_) => Mode::Reset,
            },
            // An error means that the proxy was dropped.
            cut = orders.wait_for(|mode| matches!(mode, Mode::Reset | Mode::Finish)) => {
                cut.map_or(Mode::Reset, |cut| *cut)
            }
        }
    };
    if cut == Mode::Finish {
        // The end of a side that is already closed may fail.
        client.shutdown().await.ok();
        server.shutdown().await.ok();
        return Ok(());
    }
    for stream in [&client, &server] {
        SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut orders: watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        thaw(&mut orders).await;
        if count == 0 {
            return to.shutdown().await;
        }
        let mode = *orders.borrow();
        let mut rest = &buffer[..count];
        match mode {
            Mode::Delay(time) => tokio::time::sleep(time).await,
            Mode::Dribble => {
                let (single, whole) = rest.split_at(count.min(DRIBBLE_MAX));
                for byte in single.chunks(1) {
                    to.write_all(byte).await?;
                    tokio::task::yield_now().await;
                }
                rest = whole;
            }
            Mode::Pass | Mode::Freeze | Mode::Reset | Mode::Finish => {}
        }
        to.write_all(rest).await?;
    }
}

/// Waits while the connection is frozen. Once the proxy is dropped this returns at once, and the connection ends.
async fn thaw(orders: &mut watch::Receiver<Mode>) {
    orders.wait_for(|mode| *mode != Mode::Freeze).await.ok();
}
