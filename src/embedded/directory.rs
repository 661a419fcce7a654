//! The store's directory: whose it is, which version it has, and that only one process is in it.
//!
//! `format.json` says what this is; `lock` is locked while a node runs; `db` is fjall's. The database is made under
//! another name, then the marker is written, then the database moved into place: so a crash leaves nothing half made,
//! and a database that is gone later is missed.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{OpenError, journal};
use crate::private;

/// The layout that this program writes. 2: keys of refused messages ([`Key::refused`]).
///
/// [`Key::refused`]: tidegate_protocol::machine::ledger::Key::refused
pub const FORMAT: u32 = 2;

/// The oldest that it reads.
const OLDEST: u32 = 1;

const FORMAT_FILE: &str = "format.json";
const DRAFT: &str = "db.new";

#[derive(Serialize, Deserialize)]
struct Marker {
    tidegate_store: u32,
}

/// A directory that is this process's while this lives.
pub(super) struct Directory {
    path: PathBuf,
    /// Its format when it was entered.
    format: u32,
    lock: File,
}

/// Closing the file would not be enough: a process that is being started, which has a copy of each open file until it
/// runs its own program, would keep the lock.
impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "the store's directory stays locked until this process ends");
        }
    }
}

impl Directory {
    /// Locks the directory and brings it to the present format.
    pub(super) fn enter(path: &Path) -> Result<Self, OpenError> {
        let directory = Self::lock(path)?;
        if directory.format < FORMAT {
            // All that 1 wrote reads the same in 2; an older program must not read what 2 writes.
            directory.write_marker().map_err(|error| OpenError::Io { path: path.to_owned(), error })?;
        }
        Ok(directory)
    }

    /// Locks it, if this program reads what is in it or there is nothing.
    fn lock(path: &Path) -> Result<Self, OpenError> {
        let at = |error: io::Error| OpenError::Io { path: path.to_owned(), error };
        let foreign = || OpenError::Foreign(path.to_owned());
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
            Some(found) if found > FORMAT => return Err(OpenError::Newer { path: path.to_owned(), found }),
            Some(found) if found < OLDEST => return Err(OpenError::Older { path: path.to_owned(), found }),
            None | Some(_) => {}
        }
        let lock = private::options().create(true).truncate(false).open(path.join("lock"));
        let lock = lock.map_err(at)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at(error)),
        }
        Ok(Self { path: path.to_owned(), format: marker.unwrap_or(FORMAT), lock })
    }

    /// Locks a directory in which there is a store already, and leaves its format as it is; makes none.
    pub(super) fn enter_existing(path: &Path) -> Result<Self, OpenError> {
        match path.join(FORMAT_FILE).try_exists() {
            Ok(true) => Self::lock(path),
            Ok(false) => Err(OpenError::Missing(path.to_owned())),
            Err(error) => Err(OpenError::Io { path: path.to_owned(), error }),
        }
    }

    /// The format in which the store is.
    pub(super) fn format(&self) -> u32 {
        self.format
    }

    /// Where the database is.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join("db")
    }

    /// Where a new database is to be made, if there never was one; [`Directory::made`] moves it into place.
    pub(super) fn draft(&self) -> io::Result<Option<PathBuf>> {
        let (marked, draft) = (self.path.join(FORMAT_FILE).try_exists()?, self.path.join(DRAFT));
        if marked {
            if draft.try_exists()? {
                self.made()?;
            }
            return Ok(None);
        }
        if draft.try_exists()? {
            fs::remove_dir_all(&draft)?;
        }
        Ok(Some(draft))
    }

    pub(super) fn made(&self) -> io::Result<()> {
        self.write_marker()?;
        fs::rename(self.path.join(DRAFT), self.database())?;
        File::open(&self.path)?.sync_all()
    }

    /// Cuts a torn end off; refuses damage in the middle.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        if !self.database().is_dir() {
            return Err(OpenError::Damaged {
                path: self.path.clone(),
                what: "its database is gone".to_owned(),
            });
        }
        let found = journal::check(&self.database())
            .map_err(|error| OpenError::Io { path: self.path.clone(), error })?;
        found.map_err(|damage| OpenError::Damaged {
            path: self.path.clone(),
            what: format!("{} from byte {} on, before its end", damage.file.display(), damage.at),
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

/// Anything but what a crash before the marker leaves.
fn holds_anything(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !["lock", "format.tmp", DRAFT].iter().any(|ours| name == *ours) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_open_lock_keeps_nobody_out() {
        let path = std::env::temp_dir().join(format!("tidegate-lock-{}", std::process::id()));
        let first = Directory::enter(&path).unwrap();
        assert!(matches!(Directory::enter(&path), Err(OpenError::Locked(_))));
        let copy = first.lock.try_clone().unwrap();
        drop(first);
        Directory::enter(&path).unwrap();
        drop(copy);
        fs::remove_dir_all(path).unwrap();
    }
}
