//! File of the audit log: appended to line by line, rotated by size, closed to other accounts.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{metrics::Metrics, private};

/// Files in which the lines are kept: the one that is appended to, and older ones with the suffixes `.1`, `.2` and `.3`.
const FILES: u64 = 4;

/// Most lines that wait for a file that can be written: as many as an admin port handles requests at a time.
const WAITING_MAX: usize = 64;

/// Longest wait for a write of another request.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// File of the audit log. All calls block for as long as the disk takes.
pub struct AuditFile {
    path: PathBuf,
    /// Size at which the file is rotated.
    segment_bytes: u64,
    state: Mutex<State>,
    metrics: Metrics,
}

/// Open file, and what could not be written to it.
#[derive(Default)]
struct State {
    file: Option<File>,
    /// Bytes of complete lines.
    size: u64,
    waiting: VecDeque<Vec<u8>>,
}

impl AuditFile {
    /// Opens the file, and creates it with mode 600 if it is missing. All files together have at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The file can't be opened; the text names the cure.
    pub fn open(path: &Path, bytes_max: u64, metrics: Metrics) -> io::Result<Self> {
        let file = Self {
            path: path.to_owned(),
            segment_bytes: bytes_max / FILES,
            state: Mutex::default(),
            metrics,
        };
        file.open_current(&mut file.state.lock())?;
        Ok(file)
    }

    /// Appends a line. A line that can't be written is logged and, if it has to be kept, written as soon as the file can
    /// be.
    ///
    /// # Errors
    /// The line is not in the file.
    pub fn append(&self, line: Vec<u8>, must_be_kept: bool) -> io::Result<()> {
        let Some(mut state) = self.state.try_lock_for(LOCK_TIMEOUT) else {
            return Err(self.failed(&line, io::ErrorKind::TimedOut.into()));
        };
        let written = self.flush(&mut state).and_then(|()| self.write(&mut state, &line));
        if let Err(error) = written {
            let error = self.failed(&line, error);
            if must_be_kept && state.waiting.len() < WAITING_MAX {
                state.waiting.push_back(line);
            }
            return Err(error);
        }
        self.metrics.audit_lines.increment(1);
        Ok(())
    }

    /// Writes the lines that could not be written before.
    ///
    /// # Errors
    /// The file still can't be written.
    pub fn recover(&self) -> io::Result<()> {
        let mut state = self.state.try_lock_for(LOCK_TIMEOUT).ok_or(io::ErrorKind::TimedOut)?;
        self.flush(&mut state)
    }

    /// Opens the file again, for programs that rotate it themselves.
    pub fn reopen(&self) {
        if let Some(mut state) = self.state.try_lock_for(LOCK_TIMEOUT) {
            // The next line opens it.
            state.file = None;
        }
    }

    fn failed(&self, line: &[u8], error: io::Error) -> io::Error {
        self.metrics.audit_failures.increment(1);
        let (file, line) = (self.path.display(), String::from_utf8_lossy(line));
        tracing::error!(%file, %error, line = line.trim_end(), "audit line can't be written; changes are refused until it can be");
        error
    }

    fn flush(&self, state: &mut State) -> io::Result<()> {
        while let Some(line) = state.waiting.pop_front() {
            if let Err(error) = self.write(state, &line) {
                state.waiting.push_front(line);
                return Err(error);
            }
            self.metrics.audit_lines.increment(1);
        }
        Ok(())
    }

    fn write(&self, state: &mut State, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if !self.is_current(state) {
            self.open_current(state)?;
        }
        if state.size > 0 && state.size + length > self.segment_bytes {
            self.rotate(state)?;
        }
        let Some(file) = &mut state.file else { return Err(io::ErrorKind::NotFound.into()) };
        let written = file.write_all(line);
        match written {
            Ok(()) => state.size += length,
            // A part of the line may be there.
            Err(_) => file.set_len(state.size).unwrap_or_default(),
        }
        written
    }

    /// Returns whether the open file is the one that the path names.
    fn is_current(&self, state: &State) -> bool {
        let (Some(file), Ok(named)) = (&state.file, fs::metadata(&self.path)) else { return false };
        file.metadata().is_ok_and(|own| (own.ino(), own.dev()) == (named.ino(), named.dev()))
    }

    fn open_current(&self, state: &mut State) -> io::Result<()> {
        state.file = None;
        // `write` without `append` would overwrite the beginning.
        let file = private::options().append(true).create(true).open(&self.path)?;
        if !private::is_closed(&file)? {
            let why = "other accounts may read or write it: `chmod 600` it, or name another file";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        state.size = file.metadata()?.len();
        state.file = Some(file);
        Ok(())
    }

    /// Renames the files, so that the oldest is gone, and opens a new one.
    fn rotate(&self, state: &mut State) -> io::Result<()> {
        for nth in (1..FILES).rev() {
            let older = if nth == 1 { self.path.clone() } else { self.numbered(nth - 1) };
            match fs::rename(older, self.numbered(nth)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.open_current(state)
    }

    fn numbered(&self, nth: u64) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{nth}"));
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::metrics;

    fn temp(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tidegate-audit-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&folder).unwrap();
        folder.join("audit.jsonl")
    }

    fn open(path: &Path, bytes_max: u64) -> AuditFile {
        AuditFile::open(path, bytes_max, metrics::install().0).unwrap()
    }

    fn line(n: usize) -> Vec<u8> {
        format!("line {n:04}\n").into_bytes()
    }

    #[test]
    fn lines_are_kept_up_to_the_size_and_the_newest_are_there() {
        let path = temp("rotated");
        let file = open(&path, 4 * 100);
        for n in 0..200 {
            file.append(line(n), true).unwrap();
        }
        let names = ["audit.jsonl.3", "audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"];
        let all: String =
            names.iter().map(|name| fs::read_to_string(path.with_file_name(name)).unwrap()).collect();
        assert!(all.len() <= 400 && all.len() >= 300, "{}", all.len());
        let first = 200 - all.lines().count();
        let expected: String = (first..200).map(|n| format!("line {n:04}\n")).collect();
        assert_eq!(all, expected);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 4);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn file_that_was_moved_or_removed_is_opened_again() {
        let path = temp("moved");
        let file = open(&path, 1 << 20);
        file.append(line(1), true).unwrap();
        fs::rename(&path, path.with_extension("moved")).unwrap();
        file.append(line(2), true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), line(2));
        file.reopen();
        file.append(line(3), true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [line(2), line(3)].concat());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn lines_of_changes_wait_for_a_file_that_can_be_written() {
        let path = temp("waiting");
        let file = open(&path, 1 << 20);
        file.append(line(1), true).unwrap();
        // Not a permission, which would not keep root out.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.append(line(2), true).is_err());
        assert!(file.append(line(3), false).is_err());
        assert!(file.recover().is_err());
        for n in 4..100 {
            file.append(line(n), true).unwrap_err();
        }
        fs::remove_dir(&path).unwrap();
        file.recover().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("line 0002\nline 0004\n"), "{text}");
        assert_eq!(text.lines().count(), WAITING_MAX);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn file_of_other_accounts_is_refused() {
        let path = temp("open");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = AuditFile::open(&path, 1 << 20, metrics::install().0).err().unwrap().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
