//! Lookup of the node that `--data` names: the one that runs there, or the first below it that answers.

use std::{
    fs, io,
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    auth,
    node::{Addresses, NODE_FILE},
};

/// Time for a node of this machine to accept a connection.
pub(in crate::cli) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the addresses of the node on this data directory. `tidegate up` keeps its nodes below one directory; of them
/// it is the first one that answers.
///
/// # Errors
/// No node is found; the text says how to name one.
pub(in crate::cli) fn node(data: &Path, other_way: &str) -> anyhow::Result<Addresses> {
    if let Some(addresses) = read_addresses(data)? {
        return Ok(addresses);
    }
    for folder in subdirectories(data) {
        if let Some(addresses) = read_addresses(&folder)?
            && TcpStream::connect_timeout(&addresses.client, CONNECT_TIMEOUT).is_ok()
        {
            return Ok(addresses);
        }
    }
    anyhow::bail!("no node runs on {}: start one with `tidegate`, or {other_way}", data.display())
}

/// Returns the addresses of the node on this data directory, or of all nodes below it that answer.
///
/// # Errors
/// No node is found; the text says how to name one.
pub(in crate::cli) fn nodes(data: &Path, other_way: &str) -> anyhow::Result<Vec<Addresses>> {
    if let Some(addresses) = read_addresses(data)? {
        return Ok(vec![addresses]);
    }
    let answers = |node: &Addresses| TcpStream::connect_timeout(&node.admin, CONNECT_TIMEOUT).is_ok();
    let mut found = Vec::new();
    for folder in subdirectories(data) {
        found.extend(read_addresses(&folder)?.filter(answers));
    }
    match found.is_empty() {
        true => {
            anyhow::bail!("no node runs on {}: start one with `tidegate`, or {other_way}", data.display())
        }
        false => Ok(found),
    }
}

/// Lists the subdirectories that this account can read, sorted by name.
fn subdirectories(data: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(data).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.retain(|path| fs::read_dir(path).is_ok());
    folders.sort();
    folders
}

/// Returns the key with which the node on this data directory verifies tokens.
///
/// # Errors
/// There is no key, or it can't be read.
pub(in crate::cli) fn key(data: &Path) -> io::Result<Vec<u8>> {
    let node = read_addresses(data).ok().flatten();
    if node.as_ref().is_some_and(|node| !node.has_secret) {
        return Err(io::Error::other(
            "the node there verifies tokens with auth.key_files or auth.jwks_url alone, so a token of `tidegate` would be \
             refused; sign one with `tidegate token mint USER --key FILE --kid KID` and a private key of these",
        ));
    }
    match node.and_then(|node| node.key_file) {
        Some(file) => auth::read_key(&file)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display()))),
        None => auth::load_key(data),
    }
}

/// Reads the addresses that a node wrote into its data directory; they remain if the node was killed.
fn read_addresses(data: &Path) -> anyhow::Result<Option<Addresses>> {
    let file = data.join(NODE_FILE);
    match fs::read(&file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| {
            format!("{} (of --data) is damaged: restart the node, which writes it again", file.display())
        }),
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            Ok(None)
        }
        // Only the node's own account has access to its data directory.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error).with_context(|| {
            format!(
                "{} (of --data) can't be read: run this command as the account of the node",
                file.display()
            )
        }),
        Err(error) => Err(error).with_context(|| {
            format!("{} (of --data) can't be read: remove it, and restart the node", file.display())
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    fn write(folder: &Path, client: SocketAddr, key_file: Option<PathBuf>) {
        fs::create_dir_all(folder).unwrap();
        let addresses = Addresses {
            client,
            admin: client,
            monitor: None,
            pid: 1,
            admin_certificate: None,
            has_secret: true,
            key_file,
        };
        fs::write(folder.join(NODE_FILE), serde_json::to_vec(&addresses).unwrap()).unwrap();
    }

    #[test]
    fn parent_directory_means_first_live_node_and_shared_key() {
        let root = std::env::temp_dir().join(format!("tidegate-find-{}", std::process::id()));
        let (one, two) = (root.join("n1"), root.join("n2"));
        fs::create_dir_all(&root).unwrap();
        let shared = root.join("token.key");
        let key_bytes = auth::create_key(&shared).unwrap();
        let other_way = "name it with --server";
        let none = node(&root, other_way).unwrap_err().to_string();
        assert!(none.contains(other_way), "{none}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dead_address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        write(&one, dead_address, Some(shared.clone()));
        write(&two, listener.local_addr().unwrap(), Some(shared));
        assert_eq!(node(&root, other_way).unwrap().client, listener.local_addr().unwrap());
        assert_eq!(
            node(&one, other_way).unwrap().client,
            dead_address,
            "a directory of one node means that node"
        );
        assert_eq!((key(&root).unwrap(), key(&one).unwrap()), (key_bytes.clone(), key_bytes));
        assert!(key(&root.join("n3")).is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
