//! Options that name the key of an admin port and the authority of its certificate, or the context that has both, for all
//! commands that call one.

use std::{env, path::PathBuf};

use anyhow::{Context as _, anyhow, bail};

use super::context::{SavedServer, saved};
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
    /// Saved server (`tidegate context`), in place of the options that name a server, its key and its authority
    #[arg(
        long,
        value_name = "NAME",
        env = "TIDEGATE_CONTEXT",
        conflicts_with_all = ["admin", "data", "key_file", "ca"]
    )]
    context: Option<String>,
}

impl KeyArg {
    /// Returns the file with the authority of the admin port.
    ///
    /// # Errors
    /// There is no such context.
    pub(in crate::cli) fn authority(&self) -> anyhow::Result<Option<PathBuf>> {
        match &self.ca {
            Some(ca) => Ok(Some(ca.clone())),
            None => Ok(self.saved()?.and_then(|server| server.ca)),
        }
    }

    /// Returns the admin address of the context; `None` without a context.
    ///
    /// # Errors
    /// There is no such context.
    pub(in crate::cli) fn admin(&self) -> anyhow::Result<Option<String>> {
        Ok(self.saved()?.map(|server| server.admin))
    }

    /// Returns the server that the context names.
    fn saved(&self) -> anyhow::Result<Option<SavedServer>> {
        self.context.as_deref().filter(|name| !name.is_empty()).map(saved).transpose()
    }

    /// Reads the key; `None` if none is named.
    ///
    /// # Errors
    /// The file can't be read, other accounts may read it, or there is no key in it. The text does not repeat its content.
    pub(in crate::cli) fn key(&self) -> anyhow::Result<Option<SecretKey>> {
        let saved = self.saved()?;
        let has_context = saved.is_some();
        let (file, named_by) = match &self.key_file {
            Some(file) => (Some(file.clone()), "--key-file, TIDEGATE_KEY_FILE"),
            None => (saved.and_then(|server| server.key_file), "key_file of the context"),
        };
        if let Some(file) = file {
            let unusable = || format!("{} ({named_by}) can't be used", file.display());
            let text = private::read(&file).with_context(unusable)?;
            let text =
                String::from_utf8(text).map_err(|_| anyhow!("it is not text")).with_context(unusable)?;
            return text.trim().parse().map(Some).with_context(unusable);
        }
        // The variable has the key of some server, and a key is sent to the server that it is for alone.
        if has_context {
            return Ok(None);
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
