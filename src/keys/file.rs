//! File with the keys of the admin port: one JSON object a line, with the hash of each secret. Nodes read it, and
//! `tidegate key` changes it.

use std::{
    collections::HashSet,
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use rustix::{
    fs::{Gid, Uid, fchown},
    process::geteuid,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_protocol::id::check_id;

use super::{scope::Scope, secret};
use crate::{networks::Network, private};

/// Most keys of a file, revoked ones included.
pub const KEYS_MAX: usize = 1_000;

/// Most bytes of a file.
const FILE_BYTES_MAX: usize = 4 << 20;

/// Most scopes and networks of a key.
const LIST_MAX: usize = 32;

/// Line of the file: everything about a key except its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KeyEntry {
    /// Id, the first part of the key.
    pub id: String,
    /// Name for operators, unique among the keys in force.
    pub name: String,
    /// Rights.
    pub scopes: Vec<Scope>,
    /// SHA-256 of the secret.
    #[serde(with = "hex")]
    pub sha256: [u8; 32],
    /// Time of creation, in ms since 1970.
    pub created_ms: u64,
    /// Time from which the key is refused, in ms since 1970; `None` if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Networks from which the key may be used; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// Time of the revocation, in ms since 1970. The entry stays, so that a list shows what the key was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
}

impl KeyEntry {
    /// Returns whether the key is neither revoked nor expired.
    pub fn is_in_force(&self, now_ms: u64) -> bool {
        self.revoked_ms.is_none() && !self.has_expired(now_ms)
    }

    /// Returns whether the key has expired.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires| expires <= now_ms)
    }

    /// Returns what operators may see of the key: everything except the hash of its secret.
    pub fn view(&self, now_ms: u64) -> Value {
        let networks: Vec<String> = self.networks.iter().map(Network::to_string).collect();
        json!({
            "id": self.id,
            "name": self.name,
            "scopes": self.scopes,
            "state": self.state(now_ms),
            "networks": networks,
            "createdMs": self.created_ms,
            "expiresMs": self.expires_ms,
            "revokedMs": self.revoked_ms,
        })
    }

    /// Returns the state of the key in words.
    pub fn state(&self, now_ms: u64) -> &'static str {
        match self.revoked_ms {
            Some(_) => "revoked",
            None if self.has_expired(now_ms) => "expired",
            None => "in force",
        }
    }

    fn check(&self) -> Result<(), String> {
        if !secret::is_id(&self.id) {
            return Err("id: 8 lower-case letters and digits".to_owned());
        }
        check_id(&self.name).map_err(|error| format!("name: {error}"))?;
        if self.scopes.is_empty() || self.scopes.len() > LIST_MAX || self.networks.len() > LIST_MAX {
            return Err(format!("1 to {LIST_MAX} scopes, and at most {LIST_MAX} networks"));
        }
        Ok(())
    }
}

/// Hash as 64 hex digits.
mod hex {
    use super::HEXLOWER;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(hash: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(hash))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = HEXLOWER.decode(text.as_bytes()).ok();
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| D::Error::custom("64 hex digits are needed"))
    }
}

/// Reads the keys of a file.
///
/// # Errors
/// The file can't be read, other accounts may read it, or it is damaged; the text names the cure.
pub fn load_keys(path: &Path) -> io::Result<Vec<KeyEntry>> {
    parse(&read(path)?)
}

/// Reads the file without parsing it.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = private::read(path)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(invalid(format!("more than {FILE_BYTES_MAX} bytes; is it the right file?")));
    }
    Ok(bytes)
}

