//! `tidegate nodes --watch`: reprints the table every second from any node that answers, to follow a rolling restart.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{NodesArgs, STALE_WARNING, array, node_rows, numbers, seconds, table, text};

/// Interval between two tables.
const TABLE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a missing node is listed as gone; after that it is not expected back.
const GONE_SHOWN_MAX: Duration = Duration::from_secs(600);

/// Prints tables of the nodes until `--count` is reached or the output is closed.
pub(super) fn watch(args: &NodesArgs) -> anyhow::Result<()> {
    let mut view = View::default();
    for shown in 1_u64.. {
        let page = match args.fetch(view.from) {
            Ok((from, list)) if args.json => {
                view.from = Some(from);
                format!("{list}\n")
            }
            Ok((from, list)) => view.update(from, &list, Instant::now()),
            Err(why) if view.from.is_none() => return Err(why),
            Err(_) if args.json => String::new(),
            Err(why) => view.unanswered(&why, Instant::now()),
        };
        // A write fails once the reader, such as `head`, has closed the pipe.
        if print(&page, args.json).is_err() || args.count.is_some_and(|count| shown >= count) {
            break;
        }
        thread::sleep(TABLE_INTERVAL);
    }
    Ok(())
}

/// Prints one page; on a terminal over the previous page, with lines cut at its width.
fn print(page: &str, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        out.write_all(page.as_bytes())?;
    } else if out.is_terminal() {
        // Wrapping off, cursor home, erase the rest of each line and of the screen, wrapping on.
        let screen = format!("\x1b[?7l\x1b[H{}\x1b[J\x1b[?7h", page.replace('\n', "\x1b[K\n"));
        out.write_all(screen.as_bytes())?;
    } else {
        writeln!(out, "{page}")?;
    }
    out.flush()
}

/// State of the display between two tables.
#[derive(Default)]
struct View {
    /// Node that answered last and is queried first.
    from: Option<SocketAddr>,
    page: String,
    /// Start of the time without an answer from any node.
    unanswered_since: Option<Instant>,
    /// Nodes that were listed, each with the time of its last listing.
    listed: BTreeMap<String, Instant>,
}

impl View {
    /// Renders the page for a reply; nodes missing from it are shown as gone.
    fn update(&mut self, from: SocketAddr, reply: &Value, now: Instant) -> String {
        (self.from, self.unanswered_since) = (Some(from), None);
        let mut rows = node_rows(reply);
        let present: BTreeSet<String> =
            array(reply, "nodes").iter().map(|node| text(&node["node"])).collect();
        self.listed.extend(present.iter().map(|node| (node.clone(), now)));
        self.listed.retain(|_, last| now.duration_since(*last) < GONE_SHOWN_MAX);
        for (node, last) in self.listed.iter().filter(|(node, _)| !present.contains(*node)) {
            let since = u64::try_from(now.duration_since(*last).as_millis()).unwrap_or(u64::MAX);
            let mut row: [String; 11] = Default::default();
            (row[0], row[1], row[8]) = (node.clone(), "gone".to_owned(), seconds(since));
            rows.push(row);
        }
        rows[1..].sort_by(|a, b| a[0].cmp(&b[0]));
        let live = || array(reply, "nodes").iter().filter(|node| node["lease"] == "live");
        let sum = |key: &str| live().filter_map(|node| node[key].as_u64()).sum::<u64>();
        let owned: BTreeSet<u64> = live().flat_map(|node| numbers(&node["owns"])).collect();
        self.page = format!(
            "{} nodes live, {} of {} connections, {} of {} partitions owned; reported by {from}\n{}",
            live().count(),
            sum("conns"),
            sum("capacity"),
            owned.len(),
            text(&reply["partitions"]),
            table(&rows)
        );
        if reply["stale"] == true {
            self.page.push_str(STALE_WARNING);
        }
        self.page.clone()
    }

    /// Renders the last page again, with the time since a node answered.
    fn unanswered(&mut self, why: &anyhow::Error, now: Instant) -> String {
        let since = now.duration_since(*self.unanswered_since.get_or_insert(now)).as_secs();
        let mut page = self.page.clone();
        // Writing to a String can't fail.
        writeln!(page, "no node has answered for {since} s: {why:#}").ok();
        page
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, state: &str, owns: &[u64]) -> Value {
        json!({"node": name, "state": state, "lease": "live", "conns": 5, "capacity": 10, "owns": owns, "clients": [],
            "peer": "", "version": "1", "drain": null, "nodeTopic": null})
    }

    fn reply(nodes: &[Value]) -> Value {
        json!({"nodes": nodes, "partitions": 4, "archiveBehind": [], "stale": false})
    }

    #[test]
    fn missing_node_is_gone_and_unanswered_page_stays() {
        let (mut view, now) = (View::default(), Instant::now());
        let from: SocketAddr = "127.0.0.1:7801".parse().unwrap();
        let (one, two) = (node("n1", "ready", &[0, 1]), node("n2", "draining", &[2]));
        let page = view.update(from, &reply(&[one.clone(), two]), now);
        let mut lines = page.lines();
        let head = "2 nodes live, 10 of 20 connections, 3 of 4 partitions owned; reported by 127.0.0.1:7801";
        assert_eq!(lines.next(), Some(head));
        assert!(lines.nth(2).unwrap().starts_with("n2    draining"), "{page}");
        let later = now + Duration::from_millis(4_200);
        let page = view.update(from, &reply(std::slice::from_ref(&one)), later);
        assert!(page.lines().nth(3).unwrap().starts_with("n2    gone   -      -"), "{page}");
        assert!(page.contains(" 4.2 s "), "{page}");
        let why = anyhow::anyhow!("refused");
        let silent = view.unanswered(&why, later);
        assert_eq!(silent, format!("{page}no node has answered for 0 s: refused\n"));
        let silent = view.unanswered(&why, later + Duration::from_secs(3));
        assert!(silent.ends_with("no node has answered for 3 s: refused\n"), "{silent}");
        let back = view.update(from, &reply(&[node("n2", "ready", &[]), one.clone()]), later);
        assert!(!back.contains("gone") && back.lines().nth(2).unwrap().starts_with("n1"), "{back}");
        let page = view.update(from, &reply(&[one]), later + GONE_SHOWN_MAX);
        assert!(!page.contains("n2"), "it does not come back: {page}");
    }
}
