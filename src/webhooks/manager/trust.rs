//! Authorities of the certificates of all endpoints, which are read when the first plan needs them.

use std::{io, path::Path};

use parking_lot::Mutex;

use crate::net::endpoint::ServerTrust;

/// Authorities in force, with the number of times that they were replaced.
#[derive(Default)]
pub(super) struct EndpointTrust(Mutex<TrustState>);

#[derive(Default)]
struct TrustState {
    read: Option<ServerTrust>,
    generation: u64,
}

impl EndpointTrust {
    /// Returns the authorities, at first those of a file; of an empty path, those of the system.
    ///
    /// # Errors
    /// The file can't be read.
    pub(super) fn get(&self, ca_file: &Path) -> io::Result<ServerTrust> {
        let mut state = self.0.lock();
        if let Some(trust) = &state.read {
            return Ok(trust.clone());
        }
        let read = ServerTrust::read(ca_file)?;
        Ok(state.read.insert(read).clone())
    }

    /// Replaces the authorities.
    pub(super) fn replace(&self, trust: ServerTrust) {
        let mut state = self.0.lock();
        state.read = Some(trust);
        state.generation += 1;
    }

    /// Returns a number that changes when the authorities are replaced.
    pub(super) fn generation(&self) -> u64 {
        self.0.lock().generation
    }
}
