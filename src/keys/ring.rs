//! Keys in force on a node: read from the file, read again when it changes, and checked for each request.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tokio::time::{self, MissedTickBehavior};

use super::{
    file::{self, KeyEntry, KeyFileLock},
    scope::Scope,
    secret::SecretKey,
};
use crate::{clock::wall_ms, metrics::Metrics, supervised};

/// Interval at which the file is read again. Revoked keys are refused within this time, and that of a read.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Caller with a valid key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHolder {
    /// Id of the key.
    pub id: String,
    /// Name of the key.
    pub name: String,
    /// Rights of the key.
    pub scopes: Vec<Scope>,
}

impl KeyHolder {
    /// Returns whether the key may do what `needed` allows.
    pub fn may(&self, needed: Scope) -> bool {
        self.scopes.iter().any(|scope| scope.includes(needed))
    }
}

/// Reason for which a presented key is refused. The last three are known only once the secret was right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRejection {
    /// The text is no key.
    Malformed,
    /// There is no key with this id and secret.
    Unknown(String),
    /// The key was revoked.
    Revoked(KeyHolder),
    /// The key has expired.
    Expired(KeyHolder),
    /// The key may not be used from this address.
    ForeignNetwork(KeyHolder),
}

/// Keys of the admin port. The last good content of the file stays in force while the file is damaged or missing.
pub struct KeyRing {
    path: PathBuf,
    keys: RwLock<Arc<HashMap<String, KeyEntry>>>,
    /// Result of the last read: the content of the file, or why it can't be used. Held while the file is read.
    last_read: Mutex<Result<Vec<u8>, String>>,
    metrics: Metrics,
}

impl KeyRing {
    /// Reads the keys of a file.
    ///
    /// # Errors
    /// The file can't be read, other accounts may read it, or it is damaged; the text names the cure.
    pub fn open(path: &Path, metrics: Metrics) -> io::Result<Self> {
        let content = file::read(path)?;
        let keys = by_id(file::parse(&content)?);
        if keys.is_empty() {
            let file = path.display();
            tracing::warn!(%file, "no keys: every caller of the admin port is refused until `tidegate key add` makes one");
        }
        metrics.admin_keys.set(keys.len() as f64);
        metrics.admin_keys_broken.set(0.0);
        Ok(Self {
            path: path.to_owned(),
            keys: RwLock::new(Arc::new(keys)),
            last_read: Mutex::new(Ok(content)),
            metrics,
        })
    }

    /// Reads the file again each second, forever.
    pub async fn follow(self: Arc<Self>) {
        let mut tick = time::interval(RELOAD_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let ring = Arc::clone(&self);
            if supervised::run_blocking(move || ring.reload()).await.is_err() {
                return;
            }
        }
    }

    /// Reads the file again. Blocks, for as long as a read takes.
    ///
    /// # Errors
    /// The file can't be used, for the reason given; the keys that were read before stay in force.
    pub fn reload(&self) -> Result<(), String> {
        let mut last_read = self.last_read.lock();
        let read = file::read(&self.path).and_then(|content| match &*last_read {
            Ok(last) if *last == content => Ok((content, None)),
            _ => file::parse(&content).map(|entries| (content, Some(entries))),
        });
        match read {
            Ok((_, None)) => Ok(()),
            Ok((content, Some(entries))) => {
                let keys = by_id(entries);
                tracing::info!(keys = keys.len(), "keys of the admin port read again");
                self.metrics.admin_keys.set(keys.len() as f64);
                self.metrics.admin_keys_broken.set(0.0);
                *self.keys.write() = Arc::new(keys);
                *last_read = Ok(content);
                Ok(())
            }
            Err(error) => {
                let why = error.to_string();
                // Once for each reason: the file is read each second.
                if last_read.as_ref().err() != Some(&why) {
                    let file = self.path.display();
                    tracing::error!(%file, why, "keys of the admin port can't be read (admin.keys_file); those read before stay in force");
                    self.metrics.admin_keys_broken.set(1.0);
                    *last_read = Err(why.clone());
                }
                Err(why)
            }
        }
    }

    /// Returns the holder of a presented key.
    ///
    /// # Errors
    /// The key is refused.
    pub fn check(&self, presented: &str, from: IpAddr) -> Result<KeyHolder, KeyRejection> {
        let key: SecretKey = presented.parse().map_err(|_| KeyRejection::Malformed)?;
        let keys = Arc::clone(&self.keys.read());
        let Some(entry) = keys.get(key.id()).filter(|entry| key.has_hash(&entry.sha256)) else {
            return Err(KeyRejection::Unknown(key.id().to_owned()));
        };
        let (id, name, scopes) = (entry.id.clone(), entry.name.clone(), entry.scopes.clone());
        let holder = KeyHolder { id, name, scopes };
        if entry.revoked_ms.is_some() {
            return Err(KeyRejection::Revoked(holder));
        }
        if entry.has_expired(wall_ms()) {
            return Err(KeyRejection::Expired(holder));
        }
        let is_home = entry.networks.is_empty() || entry.networks.iter().any(|it| it.contains(from));
        if is_home { Ok(holder) } else { Err(KeyRejection::ForeignNetwork(holder)) }
    }

    /// Returns all keys that were read last, the oldest first.
    pub fn entries(&self) -> Vec<KeyEntry> {
        let keys = Arc::clone(&self.keys.read());
        let mut entries: Vec<KeyEntry> = keys.values().cloned().collect();
        entries.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        entries
    }

    /// Revokes a key in the file, and refuses it from now on. Returns the key, and whether it was not revoked before;
    /// `None` if there is no such key. Blocks, for as long as the disk takes.
    ///
    /// # Errors
    /// The file can't be changed; the kind is `WouldBlock` if another process changes it at the moment.
    pub fn revoke(&self, id: &str) -> io::Result<Option<(KeyEntry, bool)>> {
        let mut file = KeyFileLock::try_open(&self.path)?;
        let Some(entry) = file.entries.iter_mut().find(|entry| entry.id == id) else { return Ok(None) };
        let is_change = entry.revoked_ms.is_none();
        entry.revoked_ms.get_or_insert_with(wall_ms);
        let revoked = entry.clone();
        if is_change {
            file.save()?;
        }
        drop(file);
        // A failure is logged.
        drop(self.reload());
        Ok(Some((revoked, is_change)))
    }

    /// Waits until the key is no longer in force.
    pub async fn ended(self: Arc<Self>, id: String) {
        let is_in_force = || self.keys.read().get(&id).is_some_and(|entry| entry.is_in_force(wall_ms()));
        while is_in_force() {
            time::sleep(RELOAD_INTERVAL).await;
        }
    }
}

fn by_id(entries: Vec<KeyEntry>) -> HashMap<String, KeyEntry> {
    entries.into_iter().map(|entry| (entry.id.clone(), entry)).collect()
}
