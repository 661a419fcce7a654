//! `tidegate nodes --watch` suffices to follow a rolling restart, whichever node freezes or exits.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use rustix::process::Signal;
use tidegate_protocol::codec::Wire;

use crate::support::{Client, Cluster, eventually};

/// Row of a table: its cells by their columns.
type Row = BTreeMap<String, String>;

/// Watch that runs next to the cluster.
struct Watch {
    child: Child,
    out: PathBuf,
}

impl Watch {
    fn start(cluster: &Cluster, words: &[String]) -> Self {
        let out = cluster.token_key().with_file_name("watch.out");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["nodes", "--watch"]).args(words);
        command.stdin(Stdio::null()).stdout(File::create(&out).expect("a file"));
        Self { child: command.spawn().expect("the binary runs"), out }
    }

    /// Returns the complete tables, from the given one on.
    fn pages(&self, from: usize) -> Vec<String> {
        let all = fs::read_to_string(&self.out).unwrap_or_default();
        let whole = all.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
        whole.split("\n\n").filter(|page| !page.is_empty()).skip(from).map(str::to_owned).collect()
    }

    /// Waits for a table after `from` in which a row of the node satisfies the condition; returns the number of tables
    /// up to it.
    fn shows(&self, from: usize, node: &str, what: &str, is_so: impl Fn(&Row) -> bool) -> usize {
        eventually(&format!("{node} is shown {what}"), || {
            let found = self.pages(from).iter().position(|page| rows(page, node).iter().any(&is_so));
            found.map(|at| from + at + 1)
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("it showed: {}", self.pages(0).join("\n\n"));
        }
    }
}

/// Returns the rows of one node, which are its runs.
fn rows(page: &str, node: &str) -> Vec<Row> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with("NODE "));
    let head = lines.next().unwrap_or_default();
    let starts: Vec<usize> = (0..head.len())
        .filter(|at| !head[*at..].starts_with(' ') && (*at == 0 || head[..*at].ends_with(' ')))
        .collect();
    let cell = |line: &str, nth: usize| {
        let end = starts.get(nth + 1).copied().unwrap_or(usize::MAX).min(line.len());
        line.get(starts[nth]..end).unwrap_or_default().trim().to_owned()
    };
    let row = |line: &str| (0..starts.len()).map(|nth| (cell(head, nth), cell(line, nth))).collect();
    lines.map(row).filter(|row: &Row| row["NODE"] == node).collect()
}

/// Returns the finished part of a node's drain in percent, if it is shown.
fn drained_percent(row: &Row) -> Option<u64> {
    let (before, _) = row["DRAIN"].split_once(" % of ")?;
    before.split(' ').next_back()?.parse().ok()
}

#[test]
fn watch_follows_a_rolling_restart_of_three_nodes() {
    // A node with twenty clients takes four seconds to close them.
    const CLIENTS: usize = 20;
    let pace = ["drain.lb_delay_ms=3000", "drain.max_rate=5", "drain.deadline_ms=30000", "assign.version=1"];
    let mut cluster = Cluster::start(3, &pace);
    let _clients: Vec<Client> =
        (0..3 * CLIENTS).map(|n| cluster.login(n % 3, Wire::ALL[n % 4], &format!("user-{n}"))).collect();
    let folder = cluster.token_key().parent().expect("a folder").display().to_string();
    let watch = Watch::start(&cluster, &["--data".to_owned(), folder]);
    let mut from = 0;
    for node in ["n1", "n2", "n3"] {
        from = watch.shows(from, node, "ready", |row| row["STATE"] == "ready" && row["CONNS"] == "20");
    }
    for nth in 0..3 {
        let node = format!("n{}", nth + 1);
        let begin = from;
        cluster.node(nth).signal(Signal::TERM);
        from = watch.shows(from, &node, "cordoned", |row| row["STATE"] == "cordoned");
        from = watch.shows(from, &node, "half way", |row| {
            row["STATE"] == "draining"
                && row["DRAIN"].starts_with("draining ")
                && drained_percent(row).is_some_and(|gone| (1..100).contains(&gone))
        });
        assert_eq!(cluster.exit(nth), Some(0));
        from = watch.shows(from, &node, "gone", |row| row["STATE"] == "gone");
        cluster.set_for(nth, &["assign.version=2"]);
        cluster.restart(nth);
        from = watch.shows(from, &node, "back with the next version", |row| {
            row["STATE"] == "ready" && row["LEASE"] == "live" && row["VERSION"] == "2"
        });
        let pages = &watch.pages(begin)[..from - begin];
        let progress: Vec<u64> =
            pages.iter().flat_map(|page| rows(page, &node)).filter_map(|row| drained_percent(&row)).collect();
        assert!(progress.is_sorted() && progress.first() == Some(&0), "{node}: {progress:?}");
        for other in (1..=3).map(|other| format!("n{other}")).filter(|other| *other != node) {
            let states: Vec<String> =
                pages.iter().flat_map(|page| rows(page, &other)).map(|row| row["STATE"].clone()).collect();
            assert!(
                states.len() == pages.len() && states.iter().all(|it| it == "ready"),
                "{other}: {states:?}"
            );
        }
    }
}

#[test]
fn watch_asks_another_admin_port_of_a_frozen_or_dead_node() {
    let mut cluster = Cluster::start(2, &[]);
    let ports = [0, 1].map(|nth| cluster.node(nth).addresses.admin);
    let words: Vec<String> = ports.iter().flat_map(|port| ["--admin".to_owned(), port.to_string()]).collect();
    let watch = Watch::start(&cluster, &words);
    let says = |from: usize, nth: usize| {
        eventually(&format!("n{} is asked", nth + 1), || {
            let is_asked = |page: &String| page.contains(&format!("; reported by {}\n", ports[nth]));
            watch.pages(from).iter().position(is_asked).map(|at| from + at + 1)
        })
    };
    let from = says(0, 0);
    cluster.node(0).signal(Signal::STOP);
    let from = says(from, 1);
    cluster.node(0).signal(Signal::CONT);
    // No other node is asked while that one answers.
    let from = watch.shows(from, "n2", "again", |row| row["STATE"] == "ready");
    assert!(watch.pages(from - 1)[0].contains(&format!("; reported by {}\n", ports[1])));
    cluster.kill(1);
    says(from, 0);
}
