//! Versions N and N+1 side by side, under load: an upgrade with the rules held, all the way back, and the final upgrade.

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use tidegate_protocol::machine::ledger::LEDGER_NEWEST;

use support::{Folder, lab, node, said, services};

/// The version of the node, which is that of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The node as its former version would be: it knows no newer rules, and says that it is another version.
fn older(folder: &Path) -> PathBuf {
    let file = folder.join("tidegate-older");
    let program = node();
    let script = format!(
        "#!/bin/sh\nexec {} \"$@\" --set fault.rules_max=1 --set assign.version=older\n",
        program.display()
    );
    // Copied by another program: a child that another test forks while this one writes could keep the file from being run.
    let draft = folder.join("draft");
    fs::write(&draft, script).expect("a file");
    let copied = Command::new("cp").arg(&draft).arg(&file).status().expect("`cp` is everywhere");
    assert!(copied.success(), "{copied}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a program");
    file
}

#[test]
fn two_versions_run_together_under_load_and_nothing_is_lost_while_the_rules_are_held_and_when_they_are_switched()
 {
    let folder = Folder::fresh();
    let text = |path: PathBuf| path.to_str().expect("a plain path").to_owned();
    let (list, older, newer) = (text(services::list()), text(older(folder.path())), text(node()));
    let load = ["chaos", "--rolling", "9", "--clients", "60", "--rate", "60"];
    let data = folder.file("data");
    let programs = ["--cluster", &list, "--binary", &older, "--next", &newer, "--directory", &data];
    let output = lab(&[&load[..], &programs].concat());
    let said = said(&output);
    // It fails when anything was lost, doubled or reordered.
    assert!(output.status.success(), "{said}");
    for wanted in [
        "connections after the logins: n1 ",
        "connections after the last restart: n1 ",
        "9 restarts: ",
        &format!("; back as tidegate ({VERSION}, rules 1)"),
        "; back as tidegate-older (older, rules 1)",
        &format!("tidegate ({VERSION}, rules 1) together with tidegate-older (older, rules 1)"),
        &format!("; back as tidegate ({VERSION}, rules {LEDGER_NEWEST})"),
        &format!("tidegate ({VERSION}, rules {LEDGER_NEWEST}) together with tidegate-older (older, rules 1)"),
        &format!("the rules went from 1 to {LEDGER_NEWEST} under load"),
    ] {
        assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}");
    }
}
