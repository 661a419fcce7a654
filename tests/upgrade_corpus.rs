//! Replays `fuzz/corpus/upgrade/` through its fuzz target without a fuzzer.

/// Path at which the target expects the module.
mod net {
    pub(crate) use tidegate::net::upgrade;
}

#[path = "../fuzz/src/upgrade.rs"]
#[allow(unreachable_pub, reason = "it is public in the crate of the fuzz targets")]
mod target;

use std::{fs, path::Path};

use net::upgrade::{Policy, UpgradeProgress, upgrade};

#[test]
fn corpus_inputs_pass_and_cover_both_outcomes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/upgrade");
    let (mut done, mut refused) = (0, 0);
    for entry in fs::read_dir(folder).expect("a corpus") {
        let input = fs::read(entry.expect("an entry").path()).expect("an input");
        target::upgrade(&input);
        let policy = Policy { origins: vec!["https://chat.example.org".into()], ..Policy::default() };
        match upgrade(&input[1..], &policy) {
            Ok(UpgradeProgress::Done { .. }) => done += 1,
            Ok(UpgradeProgress::NeedMore | UpgradeProgress::Assign(_)) => {}
            Err(_) => refused += 1,
        }
    }
    assert!(done >= 5 && refused >= 15, "{done} upgrades and {refused} refusals");
}