/// Parses the content of a file. The error names the line, and never repeats it.
pub(super) fn parse(bytes: &[u8]) -> io::Result<Vec<KeyEntry>> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| invalid("not text; is it the right file?".to_owned()))?;
    let (mut entries, mut ids) = (Vec::new(), HashSet::new());
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |why: &str| {
            invalid(format!(
                "line {}: {why}; remove the line, and make a new key with `tidegate key add`",
                index + 1
            ))
        };
        // The text of an error of the parser may have a part of the line.
        let entry: KeyEntry = serde_json::from_str(line)
            .map_err(|error| at(&format!("no entry of a key (column {})", error.column())))?;
        entry.check().map_err(|why| at(&why))?;
        if !ids.insert(entry.id.clone()) {
            return Err(at("its id occurs twice"));
        }
        if entries.len() == KEYS_MAX {
            return Err(invalid(format!("more than {KEYS_MAX} keys; remove revoked ones")));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Returns whether a locked file is still the one at its path. A process that had the lock may have replaced it.
fn is_current(path: &Path, file: &File) -> bool {
    fs::metadata(path)
        .is_ok_and(|now| file.metadata().is_ok_and(|own| (own.ino(), own.dev()) == (now.ino(), now.dev())))
}

/// File of keys that this process alone changes.
pub struct KeyFileLock {
    path: PathBuf,
    file: File,
    /// Keys of the file.
    pub entries: Vec<KeyEntry>,
}

impl KeyFileLock {
    /// Opens the file, creates it with mode 600 if it is missing, and waits until no other process changes it.
    ///
    /// # Errors
    /// The file can't be opened, other accounts may read it, or it is damaged.
    pub fn open(path: &Path) -> io::Result<Self> {
        loop {
            // Only the mode of a new file is set here.
            let file = private::options().read(true).create(true).truncate(false).open(path)?;
            file.lock()?;
            if is_current(path, &file) {
                return Ok(Self { entries: load_keys(path)?, path: path.to_owned(), file });
            }
        }
    }

    /// Opens a file that exists, without waiting.
    ///
    /// # Errors
    /// As [`KeyFileLock::open`]; the kind is `WouldBlock` if another process changes the file at the moment.
    pub(super) fn try_open(path: &Path) -> io::Result<Self> {
        let file = private::options().read(true).open(path)?;
        file.try_lock()?;
        if !is_current(path, &file) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Self { entries: load_keys(path)?, path: path.to_owned(), file })
    }

    /// Replaces the file by one with the present entries, of the same owner and mode. Readers see the old or the new
    /// one.
    ///
    /// # Errors
    /// The file can't be replaced; the old one stays.
    pub fn save(&self) -> io::Result<()> {
        let mut lines = Vec::new();
        for entry in &self.entries {
            serde_json::to_writer(&mut lines, entry)?;
            lines.push(b'\n');
        }
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let draft = self.path.with_file_name(name);
        let written = self.write(&draft, &lines);
        if written.is_err() {
            fs::remove_file(&draft).ok();
        }
        written
    }

    fn write(&self, draft: &Path, lines: &[u8]) -> io::Result<()> {
        let about = self.file.metadata()?;
        let mut new = private::options().create(true).truncate(true).open(draft)?;
        if about.uid() != geteuid().as_raw() {
            let (owner, group) = (Uid::from_raw(about.uid()), Gid::from_raw(about.gid()));
            fchown(&new, Some(owner), Some(group)).map_err(|error| {
                let why = format!("the file belongs to uid {}: run the command as that account", about.uid());
                io::Error::new(io::Error::from(error).kind(), why)
            })?;
        }
        new.set_permissions(Permissions::from_mode(about.mode() & 0o640))?;
        new.write_all(lines)?;
        new.sync_all()?;
        fs::rename(draft, &self.path)?;
        // Without it a power failure may bring a revoked key back. The file is replaced already, so this is no failure.
        let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).ok();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::secret::SecretKey, *};

    fn entry(name: &str) -> (SecretKey, KeyEntry) {
        let key = SecretKey::random();
        let entry = KeyEntry {
            id: key.id().to_owned(),
            name: name.to_owned(),
            scopes: vec![Scope::Read],
            sha256: key.hash(),
            created_ms: 1,
            expires_ms: None,
            networks: Vec::new(),
            revoked_ms: None,
        };
        (key, entry)
    }

    fn temp(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tidegate-keys-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder.join("admin.keys")
    }

    #[test]
    fn saved_entries_are_read_again_from_a_closed_file_without_secrets() {
        let path = temp("saved");
        let (key, mut first) = entry("crm");
        first.networks = vec!["10.0.0.0/8".parse().unwrap()];
        first.expires_ms = Some(9);
        let mut file = KeyFileLock::open(&path).unwrap();
        file.entries.push(first.clone());
        file.save().unwrap();
        assert_eq!(load_keys(&path).unwrap(), [first]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&key.text()[13..56]), "the file has the secret: {text}");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
        let path = temp("concurrent");
        std::thread::scope(|scope| {
            for n in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let mut file = KeyFileLock::open(path).unwrap();
                    file.entries.push(entry(&format!("key-{n}")).1);
                    file.save().unwrap();
                });
            }
        });
        assert_eq!(load_keys(&path).unwrap().len(), 8);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn damaged_lines_are_named_and_not_repeated() {
        let good = serde_json::to_string(&entry("crm").1).unwrap();
        assert_eq!(parse(format!("\n{good}\n\n").as_bytes()).unwrap().len(), 1);
        for bad in [
            "secret-text".to_owned(),
            good.replace("\"crm\"", "\"secret text\""),
            good.replace("\"read\"", "\"secret\""),
            good.replace("\"sha256\":\"", "\"sha256\":\"secret"),
            good.replace("\"name\"", "\"secret\""),
            good.replace("[\"read\"]", "[]"),
            good.replace("}", ",\"secret\":1}"),
            good.clone(),
        ] {
            let error = parse(format!("{good}\n{bad}\n").as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("line 2") && !error.contains("secret"), "{error}");
        }
        assert!(parse(b"\xff").is_err());
        let many: String =
            (0..=KEYS_MAX).map(|n| good.replace(&good[7..15], &format!("{n:08}")) + "\n").collect();
        assert!(parse(many.as_bytes()).unwrap_err().to_string().contains("more than 1000"));
    }
}
