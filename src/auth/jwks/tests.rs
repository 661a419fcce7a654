//! Tests of the refresh against servers that are dead: one that accepts and never answers, and one that refuses.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
};

use bytes::BytesMut;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{auth::keyring::RemoteSettings, metrics};

/// Set with one key.
const SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","use":"sig","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// Longest time of one attempt.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Shortest open time of the breaker, half of the first one.
const OPEN_TIME_MIN: Duration = Duration::from_millis(50);

/// Server of a set of keys, which counts its connections.
#[derive(Default)]
struct KeyServer {
    connections: AtomicUsize,
    /// Connections that get no answer.
    silent: Mutex<Vec<TcpStream>>,
}

impl KeyServer {
    /// Accepts connections; answers them if it is `healthy`.
    fn serve(listener: TcpListener, healthy: bool) -> Arc<Self> {
        let server = Arc::new(Self::default());
        let shared = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                if healthy {
                    Box::pin(answer(stream)).await.unwrap();
                } else {
                    shared.silent.lock().push(stream);
                }
            }
        });
        server
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut request = BytesMut::with_capacity(4_096);
    while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await? > 0 {}
    let length = SET.len();
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{SET}").as_bytes()).await
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(future.poll_unpin(context))).await
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    (listener, url)
}

fn refresher(url: String) -> Refresher {
    let settings = Settings {
        url,
        ca_file: PathBuf::new(),
        interval: Duration::from_secs(60),
        timeout: TIMEOUT,
        copy: PathBuf::new(),
    };
    let remote = RemoteSettings { keep: Duration::from_secs(60), cooldown: Duration::ZERO };
    let keyring = Arc::new(Keyring::new(Vec::new(), Some(remote)));
    Refresher::new(settings, keyring, metrics::install().0).unwrap()
}

/// Fails three times, which opens the breaker.
async fn open(refresher: &Refresher) {
    for n in 0..3 {
        assert!(!refresher.refresh().await, "attempt {n}");
    }
}

/// Refreshes until a call is made, which takes the open time of the breaker.
async fn probe(refresher: &Refresher) -> bool {
    let began = Instant::now();
    loop {
        let call = Instant::now();
        let is_loaded = refresher.refresh().await;
        if is_loaded || call.elapsed() >= TIMEOUT {
            return is_loaded;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "no call is made");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn silent_server_costs_one_call_at_a_time_while_the_breaker_is_open() {
    let (listener, url) = listener().await;
    let server = KeyServer::serve(listener, false);
    let refresher = refresher(url);
    open(&refresher).await;
    assert_eq!(server.connections(), 3);
    let began = Instant::now();
    for _ in 0..50 {
        assert!(!refresher.refresh().await);
    }
    let probes_max = 1 + began.elapsed().as_millis() / (OPEN_TIME_MIN + TIMEOUT).as_millis();
    assert!(server.connections() as u128 <= 3 + probes_max, "{} calls", server.connections());
    let before = server.connections();
    assert!(!probe(&refresher).await);
    assert_eq!(server.connections(), before + 1, "one probe");
}

#[tokio::test]
async fn token_with_an_unknown_key_does_not_wait_for_a_silent_server() {
    let (listener, url) = listener().await;
    let server = KeyServer::serve(listener, false);
    let refresher = refresher(url);
    let keyring = Arc::clone(&refresher.keyring);
    open(&refresher).await;
    let waits = keyring.refresh();
    tokio::pin!(waits);
    assert!(poll_once(&mut waits).await.is_pending(), "it waits for the refresh that it requests");
    assert!(!refresher.refresh().await);
    assert!(poll_once(&mut waits).await.is_ready(), "an attempt that makes no call has ended too");
    assert!(server.connections() <= 4);
}

#[tokio::test]
async fn refusing_server_opens_the_breaker_and_is_used_again_once_it_listens() {
    let (refusing, url) = listener().await;
    let address = refusing.local_addr().unwrap();
    drop(refusing);
    let refresher = refresher(url);
    let began = Instant::now();
    open(&refresher).await;
    let server = KeyServer::serve(TcpListener::bind(address).await.unwrap(), true);
    assert!(probe(&refresher).await);
    assert!(began.elapsed() >= OPEN_TIME_MIN, "the breaker was open");
    assert_eq!((server.connections(), refresher.keyring.len()), (1, 1));
    assert!(refresher.refresh().await, "the breaker is closed");
    assert_eq!(server.connections(), 2);
}
