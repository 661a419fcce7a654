//! Cache of tools, outside the clone: one folder per name and version or list of pins, created once, by one process at a time.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use crate::shell;

/// A tool of one version in the cache.
pub(crate) struct Cached {
    name: String,
    folder: PathBuf,
    /// Names and hashes of its parts; a different text means a different tool.
    pins: String,
}

/// The file that is written into a folder last: a folder without it is not complete.
const STAMP: &str = "tidegate-pins";

impl Cached {
    pub(crate) fn new(name: &str, version: &str, pins: &str) -> anyhow::Result<Self> {
        // Work trees with other pins would remove each other's folder of one name.
        let name = if version.is_empty() {
            format!("{name}-{:016x}", shell::digest(pins.as_bytes()))
        } else {
            format!("{name}-{version}")
        };
        let folder = home()?.join(&name);
        Ok(Self { name, folder, pins: pins.to_owned() })
    }

    /// Returns the folder of the tool; `make` fills the empty folder if it does not exist yet.
    pub(crate) fn ensure(&self, make: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
        let _turn = lock(&self.name)?;
        let stamp = self.folder.join(STAMP);
        if fs::read_to_string(&stamp).is_ok_and(|pins| pins == self.pins) {
            return Ok(self.folder.clone());
        }
        shell::emptied(self.folder.clone())?;
        make(&self.folder).with_context(|| format!("installing {}", self.name))?;
        fs::write(stamp, &self.pins)?;
        Ok(self.folder.clone())
    }
}

/// `$XDG_CACHE_HOME/tidegate-tools`, or the same below `~/.cache`.
fn home() -> anyhow::Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    Ok(cache.context("neither XDG_CACHE_HOME nor HOME is set: tools have no place")?.join("tidegate-tools"))
}

/// Waits for the lock of the cache, which is released when the result is dropped.
pub(super) fn lock(name: &str) -> anyhow::Result<File> {
    let home = home()?;
    fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
    let file = File::create(home.join(format!("{name}.lock")))?;
    file.lock().with_context(|| format!("waiting for the lock of {name}"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_made_once_and_again_when_its_pins_change_or_it_is_incomplete() {
        let folder = env::temp_dir().join(format!("tidegate-cache-{}", std::process::id()));
        let tool = |pins: &str| Cached {
            name: format!("test-{}", std::process::id()),
            folder: folder.clone(),
            pins: pins.to_owned(),
        };
        let make = |text: &'static str| {
            move |folder: &Path| -> anyhow::Result<()> { Ok(fs::write(folder.join("program"), text)?) }
        };
        let program = || fs::read_to_string(folder.join("program")).expect("a program");
        tool("1").ensure(make("one")).expect("it is made");
        tool("1").ensure(make("again")).expect("it is there");
        assert_eq!(program(), "one");
        let broken = tool("2").ensure(|_| anyhow::bail!("no network"));
        assert!(broken.is_err(), "what can't be made is an error");
        tool("2").ensure(make("two")).expect("it is made after a failure");
        assert_eq!(program(), "two");
        fs::remove_dir_all(folder).expect("the folder is ours");
        fs::remove_file(home().expect("a home").join(format!("test-{}.lock", std::process::id()))).ok();
    }
}
