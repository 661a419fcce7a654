//! The tools for a store that no node has open: check, stats, export and import.

use std::io::BufReader;

use serde_json::Value;
use tidegate::{
    embedded::{Findings, Offline, OfflineError},
    store::{
        GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut, Hidden, Mark, Personal, Scan,
        Summary, UserState,
    },
};
use tidegate_protocol::{
    Code,
    record::{MemberAction, Prune, Recall, RuleChange},
    settings::{Retention, UserSettings, Visibility},
};

use super::{
    super::{group, store::owner::change},
    *,
};

impl Small {
    /// Appends and archives the records.
    async fn append_and_archive(&mut self, bodies: &[Body]) -> Vec<Outcome> {
        let origin = Origin { node: NodeId::new("n").unwrap(), boot: 1, conn: 1, request: 1 };
        let record = |body: &Body| {
            Record { origin: origin.clone(), received_at: 1_000, body: body.clone(), trace: None }.encode()
        };
        let records = bodies.iter().map(record).collect();
        let bus = Arc::clone(&self.bus);
        let append = tokio::spawn(async move { bus.append(0, records).await });
        let outcomes = self.own().await.unwrap();
        append.await.unwrap().unwrap();
        outcomes
    }
}

const READ: Mark = Mark { seq: 2, messages: 2, own: 0 };
const CLEARED: Mark = Mark { seq: 1, messages: 1, own: 0 };
const BOUND: Mark = Mark { seq: 3, messages: 3, own: 0 };
const HIDDEN: Hidden = Hidden { seq: 3, counts: true };

fn user_settings() -> UserSettings {
    let (retention, presence) = (Some(Retention::SevenDays), Some(Visibility::Off));
    UserSettings { ack_tries: 2, retention, presence, ..UserSettings::default() }
}

/// Record of a sender who is not a member: the refusal is stored.
fn chained() -> Body {
    let mut body = message(&group("team"), "cid", "c1", 0, "");
    if let Body::Message(it) = &mut body {
        it.order.chained = true;
    }
    body
}

/// Returns a closed store with rows of every kind.
async fn furnished() -> Arc<TestDisk> {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    small.say(&["m1", "m2", "m3"], 0).await;
    let group = group("team");
    let mut settings = change("team", MemberAction::Settings, &[], "r2");
    if let Body::Member(it) = &mut settings {
        it.settings.insert("title".into(), "Ours \u{1f30a}".into());
    }
    small
        .append_and_archive(&[
            change("team", MemberAction::Create, &["ann", "bob"], "r1"),
            settings,
            message(&group, "bob", "b1", 0, "not even a content"),
            change("team", MemberAction::Kick, &["ann"], "r3"),
            change("team", MemberAction::Join, &["ann"], "r4"),
            message(&group, "ann", "a1", 0, ""),
            Body::Recall(Recall { conversation: group.clone(), seq: 3, by: Some(user("bob")) }),
        ])
        .await;
    let mut open = change("wide", MemberAction::Create, &["ann"], "r1");
    if let Body::Member(it) = &mut open {
        it.settings.insert("history".into(), "all".into());
    }
    small
        .append_and_archive(&[
            open,
            change("wide", MemberAction::Kick, &["ann"], "r2"),
            change("wide", MemberAction::Join, &["ann"], "r3"),
            change("wide", MemberAction::Kick, &["ann"], "r4"),
            change("wide", MemberAction::Join, &["ann"], "r5"),
            change("team", MemberAction::Mute, &["bob"], "r5"),
            chained(),
            message(&super::super::group("nowhere"), "cid", "c2", 0, ""),
        ])
        .await;
    let hidden = Personal::Hidden { seqs: vec![HIDDEN], forget: 0 };
    for change in [Personal::Read(READ), Personal::Cleared(CLEARED), hidden, Personal::Bound(Some(BOUND))] {
        small.store.save_marks(&[(user("bob"), direct(), change)]).await.unwrap();
    }
    small.store.merge_settings(&user("ann"), user_settings()).await.unwrap();
    furnish_guard(&small.store).await;
    drop(small);
    disk
}

