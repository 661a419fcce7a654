//! Ports that tests reserve for the servers they start: two processes never get the same one.

use std::{fs, fs::File};

use super::port::{folder, free_port, free_redis_port, reserve};

#[test]
fn a_port_is_handed_out_once_until_its_process_ends() {
    let (plain, redis) = (free_port(), free_redis_port());
    assert!(!reserve(plain) && !reserve(redis), "they are taken");
    // Another process is another one that has the file open; no port is 1, so nobody waits for it.
    fs::create_dir_all(folder()).unwrap();
    let other = File::options().create(true).truncate(false).write(true).open(folder().join("1")).unwrap();
    other.lock().unwrap();
    assert!(!reserve(1), "another process has it");
    drop(other);
    assert!(reserve(1), "that process has ended");
    assert!(!reserve(1));
}
