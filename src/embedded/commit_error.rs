//! Errors of commits and syncs: what passes, and what ends the node.

use std::{fs, io, path::Path};

use rustix::io::Errno;

use super::EngineConfig;

/// Free bytes from which a store that was closed for want of space is reopened, at least.
pub(super) const REOPEN_BYTES_MIN: u64 = 64 << 20;

/// Error of a commit or sync, which may or may not have reached the disk.
pub(super) enum CommitError {
    /// The disk is full, or the process has no file descriptor left. The store is closed, so that nothing that failed is
    /// tried again in place, and reopened once there is space.
    Short(String),
    /// The disk failed.
    Fatal(String),
}

impl CommitError {
    /// Classifies an error of the database with that configuration.
    pub(super) fn of(error: &fjall::Error, config: &EngineConfig) -> Self {
        let is_passing = match error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => is_short(error),
            // An earlier background flush failed; fjall does not report the cause.
            fjall::Error::Poisoned => {
                let free = config.disk.free(&config.path).unwrap_or(u64::MAX);
                free < config.free_bytes_min.max(REOPEN_BYTES_MIN) || lacks_descriptors(&config.path)
            }
            _ => false,
        };
        if is_passing {
            return Self::Short(error.to_string());
        }
        Self::Fatal(format!(
            "the disk failed to store messages ({error}), so nothing more is confirmed. Check the disk, then start the \
             node again"
        ))
    }
}

/// Returns whether the error ends when space or a descriptor becomes free.
fn is_short(error: &io::Error) -> bool {
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    is_full
        || error
            .raw_os_error()
            .is_some_and(|code| [Errno::MFILE, Errno::NFILE].contains(&Errno::from_raw_os_error(code)))
}

/// Returns whether no file can be opened now for want of descriptors.
pub(super) fn lacks_descriptors(path: &Path) -> bool {
    fs::File::open(path).is_err_and(|error| is_short(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x8_missing_descriptors_are_no_dead_disk() {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::DQUOT] {
            assert!(is_short(&error(errno)), "{errno}");
        }
        for errno in [Errno::IO, Errno::ROFS, Errno::NODEV, Errno::BADF] {
            assert!(!is_short(&error(errno)), "{errno}");
        }
    }
}
