//! Ports for servers that a test starts itself.

use std::{
    hash::{BuildHasher as _, RandomState},
    net::TcpListener,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// A port that nobody listens on, for a server that will do so only after a while: below those that the system gives to
/// whoever asks for any, and given once in this process.
pub fn free_port() -> u16 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Runs beside this one begin elsewhere.
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    let next = || {
        let nth = FIRST.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        30_000 + (nth % 2_700) as u16
    };
    let mut ports = std::iter::repeat_with(next).take(2_700);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
