//! A real node on a disk that is really full: a small file system in memory, in a mount namespace of the test.

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
use support::{Client, Process, ServerBody, ask, code, eventually, send, text_of, unique_name};
use tidegate_protocol::{Code, codec::Wire, pb};

const MIB: u64 = 1 << 20;

/// Size of the disk. After a failed write, a store opens its database again with 64 MiB free.
const DISK: u64 = 320 * MIB;

/// Number of sends within which the node has refused one: large messages fill the disk before that, and small ones take
/// longer than the node needs to notice that it is full.
const SENDS_MAX: usize = 2_000;

const DIRECT: &str = "d:alice:bob";

/// Requirements of the test, without which it fails.
const NEEDS: &str = "this test mounts a small tmpfs in a mount namespace: run it as root (in a container with CAP_SYS_ADMIN, \
                     `docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined`), or as a user who may create user \
                     namespaces (`sysctl kernel.unprivileged_userns_clone=1`, `user.max_user_namespaces` above 0, and with \
                     AppArmor `kernel.apparmor_restrict_unprivileged_userns=0`)";

/// File system of its own size, freed when the holder of its namespace and the nodes on it have ended; nodes of a
/// killed test keep running.
struct Disk {
    /// Ends when its standard input closes.
    holder: Child,
    /// Empty folder outside, on which the disk is mounted inside.
    folder: PathBuf,
    /// The disk as seen from outside.
    view: PathBuf,
}

