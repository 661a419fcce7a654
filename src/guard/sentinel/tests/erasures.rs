//! Tests of erasures of what the task has taken already.

use std::{fs, path::PathBuf};

use super::*;
use crate::{
    audit::AuditFile,
    evidence::{Erasure, EvidenceFile, erasable},
};

fn erasure(subject: &str) -> Erasure {
    Erasure { subject: subject.parse().unwrap(), until_ms: wall_ms() }
}

/// World with a file of security events, and the directory of that file.
fn world_with_file(name: &str) -> (World, PathBuf) {
    let directory = std::env::temp_dir().join(format!("tidegate-sentinel-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let world = World::new();
    let file = EvidenceFile::new(&directory.join("evidence.jsonl"), 7);
    let audit =
        Arc::new(AuditFile::open(&directory.join("audit.jsonl"), 1 << 20, metrics::install().0).unwrap());
    world.cluster.evidence.set_files(file, audit);
    (world, directory)
}

#[tokio::test]
async fn evidence_that_was_taken_before_its_erasure_has_no_effect() {
    let mut world = World::new();
    for user in ["ann", "bob"] {
        world.note(EvidenceKind::FrameMalformed, Some(user), "192.0.2.1", 2);
    }
    let mut batch = world.cluster.evidence.take();
    world.cluster.evidence.erase(&erasure("user:ann"));
    world.sentinel.take_erased(&mut batch);
    world.sentinel.judge(&batch.rows);
    let score = |user: &str| world.cluster.evidence.score_of(&format!("user:{user}").parse().unwrap()).score;
    assert_eq!((score("ann"), score("bob") > 0), (0, true));
}

#[tokio::test]
async fn lines_that_were_not_erased_are_erased_later() {
    let (mut world, directory) = world_with_file("retry");
    let path = directory.join("evidence.jsonl");
    for user in ["ann", "bob"] {
        world.note(EvidenceKind::Probe, Some(user), "192.0.2.1", 1);
    }
    world.sentinel.look().await;
    let lines = || fs::read_to_string(&path).unwrap();
    assert!(lines().contains("ann"));
    // A directory takes the place of the file to which the others are copied.
    let kept = directory.join("evidence.jsonl.kept");
    fs::create_dir(&kept).unwrap();
    world.cluster.evidence.erase(&erasure("user:ann"));
    world.sentinel.look().await;
    fs::remove_dir(&kept).unwrap();
    assert!(lines().contains("ann"));
    assert!(world.sentinel.lines.retry_at.is_some_and(|at| at > Instant::now()));
    world.sentinel.lines.retry_at = Some(Instant::now());
    world.sentinel.look().await;
    assert!(!lines().contains("ann") && lines().contains("bob"), "{}", lines());
    fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn address_of_ipv6_is_erased_with_the_network_that_evidence_has_of_it() {
    let world = World::new();
    world.note(EvidenceKind::Probe, None, "2001:db8::1:2:3:4", 1);
    world.cluster.evidence.take();
    let subject = erasable("network:2001:db8::1:2:3:4".parse().unwrap());
    assert_eq!(subject.to_string(), "network:2001:db8::/64");
    world.cluster.evidence.erase(&erasure(&subject.to_string()));
    assert_eq!(world.cluster.evidence.recent(&subject, 9), []);
    for other in ["network:192.0.2.1/32", "network:2001:db8::/48", "user:ann"] {
        assert_eq!(erasable(other.parse().unwrap()).to_string(), other);
    }
}
