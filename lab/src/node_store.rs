//! The embedded store of a node that has ended, opened without the node.

use std::{path::Path, sync::Arc};

use tidegate::embedded::{EmbeddedStore, Engine, EngineConfig, RealDisk};

/// Opens the store in the data directory of a node.
pub(crate) fn open(data: &Path) -> anyhow::Result<EmbeddedStore> {
    let engine = Engine::open(EngineConfig {
        path: data.join("store"),
        partitions: 1,
        free_bytes_min: 0,
        disk: Arc::new(RealDisk),
    })?;
    Ok(EmbeddedStore::new(Arc::new(engine)))
}
