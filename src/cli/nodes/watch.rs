//! `tidegate nodes --watch`: the table anew each second, by whichever node answers, so that a rolling restart can be followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{NodesArgs, STALE, list, node_rows, numbers, seconds, table, text};

/// Between two tables.
const EVERY: Duration = Duration::from_secs(1);

/// For so long a node that was listed is missed; by then it does not come back.
const MISSED: Duration = Duration::from_secs(600);

/// Prints the nodes until that many tables are shown, or nobody reads them any more.
pub(super) fn watch(args: &NodesArgs) -> anyhow::Result<()> {
    let mut view = View::default();
    for shown in 1_u64.. {
        let page = match args.ask(view.from) {
            Ok((from, said)) if args.json => {
                view.from = Some(from);
                format!("{said}\n")
            }
            Ok((from, said)) => view.told(from, &said, Instant::now()),
            Err(why) if view.from.is_none() => return Err(why),
            Err(_) if args.json => String::new(),
            Err(why) => view.silent(&why, Instant::now()),
        };
        // Whoever read this has seen enough.
        if print(&page, args.json).is_err() || args.count.is_some_and(|count| shown >= count) {
            break;
        }
        thread::sleep(EVERY);
    }
    Ok(())
}

/// One page; on a terminal in the place of the last one, and no line longer than it is wide.
fn print(page: &str, json: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        out.write_all(page.as_bytes())?;
    } else if out.is_terminal() {
        // Home, over the old table, and away with what is left of it. Long lines end at the edge meanwhile.
        let screen = format!("\x1b[?7l\x1b[H{}\x1b[J\x1b[?7h", page.replace('\n', "\x1b[K\n"));
        out.write_all(screen.as_bytes())?;
    } else {
        writeln!(out, "{page}")?;
    }
    out.flush()
}

/// What was shown, and by whose word.
#[derive(Default)]
struct View {
    /// Who answered last, and is asked first.
    from: Option<SocketAddr>,
    page: String,
    /// Since when nobody answers.
    silent: Option<Instant>,
    /// The nodes that were listed, and when each was last.
    listed: BTreeMap<String, Instant>,
}

impl View {
    fn told(&mut self, from: SocketAddr, said: &Value, now: Instant) -> String {
        (self.from, self.silent) = (Some(from), None);
        let mut rows = node_rows(said);
        let here: BTreeSet<String> = list(said, "nodes").iter().map(|node| text(&node["node"])).collect();
        self.listed.extend(here.iter().map(|node| (node.clone(), now)));
        self.listed.retain(|_, last| now.duration_since(*last) < MISSED);
        for (node, last) in self.listed.iter().filter(|(node, _)| !here.contains(*node)) {
            let since = u64::try_from(now.duration_since(*last).as_millis()).unwrap_or(u64::MAX);
            let mut row: [String; 11] = Default::default();
            (row[0], row[1], row[8]) = (node.clone(), "gone".to_owned(), seconds(since));
            rows.push(row);
        }
        rows[1..].sort_by(|a, b| a[0].cmp(&b[0]));
        let live = || list(said, "nodes").iter().filter(|node| node["lease"] == "live");
        let sum = |key: &str| live().filter_map(|node| node[key].as_u64()).sum::<u64>();
        let owned: BTreeSet<u64> = live().flat_map(|node| numbers(&node["owns"])).collect();
        self.page = format!(
            "{} nodes live, {} of {} connections, {} of {} partitions owned; {from} says\n{}",
            live().count(),
            sum("conns"),
            sum("capacity"),
            owned.len(),
            text(&said["partitions"]),
            table(&rows)
        );
        if said["stale"] == true {
            self.page.push_str(STALE);
        }
        self.page.clone()
    }

    /// The last page, and for how long nobody has answered.
    fn silent(&mut self, why: &anyhow::Error, now: Instant) -> String {
        let since = now.duration_since(*self.silent.get_or_insert(now)).as_secs();
        let mut page = self.page.clone();
        // Writing to a String can't fail.
        writeln!(page, "no node answers, for {since} s: {why:#}").ok();
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

    fn said(nodes: &[Value]) -> Value {
        json!({"nodes": nodes, "partitions": 4, "archiveBehind": [], "stale": false})
    }

    #[test]
    fn a_node_that_went_is_gone_until_it_is_back_and_while_nobody_answers_the_last_word_stays() {
        let (mut view, now) = (View::default(), Instant::now());
        let from: SocketAddr = "127.0.0.1:7801".parse().unwrap();
        let (one, two) = (node("n1", "ready", &[0, 1]), node("n2", "draining", &[2]));
        let page = view.told(from, &said(&[one.clone(), two]), now);
        let mut lines = page.lines();
        let head = "2 nodes live, 10 of 20 connections, 3 of 4 partitions owned; 127.0.0.1:7801 says";
        assert_eq!(lines.next(), Some(head));
        assert!(lines.nth(2).unwrap().starts_with("n2    draining"), "{page}");
        let later = now + Duration::from_millis(4_200);
        let page = view.told(from, &said(std::slice::from_ref(&one)), later);
        assert!(page.lines().nth(3).unwrap().starts_with("n2    gone   -      -"), "{page}");
        assert!(page.contains(" 4.2 s "), "{page}");
        let why = anyhow::anyhow!("refused");
        let silent = view.silent(&why, later);
        assert_eq!(silent, format!("{page}no node answers, for 0 s: refused\n"));
        let silent = view.silent(&why, later + Duration::from_secs(3));
        assert!(silent.ends_with("no node answers, for 3 s: refused\n"), "{silent}");
        let back = view.told(from, &said(&[node("n2", "ready", &[]), one.clone()]), later);
        assert!(!back.contains("gone") && back.lines().nth(2).unwrap().starts_with("n1"), "{back}");
        let page = view.told(from, &said(&[one]), later + MISSED);
        assert!(!page.contains("n2"), "it does not come back: {page}");
    }
}