/// Stores a ban that ends and a rule, and removes another ban.
async fn furnish_guard(store: &Arc<dyn Store>) {
    let put = |kind, name: &str, until_ms| {
        let key = GuardKey::new(kind, name).unwrap();
        let entry = GuardEntry::new(key, Bytes::from_static(b"value"), until_ms).unwrap();
        GuardPut { entry, expected: None }
    };
    let ban = |name| put(GuardKind::Ban, name, Some(1 << 50));
    let batch = GuardBatch::new(vec![ban("a"), put(GuardKind::Rule, "r", None), ban("b")]).unwrap();
    assert_eq!(store.put_guard(&batch).await, Ok(GuardOutcome::Stored(3)));
    let removed = store.remove_guard(&GuardKey::new(GuardKind::Ban, "b").unwrap(), None).await;
    assert_eq!(removed, Ok(GuardOutcome::Stored(4)));
}

fn export(disk: &TestDisk) -> Vec<u8> {
    let mut lines = Vec::new();
    Offline::open(&disk.path).unwrap().export(&mut lines).unwrap();
    lines
}

fn faults(disk: &TestDisk) -> (Findings, Vec<String>) {
    let mut faults = Vec::new();
    let found = Offline::open(&disk.path).unwrap().check(&mut |what| faults.push(what));
    (found, faults)
}

fn import(disk: &TestDisk, lines: &[u8]) -> Result<u64, OfflineError> {
    Offline::import(&disk.path, &mut BufReader::new(lines), false)
}

#[tokio::test]
async fn export_imports_to_the_same_store_and_seqs_continue() {
    let (old, new) = (furnished().await, TestDisk::new());
    let lines = export(&old);
    assert_eq!(faults(&old).1, [""; 0]);
    let count = lines.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert_eq!(Offline::import(&new.path, &mut BufReader::new(&lines[..]), true).unwrap(), count);
    assert!(!new.path.exists(), "the rehearsal creates nothing");
    assert_eq!(import(&new, &lines).unwrap(), count);
    assert_eq!(String::from_utf8(export(&new)).unwrap(), String::from_utf8(lines.clone()).unwrap());
    assert_eq!(faults(&new).1, [""; 0]);
    let mut small = Small::start(&new).await;
    let retry = small.say(&["m2"], 1).await;
    assert!(matches!(retry[..], [Outcome::Duplicate { seq: 2, .. }]), "{retry:?}");
    assert_eq!(accepted(&small.say(&["m4"], 0).await), [4]);
    let summary = small.store.summary(&group("team"), Some(&user("ann"))).await.unwrap().unwrap();
    assert_eq!((summary.members, summary.member_view.unwrap().stays.len()), (2, 1));
    let bob = |summary: Option<Summary>| summary.unwrap().member_view.unwrap();
    assert!(bob(small.store.summary(&group("team"), Some(&user("bob"))).await.unwrap()).member.muted);
    let level =
        UserState { mark: READ, cleared: CLEARED, hidden: vec![HIDDEN], push: None, bound: Some(BOUND) };
    assert_eq!(bob(small.store.summary(&direct(), Some(&user("bob"))).await.unwrap()).level, level);
    let ann = small.store.merge_settings(&user("ann"), UserSettings::default()).await.unwrap();
    assert_eq!(ann, user_settings());
    let guard = small.store.guard_since(0, 9).await.unwrap().rows;
    let guard: Vec<_> =
        guard.iter().map(|row| (row.key.name(), row.value.as_deref(), row.until_ms)).collect();
    assert_eq!(guard, [("r", Some(&b"value"[..]), None), ("a", Some(&b"value"[..]), Some(1 << 50))]);
    assert_eq!(
        small.append_and_archive(&[chained()]).await,
        [Outcome::RefusedBefore { code: Code::NotAMember }]
    );
    drop(small);
    assert!(matches!(import(&new, &lines), Err(OfflineError::NotEmpty(_))));
}

