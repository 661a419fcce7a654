//! Tests of the file of security events.

use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::clock::rfc3339;

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("tidegate-evidence-{name}-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn lines_are_appended_to_a_closed_file_with_one_older_one() {
    let directory = directory("append");
    let path = directory.join("evidence.jsonl");
    let file = EvidenceFile::new(&path, 0).unwrap();
    file.append(&["a".into(), "b".into()]).unwrap();
    file.append(&["c".into()]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\nc\n");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    File::options().write(true).open(&path).unwrap().set_len(FILE_BYTES_MAX).unwrap();
    file.append(&["d".into()]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "d\n");
    assert!(directory.join("evidence.jsonl.1").exists());
    fs::remove_dir_all(&directory).unwrap();
    assert!(EvidenceFile::new(Path::new(""), 0).is_none());
}

#[test]
fn lines_end_with_their_age_unless_it_is_zero() {
    let directory = directory("expire");
    let path = directory.join("evidence.jsonl");
    let (file, day) = (EvidenceFile::new(&path, 7).unwrap(), Duration::from_secs(86_400));
    file.append(&["a".into()]).unwrap();
    let began = SystemTime::now();
    file.expire(began + day * 6).unwrap();
    assert!(path.exists());
    EvidenceFile::new(&path, 0).unwrap().expire(began + day * 100).unwrap();
    assert!(path.exists());
    file.expire(began + day * 7).unwrap();
    assert!(!path.exists() && file.older().exists());
    // The older file is gone a week after its last line, before the next one takes its name.
    file.append(&["b".into()]).unwrap();
    file.expire(began + day * 8).unwrap();
    assert_eq!(fs::read_to_string(file.older()).unwrap(), "b\n");
    file.expire(began + day * 8).unwrap();
    assert!(!file.older().exists());
    fs::remove_dir_all(&directory).unwrap();
}

fn line(user: &str, address: &str, at_ms: u64) -> String {
    let time = rfc3339(at_ms);
    format!(r#"{{"time":"{time}","kind":"probe","address":"{address}","user":"{user}"}}"#)
}

fn erasure(subject: &str, until_ms: u64) -> Erasure {
    Erasure { subject: subject.parse().unwrap(), until_ms }
}

#[test]
fn lines_of_a_subject_are_erased_from_both_files() {
    let directory = directory("erase");
    let path = directory.join("evidence.jsonl");
    let file = EvidenceFile::new(&path, 0).unwrap();
    let lines = [
        ("ann", "192.0.2.1", 9_000),
        ("bob", "192.0.2.2", 9_000),
        ("bob", "198.51.100.1", 9_000),
        ("ann", "192.0.2.1", 20_000),
    ];
    let lines = lines.map(|(user, address, at_ms)| line(user, address, at_ms));
    fs::write(file.older(), format!("{{\"kind\":\"pro\n{}\n", lines.join("\n"))).unwrap();
    file.append(&lines).unwrap();
    file.erase(&[erasure("user:ann", 10_000), erasure("network:198.51.100.0/24", 10_000)]).unwrap();
    // A line that can't be read may be of the subject, and one of ann is newer than the request.
    let left = format!("{}\n{}\n", lines[1], lines[3]);
    assert_eq!(fs::read_to_string(&path).unwrap(), left);
    assert_eq!(fs::read_to_string(file.older()).unwrap(), left);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn erasure_prolongs_the_time_of_no_line() {
    let directory = directory("retention");
    let path = directory.join("evidence.jsonl");
    let (file, day) = (EvidenceFile::new(&path, 7).unwrap(), Duration::from_secs(86_400));
    let now = SystemTime::now();
    let (began, older_end) = (now - day * 5, now - day * 3);
    let began_ms = began.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let lines = [line("bob", "192.0.2.2", began_ms), line("ann", "192.0.2.1", began_ms)];
    file.append(&lines).unwrap();
    fs::write(file.older(), format!("{}\n{}\n", lines[0], lines[1])).unwrap();
    File::options().write(true).open(file.older()).unwrap().set_modified(older_end).unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let before = [inode(&path), inode(&file.older())];
    file.erase(&[erasure("user:eve", u64::MAX)]).unwrap();
    assert_eq!([inode(&path), inode(&file.older())], before, "nothing is of the subject");
    file.erase(&[erasure("user:ann", u64::MAX)]).unwrap();
    assert_eq!(fs::read_to_string(file.older()).unwrap(), format!("{}\n", lines[0]));
    file.expire(now + day * 3).unwrap();
    assert!(file.older().exists() && !path.exists(), "the current file began five days ago");
    File::options().write(true).open(file.older()).unwrap().set_modified(older_end).unwrap();
    file.erase(&[erasure("user:bob", u64::MAX)]).unwrap();
    file.expire(now + day * 4).unwrap();
    assert!(!file.older().exists(), "its last line is a week old");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn torn_line_ends_before_the_next_one() {
    let directory = directory("torn");
    let path = directory.join("evidence.jsonl");
    let file = EvidenceFile::new(&path, 0).unwrap();
    fs::write(&path, b"{\"user\":\"a\xff").unwrap();
    // It would be part of the incomplete line otherwise, and removed with it.
    let lines = [line("bob", "192.0.2.2", 9_000), line("ann", "192.0.2.1", 9_000)];
    file.append(&lines).unwrap();
    file.erase(&[erasure("user:ann", 10_000)]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", lines[0]));
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn lines_that_an_erasure_was_keeping_are_removed() {
    let directory = directory("kept");
    let path = directory.join("evidence.jsonl");
    let file = EvidenceFile::new(&path, 0).unwrap();
    let kept = directory.join("evidence.jsonl.kept");
    file.append(&[line("ann", "192.0.2.1", 9_000)]).unwrap();
    // As after a crash.
    fs::write(&kept, "bob").unwrap();
    file.expire(SystemTime::now()).unwrap();
    assert!(!kept.exists() && path.exists());
    // The lines can't replace what is a directory.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(file.erase(&[erasure("user:ann", 10_000)]).is_err() && !kept.exists());
    fs::remove_dir_all(&directory).unwrap();
}
