//! `tidegate nodes`, `owners` and `where`: tables of nodes, partition owners and routes, from the admin port of a node.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, anyhow};
use serde_json::Value;
use tidegate_protocol::id::check_id;

use super::{
    DataArg,
    admin::{
        AdminArgs, AdminClient, AdminTarget, OTHER_WAY, accepted, array, find, of_context, request, table,
        target, text,
    },
    drain,
    key::KeyArg,
};

mod bans;
mod limits;
pub mod storms;
mod watch;

pub use bans::{BanArgs, BansArgs, UnbanArgs, ban, bans, unban};
pub use limits::{LimitsArgs, limits};

/// Arguments of `tidegate where`.
#[derive(clap::Args, Debug)]
pub struct WhereArgs {
    /// User to look up
    user: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Arguments of `tidegate nodes`.
#[derive(clap::Args, Debug)]
pub struct NodesArgs {
    /// Reprint the table every second until interrupted; follows a draining node until it is back
    #[arg(long)]
    watch: bool,
    /// Stop after this many tables
    #[arg(long, requires = "watch", value_name = "TABLES")]
    count: Option<u64>,
    /// Admin address of a node, with https:// before it if the port speaks TLS; may be repeated, the first that answers is
    /// used; default: those of the nodes on --data
    #[arg(long, value_name = "ADDRESS", value_parser = target)]
    admin: Vec<AdminTarget>,
    /// Print the response of the admin port, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    key: KeyArg,
    #[command(flatten)]
    data: DataArg,
}

/// Time for a node to reply before the next is queried: it may be gone or stalled while others answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Prints the nodes, once or repeatedly.
///
/// # Errors
/// No node answers; while watching, only if none did at first.
pub fn nodes(args: &NodesArgs) -> anyhow::Result<()> {
    if args.watch {
        return watch::watch(args);
    }
    let (_, list) = args.fetch(None)?;
    if args.json {
        println!("{list}");
        return Ok(());
    }
    print!("{}", table(&node_rows(&list)));
    warn_if_stale(&list);
    Ok(())
}

impl NodesArgs {
    /// Returns the node list of the first node that answers, with its address; queries `first` before the others.
    fn fetch(&self, first: Option<SocketAddr>) -> anyhow::Result<(SocketAddr, Value)> {
        let mut targets = self.admin.clone();
        if targets.is_empty() {
            targets.extend(of_context(&self.key)?);
        }
        if targets.is_empty() {
            let found = find::nodes(&self.data.data, OTHER_WAY)?;
            targets.extend(found.iter().map(AdminTarget::of));
        }
        targets.sort_by_key(|target| Some(target.address) != first);
        let mut why = None;
        for target in targets {
            let address = target.address;
            let admin = AdminClient::open(&target, &self.key, REPLY_TIMEOUT);
            let reply = admin.and_then(|admin| request(admin, address, "GET", "/v1/nodes"));
            match reply.and_then(accepted) {
                Ok(list) => return Ok((address, list)),
                Err(error) => why = why.or(Some(error)),
            }
        }
        Err(why.unwrap_or_else(|| anyhow!("no node answers")))
    }
}

const NODE_COLUMNS: [&str; 11] =
    ["NODE", "STATE", "LEASE", "CONNS", "CAPACITY", "OWNS", "LAG", "VERSION", "DRAIN", "CLIENTS", "PEER"];

fn node_rows(reply: &Value) -> Vec<[String; 11]> {
    let mut rows = vec![NODE_COLUMNS.map(String::from)];
    for node in array(reply, "nodes") {
        rows.push([
            text(&node["node"]),
            text(&node["state"]),
            text(&node["lease"]),
            text(&node["conns"]),
            text(&node["capacity"]),
            numbers(&node["owns"]).len().to_string(),
            lag(&node["nodeTopic"]).unwrap_or_default(),
            text(&node["version"]),
            drain::progress(&node["drain"]).unwrap_or_default(),
            array(node, "clients").iter().map(text).collect::<Vec<_>>().join(" "),
            text(&node["peer"]),
        ]);
    }
    rows
}

/// Formats the lag of a node in its own topic: records, and the age of the oldest if any wait.
fn lag(topic: &Value) -> Option<String> {
    let (records, ms) = (topic["behindRecords"].as_u64()?, topic["behindMs"].as_u64().unwrap_or(0));
    let age = if ms > 0 { format!(" {}", seconds(ms)) } else { String::new() };
    Some(format!("{records}{age}"))
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

/// Prints the owner of each partition.
///
/// # Errors
/// No node answers.
pub fn owners(args: &AdminArgs) -> anyhow::Result<()> {
    let Some(list) = args.get("/v1/nodes")? else { return Ok(()) };
    print!("{}", table(&owner_rows(&list)));
    warn_if_stale(&list);
    Ok(())
}

/// Builds one row per partition: its owner, and the lag of its archive.
fn owner_rows(reply: &Value) -> Vec<[String; 9]> {
    let head = ["PARTITION", "OWNER", "STATE", "LEASE", "POSITION", "END", "BEHIND", "SECONDS", "SENDS"];
    let mut rows = vec![head.map(String::from)];
    let refused = numbers(&reply["archiveBehind"]);
    for partition in 0..reply["partitions"].as_u64().unwrap_or(0) {
        let owners: Vec<&Value> =
            array(reply, "nodes").iter().filter(|node| numbers(&node["owns"]).contains(&partition)).collect();
        let each = |key: &str| owners.iter().map(|node| text(&node[key])).collect::<Vec<_>>().join(" ");
        let lags: Vec<&Value> = owners
            .iter()
            .flat_map(|node| array(node, "stands"))
            .filter(|lag| lag["partition"].as_u64() == Some(partition))
            .collect();
        let lag = |key: &str| lags.iter().map(|lag| text(&lag[key])).collect::<Vec<_>>().join(" ");
        let seconds = lags.iter().filter_map(|lag| lag["behindMs"].as_u64());
        let seconds =
            seconds.map(|ms| format!("{}.{}", ms / 1_000, ms % 1_000 / 100)).collect::<Vec<_>>().join(" ");
        let sends = if refused.contains(&partition) { "ARCHIVE_BEHIND" } else { "accepted" };
        rows.push([
            partition.to_string(),
            each("node"),
            each("state"),
            each("lease"),
            lag("position"),
            lag("end"),
            lag("behindRecords"),
            seconds,
            sends.to_owned(),
        ]);
    }
    rows
}

/// Prints the nodes that a user's devices are connected to.
///
/// # Errors
/// No node answers, the name is no id, or the routes are unavailable.
pub fn where_is(args: &WhereArgs) -> anyhow::Result<()> {
    check_id(&args.user).with_context(|| format!("user {:?}", args.user))?;
    let Some(reply) = args.admin.get(&format!("/v1/users/{}/routes", args.user))? else { return Ok(()) };
    let routes = array(&reply, "routes");
    if routes.is_empty() {
        println!("{} is not connected", args.user);
        return Ok(());
    }
    let mut rows = vec![["DEVICE", "NODE", "LEASE", "EPOCH"].map(String::from)];
    rows.extend(routes.iter().map(|row| ["device", "node", "lease", "epoch"].map(|key| text(&row[key]))));
    print!("{}", table(&rows));
    Ok(())
}

const STALE_WARNING: &str = "routes unavailable; the list is as the node last saw it\n";

fn warn_if_stale(reply: &Value) {
    if reply["stale"] == true {
        eprint!("{STALE_WARNING}");
    }
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn draining_node_is_listed_with_its_progress() {
        let drain =
            json!({"phase": "draining", "from": 200, "left": 50, "unnoticed": 0, "rate": 50, "forMs": 3_000});
        let node = |drain: Value, topic: Value| {
            json!({"node": "n1", "state": "draining", "lease": "live", "conns": 50, "capacity": 100, "owns": [1, 2],
                "clients": ["a:1"], "peer": "", "version": "2", "drain": drain, "nodeTopic": topic})
        };
        let topic = |records: u64, ms: u64| json!({"position": 7, "end": 7 + records, "behindRecords": records, "behindMs": ms});
        let nodes =
            [node(drain, topic(0, 0)), node(Value::Null, Value::Null), node(Value::Null, topic(812, 1_290))];
        let rows = node_rows(&json!({"nodes": nodes}));
        let drain = "draining 75 % of 200 gone, 50 a second, 3.0 s";
        let expected = ["n1", "draining", "live", "50", "100", "2", "0", "2", drain, "a:1", ""];
        assert_eq!(rows[1], expected);
        assert_eq!((rows[2][6].as_str(), rows[2][8].as_str()), ("", ""));
        assert_eq!(rows[3][6], "812 1.2 s");
    }

    #[test]
    fn owners_are_listed_with_their_lag() {
        let lag = json!({"partition": 1, "position": 7, "end": 9, "behindRecords": 2, "behindMs": 12_340, "behindBytes": 5});
        let node = json!({"node": "n2", "state": "ready", "lease": "live", "owns": [1], "stands": [lag]});
        let reply = json!({"nodes": [node], "partitions": 2, "archiveBehind": [0], "stale": false});
        let rows = owner_rows(&reply);
        assert_eq!(rows[1], ["0", "", "", "", "", "", "", "", "ARCHIVE_BEHIND"]);
        assert_eq!(rows[2], ["1", "n2", "ready", "live", "7", "9", "2", "12.3", "accepted"]);
    }
}
