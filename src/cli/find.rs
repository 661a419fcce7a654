//! Which node a command means by `--data`: the one that runs there, or the first that answers of those below it.

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

/// How long a node of this machine may take to be connected to.
pub(super) const CONNECT: Duration = Duration::from_secs(1);

/// Where the node on this data directory is. `tidegate up` keeps those of its nodes below one directory: of them it is the
/// first one that answers.
///
/// # Errors
/// Says how to name a node when none is found.
pub(super) fn node(data: &Path, other_way: &str) -> anyhow::Result<Addresses> {
    if let Some(said) = said(data)? {
        return Ok(said);
    }
    for folder in below(data) {
        if let Some(said) = said(&folder)?
            && TcpStream::connect_timeout(&said.client, CONNECT).is_ok()
        {
            return Ok(said);
        }
    }
    anyhow::bail!("no node runs on {}: start one with `tidegate`, or {other_way}", data.display())
}

/// Where all nodes are that run on this data directory, or below it: of them those that answer.
///
/// # Errors
/// Says how to name nodes when none is found.
pub(super) fn nodes(data: &Path, other_way: &str) -> anyhow::Result<Vec<Addresses>> {
    if let Some(said) = said(data)? {
        return Ok(vec![said]);
    }
    let mut found = Vec::new();
    for folder in below(data) {
        found.extend(said(&folder)?.filter(|said| TcpStream::connect_timeout(&said.admin, CONNECT).is_ok()));
    }
    match found.is_empty() {
        true => {
            anyhow::bail!("no node runs on {}: start one with `tidegate`, or {other_way}", data.display())
        }
        false => Ok(found),
    }
}

/// The directories below it that this account can read, by name.
fn below(data: &Path) -> Vec<PathBuf> {
    let mut below: Vec<PathBuf> =
        fs::read_dir(data).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    below.retain(|path| fs::read_dir(path).is_ok());
    below.sort();
    below
}

/// The key that the node on this data directory takes tokens by.
///
/// # Errors
/// There is none, or it can't be read.
pub(super) fn key(data: &Path) -> io::Result<Vec<u8>> {
    match said(data).ok().flatten().and_then(|said| said.key_file) {
        Some(file) => auth::read_key(&file),
        None => auth::load_key(data),
    }
}

/// What the node that runs there, or was killed there, wrote.
fn said(data: &Path) -> anyhow::Result<Option<Addresses>> {
    let file = data.join(NODE_FILE);
    match fs::read(&file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display())),
        // A data directory is closed to all accounts but the node's.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error).with_context(|| {
            format!("{} can't be read: run this as the account that the node runs as", file.display())
        }),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    fn write(folder: &Path, client: SocketAddr, key_file: Option<PathBuf>) {
        fs::create_dir_all(folder).unwrap();
        let said = Addresses { client, admin: client, monitor: None, pid: 1, key_file };
        fs::write(folder.join(NODE_FILE), serde_json::to_vec(&said).unwrap()).unwrap();
    }

    #[test]
    fn a_directory_of_nodes_means_the_first_that_answers_and_the_key_they_share() {
        let place = std::env::temp_dir().join(format!("tidegate-find-{}", std::process::id()));
        let (one, two) = (place.join("n1"), place.join("n2"));
        fs::create_dir_all(&place).unwrap();
        let shared = place.join("token.key");
        let made = auth::create_key(&shared).unwrap();
        let other_way = "name it with --server";
        let none = node(&place, other_way).unwrap_err().to_string();
        assert!(none.contains(other_way), "{none}");

        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        write(&one, gone, Some(shared.clone()));
        write(&two, door.local_addr().unwrap(), Some(shared));
        assert_eq!(node(&place, other_way).unwrap().client, door.local_addr().unwrap());
        assert_eq!(node(&one, other_way).unwrap().client, gone, "who is named is meant");
        assert_eq!((key(&place).unwrap(), key(&one).unwrap()), (made.clone(), made));
        assert!(key(&place.join("n3")).is_err());
        fs::remove_dir_all(place).unwrap();
    }
}
