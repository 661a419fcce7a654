//! Audit log of the admin port: one entry for each change and each refused key, as a line of a file and as an event.
//!
//! An entry names who did what to which ids. It never has content, secrets or free text.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use serde::Serialize;
use tidegate_protocol::id::UserId;

use crate::clock::rfc3339;

mod file;

pub use self::file::AuditFile;

/// Caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// Holder of a key.
    Key {
        /// Id of the key.
        id: String,
        /// Name of the key.
        name: String,
    },
    /// Presenter of a key that is not one of this node, with the id if it has the form of one.
    Unknown(Option<String>),
    /// Program on the machine of a node for development, which has no keys.
    Development,
    /// Program on the machine of another node without keys.
    Loopback,
    /// The node itself, by the evidence that it has seen.
    Automatic,
}

impl Actor {
    /// Returns the id of the key, or the kind of the caller.
    pub fn id(&self) -> &str {
        match self {
            Self::Key { id, .. } | Self::Unknown(Some(id)) => id,
            Self::Unknown(None) => "unknown",
            Self::Development => "development",
            Self::Loopback => "loopback",
            Self::Automatic => "automatic",
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Key { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Time of the request, in ms since 1970.
    pub at_ms: u64,
    /// Node that handled the request.
    pub node: Arc<str>,
    /// Number of the entry in the run of the node, with that run.
    pub id: String,
    /// Caller.
    pub actor: Actor,
    /// Address of the caller's end of the connection, which may be that of a proxy.
    pub address: Option<IpAddr>,
    /// HTTP method.
    pub method: String,
    /// Path of the route, with the names of its parameters.
    pub route: &'static str,
    /// Ids that the request names, by the names of their fields.
    pub targets: BTreeMap<String, Vec<String>>,
    /// Number of further ids, which the entry has no room for.
    pub more_targets: usize,
    /// Id of the HTTP request.
    pub request: String,
    /// Id that makes a change idempotent.
    pub request_id: Option<String>,
    /// HTTP status of the response; 0 if the entry was written before it.
    pub status: u16,
    /// Name of the code of a refusal.
    pub code: Option<&'static str>,
    /// Reason for which a key was refused.
    pub reason: Option<&'static str>,
    /// Number of entries of refused keys before this one that were left out, because there were too many.
    pub suppressed: u64,
    /// Duration of the request, in ms.
    pub ms: u64,
}

impl AuditEntry {
    /// Returns the caller as a subject of events.
    pub fn subject(&self) -> UserId {
        // All of them have the form of a user's id.
        UserId::new(self.actor.id()).unwrap_or_else(|_| UserId::new("unknown").expect("a valid id"))
    }

    /// Returns approximately how many bytes the entry has in memory.
    pub fn bytes(&self) -> usize {
        let ids = self
            .targets
            .iter()
            .map(|(name, ids)| 64 + name.len() + ids.iter().map(|id| 24 + id.len()).sum::<usize>());
        512 + ids.sum::<usize>()
    }

    /// Returns the entry as a line of the file.
    pub fn line(&self) -> Vec<u8> {
        // Strings and numbers always serialize.
        let mut line = serde_json::to_vec(&self.view()).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// Returns the fields of the entry in the form in which files and events have them.
    pub fn view(&self) -> AuditView<'_> {
        AuditView {
            time: rfc3339(self.at_ms),
            node: &self.node,
            id: &self.id,
            key: self.actor.id(),
            name: self.actor.name(),
            address: self.address,
            method: &self.method,
            route: self.route,
            targets: &self.targets,
            more_targets: self.more_targets,
            request: &self.request,
            request_id: self.request_id.as_deref(),
            status: self.status,
            code: self.code,
            reason: self.reason,
            suppressed: self.suppressed,
            ms: self.ms,
        }
    }
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// Fields of an entry, as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditView<'a> {
    time: String,
    node: &'a str,
    id: &'a str,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<IpAddr>,
    method: &'a str,
    route: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    targets: &'a BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "is_zero")]
    more_targets: usize,
    request: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    suppressed: u64,
    ms: u64,
}
