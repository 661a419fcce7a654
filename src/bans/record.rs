//! Record of a ban: why, by whom and since when, as the store keeps it.

use serde::{Deserialize, Serialize};

/// Longest reason and author, in bytes; longer ones that another version has stored are cut.
pub const REASON_BYTES_MAX: usize = 200;

/// Reason, author and time of a ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BanRecord {
    /// Reason, for operators and the audit of a decision; clients don't get it.
    pub reason: String,
    /// Id of the key that asked for it, or what else has decided.
    pub by: String,
    /// Time of the decision by the store's clock, in ms since 1970.
    pub since_ms: u64,
}

impl BanRecord {
    /// Returns the stored form.
    pub fn encoded(&self) -> Vec<u8> {
        // Texts and numbers always have a form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads the stored form. One that this version can't read gives an empty record: the subject stays banned.
    pub fn decoded(value: &[u8]) -> Self {
        let mut record: Self = serde_json::from_slice(value).unwrap_or_default();
        for text in [&mut record.reason, &mut record.by] {
            let end = (0..=REASON_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text.shrink_to_fit();
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_the_store_and_foreign_values_are_bounded() {
        let record = BanRecord { reason: "spam".into(), by: "k1".into(), since_ms: 7 };
        assert_eq!(BanRecord::decoded(&record.encoded()), record);
        assert_eq!(BanRecord::decoded(b"no JSON"), BanRecord::default());
        assert_eq!(BanRecord::decoded(br#"{"reason":"x","later":1}"#).reason, "x");
        let long = BanRecord { reason: format!("a{}", "ä".repeat(1_000)), ..record };
        assert_eq!(BanRecord::decoded(&long.encoded()).reason.len(), 199);
    }
}
