//! The fuzz targets as functions; see `targets`.

pub mod targets;
