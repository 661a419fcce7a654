//! Ports for servers that are started later, reserved among all processes of the tests, of `cargo xtask` and of the lab.

use std::{
    fs::{self, DirBuilder, File},
    hash::{BuildHasher as _, RandomState},
    io,
    net::TcpListener,
    ops::Range,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// Below the ephemeral ports of Linux, which begin at 32,768, and above those of [`REDIS`].
const PLAIN: Range<u16> = 31_600..32_700;
/// A Redis in cluster mode also listens 10,000 above its port: on 30,000 to 31,600, which nothing else uses.
const REDIS: Range<u16> = 20_000..21_600;

/// Reserves a port for a server that starts later, or several times. The port is assigned once, to this process only,
/// until the process ends.
pub fn free_port() -> u16 {
    find(PLAIN, &[0]).expect("a port that no other test has")
}

/// Reserves a port for a Redis: the port of its cluster bus is free, too.
pub fn free_redis_port() -> u16 {
    find(REDIS, &[0, 10_000]).expect("a port that no other test has")
}

/// Reserves a port of a range without a listener on it nor on the ports `above` it; returns `None` if all are taken.
pub fn find(range: Range<u16>, above: &[u16]) -> Option<u16> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Concurrent processes start at different ports.
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
    ports.find(is_free)
}

/// Reserves a port for the lifetime of this process, unless it is reserved already. The kernel releases the lock when
/// the process ends, however that happens.
pub fn reserve(port: u16) -> bool {
    let folder = folder();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            check_own(&folder).unwrap_or_else(|error| panic!("{error}"));
        }
        made => made.expect("the folder is created"),
    }
    let path = folder.join(port.to_string());
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let is_ours = lock.try_lock().is_ok();
    if is_ours {
        // Closing the file would release the lock.
        std::mem::forget(lock);
    }
    is_ours
}

/// Refuses a folder below a shared one that another account created, or may write to: it could contain links.
pub fn check_own(folder: &Path) -> io::Result<()> {
    let about = fs::symlink_metadata(folder)?;
    let is_own = about.is_dir() && about.uid() == own_uid() && about.mode() & 0o022 == 0;
    let why = || format!("{} is not this account's alone: remove it", folder.display());
    is_own.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, why()))
}

fn own_uid() -> u32 {
    fs::metadata("/proc/self").map_or(0, |process| process.uid())
}

/// Returns the folder of the lock files, one per user, because a user can't write to the files of another.
pub fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-ports-{}", own_uid()))
}
