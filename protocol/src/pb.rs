//! The messages generated from `tidegate/v1/*.proto`; the schema files hold their documentation.
#![allow(missing_docs, clippy::all, unreachable_pub)]

include!(concat!(env!("OUT_DIR"), "/tidegate.v1.rs"));
