//! `tidegate nodes`, `owners` and `where`: what a node knows of the cluster, as tables, from its admin port.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use anyhow::{Context as _, anyhow};
use serde_json::Value;
use tidegate_protocol::id::check_id;

use super::{
    DataArg,
    admin::{Admin, Ask, OTHER_WAY, fine, request, text},
    drain, find,
};

mod watch;

/// Arguments of `tidegate where`.
#[derive(clap::Args, Debug)]
pub struct WhereArgs {
    /// The user
    user: String,
    #[command(flatten)]
    ask: Ask,
}

/// Arguments of `tidegate nodes`.
#[derive(clap::Args, Debug)]
pub struct NodesArgs {
    /// Go on, and print the table anew each second, until interrupted; a node that leaves is followed until it is back
    #[arg(long)]
    watch: bool,
    /// End after so many tables
    #[arg(long, requires = "watch", value_name = "TABLES")]
    count: Option<u64>,
    /// Admin address of a node, again for others: they are asked where one does not answer; default: those of the nodes which
    /// run on --data
    #[arg(long, value_name = "ADDRESS")]
    admin: Vec<SocketAddr>,
    /// Print what the admin port answers, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArg,
}

/// A node may be gone, or stand still, while others answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Prints the nodes, once or again and again.
///
/// # Errors
/// No node answers; while watching only when none did at first.
pub fn nodes(args: &NodesArgs) -> anyhow::Result<()> {
    if args.watch {
        return watch::watch(args);
    }
    let (_, said) = args.ask(None)?;
    if args.json {
        println!("{said}");
        return Ok(());
    }
    print!("{}", table(&node_rows(&said)));
    warn(&said);
    Ok(())
}

impl NodesArgs {
    /// What the first node says that answers, and which that is; `first` is asked before the others.
    fn ask(&self, first: Option<SocketAddr>) -> anyhow::Result<(SocketAddr, Value)> {
        let mut addresses = self.admin.clone();
        if addresses.is_empty() {
            let found = find::nodes(&self.data.data, OTHER_WAY)?;
            addresses.extend(found.iter().map(|it| it.admin));
        }
        addresses.sort_by_key(|it| Some(*it) != first);
        let mut why = None;
        for address in addresses {
            let asked = Admin::connect_within(address, PATIENCE);
            match asked.and_then(|admin| request(admin, address, "GET", "/v1/nodes")).and_then(fine) {
                Ok(said) => return Ok((address, said)),
                Err(error) => why = why.or(Some(error)),
            }
        }
        Err(why.unwrap_or_else(|| anyhow!("no node answers")))
    }
}

const NODE_COLUMNS: [&str; 11] =
    ["NODE", "STATE", "LEASE", "CONNS", "CAPACITY", "OWNS", "LAG", "VERSION", "DRAIN", "CLIENTS", "PEER"];

fn node_rows(said: &Value) -> Vec<[String; 11]> {
    let mut rows = vec![NODE_COLUMNS.map(String::from)];
    for node in list(said, "nodes") {
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
            list(node, "clients").iter().map(text).collect::<Vec<_>>().join(" "),
            text(&node["peer"]),
        ]);
    }
    rows
}

