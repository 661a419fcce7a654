//! Directory of the store: its format marker, and the lock that admits one process at a time.
//!
//! `format.json` is the marker, `lock` is locked while a node runs, and `db` belongs to fjall. A new database is
//! created under another name, then the marker is written, then the database is renamed. So a crash leaves no partial
//! store, and a database that is missing later is detected.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{EmbeddedOpenError, journal};
use crate::private;

/// Store format that this program writes. Format 2 added the keys of refused messages ([`Key::refused`]).
///
/// [`Key::refused`]: tidegate_protocol::machine::ledger::Key::refused
pub const FORMAT: u32 = 2;

/// Oldest store format that this program reads.
const FORMAT_OLDEST: u32 = 1;

const FORMAT_FILE: &str = "format.json";
const DRAFT_DIRECTORY: &str = "db.new";

#[derive(Serialize, Deserialize)]
struct Marker {
    tidegate_store: u32,
}

/// Locked directory of a store; unlocked on drop.
pub(super) struct Directory {
    path: PathBuf,
    /// Format at the time of locking.
    format: u32,
    lock: File,
}

/// Unlocks explicitly. Closing the file is not enough: a child process that has not yet executed its own program has a
/// copy of each open file, and would keep the lock.
impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "unlocking the store failed; it stays locked until this process ends");
        }
    }
}

impl Directory {
    /// Locks the directory and upgrades it to the current format.
    pub(super) fn enter(path: &Path) -> Result<Self, EmbeddedOpenError> {
        let directory = Self::lock(path)?;
        if directory.format < FORMAT {
            // Format 2 reads everything of format 1, but older programs must not open a store of format 2.
            directory
                .write_marker()
                .map_err(|error| EmbeddedOpenError::Io { path: path.to_owned(), error })?;
        }
        Ok(directory)
    }

    /// Locks the directory if it is empty or has a format that this program reads.
    fn lock(path: &Path) -> Result<Self, EmbeddedOpenError> {
        let at = |error: io::Error| EmbeddedOpenError::Io { path: path.to_owned(), error };
        let foreign = || EmbeddedOpenError::Foreign(path.to_owned());
        private::create_dir_all(path).map_err(at)?;
        let marker = match fs::read(path.join(FORMAT_FILE)) {
            Ok(bytes) => {
                let marker: Marker = serde_json::from_slice(&bytes).map_err(|_| foreign())?;
                Some(marker.tidegate_store)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(at(error)),
        };
        match marker {
            None if holds_anything(path).map_err(at)? => return Err(foreign()),
            Some(found) if found > FORMAT => {
                return Err(EmbeddedOpenError::Newer { path: path.to_owned(), found });
            }
            Some(found) if found < FORMAT_OLDEST => {
                return Err(EmbeddedOpenError::Older { path: path.to_owned(), found });
            }
            None | Some(_) => {}
        }
        let lock = private::options().create(true).truncate(false).open(path.join("lock"));
        let lock = lock.map_err(at)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(EmbeddedOpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at(error)),
        }
        Ok(Self { path: path.to_owned(), format: marker.unwrap_or(FORMAT), lock })
    }

    /// Locks a directory with an existing store, without changing its format or creating one.
    pub(super) fn enter_existing(path: &Path) -> Result<Self, EmbeddedOpenError> {
        match path.join(FORMAT_FILE).try_exists() {
            Ok(true) => Self::lock(path),
            Ok(false) => Err(EmbeddedOpenError::Missing(path.to_owned())),
            Err(error) => Err(EmbeddedOpenError::Io { path: path.to_owned(), error }),
        }
    }

    /// Returns the format of the store.
    pub(super) fn format(&self) -> u32 {
        self.format
    }

    /// Returns the path of the database.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join("db")
    }

    /// Returns where to create a new database, if there never was one; [`Directory::finish_draft`] then moves it into
    /// place.
    pub(super) fn draft(&self) -> io::Result<Option<PathBuf>> {
        let (marked, draft) = (self.path.join(FORMAT_FILE).try_exists()?, self.path.join(DRAFT_DIRECTORY));
        if marked {
            if draft.try_exists()? {
                self.finish_draft()?;
            }
            return Ok(None);
        }
        if draft.try_exists()? {
            fs::remove_dir_all(&draft)?;
        }
        Ok(Some(draft))
    }

    pub(super) fn finish_draft(&self) -> io::Result<()> {
        self.write_marker()?;
        fs::rename(self.path.join(DRAFT_DIRECTORY), self.database())?;
        File::open(&self.path)?.sync_all()
    }

    /// Checks the journals: cuts off a torn end, and refuses damage in the middle.
    pub(super) fn check(&self) -> Result<(), EmbeddedOpenError> {
        if !self.database().is_dir() {
            return Err(EmbeddedOpenError::Damaged {
                path: self.path.clone(),
                what: "its database is missing".to_owned(),
            });
        }
        let found = journal::check(&self.database())
            .map_err(|error| EmbeddedOpenError::Io { path: self.path.clone(), error })?;
        found.map_err(|damage| EmbeddedOpenError::Damaged {
            path: self.path.clone(),
            what: format!("{} at byte {}, which is before its end", damage.file.display(), damage.at),
        })
    }

    fn write_marker(&self) -> io::Result<()> {
        let draft = self.path.join("format.tmp");
        let mut file = private::options().create(true).truncate(true).open(&draft)?;
        file.write_all(&serde_json::to_vec(&Marker { tidegate_store: FORMAT })?)?;
        file.sync_all()?;
        fs::rename(&draft, self.path.join(FORMAT_FILE))?;
        File::open(&self.path)?.sync_all()
    }
}

/// Returns whether the directory contains more than what a crash before the marker leaves.
fn holds_anything(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !["lock", "format.tmp", DRAFT_DIRECTORY].iter().any(|ours| name == *ours) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_of_the_open_lock_file_does_not_keep_the_lock() {
        let path = std::env::temp_dir().join(format!("tidegate-lock-{}", std::process::id()));
        let first = Directory::enter(&path).unwrap();
        assert!(matches!(Directory::enter(&path), Err(EmbeddedOpenError::Locked(_))));
        let copy = first.lock.try_clone().unwrap();
        drop(first);
        Directory::enter(&path).unwrap();
        drop(copy);
        fs::remove_dir_all(path).unwrap();
    }
}
