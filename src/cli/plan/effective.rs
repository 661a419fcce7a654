//! Settings that are in force, as TOML. They have no secrets: a password in a setting is refused, and files have them.

use anyhow::Result;
use toml::{Table, Value};

use crate::config::Config;

/// Returns the settings, or those that differ from their defaults, in sections.
pub(super) fn settings(config: &Config, all: bool) -> Result<String> {
    let mut shown = Table::try_from(config)?;
    let defaults = Table::try_from(Config::default())?;
    for (section, settings) in &mut shown {
        let Value::Table(settings) = settings else { continue };
        let default = defaults.get(section).and_then(Value::as_table);
        settings.retain(|key, value| all || default.and_then(|it| it.get(key)) != Some(value));
    }
    shown.retain(|_, settings| settings.as_table().is_none_or(|it| !it.is_empty()));
    if shown.is_empty() {
        return Ok("# All settings have their defaults.\n".to_owned());
    }
    Ok(toml::to_string(&shown)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_settings_are_shown_or_all_and_can_be_loaded_again() {
        let config = Config::load(None, &["node.id=n7", "limits.conns_max=99"].map(str::to_owned)).unwrap();
        let shown = settings(&config, false).unwrap();
        assert_eq!(shown, "[limits]\nconns_max = 99\n\n[node]\nid = \"n7\"\n");
        let all: Table = settings(&config, true).unwrap().parse().unwrap();
        assert_eq!(all, Table::try_from(&config).unwrap());
        let same = settings(&Config::default(), false).unwrap();
        assert_eq!(same, "# All settings have their defaults.\n");
    }
}