impl Disk {
    fn mount() -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-disk-{}", unique_name()));
        fs::create_dir_all(&folder).expect("the folder is created");
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
        let patient = ["timing.ack_timeout_ms=300", "timing.ack_tries=200", "limits.queries_per_second=0"];
        for set in own.iter().chain(&patient).chain(sets) {
            enter.arg("--set").arg(set);
        }
        enter.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        Process::spawn(&data, enter)
    }

    fn free(&self) -> u64 {
        let disk = statvfs(&self.view).expect("the disk is mounted");
        disk.f_bavail * disk.f_frsize
    }

    /// Fills the disk up to `leave` free bytes.
    fn fill(&self, leave: u64) {
        let disk = statvfs(&self.view).expect("the disk is mounted");
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

    /// Frees the filled space.
    fn clear(&self) {
        fs::remove_file(self.view.join("ballast")).expect("the file exists");
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

/// Messages from alice to bob.
#[derive(Default)]
struct Sent {
    count: u64,
    /// Acked ids by seq from 1, without a hole.
    acked: Vec<String>,
    /// Ids in doubt when the disk was full: each may be in the log or not.
    in_doubt: Vec<String>,
    /// Ids that were pushed.
    pushed: HashSet<String>,
}

impl Sent {
    /// Sends once; returns the code of a refusal.
    fn send(&mut self, alice: &mut Client, text: &str) -> Result<u64, Code> {
        self.count += 1;
        let id = format!("m{}", self.count);
        match alice.ask(ask::send(send("bob", &id, &format!("{id} {text}")))) {
            ServerBody::SendAck(ack) => {
                self.acked.push(id);
                Ok(ack.seq)
            }
            ServerBody::Error(error) => {
                let code = code(error.code);
                if code == Code::Unknown {
                    self.in_doubt.push(id);
                }
                Err(code)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends until the node refuses with the documented code; sends before that may be in doubt. The reader takes a
    /// push for each accepted send, so that its window never fills.
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

    /// Takes and acks a push.
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

    /// Resends messages in doubt, once there is space.
    fn settle(&mut self, alice: &mut Client, text: &str) {
        for id in std::mem::take(&mut self.in_doubt) {
            eventually(&format!("{id} is taken"), || {
                let again = pb::Send { attempt: 1, ..send("bob", &id, &format!("{id} {text}")) };
                match alice.ask(ask::send(again)) {
                    ServerBody::SendAck(_) => Some(()),
                    ServerBody::Error(error) if error.temporary => None,
                    other => panic!("{other:?}"),
                }
            });
            self.acked.push(id);
        }
    }

    /// Asserts that the history has every acked message once, and no hole.
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
        assert_eq!(once.len(), history.len(), "a message is stored twice");
        for id in &self.acked {
            assert!(
                once.binary_search(id).is_ok(),
                "{id} was acked and is lost; {} are stored",
                history.len()
            );
        }
    }
}

/// Asserts what needs no space: logins on each wire, histories, live rooms and signals.
fn assert_other_traffic(node: &Process, sent: &Sent) {
    for wire in Wire::ALL {
        let (mut here, mut there) = (node.login(wire, "bob", "tablet"), node.login(wire, "guest", "phone"));
        sent.check(&mut here);
        for client in [&mut here, &mut there] {
            assert!(matches!(client.ask(ask::join("hall")), ServerBody::Done(_)));
        }
        here.text("r:hall", &format!("r-{wire:?}"), "still here");
        let push = there.take("a push of the room", |frame| matches!(frame.body, Some(ServerBody::Push(_))));
        assert!(matches!(push.body, Some(ServerBody::Push(push)) if text_of(&push) == "still here"));
        assert!(matches!(there.ask(ask::signal("bob", "typing", "")), ServerBody::Done(_)));
        assert_eq!(here.expect_signal().kind, "typing");
        assert!(matches!(here.ask(ask::leave("hall")), ServerBody::Done(_)));
    }
}

fn wait_for_accept(alice: &mut Client, sent: &mut Sent, text: &str) {
    eventually("sends are accepted again, automatically", || match sent.send(alice, text) {
        Ok(_) => Some(()),
        Err(Code::BusUnavailable | Code::Unknown) => None,
        Err(other) => panic!("{other:?}"),
    });
    sent.settle(alice, text);
}

/// Fills the disk, except for `leave` bytes that messages then take, and frees it, twice; then fills it once more and
/// kills the node.
fn full_and_free_again(disk: &Disk, sets: &[&str], text: &str, leave: u64, may_doubt: bool) {
    let mut node = disk.serve(sets);
    let (mut alice, mut bob) =
        (node.login(Wire::Tcp, "alice", "phone"), node.login(Wire::WsText, "bob", "phone"));
    let mut sent = Sent::default();
    // A reader that is too slow for large messages gets `Behind` instead of pushes.
    let reads_along = text.len() < 1_000;
    for seq in 1..=3 {
        assert_eq!(sent.send(&mut alice, "before"), Ok(seq));
    }
    for _ in 0..2 {
        disk.fill(leave);
        sent.until_refused(&mut alice, reads_along.then_some(&mut bob), text);
        assert!(may_doubt || sent.in_doubt.is_empty(), "in doubt: {:?}", sent.in_doubt);
        if reads_along {
            sent.take_all_pushes(&mut bob);
        }
        assert_other_traffic(&node, &sent);
        assert_eq!(sent.send(&mut alice, text), Err(Code::BusUnavailable), "sends stay refused");
        disk.clear();
        wait_for_accept(&mut alice, &mut sent, text);
        if reads_along {
            sent.take_all_pushes(&mut bob);
        }
    }
    // Killed on a full disk: the journal may end in the middle of a record.
    disk.fill(leave);
    sent.until_refused(&mut alice, reads_along.then_some(&mut bob), text);
    node.signal(Signal::KILL);
    node.exit();
    assert!(!node.stderr().contains("panicked"), "{}", node.stderr());
    disk.clear();
    let mut next = disk.serve(sets);
    let mut reader = next.login(Wire::JsonLine, "bob", "phone");
    sent.check(&mut reader);
    let mut alice = next.login(Wire::Tcp, "alice", "phone");
    wait_for_accept(&mut alice, &mut sent, text);
    sent.check(&mut reader);
    next.signal(Signal::TERM);
    assert_eq!(next.exit().code(), Some(0), "{}", next.stderr());
    assert!(!next.stderr().contains("panicked"), "{}", next.stderr());
}

#[test]
fn nearly_full_disk_refuses_sends_before_any_is_in_doubt() {
    let disk = Disk::mount();
    let bound = format!("limits.disk_free_min_bytes={}", 80 * MIB);
    full_and_free_again(&disk, &[&bound], "text", 79 * MIB, false);
}

#[test]
fn full_disk_refuses_sends_only() {
    let disk = Disk::mount();
    full_and_free_again(&disk, &["limits.disk_free_min_bytes=0"], "text", 0, true);
}

#[test]
fn disk_filled_by_messages_loses_no_acked_one() {
    let disk = Disk::mount();
    // Tables of 32 MiB of messages do not fit next to the journal.
    let large = ["limits.content_bytes_max=200000", "limits.frame_bytes_max=262144"];
    let sets = [&large[..], &["limits.disk_free_min_bytes=0"]].concat();
    full_and_free_again(&disk, &sets, &"x".repeat(180_000), 44 * MIB, true);
}
