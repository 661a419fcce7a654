//! Behaviour that needs a disk: surviving restarts, filling up, failing, damage, and directories of other programs.

mod faults;
mod feed;
mod offline;
mod power;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tidegate::{
    bus::{AppendError, Bus, LocalBusConfig, OwnershipEvent, TopicId},
    embedded::{Disk, EmbeddedBus, EmbeddedOpenError, EmbeddedStore, Engine, EngineConfig, FORMAT, Offline},
    store::{
        Direction, Fence, GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut, PageQuery,
        Store, StoreError,
    },
};
use tidegate_protocol::{
    id::{ConversationId, NodeId},
    machine::ledger::{Ledger, Outcome},
    record::{Body, Origin, Position, Prune, Record},
    settings::UserSettings,
};

use super::{
    node,
    store::owner::message,
    time::{WAIT_MAX, eventually_async},
    unique_name, user,
};

/// Directory that is removed with its last holder, and a disk whose faults the test sets.
struct TestDisk {
    path: PathBuf,
    free: AtomicU64,
    /// Error of each commit; 0 means none.
    errno: AtomicU64,
    /// Error of each sync, whose batch is written before it.
    sync_errno: AtomicU64,
    syncs: AtomicU64,
}

const EIO: u64 = 5;
const ENOSPC: u64 = 28;
const FLOOR: u64 = 1 << 20;

impl TestDisk {
    fn new() -> Arc<Self> {
        let path = std::env::temp_dir().join(format!("tidegate-store-{}", unique_name()));
        Arc::new(Self {
            path,
            free: AtomicU64::new(u64::MAX),
            errno: AtomicU64::new(0),
            sync_errno: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        })
    }

    fn set(&self, free: u64, errno: u64) {
        self.free.store(free, Ordering::SeqCst);
        self.errno.store(errno, Ordering::SeqCst);
    }

    fn open(self: &Arc<Self>, partitions: u32) -> Result<Arc<Engine>, EmbeddedOpenError> {
        let disk = Arc::clone(self) as Arc<dyn Disk>;
        let config = EngineConfig { path: self.path.clone(), partitions, free_bytes_min: FLOOR, disk };
        Engine::open(config).map(Arc::new)
    }

    fn refusal(self: &Arc<Self>) -> String {
        self.open(1).err().expect("a refusal").to_string()
    }

    /// Returns the newest journal that is not empty.
    fn journal(&self) -> PathBuf {
        let files = fs::read_dir(self.path.join("db")).unwrap().map(|entry| entry.unwrap().path());
        let journals = files.filter(|path| path.extension().is_some_and(|it| it == "jnl"));
        journals.max().expect("a journal")
    }
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

impl Disk for TestDisk {
    fn free(&self, _: &Path) -> io::Result<u64> {
        Ok(self.free.load(Ordering::SeqCst))
    }

    fn before_commit(&self) -> io::Result<()> {
        failure(&self.errno)
    }

    fn after_sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        failure(&self.sync_errno)
    }
}

fn failure(errno: &AtomicU64) -> io::Result<()> {
    match errno.load(Ordering::SeqCst) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(i32::try_from(number).unwrap())),
    }
}

/// Opens an engine in a directory that is removed with it.
pub(crate) fn engine(partitions: u32) -> Arc<Engine> {
    TestDisk::new().open(partitions).unwrap()
}

const LIMITS: LocalBusConfig = LocalBusConfig {
    partitions: 1,
    topic: TopicId(0),
    max_records: 10_000,
    max_bytes: 1 << 20,
    node_max_records: 10,
    node_max_bytes: 1_000,
};

/// Minimal node: bus, store and owner over one engine.
struct Small {
    bus: Arc<EmbeddedBus>,
    store: Arc<dyn Store>,
    engine: Arc<Engine>,
    ledger: Ledger,
    fence: Fence,
    _ownership: Box<dyn tidegate::bus::Ownership>,
}

