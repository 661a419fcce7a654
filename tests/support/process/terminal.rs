//! Pseudo-terminal, for output that commands print to terminals only.

use std::{fs::File, process::Stdio};

use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

/// Opens a terminal: the end where a command writes, and the end where a person reads. Reading fails once all writers
/// have ended.
pub fn terminal() -> (Stdio, File) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
    let person = person.expect("a pseudo-terminal");
    grantpt(&person).expect("the terminal is open");
    unlockpt(&person).expect("the terminal is open");
    let name = ptsname(&person, Vec::new()).expect("its other end has a name");
    let command = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    (Stdio::from(command.expect("its other end")), File::from(person))
}
