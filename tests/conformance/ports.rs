//! Ports that tests reserve for the servers they start: two processes never share one.

use std::{fs, fs::File};

use super::port::{folder, free_port, free_redis_port, reserve};

#[test]
fn port_is_reserved_once_until_its_process_ends() {
    let (plain, redis) = (free_port(), free_redis_port());
    assert!(!reserve(plain) && !reserve(redis), "they are reserved");
    // A lock belongs to an open file, so another open file acts as another process. Port 1 is in no range: no test
    // needs it.
    fs::create_dir_all(folder()).unwrap();
    let other = File::options().create(true).truncate(false).write(true).open(folder().join("1")).unwrap();
    other.lock().unwrap();
    assert!(!reserve(1), "another process has reserved it");
    drop(other);
    assert!(reserve(1), "that process has ended");
    assert!(!reserve(1));
}
