//! Ports for servers of a test's own.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

/// A port that nobody listens on, for a server that will do so only after a while: below those that the system gives to
/// whoever asks for any, and given once in this process.
pub fn free_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let next = || {
        let nth = std::process::id().wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        30_000 + (nth % 2_700) as u16
    };
    let mut ports = std::iter::repeat_with(next).take(2_700);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
