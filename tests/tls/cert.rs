//! `tidegate cert`: its certificate serves, and it overwrites nothing unasked.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::{
    handshakes::{handshake, speaks},
    support::{Process, unique_name},
};

/// Runs the command in a folder, and returns whether it succeeded, and what it printed.
fn cert(folder: &Path, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.arg("cert").arg("--out").arg(folder).args(words).output().expect("it runs");
    let text = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned()).concat();
    (output.status.success(), text)
}

fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-cert-{}", unique_name()))
}

/// Trusts the authority of the folder.
fn client(folder: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).expect("a certificate")).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(builder.expect("sound versions").with_root_certificates(roots).with_no_client_auth())
}

#[test]
fn a_node_serves_the_certificate_with_the_printed_lines() {
    let folder = folder();
    let (is_ok, printed) = cert(&folder, &[]);
    assert!(is_ok, "{printed}");
    let mode = |file: &str| fs::metadata(folder.join(file)).expect(file).permissions().mode() & 0o777;
    assert_eq!(["ca.pem", "ca.key", "node.pem", "node.key"].map(mode), [0o644, 0o600, 0o644, 0o600]);
    // The printed section is a configuration as it is.
    let toml: String = printed
        .lines()
        .skip_while(|line| *line != "[tls]")
        .take(4)
        .map(|line| line.to_owned() + "\n")
        .collect();
    let config = folder.join("tidegate.toml");
    fs::write(&config, toml).expect("a file");
    let data = folder.join("data");
    let mut serve = crate::support::command(&data, &["node.store=memory"]);
    serve.arg("--config").arg(&config);
    let node = Process::spawn(&data, serve);
    for name in ["localhost", "127.0.0.1"] {
        speaks(&mut handshake(node.address(), name, &client(&folder)).expect(name));
    }
    let foreign = handshake(node.address(), "n9.example", &client(&folder)).expect_err("another name");
    assert!(foreign.to_string().contains("not valid for name"), "{foreign}");
    drop(node);
    fs::remove_dir_all(folder).ok();
}

#[test]
fn nothing_is_overwritten_unasked_and_the_authority_is_kept() {
    let folder = folder();
    let read = |file: &str| fs::read(folder.join(file)).expect(file);
    assert!(cert(&folder, &["n1.example"]).0);
    let (authority, key, first) = (read("ca.pem"), read("node.key"), read("node.pem"));
    let (is_ok, printed) = cert(&folder, &["n1.example"]);
    assert!(!is_ok && printed.contains("--replace"), "{printed}");
    assert_eq!((read("node.pem"), read("node.key")), (first.clone(), key));
    let (is_ok, printed) = cert(&folder, &["n1.example", "--replace"]);
    assert!(is_ok && printed.contains("the folder's authority"), "{printed}");
    assert!(read("node.pem") != first && read("ca.pem") == authority);
    let (is_ok, printed) = cert(&folder, &["--client", "alice", "--file", "alice"]);
    assert!(is_ok && printed.contains("client_ca") && folder.join("alice.key").exists(), "{printed}");
    for (words, says) in [
        (&["https://n1.example"][..], "without scheme and port"),
        (&["n1.example:7800"], "without scheme and port"),
        (&["--file", "../x"], "--file"),
        (&["--file", "ca", "--replace"], "--file"),
        (&["--client", "a b"], "--client"),
        (&["--days", "9999"], "9999"),
    ] {
        let (is_ok, printed) = cert(&folder, words);
        assert!(!is_ok && printed.contains(says), "{words:?}: {printed}");
    }
    // A key of another authority signs nothing that clients trust.
    let other = self::folder();
    assert!(cert(&other, &[]).0);
    fs::copy(other.join("ca.key"), folder.join("ca.key")).expect("a file");
    let (is_ok, printed) = cert(&folder, &["--file", "n2"]);
    assert!(!is_ok && printed.contains("belongs to another certificate"), "{printed}");
    for folder in [folder, other] {
        fs::remove_dir_all(folder).ok();
    }
}
