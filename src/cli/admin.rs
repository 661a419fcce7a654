//! Client of a node's admin port for commands, which block, and the options by which they find one.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{
    DataArg, find,
    http::{Connection, RESPONSE_TIMEOUT, Response},
};

pub(super) const OTHER_WAY: &str = "name its directory with --data or its admin port with --admin";

/// Which node is asked, and in what form it is printed.
#[derive(clap::Args, Debug)]
pub struct Ask {
    /// Admin address of a node; default: that of the node which runs on --data
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Print what the admin port answers, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArg,
}

impl Ask {
    /// The answer; none when it was printed already, as it is.
    pub(super) fn get(&self, path: &str) -> Result<Option<Value>> {
        let said = fine(self.request("GET", path)?)?;
        Ok((!self.wants_json(&said)).then_some(said))
    }

    /// Status and body of what the admin port answers.
    pub(super) fn request(&self, method: &str, path: &str) -> Result<(u16, Value)> {
        let address = match self.admin {
            Some(address) => address,
            None => find::node(&self.data.data, OTHER_WAY)?.admin,
        };
        request(Admin::connect(&address.to_string())?, address, method, path)
    }

    /// Prints the answer as it is, when that is what was asked for.
    pub(super) fn wants_json(&self, said: &Value) -> bool {
        if self.json {
            println!("{said}");
        }
        self.json
    }
}

pub(super) fn request(
    mut admin: Admin,
    address: SocketAddr,
    method: &str,
    path: &str,
) -> Result<(u16, Value)> {
    let (status, body) = admin.request(method, path, "").with_context(|| format!("admin port {address}"))?;
    let said = serde_json::from_str(&body).with_context(|| format!("{address} is no admin port"))?;
    Ok((status, said))
}

/// The answer, unless it is a refusal.
pub(super) fn fine((status, said): (u16, Value)) -> Result<Value> {
    if status != 200 {
        bail!("{}: {} {}", text(&said["name"]), text(&said["message"]), text(&said["cure"]));
    }
    Ok(said)
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Blocking client of an admin port, or of another HTTP port of a node, over one connection. Must not be used inside a
/// runtime: there, use [`Connection`].
pub struct Admin {
    connection: Connection,
    runtime: Runtime,
}

impl Admin {
    /// Connects to a host and port.
    ///
    /// # Errors
    /// The node does not accept.
    pub fn connect(address: &str) -> Result<Self> {
        Self::open(address, RESPONSE_TIMEOUT)
    }

    /// Connects to a node that may be gone or stalled: it has that long to accept, and to answer.
    ///
    /// # Errors
    /// The node does not accept in time.
    pub fn connect_within(address: SocketAddr, timeout: Duration) -> Result<Self> {
        Self::open(&address.to_string(), timeout)
    }

    fn open(address: &str, timeout: Duration) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let connection = runtime.block_on(Connection::open(address, timeout));
        Ok(Self { connection: connection.with_context(|| format!("admin port {address}"))?, runtime })
    }

    /// Sends a request and returns its response, of whatever status.
    ///
    /// # Errors
    /// The connection ends, or there is no response in time.
    pub fn request(&mut self, method: &str, path: &str, body: &str) -> Result<Response> {
        self.runtime.block_on(self.connection.request(method, path, body))
    }
}
