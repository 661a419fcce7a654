//! Blocking client of a node's admin port, and the command options that select the node.

use std::{fmt, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{
    DataArg,
    http::{Connection, RESPONSE_TIMEOUT, Response},
    key::KeyArg,
};
use crate::keys::SecretKey;

pub(super) mod find;
mod table;
mod target;

pub(super) use self::{
    table::{array, cell, printable, table},
    target::{AdminTarget, target},
};

/// Cure for a command that finds no node.
pub(super) const OTHER_WAY: &str = "name its directory with --data or its admin port with --admin";

/// Options that select a node's admin port and the form of the output.
#[derive(clap::Args, Debug)]
pub struct AdminArgs {
    /// Admin address of a node, with https:// before it if the port speaks TLS; default: that of the node on --data
    #[arg(long, value_name = "ADDRESS", value_parser = target)]
    admin: Option<AdminTarget>,
    /// Print the response of the admin port, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    key: KeyArg,
    #[command(flatten)]
    data: DataArg,
}

impl AdminArgs {
    /// Sends a GET and returns its body; `None` if the body was printed as JSON already.
    pub(super) fn get(&self, path: &str) -> Result<Option<Value>> {
        let body = accepted(self.request("GET", path)?)?;
        Ok((!self.printed_json(&body)).then_some(body))
    }

    /// Sends a request without a body to the admin port and returns status and body of the response.
    pub(super) fn request(&self, method: &str, path: &str) -> Result<(u16, Value)> {
        self.request_with(method, path, "")
    }

    /// Sends a request with a body, like [`Self::request`].
    pub(super) fn request_with(&self, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
        let (admin, address) = self.open()?;
        request_with(admin, address, method, path, body)
    }

    /// Sends a GET and passes the lines of its response to `take` as they come, until that returns false. `last_id` is where
    /// a stream continues.
    ///
    /// # Errors
    /// The connection ends before the response does, or nothing comes for longer than `silence`.
    pub(super) fn lines(
        &self,
        path: &str,
        last_id: Option<&str>,
        silence: Duration,
        take: impl FnMut(&str) -> bool,
    ) -> Result<StreamEnd> {
        let (mut admin, address) = self.open()?;
        let key = admin.key.as_ref().map(SecretKey::text);
        let lines = admin.connection.lines(path, key, last_id, silence, take);
        let refused = admin.runtime.block_on(lines).with_context(|| format!("admin port {address}"))?;
        let Some(body) = refused else { return Ok(StreamEnd::Ended) };
        let body = serde_json::from_str(&body).with_context(|| format!("{address} is no admin port"))?;
        Ok(StreamEnd::Refused(body))
    }

    fn open(&self) -> Result<(AdminClient, SocketAddr)> {
        let target = match self.admin.clone().or(of_context(&self.key)?) {
            Some(target) => target,
            None => AdminTarget::of(&find::node(&self.data.data, OTHER_WAY)?),
        };
        Ok((AdminClient::open(&target, &self.key, RESPONSE_TIMEOUT)?, target.address))
    }

    /// Returns whether the output is JSON.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Prints the body as JSON if `--json` was given, and returns whether it was.
    pub(super) fn printed_json(&self, body: &Value) -> bool {
        if self.json {
            println!("{body}");
        }
        self.json
    }
}

/// Way in which a stream ended.
pub(super) enum StreamEnd {
    /// The response is over, or nothing more is wanted of it.
    Ended,
    /// There is no stream, for this reason.
    Refused(Value),
}

/// Returns the admin port of the context that these options name; `None` if they name none.
///
/// # Errors
/// There is no such context, or its address has no meaning here.
pub(super) fn of_context(key: &KeyArg) -> Result<Option<AdminTarget>> {
    let Some(address) = key.admin()? else { return Ok(None) };
    let parsed = target(&address).map_err(|why| anyhow!("{address:?} of the context: {why}"))?;
    Ok(Some(parsed))
}

/// Sends a request without a body and returns status and body of the response.
pub(super) fn request(
    admin: AdminClient,
    address: SocketAddr,
    method: &str,
    path: &str,
) -> Result<(u16, Value)> {
    request_with(admin, address, method, path, "")
}

fn request_with(
    mut admin: AdminClient,
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<(u16, Value)> {
    let (status, body) =
        admin.request(method, path, body).with_context(|| format!("admin port {address}"))?;
    let body = serde_json::from_str(&body).with_context(|| format!("{address} is no admin port"))?;
    Ok((status, body))
}

/// Returns the body of a response, or an error if it is a refusal.
pub(super) fn accepted((status, body): (u16, Value)) -> Result<Value> {
    if !(200..300).contains(&status) {
        return Err(refusal(&body));
    }
    Ok(body)
}

/// Returns the error that a refusal is: its code, what failed, and the cure.
pub(super) fn refusal(body: &Value) -> anyhow::Error {
    anyhow!(
        "{}: {}. {}",
        text(&body["name"]),
        text(&body["message"]).trim_end_matches('.'),
        text(&body["cure"])
    )
}

/// Returns a text as one part of a path.
pub(super) fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":-._~".contains(&byte);
    let part = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(part).collect()
}

/// Renders a JSON value for a table, a string without quotes.
pub(super) fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Blocking client of an admin port, or of another HTTP port of a node, over one connection. Inside a runtime, use
/// [`Connection`] instead.
pub struct AdminClient {
    connection: Connection,
    key: Option<SecretKey>,
    runtime: Runtime,
}

impl AdminClient {
    /// Connects to a host and port.
    ///
    /// # Errors
    /// The node does not accept.
    pub fn connect(address: &str) -> Result<Self> {
        Self::over(address, Connection::open(address, RESPONSE_TIMEOUT))
    }

    /// Connects to an admin port, with TLS if it has any, to send the key of these options with each request.
    ///
    /// # Errors
    /// The key can't be read, the node does not accept in time, or its certificate is not trusted.
    pub(super) fn open(target: &AdminTarget, key: &KeyArg, timeout: Duration) -> Result<Self> {
        let secret = key.key()?;
        let AdminTarget { address, trust } = target;
        let authority = key.authority()?;
        let opened = Connection::open_to(*address, trust.as_ref(), authority.as_deref(), timeout);
        Ok(Self::over(target, opened)?.with_key(secret))
    }

    /// Connects to a node that may be gone or stalled; `timeout` limits the connect, and each response.
    ///
    /// # Errors
    /// The node does not accept in time.
    pub fn connect_within(address: SocketAddr, timeout: Duration) -> Result<Self> {
        Self::over(address, Connection::open(&address.to_string(), timeout))
    }

    fn over(address: impl fmt::Display, opened: impl Future<Output = Result<Connection>>) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let connection = runtime.block_on(opened);
        Ok(Self {
            connection: connection.with_context(|| format!("admin port {address}"))?,
            key: None,
            runtime,
        })
    }

    /// Sends a key with each request, if there is one.
    #[must_use]
    pub fn with_key(mut self, key: Option<SecretKey>) -> Self {
        self.key = key;
        self
    }

    /// Sends a request and returns its response, whatever its status.
    ///
    /// # Errors
    /// The connection ends, or there is no response in time.
    pub fn request(&mut self, method: &str, path: &str, body: &str) -> Result<Response> {
        self.runtime.block_on(self.connection.request_as(
            method,
            path,
            self.key.as_ref().map(SecretKey::text),
            body,
        ))
    }
}
