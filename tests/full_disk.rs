//! A disk that is really full, below a real node: a small file system in memory, in a mount namespace of the test's own.

#[path = "support/mod.rs"]
mod support;

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::{
    fs::statvfs,
    process::{Signal, getuid},
};
use support::{Client, Process, Said, ask, code, eventually, send, text_of, unique_name};
use tidegate_protocol::{Code, codec::Wire, pb};

const MIB: u64 = 1 << 20;

/// The size of the disk. After a write that failed, a store opens its database again with 64 MiB free.
const DISK: u64 = 320 * MIB;

/// Sends after which the node has refused one: large messages fill the disk before that, and small ones take longer than the
/// node needs to notice that it is full.
const SENDS_MAX: usize = 2_000;

const DIRECT: &str = "d:alice:bob";

/// What the test needs and how to get it; it does not pass without.
const NEEDS: &str = "this test mounts a small tmpfs in a mount namespace: run it as root (in a container with CAP_SYS_ADMIN, \
                     `docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined`), or as a user who may create user \
                     namespaces (`sysctl kernel.unprivileged_userns_clone=1`, `user.max_user_namespaces` above 0, and with \
                     AppArmor `kernel.apparmor_restrict_unprivileged_userns=0`)";

/// A file system of its own size. It is freed when the holder of its namespace and the nodes on it have ended; the nodes of a
/// test that is killed go on.
struct Disk {
    /// Ends when its standard input does.
    holder: Child,
    /// An empty folder outside, where the disk is mounted inside.
    folder: PathBuf,
    /// The disk as seen from outside.
    view: PathBuf,
}

impl Disk {
    fn mount() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-disk-{}", unique_name()));
        fs::create_dir_all(&folder).expect("a place for files");
        let mut unshare = Command::new("unshare");
        if !getuid().is_root() {
            unshare.arg("--map-root-user");
        }
        let mount = format!("mount -t tmpfs -o size={DISK} tidegate \"$0\" && echo mounted && exec cat");
        unshare.arg("--mount").args(["sh", "-c", &mount]).arg(&folder);
        let spawned = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut holder = spawned.unwrap_or_else(|error| panic!("unshare, of util-linux: {error}; {NEEDS}"));
        let mut said = String::new();
        let mut lines = BufReader::new(holder.stdout.take().expect("a pipe"));
        lines.read_line(&mut said).expect("text");
        if said != "mounted\n" {
            let output = holder.wait_with_output().expect("it ends");
            fs::remove_dir_all(&folder).ok();
            panic!("{}: {NEEDS}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let root = Path::new("/proc").join(holder.id().to_string()).join("root");
        let view = root.join(folder.strip_prefix("/").expect("an absolute path"));
        Self { holder, folder, view }
    }

    /// Starts a node with its data on the disk, and its log elsewhere.
    fn serve(&self, sets: &[&str]) -> Process {
        let data = self.view.join("data");
        fs::create_dir_all(&data).expect("there is space");
        let said = self.folder.with_extension("said");
        let errors = File::options().create(true).append(true).open(&said).expect("a file");
        if !data.join("stderr").is_symlink() {
            std::os::unix::fs::symlink(&said, data.join("stderr")).expect("there is space");
        }
        fs::remove_file(data.join("node.json")).ok();
        let namespace =
            |kind: &str| format!("--{kind}=/proc/{}/ns/{}", self.holder.id(), &kind[..kind.len().min(4)]);
        let mut enter = Command::new("nsenter");
        if !getuid().is_root() {
            enter.args([&namespace("user"), "--preserve-credentials"]);
        }
        enter.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id())).arg("--");
        enter.arg(env!("CARGO_BIN_EXE_tidegate")).arg("serve").arg("--data").arg(self.folder.join("data"));
        let own = ["listen.client=127.0.0.1:0", "listen.admin=127.0.0.1:0", "node.shards=2"];
        let patient = ["timing.ack_timeout_ms=300", "timing.ack_tries=200"];
        for set in own.iter().chain(&patient).chain(sets) {
            enter.arg("--set").arg(set);
        }
        enter.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        Process::spawn(&data, enter)
    }

    fn free(&self) -> u64 {
        let disk = statvfs(&self.view).expect("it is mounted");
        disk.f_bavail * disk.f_frsize
    }

    /// Takes all space but that much; with 0 there is none left.
    fn fill(&self, leave: u64) {
        let disk = statvfs(&self.view).expect("it is mounted");
        assert!(disk.f_blocks * disk.f_frsize <= DISK, "this is another disk");
        let mut ballast =
            File::options().create(true).append(true).open(self.view.join("ballast")).expect("a file");
        while self.free() > leave {
            let some = usize::try_from((self.free() - leave).min(MIB)).expect("a MiB at most");
            if ballast.write(&vec![b'x'; some]).is_err() {
                break;
            }
        }
        assert!(self.free() <= leave, "{} bytes are free", self.free());
    }

    /// Gives the space back.
    fn clear(&self) {
        fs::remove_file(self.view.join("ballast")).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.holder.kill().ok();
        self.holder.wait().ok();
        fs::remove_dir_all(&self.folder).ok();
        fs::remove_file(self.folder.with_extension("said")).ok();
    }
}