#[tokio::test]
async fn export_corrects_a_mark_that_counts_later_messages() {
    let (old, new) = (TestDisk::new(), TestDisk::new());
    let mut small = Small::start(&old).await;
    small.say(&["m1", "m2", "m3"], 0).await;
    let far = Mark { seq: 1, messages: 3, own: 0 };
    for change in [Personal::Read(far), Personal::Cleared(far), Personal::Bound(Some(far))] {
        small.store.save_marks(&[(user("bob"), direct(), change)]).await.unwrap();
    }
    drop(small);
    assert_eq!(faults(&old).1, [""; 0]);
    import(&new, &export(&old)).unwrap();
    let small = Small::start(&new).await;
    let member_view = small.store.summary(&direct(), Some(&user("bob"))).await.unwrap().unwrap().member_view;
    let near = Mark { messages: 1, ..far };
    assert_eq!(
        member_view.unwrap().level,
        UserState { mark: near, cleared: near, bound: Some(near), ..UserState::default() }
    );
}

#[tokio::test]
async fn stats_count_the_stored_rows() {
    let disk = furnished().await;
    let stats = Offline::open(&disk.path).unwrap().stats().unwrap();
    let counts =
        [stats.conversations, stats.direct, stats.members, stats.rows, stats.messages, stats.recalled];
    assert_eq!(counts, [3, 1, 5, 16, 5, 1]);
    assert_eq!((stats.keys, stats.marks, stats.settings, stats.guard, stats.format), (16, 1, 1, 2, FORMAT));
    let log = &stats.partitions[0];
    assert_eq!((log.position, log.log_records, log.log_waiting), (18, 1, 0));
    assert!(stats.journal_bytes > 0 && stats.bytes_per_message > 0, "{stats:?}");
}

#[tokio::test]
async fn export_includes_undecided_records() {
    let (old, new) = (TestDisk::new(), TestDisk::new());
    let bus = EmbeddedBus::new(old.open(1).unwrap(), LIMITS);
    bus.append(0, vec![said("m1", 0), said("m2", 0)]).await.unwrap();
    drop(bus);
    let lines = export(&old);
    import(&new, &lines).unwrap();
    assert_eq!(export(&new), lines);
    assert_eq!(accepted(&Small::start(&new).await.own().await.unwrap()), [1, 2]);
}

