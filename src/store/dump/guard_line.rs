//! Line of an export with an entry of the guard.

use serde::{Deserialize, Serialize};

use super::form;
use crate::store::{GuardEntry, GuardKey, GuardKind, GuardRow};

/// Entry of the guard. The version is not exported: another store counts from its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardLine {
    /// Number of the kind.
    pub kind: u8,
    /// Name, unique within the kind.
    pub name: String,
    /// Value.
    #[serde(with = "form::base64")]
    pub value: Vec<u8>,
    /// End, in ms since 1970; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl GuardLine {
    /// Creates the line from a stored row; `None` if its entry was removed, or has secrets, as endpoints of webhooks have.
    pub fn new(it: GuardRow) -> Option<Self> {
        let GuardRow { key, value, until_ms, .. } = it;
        if key.kind() == GuardKind::Webhook {
            return None;
        }
        let (kind, name) = (key.kind().number(), key.name().to_owned());
        Some(Self { kind, name, value: value?.to_vec(), until_ms })
    }

    /// Returns the entry of the line.
    ///
    /// # Errors
    /// Its kind is not known, or a part is outside of its limits.
    pub fn entry(&self) -> Result<GuardEntry, String> {
        let kind = GuardKind::from_number(self.kind)
            .ok_or_else(|| format!("this tidegate does not know the kind {}", self.kind))?;
        let key = GuardKey::new(kind, self.name.as_str());
        let entry = key.and_then(|key| GuardEntry::new(key, self.value.clone().into(), self.until_ms));
        entry.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::dump::Entry;

    #[test]
    fn lines_have_their_fixed_form() {
        let line = |until_ms| {
            let (name, value) = ("10.0.0.0/8".to_owned(), b"x".to_vec());
            Entry::Guard(GuardLine { kind: 2, name, value, until_ms })
        };
        let without = r#"{"guard":{"kind":2,"name":"10.0.0.0/8","value":"eA=="}}"#;
        let with = r#"{"guard":{"kind":2,"name":"10.0.0.0/8","value":"eA==","until_ms":9}}"#;
        for (line, text) in [(line(None), without), (line(Some(9)), with)] {
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
            assert_eq!(serde_json::from_str::<Entry>(text).unwrap(), line);
        }
        let row = |kind| {
            let (key, value) = (GuardKey::new(kind, "crm").unwrap(), Some(b"whsec_x".to_vec().into()));
            GuardRow { version: 1, key, value, until_ms: None }
        };
        assert!(GuardLine::new(row(GuardKind::Rule)).is_some());
        assert_eq!(GuardLine::new(row(GuardKind::Webhook)), None, "it has secrets");
        let unknown = GuardLine { kind: 99, name: "a".to_owned(), value: Vec::new(), until_ms: None };
        assert!(unknown.entry().is_err());
    }
}