/// What alice sent to bob.
#[derive(Default)]
struct Sent {
    count: u64,
    /// By seq from 1, without a hole.
    acked: Vec<String>,
    /// In doubt when the disk was full: each may be in the log or not.
    doubtful: Vec<String>,
    /// Ids whose push has come.
    pushed: HashSet<String>,
}

impl Sent {
    /// Sends once; the code if it is refused.
    fn send(&mut self, alice: &mut Client, text: &str) -> Result<u64, Code> {
        self.count += 1;
        let id = format!("m{}", self.count);
        match alice.ask(ask::send(send("bob", &id, &format!("{id} {text}")))) {
            Said::SendAck(ack) => {
                self.acked.push(id);
                Ok(ack.seq)
            }
            Said::Error(error) => {
                let code = code(error.code);
                if code == Code::Unknown {
                    self.doubtful.push(id);
                }
                Err(code)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends until the node refuses with the documented code; sends before that may be in doubt. The reader takes a push
    /// for each accepted send, so that its window never fills.
    fn until_refused(&mut self, alice: &mut Client, mut reader: Option<&mut Client>, text: &str) {
        for _ in 0..SENDS_MAX {
            match self.send(alice, text) {
                Ok(_) => {
                    if let Some(reader) = reader.as_deref_mut() {
                        self.take_push(reader);
                    }
                }
                Err(Code::Unknown) => {}
                Err(Code::BusUnavailable) => return,
                Err(other) => panic!("{other:?}"),
            }
        }
        panic!("{SENDS_MAX} sends were accepted, and the disk is not full");
    }

    /// Takes a push and acks it.
    fn take_push(&mut self, reader: &mut Client) {
        let push = reader.expect_push();
        reader.say_as(0, ask::ack(DIRECT, push.seq));
        self.pushed.insert(push.msg_id);
    }

    /// Takes pushes until every acked message was pushed.
    fn take_all_pushes(&mut self, reader: &mut Client) {
        while self.acked.iter().any(|id| !self.pushed.contains(id)) {
            self.take_push(reader);
        }
    }

    /// Sends what is in doubt again, once there is space.
    fn settle(&mut self, alice: &mut Client, text: &str) {
        for id in std::mem::take(&mut self.doubtful) {
            eventually(&format!("{id} is taken"), || {
                let again = pb::Send { attempt: 1, ..send("bob", &id, &format!("{id} {text}")) };
                match alice.ask(ask::send(again)) {
                    Said::SendAck(_) => Some(()),
                    Said::Error(error) if error.temporary => None,
                    other => panic!("{other:?}"),
                }
            });
            self.acked.push(id);
        }
    }

    /// Everything that was acked is in the history, once, and the history has no hole.
    fn check(&self, reader: &mut Client) {
        let mut history = Vec::new();
        let end = reader.state(DIRECT).max_seq;
        while (history.len() as u64) < end {
            let cursor = history.len() as u64;
            let page = reader.page(ask::after(DIRECT, cursor, 100));
            assert_eq!(page.messages.first().map(|push| push.seq), Some(cursor + 1), "a hole");
            for (seq, push) in (cursor + 1..).zip(page.messages) {
                assert_eq!(push.seq, seq, "a hole");
                history.push(push.msg_id);
            }
        }
        let mut once = history.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), history.len(), "a message is there twice");
        for id in &self.acked {
            assert!(
                once.binary_search(id).is_ok(),
                "{id} was acked and is lost; {} are there",
                history.len()
            );
        }
    }
}

/// What needs no space: logins on each wire, histories, live rooms and signals.
fn goes_on(node: &Process, sent: &Sent) {
    for wire in Wire::ALL {
        let (mut here, mut there) = (node.login(wire, "bob", "tablet"), node.login(wire, "guest", "phone"));
        sent.check(&mut here);
        for client in [&mut here, &mut there] {
            assert!(matches!(client.ask(ask::join("hall")), Said::Done(_)));
        }
        here.text("r:hall", &format!("r-{wire:?}"), "still here");
        let push = there.take("a push of the room", |frame| matches!(frame.body, Some(Said::Push(_))));
        assert!(matches!(push.body, Some(Said::Push(push)) if text_of(&push) == "still here"));
        assert!(matches!(there.ask(ask::signal("bob", "typing", "")), Said::Done(_)));
        assert_eq!(here.expect_signal().kind, "typing");
        assert!(matches!(here.ask(ask::leave("hall")), Said::Done(_)));
    }
}

fn is_taken_again(alice: &mut Client, sent: &mut Sent, text: &str) {
    eventually("sends are taken again, by itself", || match sent.send(alice, text) {
        Ok(_) => Some(()),
        Err(Code::BusUnavailable | Code::Unknown) => None,
        Err(other) => panic!("{other:?}"),
    });
    sent.settle(alice, text);
}

/// Fills the disk, except for `leave` bytes that messages then take, and frees it, twice; then fills it once more and kills the
/// node.
fn full_and_free_again(disk: &Disk, sets: &[&str], text: &str, leave: u64, may_doubt: bool) {
    let mut node = disk.serve(sets);
    let (mut alice, mut bob) =
        (node.login(Wire::Tcp, "alice", "phone"), node.login(Wire::WsText, "bob", "phone"));
    let mut sent = Sent::default();
    // A reader that does not keep up with large messages gets `Behind` instead of pushes.
    let reads_along = text.len() < 1_000;
    for seq in 1..=3 {
        assert_eq!(sent.send(&mut alice, "before"), Ok(seq));
    }
    for _ in 0..2 {
        disk.fill(leave);
        sent.until_refused(&mut alice, reads_along.then_some(&mut bob), text);
        assert!(may_doubt || sent.doubtful.is_empty(), "in doubt: {:?}", sent.doubtful);
        if reads_along {
            sent.take_all_pushes(&mut bob);
        }
        goes_on(&node, &sent);
        assert_eq!(sent.send(&mut alice, text), Err(Code::BusUnavailable), "it stays refused");
        disk.clear();
        is_taken_again(&mut alice, &mut sent, text);
        if reads_along {
            sent.take_all_pushes(&mut bob);
        }
    }
    // Killed while it is full: the journal may end in the middle of a record.
    disk.fill(leave);
    sent.until_refused(&mut alice, reads_along.then_some(&mut bob), text);
    node.signal(Signal::KILL);
    node.exit();
    assert!(!node.said().contains("panicked"), "{}", node.said());
    disk.clear();
    let mut next = disk.serve(sets);
    let mut reader = next.login(Wire::JsonLine, "bob", "phone");
    sent.check(&mut reader);
    let mut alice = next.login(Wire::Tcp, "alice", "phone");
    is_taken_again(&mut alice, &mut sent, text);
    sent.check(&mut reader);
    next.signal(Signal::TERM);
    assert_eq!(next.exit().code(), Some(0), "{}", next.said());
    assert!(!next.said().contains("panicked"), "{}", next.said());
}

#[test]
fn a_nearly_full_disk_refuses_sends_before_any_is_in_doubt() {
    let disk = Disk::mount();
    let bound = format!("limits.disk_free_min_bytes={}", 80 * MIB);
    full_and_free_again(&disk, &[&bound], "text", 79 * MIB, false);
}

#[test]
fn a_full_disk_refuses_sends_and_everything_else_goes_on() {
    let disk = Disk::mount();
    full_and_free_again(&disk, &["limits.disk_free_min_bytes=0"], "text", 0, true);
}

#[test]
fn a_disk_that_messages_fill_loses_none_that_was_acked() {
    let disk = Disk::mount();
    // Tables of 32 MiB of messages do not fit next to the journal.
    let large = ["limits.content_bytes_max=200000", "limits.frame_bytes_max=262144"];
    let sets = [&large[..], &["limits.disk_free_min_bytes=0"]].concat();
    full_and_free_again(&disk, &sets, &"x".repeat(180_000), 44 * MIB, true);
}