impl Small {
    async fn start(disk: &Arc<TestDisk>) -> Self {
        let engine = disk.open(1).unwrap();
        let bus = Arc::new(EmbeddedBus::new(Arc::clone(&engine), LIMITS));
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::new(Arc::clone(&engine)));
        let mut ownership = bus.join(&node("me", 1)).await.unwrap();
        assert_eq!(ownership.next().await, Some(OwnershipEvent::Assigned(0)));
        let bounds = bus.bounds(0).await.unwrap();
        let fence = Fence(rand::random());
        let taken = store.take_over(0, fence, bounds.topic).await.unwrap();
        if let Some(before) = taken.position.offset.checked_sub(1) {
            let last = bus.read(0, before, 1, 1).await.unwrap().records.remove(0);
            assert!(taken.position.matches(Some(&last.bytes)), "the log knows the position");
        }
        let ledger = Ledger::resume(taken.position, taken.rules, 1);
        Self { bus, store, engine, ledger, fence, _ownership: ownership }
    }

    /// Reads new records, decides and archives them.
    async fn own(&mut self) -> Result<Vec<Outcome>, StoreError> {
        let batch = self.bus.read(0, self.ledger.next_offset(), 1_000, 1 << 20).await.unwrap();
        let mut outcomes = Vec::new();
        let mut to = Position::START;
        for record in batch.records {
            to = Position::behind(record.offset, &record.bytes);
            let decoded = Record::decode(record.bytes).unwrap();
            let mut needs = Default::default();
            self.ledger.needs(&decoded, &mut needs);
            let needs: Vec<_> = needs.into_iter().collect();
            let rows = self.store.load(0, self.fence, &needs).await?;
            self.ledger.load(rows.position, rows.rows).unwrap();
            outcomes.push(self.ledger.apply(record.offset, &decoded).unwrap());
        }
        let delta = self.ledger.take_delta(to).unwrap();
        while let Err(error) = self.store.archive(0, self.fence, &delta).await {
            if matches!(error, StoreError::Broken(_)) {
                return Err(error);
            }
            tokio::task::yield_now().await;
        }
        self.ledger.archived(to).unwrap();
        self.bus.trim(0, to.offset).await.unwrap();
        Ok(outcomes)
    }

    /// Appends and archives; the append is confirmed with the archive.
    async fn say(&mut self, ids: &[&str], attempt: u32) -> Vec<Outcome> {
        let records = ids.iter().map(|id| said(id, attempt)).collect();
        let bus = Arc::clone(&self.bus);
        let append = tokio::spawn(async move { bus.append(0, records).await });
        let outcomes = self.own().await.unwrap();
        append.await.unwrap().unwrap();
        outcomes
    }

    async fn seqs(&self) -> Vec<u64> {
        self.page(Direction::Forward, 0).await
    }

    async fn page(&self, direction: Direction, cursor: u64) -> Vec<u64> {
        let query = PageQuery { cursor, direction, limit: 1_000, max_bytes: 1 << 20 };
        let page = self.store.page(&direct(), query).await.unwrap();
        page.rows.iter().map(|stored| stored.row.seq).collect()
    }
}

fn direct() -> ConversationId {
    ConversationId::direct(&user("ann"), &user("bob"))
}

fn said(id: &str, attempt: u32) -> Bytes {
    let origin = Origin { node: NodeId::new("n").unwrap(), boot: 1, conn: 1, request: 1 };
    let body: Body = message(&direct(), "ann", id, attempt, id);
    Record { origin, received_at: 1_000, body, trace: None }.encode()
}

fn pruned(up_to: u64) -> Bytes {
    let origin = Origin { node: NodeId::new("-").unwrap(), boot: 0, conn: 0, request: u64::MAX };
    let body = Body::Prune(Prune { conversation: direct(), up_to });
    Record { origin, received_at: 2_000, body, trace: None }.encode()
}

fn accepted(outcomes: &[Outcome]) -> Vec<u64> {
    let seq = |outcome: &Outcome| match outcome {
        Outcome::Accepted { seq, .. } => *seq,
        other => panic!("{other:?}"),
    };
    outcomes.iter().map(seq).collect()
}

