//! `[login]`: which sessions of a user a new login replaces.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sessions of a user that may be connected at the same time.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct LoginConfig {
    /// What may have one session at a time, on all nodes together: `each` device, each `class` of devices (the part of the
    /// device id before its first hyphen: `phone-7f3a` is a `phone`), or the `user`. A new login replaces the older sessions
    /// with REPLACED. Tabs of one browser, `web-7f3a-1` and `web-7f3a-2`, do not replace each other. A session
    /// on a node that the others can't call ends within half a minute, by Redis. Must be the same on all nodes.
    pub devices: String,
    /// What a login of a further device does at limits.devices_per_user: `refuse`: it is refused with TOO_MANY_DEVICES;
    /// `replace`: it replaces the oldest session. Must be the same on all nodes.
    pub devices_full: String,
}

impl Default for LoginConfig {
    fn default() -> Self {
        Self { devices: "each".into(), devices_full: "refuse".into() }
    }
}

impl LoginConfig {
    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            matches!(self.devices.as_str(), "each" | "class" | "user"),
            "login.devices: `each`, `class` or `user`",
        );
        need(
            matches!(self.devices_full.as_str(), "refuse" | "replace"),
            "login.devices_full: `refuse` or `replace`",
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn words_of_the_devices_are_checked() {
        let of = |set: &str| {
            Config::load(None, &[set.to_owned()]).map(|it| it.login).map_err(|error| error.to_string())
        };
        for valid in
            ["login.devices=each", "login.devices=class", "login.devices=user", "login.devices_full=replace"]
        {
            assert!(of(valid).is_ok(), "{valid}");
        }
        for wrong in ["login.devices=all", "login.devices_full=drop"] {
            let key = wrong.split('=').next().unwrap();
            assert!(of(wrong).unwrap_err().contains(key), "{wrong}");
        }
    }
}