/// How far a node is behind in its own topic: records, and the age of the oldest where one waits.
fn lag(topic: &Value) -> Option<String> {
    let (records, ms) = (topic["behindRecords"].as_u64()?, topic["behindMs"].as_u64().unwrap_or(0));
    let age = if ms > 0 { format!(" {}", seconds(ms)) } else { String::new() };
    Some(format!("{records}{age}"))
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

/// Prints who owns each partition.
///
/// # Errors
/// No node answers.
pub fn owners(ask: &Ask) -> anyhow::Result<()> {
    let Some(said) = ask.get("/v1/nodes")? else { return Ok(()) };
    print!("{}", table(&owner_rows(&said)));
    warn(&said);
    Ok(())
}

/// A partition a line: who owns it, and how far its archive is behind its log.
fn owner_rows(said: &Value) -> Vec<[String; 9]> {
    let head = ["PARTITION", "OWNER", "STATE", "LEASE", "POSITION", "END", "BEHIND", "SECONDS", "SENDS"];
    let mut rows = vec![head.map(String::from)];
    let refused = numbers(&said["archiveBehind"]);
    for partition in 0..said["partitions"].as_u64().unwrap_or(0) {
        let owners: Vec<&Value> =
            list(said, "nodes").iter().filter(|node| numbers(&node["owns"]).contains(&partition)).collect();
        let each = |key: &str| owners.iter().map(|node| text(&node[key])).collect::<Vec<_>>().join(" ");
        let stands: Vec<&Value> = owners
            .iter()
            .flat_map(|node| list(node, "stands"))
            .filter(|it| it["partition"].as_u64() == Some(partition))
            .collect();
        let stand = |key: &str| stands.iter().map(|it| text(&it[key])).collect::<Vec<_>>().join(" ");
        let seconds = stands.iter().filter_map(|it| it["behindMs"].as_u64());
        let seconds =
            seconds.map(|ms| format!("{}.{}", ms / 1_000, ms % 1_000 / 100)).collect::<Vec<_>>().join(" ");
        let sends = if refused.contains(&partition) { "ARCHIVE_BEHIND" } else { "taken" };
        rows.push([
            partition.to_string(),
            each("node"),
            each("state"),
            each("lease"),
            stand("position"),
            stand("end"),
            stand("behindRecords"),
            seconds,
            sends.to_owned(),
        ]);
    }
    rows
}

/// Prints where a user is.
///
/// # Errors
/// No node answers, the name is no id, or the routes are away.
pub fn where_is(args: &WhereArgs) -> anyhow::Result<()> {
    check_id(&args.user).with_context(|| format!("user {:?}", args.user))?;
    let Some(said) = args.ask.get(&format!("/v1/users/{}/routes", args.user))? else { return Ok(()) };
    let routes = list(&said, "routes");
    if routes.is_empty() {
        println!("{} is not connected", args.user);
        return Ok(());
    }
    let mut rows = vec![["DEVICE", "NODE", "LEASE", "EPOCH"].map(String::from)];
    rows.extend(routes.iter().map(|row| ["device", "node", "lease", "epoch"].map(|key| text(&row[key]))));
    print!("{}", table(&rows));
    Ok(())
}

const STALE: &str = "the routes are away: this is what the node saw last\n";

fn warn(said: &Value) {
    if said["stale"] == true {
        eprint!("{STALE}");
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// Columns as wide as their widest cell; an empty cell is a dash.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let shown = |cell: &String| if cell.is_empty() { "-".to_owned() } else { cell.clone() };
    let width = |column: usize| rows.iter().map(|row| shown(&row[column]).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut table = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String can't fail.
            write!(line, "{:<width$}  ", shown(cell)).ok();
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_aligned_and_an_empty_one_is_a_dash() {
        let rows = [["NODE", "OWNS", "PEER"], ["n1", "", "x"], ["longer", "0-2", ""]];
        let rows = rows.map(|row| row.map(String::from));
        assert_eq!(table(&rows), "NODE    OWNS  PEER\nn1      -     x\nlonger  0-2   -\n");
    }

    #[test]
    fn a_node_that_leaves_is_listed_with_how_far_it_is() {
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
    fn owners_are_listed_with_how_far_they_are_behind() {
        let stand = json!({"partition": 1, "position": 7, "end": 9, "behindRecords": 2, "behindMs": 12_340, "behindBytes": 5});
        let node = json!({"node": "n2", "state": "ready", "lease": "live", "owns": [1], "stands": [stand]});
        let said = json!({"nodes": [node], "partitions": 2, "archiveBehind": [0], "stale": false});
        let rows = owner_rows(&said);
        assert_eq!(rows[1], ["0", "", "", "", "", "", "", "", "ARCHIVE_BEHIND"]);
        assert_eq!(rows[2], ["1", "n2", "ready", "live", "7", "9", "2", "12.3", "taken"]);
    }
}
