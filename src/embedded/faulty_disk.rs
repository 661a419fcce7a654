//! A disk that fails on request: what a file says, for `tidegate-lab chaos` and tests of the whole program.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Disk, RealDisk};

/// The machine's disk with the faults that a file names, as long as it does; no file, no fault.
///
/// | the file says | then |
/// |---|---|
/// | `eio` | commits fail as if the disk had: the store gives up |
/// | `eio-sync` | the same after the batch was written: nobody can say whether the disk has it |
/// | `enospc` | commits find no space, though the system counts some as free (a quota) |
/// | `enospc-sync` | the sync finds no space for what the system had taken |
/// | `full` | the system counts none as free; the store notices before it writes, if it is to keep any free |
///
/// With several words it has all of these faults.
pub struct BrokenDisk {
    switch: PathBuf,
}

impl BrokenDisk {
    /// A disk that does what is written in `switch`.
    pub fn new(switch: PathBuf) -> Self {
        Self { switch }
    }

    fn has(&self, fault: &str) -> bool {
        fs::read_to_string(&self.switch).is_ok_and(|said| said.split_whitespace().any(|it| it == fault))
    }
}

impl Disk for BrokenDisk {
    fn free(&self, path: &Path) -> io::Result<u64> {
        if self.has("full") { Ok(0) } else { RealDisk.free(path) }
    }

    fn before_commit(&self) -> io::Result<()> {
        if self.has("eio") {
            return Err(io::Error::other("an error of the disk, by fault.disk_file"));
        }
        if self.has("enospc") { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    }

    fn after_sync(&self) -> io::Result<()> {
        if self.has("eio-sync") {
            return Err(io::Error::other("an error of the sync, by fault.disk_file"));
        }
        if self.has("enospc-sync") { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    }
}
