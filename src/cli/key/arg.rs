//! Options that name the key of an admin port and the authority of its certificate, for all commands that call one.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};

use crate::{keys::SecretKey, private};

/// Variable with a key, for environments that hand out secrets in this way.
const KEY_VARIABLE: &str = "TIDEGATE_KEY";

/// Option with the key of an admin port. A key is never an argument, which every account of the machine could read.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct KeyArg {
    /// File with the key of the admin port, if that has keys, mode 600; default: the key in the variable TIDEGATE_KEY
    #[arg(long, value_name = "FILE", env = "TIDEGATE_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// File with the authority of the admin port's certificate (PEM), for addresses with https://, and of the client
    /// port's where `tail` speaks TLS; default: those of the system
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_CA")]
    ca: Option<PathBuf>,
}

impl KeyArg {
    /// Returns the file with the authority of the admin port.
    pub(in crate::cli) fn authority(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// Reads the key; `None` if none is named.
    ///
    /// # Errors
    /// The file can't be read, other accounts may read it, or there is no key in it. The text does not repeat its content.
    pub(in crate::cli) fn key(&self) -> anyhow::Result<Option<SecretKey>> {
        if let Some(file) = &self.key_file {
            let unusable = || format!("{} (--key-file, TIDEGATE_KEY_FILE) can't be used", file.display());
            let text = private::read(file).with_context(unusable)?;
            let text =
                String::from_utf8(text).map_err(|_| anyhow!("it is not text")).with_context(unusable)?;
            return text.trim().parse().map(Some).with_context(unusable);
        }
        match env::var(KEY_VARIABLE) {
            Ok(text) if text.trim().is_empty() => Ok(None),
            Ok(text) => {
                text.trim().parse().map(Some).with_context(|| format!("{KEY_VARIABLE} can't be used"))
            }
            Err(env::VarError::NotPresent) => Ok(None),
            Err(env::VarError::NotUnicode(_)) => bail!("{KEY_VARIABLE} can't be used: it is not text"),
        }
    }
}