#[tokio::test]
async fn wrong_line_is_named_and_nothing_is_imported() {
    let lines = String::from_utf8(export(&*furnished().await)).unwrap();
    let all: Vec<&str> = lines.lines().collect();
    let at = |what: &str, nth: usize| {
        let mut found = all.iter().enumerate().filter(|(_, line)| line.contains(what)).map(|(at, _)| at);
        found.nth(nth).unwrap_or_else(|| panic!("{what} {nth} in {lines}"))
    };
    let with = |edit: &dyn Fn(&mut Vec<String>)| {
        let mut edited = all.iter().map(ToString::to_string).collect();
        edit(&mut edited);
        edited.join("\n") + "\n"
    };
    let row = at("\"row\"", 1);
    let replaced = |line: usize, from: &str, to: &str| {
        assert!(all[line].contains(from), "{from} in {}", all[line]);
        with(&|lines| lines[line] = lines[line].replacen(from, to, 1))
    };
    let accepted = all.iter().position(|line| line.contains("\"key\"") && !line.contains("refused")).unwrap();
    let twice = "[1,2,0,0],[1,4,";
    let cases: [(String, usize, &str); 15] = [
        ("{\"hello\":1}\n".into(), 0, "not an export of Tidegate"),
        (String::new(), 0, "ends before its last line"),
        (replaced(0, "\"version\":1", "\"version\":9"), 0, "version 9"),
        (lines.trim_end().into(), all.len() - 1, "cut off"),
        (lines[..lines.find("\"row\"").unwrap() + 9].into(), at("\"row\"", 0), "cut off"),
        (all[..row].join("\n") + "\n", row, "ends before its last line"),
        (with(&|lines| lines.swap(row, row + 1)), row, "rows 2 to 2 are missing"),
        (with(&|lines| lines[row] = lines[row - 1].clone()), row, "row 1 appears twice"),
        (with(&|lines| drop(lines.remove(row))), row, "rows 2 to 2 are missing"),
        (replaced(row, "\"row\":{", "\"row\":{\"colour\":1,"), row, "colour"),
        (
            replaced(at("\"conversation\":{", 1), "\"members\":2", "\"members\":3"),
            at("\"conversation\":{", 2),
            "its head says 3",
        ),
        (replaced(accepted, "\"seq\":", "\"seq\":7"), usize::MAX, "says seq 7"),
        (replaced(at(twice, 0), twice, "[1,2,0,0],[1,2,"), at(twice, 0), "stays of"),
        (replaced(at("refused", 0), "\"seq\":0", "\"seq\":5"), at("refused", 0), "a seq and a refusal"),
        (replaced(at("hidden", 0), "[[3,", "[[1,"), at("hidden", 0), "is out of order"),
    ];
    for (text, line, word) in cases {
        let disk = TestDisk::new();
        let error = import(&disk, text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("nothing was imported: "), "{error}");
        assert!(error.contains(word) && error.contains("export"), "{word}: {error}");
        assert!(
            line == usize::MAX || error.contains(&format!("line {}: ", line + 1)),
            "line {line}: {error}"
        );
        assert!(!disk.path.exists() && !disk.path.with_extension("import").exists());
    }
}

#[tokio::test]
async fn check_finds_a_change_that_only_the_keys_show() {
    let lines = String::from_utf8(export(&*furnished().await)).unwrap();
    let edit = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if let Some(message) = line.pointer_mut("/row/body/message")
            && message["msg_id"] == "m2"
        {
            message["body_hash"] = Value::from("00".repeat(16));
        }
        line.to_string()
    };
    let edited = lines.lines().map(edit).collect::<Vec<_>>().join("\n") + "\n";
    let error = import(&TestDisk::new(), edited.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("d:ann:bob: the dedup key of row 2 has another content's hash"), "{error}");
}

#[tokio::test]
async fn tools_refuse_a_running_node_and_an_empty_directory() {
    let disk = TestDisk::new();
    let missing = Offline::open(&disk.path).err().unwrap().to_string();
    assert!(missing.contains("--data") && !disk.path.exists(), "{missing}");
    let small = Small::start(&disk).await;
    let locked = Offline::open(&disk.path).err().unwrap().to_string();
    assert!(locked.contains("stop that one first"), "{locked}");
    drop(small);
    Offline::open(&disk.path).unwrap();
    fs::write(disk.path.join("format.json"), "{\"tidegate_store\":0}").unwrap();
    let older = Offline::open(&disk.path).err().unwrap().to_string();
    assert!(older.contains("format 0") && older.contains("tidegate store export"), "{older}");
}

