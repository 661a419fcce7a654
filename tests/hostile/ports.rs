//! Callers of the admin and monitor ports that say nothing: they are closed, and delay nobody.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    chat::Chat,
    support::{Process, eventually, http, let_time_pass},
};

/// Time for the head of a request, and for a sweep on a busy machine.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const TOLERANCE: Duration = Duration::from_secs(3);

/// Opens silent connections to a port.
fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).expect("the kernel accepts it")).collect()
}

#[test]
fn x11_silent_callers_of_the_api_ports_are_closed_and_delay_nobody() {
    let node = Process::start(&["listen.monitor=127.0.0.1:0"]);
    let chat = Chat::begin(&node);
    for address in [node.monitor(), node.admin()] {
        let mut callers = silent(address, 500);
        for _ in 0..20 {
            let (status, body) = http::ask(address, "GET", "/livez", "");
            assert_eq!(status, 200, "{body}");
        }
        // The newest are closed when their time for a request is up, the others at once.
        let began = Instant::now();
        for caller in &mut callers {
            let left = (HEADER_TIMEOUT + TOLERANCE).saturating_sub(began.elapsed());
            caller
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .expect("a socket takes options");
            let end = caller.read(&mut [0; 512]);
            assert!(!matches!(&end, Err(error) if error.kind() == ErrorKind::WouldBlock), "{end:?}");
        }
    }
    chat.end();
}

#[test]
fn s77_callers_that_take_no_response_hold_no_descriptors() {
    let node = Process::start(&["listen.monitor=127.0.0.1:0"]);
    let before = node.files();
    let requests = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1_000);
    let mut callers = Vec::new();
    for _ in 0..4 {
        for _ in 0..64 {
            let mut caller = TcpStream::connect(node.monitor()).expect("the kernel accepts it");
            caller.set_nonblocking(true).expect("a socket takes options");
            // The kernel takes what fits; the caller reads nothing.
            caller.write_all(requests.as_bytes()).ok();
            callers.push(caller);
        }
        let_time_pass("the responses fill the buffers of the sockets", Duration::from_secs(1));
    }
    eventually("the node closes the callers", || (node.files() <= before + 80).then_some(()));
    let (status, body) = http::ask(node.monitor(), "GET", "/livez", "");
    assert_eq!(status, 200, "{body}");
    drop(callers);
}
