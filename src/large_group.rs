//! Large groups: one record for each node with members, published on node topics.

pub mod publisher;
pub mod subscriber;