#[tokio::test]
async fn each_planted_fault_is_reported() {
    type Plant = fn(&[fjall::Keyspace; 3]);
    let plants: [(Plant, &str); 14] = [
        (|[_, rows, _]| rows.remove(b"d:ann:bob\0\0\0\0\0\0\0\0\x02").unwrap(), "rows 2 to 2 are missing"),
        (|[_, rows, _]| rows.remove(b"d:ann:bob\0\0\0\0\0\0\0\0\x03").unwrap(), "rows 3 to 3 are missing"),
        (|[_, rows, _]| rows.insert(b"d:ann:bob\0\0\0\0\0\0\0\0\x02", b"x").unwrap(), "row 2 can't be read"),
        (|[state, _, _]| state.remove(b"hd:ann:bob").unwrap(), "d:ann:bob: it has rows, but no head"),
        (|[state, _, _]| state.remove(b"uann\0g:team").unwrap(), "would not find it at login"),
        (|[state, _, _]| state.remove(b"mg:team\0ann").unwrap(), "it has 1 members, its head says 2"),
        (|[state, _, _]| state.insert(b"mg:team\0ann", b"").unwrap(), "a stored value can't be read"),
        (|[state, _, _]| state.insert(b"zz", b"").unwrap(), "unknown kind 0x7a"),
        (|[state, _, _]| state.insert(b"g\x02a", b"").unwrap(), "a stored value can't be read"),
        (
            |[state, _, _]| state.remove(b"g\x01r").unwrap(),
            "the guard has 0 entries of kind 1, 1 are counted",
        ),
        (|[state, _, _]| state.remove(b"q\x02").unwrap(), "2 entries of kind 2 that are not counted"),
        (|[state, _, _]| state.remove(b"n\0\0\0\0\0\0\0\x02").unwrap(), "does not agree with them"),
        (
            |[_, _, keys]| {
                let mut all = keys.iter().map(|entry| entry.into_inner().unwrap());
                // The seq follows the hash; the value of a refusal has none.
                keys.remove(all.find(|(_, value)| value[16] > 0).unwrap().0).unwrap();
            },
            "has no dedup key",
        ),
        (
            |[state, _, _]| {
                let log = state.prefix(b"l").next().unwrap().key().unwrap();
                state.insert(log, said("other", 0).to_vec()).unwrap();
            },
            "that identifies position",
        ),
    ];
    for (plant, word) in plants {
        let disk = furnished().await;
        {
            let database = fjall::Database::builder(disk.path.join("db")).open().unwrap();
            let keyspace = |name| database.keyspace(name, fjall::KeyspaceCreateOptions::default).unwrap();
            plant(&["state", "rows", "keys"].map(keyspace));
            database.persist(fjall::PersistMode::SyncAll).unwrap();
        }
        let (found, faults) = faults(&disk);
        assert!(found.faults as usize == faults.len() && !faults.is_empty(), "{word}");
        assert!(faults.iter().any(|fault| fault.contains(word)), "{word}: {faults:#?}");
    }
}

#[tokio::test]
async fn pruned_rows_and_keys_leave_the_disk_and_retries_are_safe() {
    let (disk, new) = (TestDisk::new(), TestDisk::new());
    let mut small = Small::start(&disk).await;
    small.say(&["m1", "m2", "m3", "m4"], 0).await;
    let prune = Body::Prune(Prune { conversation: direct(), up_to: 3 });
    small
        .append_and_archive(&[prune, Body::Rules(RuleChange { keys_from: 2, ..RuleChange::default() })])
        .await;
    assert_eq!(small.seqs().await, [4]);
    let all = Scan::Keys { from: 0, after: None, limit: 100 };
    let (store, fence) = (Arc::clone(&small.store), small.fence);
    eventually(async || (store.scan(0, fence, &all).await.unwrap().rows.len() == 2).then_some(())).await;
    drop((small, store));
    let (found, faults) = faults(&disk);
    assert_eq!((found.keys_alone, faults), (1, Vec::new()), "the key of row 3");
    let stats = Offline::open(&disk.path).unwrap().stats().unwrap();
    assert_eq!((stats.rows, stats.messages, stats.keys), (1, 1, 2));
    let lines = export(&disk);
    import(&new, &lines).unwrap();
    assert_eq!(export(&new), lines);
    for disk in [disk, new] {
        let mut small = Small::start(&disk).await;
        let retry = small.say(&["m3"], 1).await;
        assert!(matches!(retry[..], [Outcome::Duplicate { seq: 3, .. }]), "{retry:?}");
        assert_eq!(accepted(&small.say(&["m5"], 0).await), [5]);
    }
}
