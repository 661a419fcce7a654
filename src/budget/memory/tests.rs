//! Limits and use, read from a file tree of the test's own.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Root directory that is removed on drop.
struct Tree(System);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("tidegate-cgroups-{}-{number}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(System { root })
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0.root).ok();
    }
}

const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 7 kB\n");

#[test]
fn smallest_limit_up_the_tree_applies_in_v2() {
    let at = |path: &'static str| [MACHINE, ("proc/self/cgroup", path)];
    let tree = |own: &'static str, slice: &'static str, top: &'static str| {
        let mut files = at("0::/tide.slice/tidegate.service\n").to_vec();
        files.push(("sys/fs/cgroup/tide.slice/tidegate.service/memory.max", own));
        files.push(("sys/fs/cgroup/tide.slice/memory.max", slice));
        files.push(("sys/fs/cgroup/memory.max", top));
        Tree::new(&files).0.limit()
    };
    assert_eq!(tree("300\n", "max\n", "max\n"), 300);
    assert_eq!(tree("max\n", "200\n", "max\n"), 200, "limit of the slice above");
    assert_eq!(tree("300\n", "200\n", "100\n"), 100, "limit of the container around it");
    assert_eq!(tree("max\n", "max\n", "max\n"), 1_024_000, "the machine");
    assert_eq!(tree("2000000\n", "max\n", "max\n"), 1_024_000, "the machine is smaller");
    assert_eq!(Tree::new(&at("0::/\n")).0.limit(), 1_024_000, "nothing is mounted");
}

#[test]
fn smallest_limit_up_the_tree_applies_in_v1_with_v2_present() {
    let none = "9223372036854771712\n";
    let tree = |own: &'static str, slice: &'static str| {
        let text = "5:cpu,memory:/a/b\n4:pids:/x\n0::/u\n";
        Tree::new(&[
            MACHINE,
            ("proc/self/cgroup", text),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", own),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", slice),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", none),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1"),
        ])
        .0
        .limit()
    };
    assert_eq!(tree("300\n", none), 300);
    assert_eq!(tree(none, "200\n"), 200);
    assert_eq!(tree(none, none), 1_024_000);
}

#[test]
fn path_outside_the_mount_uses_the_top_of_the_mount() {
    let tree = Tree::new(&[
        MACHINE,
        ("proc/self/cgroup", "0::/../../kubepods/pod1\n"),
        ("sys/fs/cgroup/memory.max", "400"),
        ("sys/memory.max", "1"),
        ("kubepods/memory.max", "1"),
    ]);
    assert_eq!(tree.0.limit(), 400);
}

#[test]
fn sockets_are_read_from_the_cgroup_if_it_counts_them() {
    let sockstat = ("proc/net/sockstat", "sockets: used 9\nTCP: inuse 1 orphan 0 tw 0 alloc 2 mem 10\n");
    let of_all = 10 * page_bytes();
    let own = ("proc/self/cgroup", "0::/pod\n");
    let stat = ("sys/fs/cgroup/pod/memory.stat", "anon 5\nsock 8192\nsocket_other 1\n");
    let max = ("sys/fs/cgroup/pod/memory.max", "max\n");
    assert_eq!(Tree::new(&[sockstat, own, stat, max]).0.sockets(), 8_192);
    assert_eq!(Tree::new(&[sockstat, own, stat]).0.sockets(), of_all, "the root cgroup counts no sockets");
    let uncounted = ("sys/fs/cgroup/pod/memory.stat", "anon 5\nsock 0\n");
    assert_eq!(Tree::new(&[sockstat, own, uncounted, max]).0.sockets(), of_all);
    assert_eq!(Tree::new(&[sockstat, ("proc/self/cgroup", "4:memory:/pod\n")]).0.sockets(), of_all);
}

#[test]
fn memory_use_of_this_machine_is_below_its_limit() {
    assert!(memory_used(false) > 0);
    assert!(memory_used(true) < memory_limit(0));
}
