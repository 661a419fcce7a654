//! Replays `fuzz/corpus/` and the golden vectors through the fuzz targets, without a fuzzer.

#[path = "../../../fuzz/src/targets/mod.rs"]
#[allow(unreachable_pub)]
pub(crate) mod targets;

use std::{collections::BTreeSet, fs};

use crate::support::{folder, vectors};

#[test]
fn every_input_of_the_corpus_passes_its_target() {
    for (name, target) in targets::ALL {
        let mut inputs = 0;
        for entry in fs::read_dir(folder("../fuzz/corpus").join(name)).unwrap() {
            target(&fs::read(entry.unwrap().path()).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no corpus");
    }
}

#[test]
fn every_vector_passes_every_target() {
    for (_, vector) in vectors() {
        let input = vector.input();
        for (_, target) in targets::ALL {
            target(&input);
        }
    }
}

#[test]
fn every_target_can_be_fuzzed() {
    let manifest = fs::read_to_string(folder("../fuzz/Cargo.toml")).unwrap();
    let stems = |path: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(folder(path)).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    // `upgrade` needs more than this crate; the broker's tests replay it.
    let all = targets::ALL.iter().map(|(name, _)| *name).chain(["upgrade"]);
    let names: BTreeSet<String> = all.map(str::to_owned).collect();
    assert_eq!(stems("../fuzz/fuzz_targets"), names);
    assert_eq!(stems("../fuzz/corpus"), names);
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name}");
    }
}
