//! A pseudo-terminal, for what commands print to people only.

use std::{fs::File, process::Stdio};

use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

/// A terminal: the end where a command writes, and the one where a person reads. Reading ends with an error once all who write have ended.
pub fn terminal() -> (Stdio, File) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
    let person = person.expect("a pseudo-terminal");
    grantpt(&person).expect("it is ours");
    unlockpt(&person).expect("it is ours");
    let name = ptsname(&person, Vec::new()).expect("its other end has a name");
    let command = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    (Stdio::from(command.expect("its other end")), File::from(person))
}
