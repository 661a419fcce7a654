//! Check that the configuration file can be read, before the library parses it.

use std::path::Path;

use super::ConfigError;
use crate::private;

/// Checks that the file is readable text.
///
/// # Errors
/// The file can't be read, or is not text; the text names the cure.
pub(super) fn check(file: &Path) -> Result<(), ConfigError> {
    let text = private::read_public(file).map_err(|error| error.to_string());
    let is_text = text.and_then(|bytes| match String::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err("it is not UTF-8; name a TOML file".to_owned()),
    });
    is_text.map_err(|why| {
        let file = file.display();
        ConfigError(vec![format!(
            "the configuration file {file} (--config, TIDEGATE_CONFIG) can't be used: {why}"
        )])
    })
}
