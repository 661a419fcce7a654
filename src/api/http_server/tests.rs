//! Tests of streams on a connection: they are no silence, and end with a caller that reads nothing.

use axum::routing::get;
use futures_util::stream;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::Instant,
};

use super::*;

/// Serves an endless stream on a connection of which the caller has the other end, and the task that serves it.
fn serve_stream_to_caller(connection: &Connection) -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let endless = || async {
        let parts = stream::repeat_with(|| Ok::<_, Infallible>("data: 1\n\n".repeat(1_000)));
        ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(parts))
    };
    let router = Router::new().route("/stream", get(endless));
    let app = PortApp { router, large_bodies: Arc::new(Semaphore::new(1)), may_send_large: None };
    let (near, far) = duplex(64 * 1024);
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let near = StallGuard::new(near, STALL_TIMEOUT);
    let serving = serve_stream(near, peer, None, app, connection.clone());
    (far, tokio::spawn(serving))
}

async fn read_head(caller: &mut DuplexStream) {
    caller.write_all(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut head = [0; 15];
    caller.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
}

#[tokio::test(start_paused = true)]
async fn stream_ends_when_its_caller_reads_nothing_for_ten_seconds() {
    let connection = Connection::default();
    let (mut caller, serving) = serve_stream_to_caller(&connection);
    read_head(&mut caller).await;
    let began = Instant::now();
    time::timeout(Duration::from_secs(60), serving).await.expect("it ends").unwrap();
    assert_eq!(began.elapsed(), STALL_TIMEOUT);
    assert!(!connection.is_busy.load(Ordering::Acquire));
}

#[tokio::test]
async fn stream_is_busy_until_its_caller_leaves() {
    let connection = Connection::default();
    let (mut caller, serving) = serve_stream_to_caller(&connection);
    read_head(&mut caller).await;
    assert!(connection.is_busy.load(Ordering::Acquire), "it is not closed for another connection");
    drop(caller);
    serving.await.unwrap();
    assert!(!connection.is_busy.load(Ordering::Acquire));
}
