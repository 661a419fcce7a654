//! `tidegate context`: servers that are saved under a name, each with its admin address and the file of its key.
//!
//! The file has no secrets: it names the files that do.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Write as _},
    path::{self, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tidegate_protocol::id::check_id;

use crate::private;

/// Variable with the path of the file, in place of the usual one.
const FILE_VARIABLE: &str = "TIDEGATE_CONTEXTS";

/// Arguments of `tidegate context`.
#[derive(clap::Args, Debug)]
#[command(after_help = NOTES)]
pub struct ContextArgs {
    #[command(subcommand)]
    command: ContextCommand,
}

const NOTES: &str = "\
--context or TIDEGATE_CONTEXT names a context. It has the address, the key and the authority of one
server, so it excludes the options and variables for these, and TIDEGATE_KEY is not used with it.
The contexts are in tidegate/contexts.toml below XDG_CONFIG_HOME or ~/.config, or where
TIDEGATE_CONTEXTS says.";

#[derive(clap::Subcommand, Debug)]
enum ContextCommand {
    /// Save a server under a name, or replace it
    Set(SetArgs),
    /// List the saved servers
    List,
    /// Remove a saved server
    Remove {
        /// Name of the context
        name: String,
    },
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    /// Name of the context
    name: String,
    /// Admin address, with https:// before it if the port speaks TLS
    #[arg(long, value_name = "ADDRESS")]
    admin: String,
    /// File with the key of the admin port, mode 600
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// File with the authority of the admin port's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Server that is saved under a name.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedServer {
    /// Admin address, with a scheme or not.
    pub(super) admin: String,
    /// File with the key of the admin port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key_file: Option<PathBuf>,
    /// File with the authority of the certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ca: Option<PathBuf>,
}

/// Saves, lists or removes contexts.
///
/// # Errors
/// The file can't be used, or there is no such context.
pub fn contexts(args: &ContextArgs) -> anyhow::Result<()> {
    let file = file()?;
    let mut saved = read(&file)?;
    match &args.command {
        ContextCommand::List => {
            for (name, server) in &saved {
                println!("{name}  {}", server.admin);
            }
            return Ok(());
        }
        ContextCommand::Set(set) => {
            check_id(&set.name).with_context(|| format!("context {:?}", set.name))?;
            // The command may run in another directory the next time.
            let absolute = |path: &Option<PathBuf>| path.as_deref().map(path::absolute).transpose();
            let server = SavedServer {
                admin: set.admin.clone(),
                key_file: absolute(&set.key_file)?,
                ca: absolute(&set.ca)?,
            };
            saved.insert(set.name.clone(), server);
        }
        ContextCommand::Remove { name } => {
            if saved.remove(name).is_none() {
                bail!("{}", unknown(name, &file));
            }
        }
    }
    write(&file, &saved)
}

/// Returns the server that is saved under a name.
///
/// # Errors
/// There is none, or the file can't be read.
pub(super) fn saved(name: &str) -> anyhow::Result<SavedServer> {
    let file = file()?;
    read(&file)?.remove(name).with_context(|| unknown(name, &file))
}

fn unknown(name: &str, file: &Path) -> String {
    format!(
        "there is no context {name:?} in {}: save it with `tidegate context set NAME --admin ADDRESS`",
        file.display()
    )
}

fn file() -> anyhow::Result<PathBuf> {
    let named = |variable: &str| env::var_os(variable).filter(|it| !it.is_empty()).map(PathBuf::from);
    if let Some(file) = named(FILE_VARIABLE) {
        return Ok(file);
    }
    let home = named("XDG_CONFIG_HOME").or_else(|| named("HOME").map(|home| home.join(".config")));
    let home = home.with_context(|| format!("neither {FILE_VARIABLE} nor HOME is set: set one"))?;
    Ok(home.join("tidegate/contexts.toml"))
}

fn read(file: &Path) -> anyhow::Result<BTreeMap<String, SavedServer>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        text => text.with_context(|| format!("{} can't be read", file.display()))?,
    };
    toml::from_str(&text).with_context(|| format!("{} is damaged: mend or remove it", file.display()))
}

/// Replaces the file as a whole, so that a reader never sees a part of it.
fn write(file: &Path, saved: &BTreeMap<String, SavedServer>) -> anyhow::Result<()> {
    let write = || {
        if let Some(folder) = file.parent() {
            private::create_dir_all(folder)?;
        }
        let new = file.with_extension("toml.new");
        private::options()
            .create(true)
            .truncate(true)
            .open(&new)?
            .write_all(toml::to_string(saved)?.as_bytes())?;
        fs::rename(&new, file)?;
        anyhow::Ok(())
    };
    write().with_context(|| format!("{} can't be written", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_kept_in_a_file_that_names_keys_and_has_none() {
        let folder = std::env::temp_dir().join(format!("tidegate-contexts-{}", std::process::id()));
        let file = folder.join("deep/contexts.toml");
        assert_eq!(read(&file).unwrap(), BTreeMap::new());
        let server = SavedServer {
            admin: "https://chat.internal:7801".to_owned(),
            key_file: Some("/keys/prod".into()),
            ca: None,
        };
        let all = BTreeMap::from([("prod".to_owned(), server)]);
        write(&file, &all).unwrap();
        assert_eq!(read(&file).unwrap(), all);
        for wrong in ["[prod]\nadmin = 3\n", "[prod]\nadmin = \"n1:1\"\nkeyfile = \"/keys/prod\"\n"] {
            fs::write(&file, wrong).unwrap();
            let damaged = format!("{:#}", read(&file).unwrap_err());
            assert!(damaged.contains("mend or remove it"), "{damaged}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
