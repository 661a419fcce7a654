//! Chains in Redis: those of an earlier version are read, continued, counted and overwritten.

use tidegate::scratch::{CHAINS_PER_USER_MAX, ChainChange, ChainSave, ChainState, ChainStep, Scratch as _};
use tidegate_protocol::id::MsgId;

use super::{FILE, Prefix, Row, ask, connect, device, dump, keys, load, shape, user};
use crate::{convert::lacks, folder::versions};

/// Changes the chain of a version in every way: a node of the present version saves steps, or the whole state while one
/// of that version is live, and a node of that version overwrites both.
#[tokio::test]
async fn x10_chains_of_every_version_go_on() {
    for folder in versions() {
        let (rows, prefix) = (folder.json::<Vec<Row>>(FILE), Prefix::fresh());
        load(&prefix.0, &rows, true);
        let (scratch, ann, tablet) = (prefix.scratch(), user("ann"), device("tablet"));
        let chain = async || scratch.load_chain(&ann, &tablet).await.expect("Redis answers").expect("saved");
        let golden = chain().await;
        let next = |text: &str| MsgId::new(text).expect("an id");
        let step_of = |epoch, number, expected| ChainStep {
            user: ann.clone(),
            device: tablet.clone(),
            epoch,
            number,
            change: ChainChange::ExpectedDone,
            expected: next(expected),
        };
        let step = |number, expected| step_of(golden.epoch, number, expected);
        let of_next = step_of(golden.epoch + 1, golden.changes + 1, "k4");
        assert_eq!(
            scratch.advance_chain(of_next).await,
            Ok(false),
            "the next connection saves it whole first"
        );
        assert_eq!(scratch.advance_chain(step(golden.changes + 1, "k4")).await, Ok(true));
        assert_eq!(scratch.advance_chain(step(golden.changes + 2, "k5")).await, Ok(true));
        let mut after = golden.clone();
        after.done.extend([golden.expected.clone(), next("k4")]);
        (after.changes, after.expected) = (golden.changes + 2, next("k5"));
        assert_eq!(chain().await, after, "{}", folder.version);
        // The whole state has the form that the version reads.
        let state = ChainState { epoch: golden.epoch + 1, changes: after.changes, ..golden.clone() };
        let whole = ChainSave { user: ann.clone(), device: tablet.clone(), state: state.clone() };
        scratch.save_chains(vec![whole]).await.expect("Redis answers");
        assert_eq!(chain().await, state);
        let (row, present) = (chain_row(&rows), dump(&prefix.0));
        assert_eq!(lacks(&shape(row).1, &shape(chain_row(&present)).1), None, "{}", folder.version);
        // A node of the version writes its fields over a chain that was saved in steps.
        let of_next = step_of(golden.epoch + 1, golden.changes + 3, "k6");
        assert_eq!(scratch.advance_chain(of_next).await, Ok(true));
        let key = format!("{}:{}", prefix.0, row.key);
        for field in ["epoch", "state"] {
            let value = row.value[field].as_str().expect("a golden row in the whole form");
            ask::<()>(&mut connect(), &["HSET", &key, field, value]);
        }
        let overwritten = chain().await;
        assert_eq!(
            (overwritten.epoch, &overwritten.done),
            (golden.epoch, &golden.done),
            "{}",
            folder.version
        );
        assert_eq!(overwritten.expected, golden.expected);
    }
}

/// Chains of a version without the index of a user's chains stay readable, and count from their first change on.
#[tokio::test]
async fn s74_chains_of_every_version_are_counted_once_they_change() {
    for folder in versions() {
        let (rows, prefix) = (folder.json::<Vec<Row>>(FILE), Prefix::fresh());
        load(&prefix.0, &rows, true);
        let (scratch, ann) = (prefix.scratch(), user("ann"));
        let saved = async |name: &str| scratch.load_chain(&ann, &device(name)).await.expect("Redis answers");
        let golden = saved("tablet").await.expect("saved");
        let fill = async |prefix: &str| {
            for n in 0..CHAINS_PER_USER_MAX {
                let device = device(&format!("{prefix}-{n}"));
                let save = ChainSave { user: ann.clone(), device, state: golden.clone() };
                scratch.save_chains(vec![save]).await.expect("Redis answers");
            }
        };
        fill("new").await;
        assert_eq!(saved("tablet").await, Some(golden.clone()), "{}", folder.version);
        let step = ChainStep {
            user: ann.clone(),
            device: device("tablet"),
            epoch: golden.epoch,
            number: golden.changes + 1,
            change: ChainChange::ExpectedDone,
            expected: MsgId::new("k4").expect("an id"),
        };
        assert_eq!(scratch.advance_chain(step).await, Ok(true));
        assert_eq!(saved("new-0").await, None, "the oldest makes room");
        fill("newer").await;
        assert_eq!(saved("tablet").await, None, "{}", folder.version);
        let chains = keys(&mut connect(), &prefix.0).expect("Redis answers");
        let chains = chains.iter().filter(|key| key.contains(":chain:{ann}:")).count();
        assert_eq!(chains, CHAINS_PER_USER_MAX);
    }
}

/// The set of a user's chains outlives each of them.
#[tokio::test]
async fn ended_chain_is_not_listed_and_leaves_the_set_of_its_user() {
    let (prefix, ann) = (Prefix::fresh(), user("ann"));
    let scratch = prefix.scratch();
    for name in ["old", "new"] {
        let id = MsgId::new("k1").expect("an id");
        let state = ChainState { epoch: 1, changes: 1, expected: id, done: Vec::new(), skipped: Vec::new() };
        let save = ChainSave { user: ann.clone(), device: device(name), state };
        scratch.save_chains(vec![save]).await.expect("Redis answers");
    }
    assert_eq!(scratch.chain_devices(&ann).await, Ok(vec![device("new"), device("old")]));
    // As at the end of its lifetime.
    ask::<()>(&mut connect(), &["DEL", &format!("{}:chain:{{ann}}:old", prefix.0)]);
    assert_eq!(scratch.chain_devices(&ann).await, Ok(vec![device("new")]));
    let set: Vec<String> =
        ask(&mut connect(), &["ZRANGE", &format!("{}:chains:{{ann}}", prefix.0), "0", "-1"]);
    assert_eq!(set, ["new"]);
}

/// Returns the chain that every version saves.
fn chain_row(rows: &[Row]) -> &Row {
    rows.iter().find(|row| row.key == "chain:{ann}:tablet").expect("the chain was saved")
}
