//! Line of an export with the settings of a user.

use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    id::UserId,
    pb,
    settings::{PUSH, Push, Retention, Search, SettingError, Unread, UserSettings, Visibility},
};

use super::{form, is_default};

/// Fields of [`super::Entry::Settings`], named as in [`UserSettings`]; absent if the user never set them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct UserSettingsLine {
    #[serde(with = "form::text")]
    pub user: UserId,
    #[serde(default, skip_serializing_if = "is_default")]
    pub ack_timeout_ms: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub ack_tries: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub heartbeat_ms: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub unread: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub retention: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub search: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub push: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub presence: String,
}

impl UserSettingsLine {
    /// Creates the line from the values of the store.
    pub fn new(user: UserId, settings: &UserSettings) -> Self {
        let UserSettings {
            ack_timeout_ms,
            ack_tries,
            heartbeat_ms,
            unread,
            retention,
            search,
            push,
            presence,
        } = *settings;
        Self {
            user,
            ack_timeout_ms,
            ack_tries,
            heartbeat_ms,
            unread: unread.map(Unread::word).unwrap_or_default().to_owned(),
            retention: retention.map(Retention::word).unwrap_or_default().to_owned(),
            search: search.map(Search::word).unwrap_or_default().to_owned(),
            push: push.map(Push::word).unwrap_or_default().to_owned(),
            presence: presence.map(Visibility::word).unwrap_or_default().to_owned(),
        }
    }

    /// Returns the user settings of the line.
    ///
    /// # Errors
    /// Names the setting whose value is invalid.
    pub fn settings(&self) -> Result<UserSettings, SettingError> {
        let push = Push::of_setting(PUSH, &self.push)?;
        UserSettings::of(&pb::Settings {
            chain: false,
            ack_timeout_ms: self.ack_timeout_ms,
            ack_tries: self.ack_tries,
            heartbeat_ms: self.heartbeat_ms,
            unread: self.unread.clone(),
            retention: self.retention.clone(),
            search: self.search.clone(),
            presence: self.presence.clone(),
        })
        .map(|settings| UserSettings { push, ..settings })
    }
}
