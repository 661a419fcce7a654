//! Refresh of the remote set of keys (JWKS): loads it on an interval and on request, and keeps the last good one.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::time::sleep;

use super::{fetch::Source, key::parse_set, keyring::Keyring};
use crate::{
    breaker::{GuardedService, ServiceBreaker},
    metrics::Metrics,
    private, supervised,
};

/// First delay after a failed attempt; it doubles up to the interval.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of the refresh.
#[derive(Clone, Debug)]
pub struct Settings {
    /// URL of the set.
    pub url: String,
    /// Authorities of the server's certificate (PEM); empty for those of the system.
    pub ca_file: PathBuf,
    /// Time between refreshes.
    pub interval: Duration,
    /// Longest time of one attempt.
    pub timeout: Duration,
    /// File with the last good set, used at the start until the URL answers; empty for none.
    pub copy: PathBuf,
}

/// Refresher of the remote keys of a keyring.
pub struct Refresher {
    source: Source,
    settings: Settings,
    keyring: Arc<Keyring>,
    breaker: Arc<ServiceBreaker>,
    metrics: Metrics,
}

impl Refresher {
    /// Creates a refresher, and loads the copy of the last good set if there is one.
    ///
    /// # Errors
    /// The URL or the file of the authorities is invalid.
    pub fn new(settings: Settings, keyring: Arc<Keyring>, metrics: Metrics) -> io::Result<Self> {
        let source = Source::new(&settings.url, &settings.ca_file, settings.timeout)?;
        let breaker = ServiceBreaker::new(GuardedService::Jwks, settings.timeout);
        let refresher = Self { source, settings, keyring, breaker, metrics };
        refresher.load_copy();
        Ok(refresher)
    }

    /// Refreshes the keys until the runtime stops.
    pub async fn run(self) {
        let mut failures = 0_u32;
        loop {
            let loaded = self.refresh().await;
            failures = if loaded { 0 } else { failures.saturating_add(1) };
            let delay = match failures {
                0 => self.settings.interval,
                _ => (RETRY_INTERVAL * 2_u32.saturating_pow((failures - 1).min(16)))
                    .min(self.settings.interval),
            };
            tokio::select! {
                () = sleep(delay) => {}
                () = self.keyring.requested() => {}
            }
        }
    }

    /// Loads the set once; returns whether it is in force. A failure changes nothing but the counters. While the breaker
    /// is open, unknown keys in tokens cause no call.
    pub async fn refresh(&self) -> bool {
        let Some(call) = self.breaker.acquire() else {
            self.keyring.expire(Instant::now());
            self.keyring.attempted();
            return false;
        };
        let loaded = match self.load().await {
            Ok(text) => self.adopt(&text).map(|()| text),
            Err(why) => Err(why),
        };
        match loaded {
            Ok(_) => call.succeeded(),
            Err(_) => _ = call.failed(),
        }
        self.keyring.expire(Instant::now());
        let is_loaded = match loaded {
            Ok(text) => {
                self.metrics.jwks_refreshes.increment(1);
                self.store_copy(text.to_vec()).await;
                true
            }
            Err(why) => {
                self.metrics.jwks_failures.increment(1);
                let (url, keys) = (&self.settings.url, self.keyring.len());
                tracing::warn!(
                    url,
                    why,
                    keys,
                    "failed to load the keys that verify tokens; the last good set stays in force"
                );
                false
            }
        };
        self.metrics.jwks_keys.set(self.keyring.len() as f64);
        self.keyring.attempted();
        is_loaded
    }

    /// Loads the set. Reads the file of the authorities each time, so that an authority is replaced without a restart.
    async fn load(&self) -> Result<Bytes, String> {
        let Settings { url, ca_file, timeout, .. } = self.settings.clone();
        if ca_file.as_os_str().is_empty() {
            return self.source.get().await;
        }
        let work = move || Source::new(&url, &ca_file, timeout);
        match supervised::spawn_blocking("the authorities of the remote keys", work).await {
            Ok(Ok(source)) => source.get().await,
            Ok(Err(error)) => Err(format!("auth.jwks_ca_file: {error}")),
            Err(_) => Err("the node stops".to_owned()),
        }
    }

    fn adopt(&self, text: &[u8]) -> Result<(), String> {
        let (keys, unusable) = parse_set(text)?;
        for why in unusable {
            tracing::warn!(why, "key of the remote set left out");
        }
        self.keyring.replace(keys, Instant::now());
        Ok(())
    }

    fn load_copy(&self) {
        let file = &self.settings.copy;
        if file.as_os_str().is_empty() || !file.exists() {
            return;
        }
        let loaded =
            private::read(file).map_err(|error| error.to_string()).and_then(|text| self.adopt(&text));
        match loaded {
            Ok(()) => {
                tracing::info!(file = %file.display(), keys = self.keyring.len(), "last good keys loaded")
            }
            Err(why) => {
                tracing::warn!(file = %file.display(), why, "copy of the last good keys can't be used")
            }
        }
    }

    async fn store_copy(&self, text: Vec<u8>) {
        let file = self.settings.copy.clone();
        if file.as_os_str().is_empty() {
            return;
        }
        let work = move || write_copy(&file, &text);
        if let Ok(Err(error)) = supervised::spawn_blocking("the copy of the remote keys", work).await {
            tracing::warn!(%error, "failed to store the copy of the remote keys");
        }
    }
}

/// Writes the copy under another name and renames it, so that a start never reads half of it.
fn write_copy(file: &Path, text: &[u8]) -> io::Result<()> {
    if fs::read(file).is_ok_and(|stored| stored == text) {
        return Ok(());
    }
    let draft = file.with_extension("new");
    let mut options = private::options();
    io::Write::write_all(&mut options.create(true).truncate(true).open(&draft)?, text)?;
    fs::rename(draft, file)
}

#[cfg(test)]
mod tests;