#[tokio::test]
async fn archived_messages_survive_a_restart_and_seqs_continue() {
    let disk = TestDisk::new();
    let mut first = Small::start(&disk).await;
    assert_eq!(accepted(&first.say(&["m1", "m2"], 0).await), [1, 2]);
    assert_eq!(accepted(&first.say(&["m3"], 0).await), [3]);
    let topic = first.bus.bounds(0).await.unwrap().topic;
    drop(first);
    let mut second = Small::start(&disk).await;
    assert_eq!(second.bus.bounds(0).await.unwrap().topic, topic);
    assert_eq!(second.seqs().await, [1, 2, 3]);
    let retry = second.say(&["m2"], 1).await;
    assert!(matches!(retry[..], [Outcome::Duplicate { seq: 2, .. }]), "{retry:?}");
    assert_eq!(accepted(&second.say(&["m4"], 0).await), [4]);
    let summary = second.store.summary(&direct(), Some(&user("ann"))).await.unwrap().unwrap();
    assert_eq!((summary.members, summary.member_view.unwrap().member.sent), (2, 4));
}

/// After a start, memory learns the stored keys in steps; here there are more keys than a step takes.
#[tokio::test]
async fn guard_entries_survive_a_restart_and_versions_continue() {
    let disk = TestDisk::new();
    let open = || -> Arc<dyn Store> { Arc::new(EmbeddedStore::new(disk.open(1).unwrap())) };
    let key = |name: &str| GuardKey::new(GuardKind::Ban, name).unwrap();
    let put = async |store: &Arc<dyn Store>, name| {
        let entry = GuardEntry::new(key(name), Bytes::new(), None).unwrap();
        let batch = GuardBatch::new(vec![GuardPut { entry, expected: Some(0) }]).unwrap();
        store.put_guard(&batch).await.unwrap()
    };
    let store = open();
    for name in ["a", "b"] {
        assert!(matches!(put(&store, name).await, GuardOutcome::Stored(_)));
    }
    assert_eq!(store.remove_guard(&key("a"), None).await, Ok(GuardOutcome::Stored(3)));
    let before = store.guard_since(0, 9).await.unwrap();
    drop(store);
    let store = open();
    let after = store.guard_since(0, 9).await.unwrap();
    assert_eq!((after.newest, after.rows.len(), &after.rows), (3, 2, &before.rows));
    assert_eq!(put(&store, "b").await, GuardOutcome::Conflict(key("b"), 2));
    assert_eq!(put(&store, "a").await, GuardOutcome::Stored(4));
}

