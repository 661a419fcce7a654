//! Line of an export with a revocation of tokens.

use serde::{Deserialize, Serialize};
use tidegate_protocol::id::{DeviceId, UserId};

use super::form;
use crate::revocation::{Revocation, RevokedTokens};

/// Fields of [`super::Entry::Revocation`], named as in [`Revocation`]: of one token, of those of a device, of all,
/// or of none, which takes back the earlier ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RevocationLine {
    #[serde(with = "form::text")]
    pub user: UserId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cleared: bool,
    pub at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl RevocationLine {
    /// Creates the line from the value of the store.
    pub fn new(it: Revocation) -> Self {
        let Revocation { user, tokens, at_ms, until_ms } = it;
        let cleared = tokens == RevokedTokens::Cleared;
        let (before_ms, device, token_id) = match tokens {
            RevokedTokens::Before(before) => (Some(before), None, None),
            RevokedTokens::Device(device, before) => (Some(before), Some(device.to_string()), None),
            RevokedTokens::Id(id) => (None, None, Some(id)),
            RevokedTokens::Cleared => (None, None, None),
        };
        Self { user, before_ms, device, token_id, cleared, at_ms, until_ms }
    }

    /// Returns the revocation of the line.
    ///
    /// # Errors
    /// It does not name one kind of tokens.
    pub fn revocation(&self) -> Result<Revocation, &'static str> {
        let tokens = match (self.before_ms, &self.device, &self.token_id) {
            (Some(before), None, None) if !self.cleared => RevokedTokens::Before(before),
            (Some(before), Some(device), None) if !self.cleared => {
                RevokedTokens::Device(DeviceId::new(device).map_err(|_| "its device is no id")?, before)
            }
            (None, None, Some(id)) if !self.cleared => RevokedTokens::Id(id.clone()),
            (None, None, None) if self.cleared => RevokedTokens::Cleared,
            _ => return Err("it must have before_ms, with or without device, or token_id, or cleared"),
        };
        Ok(Revocation { user: self.user.clone(), tokens, at_ms: self.at_ms, until_ms: self.until_ms })
    }
}
