//! A disk that fails on request: what a file says, for `tidegate chaos` and tests of the whole program.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{Disk, RealDisk};

/// The machine's disk with the fault that a file names, as long as it does; no file, no fault.
///
/// | the file says | then |
/// |---|---|
/// | `eio` | commits fail as if the disk had: the store gives up |
/// | `enospc` | commits find no space, though the system counts some as free (a quota) |
/// | `enospc-sync` | the sync finds no space for what the system had taken |
/// | `full` | the system counts none as free; the store notices before it writes |
pub struct BrokenDisk {
    switch: PathBuf,
}

impl BrokenDisk {
    /// A disk that does what is written in `switch`.
    pub fn new(switch: PathBuf) -> Self {
        Self { switch }
    }

    fn fault(&self) -> Option<String> {
        fs::read_to_string(&self.switch).ok()
    }
}

impl Disk for BrokenDisk {
    fn free(&self, path: &Path) -> io::Result<u64> {
        match self.fault().as_deref().map(str::trim) {
            Some("full") => Ok(0),
            _ => RealDisk.free(path),
        }
    }

    fn before_commit(&self) -> io::Result<()> {
        match self.fault().as_deref().map(str::trim) {
            Some("eio") => Err(io::Error::other("an error of the disk, by fault.disk_file")),
            Some("enospc") => Err(io::Error::from(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        }
    }

    fn after_sync(&self) -> io::Result<()> {
        match self.fault().as_deref().map(str::trim) {
            Some("enospc-sync") => Err(io::Error::from(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        }
    }
}