#[tokio::test]
async fn s20_ids_from_before_a_restart_are_duplicates_once_learned() {
    let disk = TestDisk::new();
    let ids: Vec<String> = (0..1_800).map(|number| format!("m{number}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut first = Small::start(&disk).await;
    for ids in ids.chunks(900) {
        first.say(ids, 0).await;
    }
    drop(first);
    let mut second = Small::start(&disk).await;
    for (id, seq) in ["n1", "n2", "n3", "n4", "n5", "n6"].iter().zip(1_801..) {
        assert_eq!(accepted(&second.say(&[id], 0).await), [seq], "each archive learns one step of keys");
    }
    for ids in ids.chunks(900) {
        let retries = second.say(ids, 1).await;
        assert!(retries.iter().all(|it| matches!(it, Outcome::Duplicate { .. })), "{retries:?}");
    }
}

#[tokio::test]
async fn records_appended_without_an_owner_survive_a_restart() {
    let disk = TestDisk::new();
    let engine = disk.open(1).unwrap();
    let bus = EmbeddedBus::new(engine, LIMITS);
    assert_eq!(bus.append(0, vec![said("m1", 0), said("m2", 0)]).await.unwrap().last, 1);
    drop(bus);
    let mut second = Small::start(&disk).await;
    assert_eq!(accepted(&second.own().await.unwrap()), [1, 2]);
    assert_eq!(accepted(&second.say(&["m3"], 0).await), [3]);
    drop(second);
    let third = Small::start(&disk).await;
    let bounds = third.bus.bounds(0).await.unwrap();
    assert_eq!((bounds.first, bounds.next), (2, 3), "the log keeps the last record that was archived");
}

/// Both with the archive of an owner and without one.
#[tokio::test]
async fn one_sync_confirms_all_waiting_writes() {
    const SENDS: u64 = 64;
    for owned in [true, false] {
        let disk = TestDisk::new();
        let mut small = Small::start(&disk).await;
        let before = disk.syncs.load(Ordering::SeqCst);
        let appends: Vec<_> = (0..SENDS)
            .map(|n| {
                let bus = Arc::clone(&small.bus);
                tokio::spawn(async move { bus.append(0, vec![said(&format!("m{n}"), 0)]).await })
            })
            .collect();
        if owned {
            eventually(async || (small.bus.bounds(0).await.unwrap().next == SENDS).then_some(())).await;
            assert_eq!(small.own().await.unwrap().len() as u64, SENDS);
        }
        let mut offsets = Vec::new();
        for append in appends {
            offsets.push(append.await.unwrap().unwrap().last);
        }
        offsets.sort_unstable();
        assert_eq!(offsets, (0..SENDS).collect::<Vec<_>>());
        let syncs = disk.syncs.load(Ordering::SeqCst) - before;
        // A slow machine may append them in several turns.
        assert!((1..=8).contains(&syncs), "{syncs} syncs for {SENDS} sends, owned: {owned}");
    }
}

/// Polls until there is a result.
async fn eventually<T>(ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_async(WAIT_MAX, "an answer", ask).await
}

#[tokio::test]
async fn torn_end_is_cut_off_and_earlier_damage_is_refused() {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    for id in ["m1", "m2", "m3"] {
        small.say(&[id], 0).await;
    }
    drop(small);
    let journal = fs::read(disk.journal()).unwrap();
    let find = |text: &[u8]| journal.windows(text.len()).position(|it| it == text).unwrap();
    let (second, third) = (find(b"\x02m2"), find(b"\x02m3"));
    let flip = |at: usize| {
        let mut flipped = journal.clone();
        flipped[at] ^= 0x40;
        fs::write(disk.journal(), flipped).unwrap();
    };
    flip(second);
    let refusal = disk.refusal();
    assert!(refusal.contains("damaged") && refusal.contains("backup"), "{refusal}");
    for torn in [true, false] {
        if torn {
            fs::write(disk.journal(), &journal[..third]).unwrap()
        } else {
            flip(third)
        }
        let mut small = Small::start(&disk).await;
        assert_eq!(small.seqs().await, [1, 2]);
        assert_eq!(accepted(&small.say(&["m4"], 0).await), [3]);
    }
}

#[tokio::test]
async fn store_of_format_1_is_upgraded_to_the_present_format() {
    let disk = TestDisk::new();
    let mut first = Small::start(&disk).await;
    assert_eq!(accepted(&first.say(&["m1"], 0).await), [1]);
    drop(first);
    let marker = disk.path.join("format.json");
    fs::write(&marker, "{\"tidegate_store\":1}").unwrap();
    let store = Offline::open(&disk.path).unwrap();
    assert_eq!(store.stats().unwrap().format, 1);
    assert_eq!(store.check(&mut |what| panic!("{what}")).faults, 0);
    assert!(store.export(&mut io::sink()).unwrap() > 0);
    drop(store);
    assert_eq!(fs::read_to_string(&marker).unwrap(), "{\"tidegate_store\":1}", "reading changes nothing");
    let mut second = Small::start(&disk).await;
    assert!(matches!(second.say(&["m1"], 1).await[..], [Outcome::Duplicate { seq: 1, .. }]));
    assert_eq!(fs::read_to_string(&marker).unwrap(), format!("{{\"tidegate_store\":{FORMAT}}}"));
}

#[test]
fn foreign_newer_and_locked_directories_are_refused() {
    let disk = TestDisk::new();
    fs::create_dir_all(&disk.path).unwrap();
    fs::write(disk.path.join("thesis.tex"), "mine").unwrap();
    assert!(disk.refusal().contains("set node.data to an empty directory"));
    fs::remove_file(disk.path.join("thesis.tex")).unwrap();
    let open = disk.open(1).unwrap();
    assert!(disk.refusal().contains("stop that one first"));
    drop(open);
    let newer = format!("{{\"tidegate_store\":{}}}", FORMAT + 1);
    fs::write(disk.path.join("format.json"), newer).unwrap();
    assert!(disk.refusal().contains("start the newer tidegate"));
    fs::write(disk.path.join("format.json"), "{}").unwrap();
    assert!(disk.refusal().contains("not a store of Tidegate"));
}
