//! Ports for servers that a test starts itself, reserved among all processes of the tests.

use std::{
    fs::{self, File},
    hash::{BuildHasher as _, RandomState},
    net::TcpListener,
    ops::Range,
    path::PathBuf,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Below the ports that the system gives to whoever asks for any, and above those of [`REDIS`].
const PLAIN: Range<u16> = 31_600..32_700;
/// A Redis of a cluster listens 10,000 above its port as well: that is 30,000 to 31,600, which nothing else uses.
const REDIS: Range<u16> = 20_000..21_600;

/// A port for a server that will listen only after a while, or again and again. It is handed out to this process alone, once, and
/// stays its own until the process ends.
pub fn free_port() -> u16 {
    find(PLAIN, &[0])
}

/// The same for a Redis, whose port for others of its cluster is free, too.
pub fn free_redis_port() -> u16 {
    find(REDIS, &[0, 10_000])
}

fn find(range: Range<u16>, above: &[u16]) -> u16 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Processes that run at the same time begin elsewhere.
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    let count = u64::from(range.end - range.start);
    let next = || {
        let nth = FIRST.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        range.start + (nth % count) as u16
    };
    let is_free = |port: &u16| {
        let can_listen = |above: &u16| TcpListener::bind(("127.0.0.1", port + above)).is_ok();
        reserve(*port) && above.iter().all(can_listen)
    };
    let mut ports = std::iter::repeat_with(next).take(usize::from(range.end - range.start));
    ports.find(is_free).expect("a port that no other test has")
}

/// Takes a port for as long as this process lives, unless somebody has it already. The kernel drops the lock with the process,
/// however that ends.
pub fn reserve(port: u16) -> bool {
    let folder = folder();
    fs::create_dir_all(&folder).expect("a place for files");
    let path = folder.join(port.to_string());
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let is_ours = lock.try_lock().is_ok();
    if is_ours {
        // Closed, it would be given back.
        std::mem::forget(lock);
    }
    is_ours
}

/// Where the locks are; one of each user, as nobody can write to the files of another.
pub fn folder() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    std::env::temp_dir().join(format!("tidegate-ports-{user}"))
}
