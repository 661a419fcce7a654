//! File of security events: JSON lines, closed to other accounts, with one older file.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::Deserialize;
use tidegate_protocol::id::{DeviceId, UserId};

use super::{Erasure, EvidenceSource};
use crate::{clock::parse_rfc3339, private};

/// Bytes of the file from which on it is renamed, with the suffix `.1`, and begun again.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// First lines of the file among which one with a time is looked for.
const FIRST_LINES_MAX: usize = 16;

/// Target of the log that takes the lines instead of a file.
const LOG: &str = "-";

/// Output of security events. All calls block for as long as the disk takes.
pub struct EvidenceFile {
    path: PathBuf,
    /// Time after which the file is renamed, and after which the older one is removed; `None` to keep them.
    age_max: Option<Duration>,
}

/// Time and source of a line.
#[derive(Deserialize)]
struct LineSource {
    time: Option<String>,
    address: Option<std::net::IpAddr>,
    user: Option<String>,
    device: Option<String>,
}

impl LineSource {
    /// Reads a line; `None` if it is incomplete.
    fn read(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    fn at_ms(&self) -> Option<u64> {
        self.time.as_deref().and_then(parse_rfc3339)
    }
}

impl EvidenceFile {
    /// Creates the output; `-` is the log. `None` for an empty path. With `days` of 0 lines have no age.
    pub fn new(path: &Path, days: u32) -> Option<Self> {
        let age_max = (days > 0).then(|| Duration::from_secs(u64::from(days) * 86_400));
        (!path.as_os_str().is_empty()).then(|| Self { path: path.to_owned(), age_max })
    }

    /// Appends lines.
    ///
    /// # Errors
    /// Some of them are not written.
    pub fn append(&self, lines: &[String]) -> io::Result<()> {
        if self.is_log() {
            for line in lines {
                tracing::info!(target: "tidegate::evidence", "{line}");
            }
            return Ok(());
        }
        let mut file = self.open()?;
        if file.metadata()?.len() >= FILE_BYTES_MAX {
            fs::rename(&self.path, self.older())?;
            file = self.open()?;
        }
        let mut text = if is_torn(&mut file)? { "\n".to_owned() } else { String::new() };
        text.push_str(&lines.join("\n"));
        text.push('\n');
        file.write_all(text.as_bytes())
    }

    /// Renames the file if its first line is too old, and removes the older one if its last line is, and what an erasure
    /// left behind. To be called at the start and once in a while.
    ///
    /// # Errors
    /// A file can't be renamed or removed; the others are.
    pub fn expire(&self, now: SystemTime) -> io::Result<()> {
        if self.is_log() {
            return Ok(());
        }
        let older = self.older();
        let cleared = remove(&kept_of(&self.path)).and(remove(&kept_of(&older)));
        let Some(age_max) = self.age_max else { return cleared };
        let is_old = |time: SystemTime| now.duration_since(time).is_ok_and(|age| age >= age_max);
        if fs::metadata(&older).and_then(|found| found.modified()).is_ok_and(is_old) {
            remove(&older)?;
        }
        if self.began().is_some_and(is_old) {
            fs::rename(&self.path, &older)?;
        }
        cleared
    }

    /// Removes the lines of these subjects from before the requests from both files, and those that can't be read. Lines
    /// that are appended meanwhile would be lost. The time for which other lines are kept stays as it is.
    ///
    /// # Errors
    /// A file can't be read or written; it is as it was. The other one is erased.
    pub fn erase(&self, erasures: &[Erasure]) -> io::Result<()> {
        if self.is_log() {
            return Ok(());
        }
        let erased = erase_from(&self.path, erasures);
        erase_from(&self.older(), erasures).and(erased)
    }

    /// Returns the time of the first line; that of the file's creation if it is earlier, or no line has a time.
    fn began(&self) -> Option<SystemTime> {
        let file = File::open(&self.path).ok()?;
        let created = file.metadata().and_then(|found| found.created()).ok();
        let lines = BufReader::new(file).split(b'\n').take(FIRST_LINES_MAX).map_while(Result::ok);
        let first = lines.filter_map(|line| LineSource::read(&line)?.at_ms()).next();
        let first = first.map(|at_ms| SystemTime::UNIX_EPOCH + Duration::from_millis(at_ms));
        [created, first].into_iter().flatten().min()
    }

    fn is_log(&self) -> bool {
        self.path == Path::new(LOG)
    }

    fn older(&self) -> PathBuf {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        older.into()
    }

    fn open(&self) -> io::Result<File> {
        private::options().read(true).append(true).create(true).open(&self.path)
    }
}

/// Returns the path of what is left of a file while lines are removed from it.
fn kept_of(path: &Path) -> PathBuf {
    let mut kept = path.to_owned().into_os_string();
    kept.push(".kept");
    kept.into()
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Returns whether the last line of a file has no end, because the node or the disk failed while it was written.
fn is_torn(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn is_erased(line: &[u8], erasures: &[Erasure]) -> bool {
    // The subject of an incomplete line is not known.
    let Some(found) = LineSource::read(line) else { return true };
    let at_ms = found.at_ms().unwrap_or(0);
    let LineSource { address, user, device, .. } = found;
    let user = user.and_then(|user| UserId::new(&user).ok());
    let source = EvidenceSource { address, user, device: device.and_then(|it| DeviceId::new(&it).ok()) };
    erasures.iter().any(|erasure| erasure.includes(&source, at_ms))
}

/// Removes lines from a file, if it has any of them.
fn erase_from(path: &Path, erasures: &[Erasure]) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => BufReader::new(file?),
    };
    let mut has_erased = false;
    for line in file.split(b'\n') {
        has_erased = has_erased || is_erased(&line?, erasures);
    }
    if !has_erased {
        return Ok(());
    }
    let kept_path = kept_of(path);
    let done = keep_others(path, &kept_path, erasures).and_then(|()| fs::rename(&kept_path, path));
    if done.is_err() {
        remove(&kept_path).ok();
    }
    done
}

/// Writes the other lines of a file to another one with the same time of modification, which says how old its last line is.
fn keep_others(path: &Path, kept_path: &Path, erasures: &[Erasure]) -> io::Result<()> {
    let file = File::open(path)?;
    let modified = file.metadata()?.modified();
    let kept = private::options().write(true).create(true).truncate(true).open(kept_path)?;
    let mut kept = BufWriter::new(kept);
    for line in BufReader::new(file).split(b'\n') {
        let line = line?;
        if !is_erased(&line, erasures) {
            kept.write_all(&line)?;
            kept.write_all(b"\n")?;
        }
    }
    let kept = kept.into_inner()?;
    if let Ok(modified) = modified {
        kept.set_modified(modified)?;
    }
    kept.sync_all()
}

#[cfg(test)]
mod tests;
