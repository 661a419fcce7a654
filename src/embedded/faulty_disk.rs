//! Disk with injected faults, switched by a file, for `tidegate-lab chaos` and tests of the whole program.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Disk, RealDisk};

/// Disk of the machine with the faults that a file currently names; without the file there are none.
///
/// | word in the file | fault |
/// |---|---|
/// | `eio` | commits fail with an I/O error: the store is broken |
/// | `eio-sync` | the same after the batch was written: whether it is on the disk is unknown |
/// | `enospc` | commits find no space although the system reports some as free (a quota) |
/// | `enospc-sync` | the sync finds no space for data that the system had accepted |
/// | `emfile` | commits find no free file descriptor |
/// | `full` | the system reports no free space; the store notices before it writes, if it has a reserve |
///
/// Several words combine their faults.
pub struct BrokenDisk {
    switch: PathBuf,
}

impl BrokenDisk {
    /// Creates a disk with the faults named in the file `switch`.
    pub fn new(switch: PathBuf) -> Self {
        Self { switch }
    }

    fn has(&self, fault: &str) -> bool {
        fs::read_to_string(&self.switch).is_ok_and(|text| text.split_whitespace().any(|it| it == fault))
    }
}

impl Disk for BrokenDisk {
    fn free(&self, path: &Path) -> io::Result<u64> {
        if self.has("full") { Ok(0) } else { RealDisk.free(path) }
    }

    fn before_commit(&self) -> io::Result<()> {
        if self.has("eio") {
            return Err(io::Error::other("disk error injected by fault.disk_file"));
        }
        if self.has("emfile") {
            return Err(rustix::io::Errno::MFILE.into());
        }
        if self.has("enospc") { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    }

    fn after_sync(&self) -> io::Result<()> {
        if self.has("eio-sync") {
            return Err(io::Error::other("sync error injected by fault.disk_file"));
        }
        if self.has("enospc-sync") { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    }
}
