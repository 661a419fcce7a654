//! Errors about files: each names the file, its setting and the cure.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use rcgen::{CertificateParams, KeyPair};

use crate::{
    fails, run_command,
    support::{Process, command, fresh_data},
};

/// Directory with files that no setting can use; removed when the test ends.
struct WrongFiles(PathBuf);

impl WrongFiles {
    fn create() -> Self {
        let place = fresh_data();
        fs::create_dir_all(place.join("directory")).expect("a folder");
        let (pair, other) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
        let params = CertificateParams::new(vec!["n1".to_owned()]).expect("a name");
        let certificate = params.self_signed(&pair).expect("a certificate").pem();
        let texts: [(&str, Vec<u8>, u32); 8] = [
            ("blank", b" \n".to_vec(), 0o600),
            ("junk", b"neither PEM nor TOML nor JSON\n".to_vec(), 0o600),
            ("bytes", vec![0xff, 0xfe], 0o600),
            ("open", b"secret of everybody".to_vec(), 0o644),
            ("key", "0f".repeat(32).into_bytes(), 0o600),
            ("key.pem", pair.serialize_pem().into_bytes(), 0o600),
            ("other.pem", other.serialize_pem().into_bytes(), 0o600),
            ("certificate.pem", certificate.into_bytes(), 0o600),
        ];
        for (name, text, mode) in texts {
            fs::write(place.join(name), text).expect("a file");
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(place.join(name), mode).expect("the file is owned by the test");
        }
        let made = Command::new("mkfifo").args(["-m", "600"]).arg(place.join("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        Self(place)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for WrongFiles {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Settings of a node of a cluster whose services do not answer: a wrong file is found before they are asked.
fn cluster(files: &WrongFiles) -> Vec<String> {
    let sets = [
        "node.profile=cluster",
        "kafka.brokers=[127.0.0.1:1]",
        "redis.urls=[redis://127.0.0.1:1]",
        "postgres.url=postgres://nobody@127.0.0.1:1/none",
    ];
    let key = format!("auth.key_file={}", files.path("key"));
    sets.map(str::to_owned).into_iter().chain([key]).collect()
}

/// Asserts that `serve` fails with a message that has these words.
fn assert_refused(sets: &[String], words: &[&str]) {
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let (output, said) = fails(&sets);
    assert_eq!(output.status.code(), Some(1), "{sets:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing for {sets:?}: {said}");
    }
}

/// Setting of a file, the settings that it needs, and the files that are wrong for it with the cure.
type Case<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)]);

const MISSING: (&str, &str) = ("missing", "no such file; create it, or name another one");
const DIRECTORY: (&str, &str) = ("directory", "it is a directory; name a file in it");
const BELOW_A_FILE: (&str, &str) = ("junk/key", "its path leads through a file; name another one");
const BLANK: (&str, &str) = ("blank", "it is empty, or no text; write the secret to it");
const PIPE: (&str, &str) = ("pipe", "it is a pipe, which can be read only once; name a file");
const OPEN: (&str, &str) = ("open", "`chmod 600` it");
const NO_CERTIFICATE: (&str, &str) = ("junk", "no certificate in it; name a PEM file with one");
const NO_KEY: (&str, &str) = ("junk", "no private key in it");

const SECRET: &[(&str, &str)] = &[MISSING, DIRECTORY, BELOW_A_FILE, OPEN, BLANK, PIPE];
const CERTIFICATE: &[(&str, &str)] = &[MISSING, DIRECTORY, BELOW_A_FILE, NO_CERTIFICATE];

/// Placeholder for the directory of wrong files.
const PLACE: &str = "PLACE";

const CASES: &[Case<'_>] = &[
    ("auth.key_file", &[], &[MISSING, DIRECTORY, BELOW_A_FILE, OPEN, PIPE, ("junk", "is not 64 hex digits")]),
    ("auth.jwks_ca_file", &["auth.jwks_url=https://127.0.0.1:1/keys"], CERTIFICATE),
    ("limits.rules_file", &[], &[MISSING, DIRECTORY, BELOW_A_FILE, PIPE]),
    ("link.secret_file", &[], SECRET),
    (
        "link.tls_key",
        &["link.tls_ca=PLACE/junk", "link.tls_cert=PLACE/junk"],
        &[MISSING, DIRECTORY, OPEN, NO_KEY],
    ),
    ("link.tls_cert", &["link.tls_ca=PLACE/junk", "link.tls_key=PLACE/key.pem"], CERTIFICATE),
    ("link.tls_ca", &["link.tls_cert=PLACE/certificate.pem", "link.tls_key=PLACE/key.pem"], CERTIFICATE),
    (
        "link.tls_key",
        &["link.tls_ca=PLACE/certificate.pem", "link.tls_cert=PLACE/certificate.pem"],
        &[("other.pem", "name the key that belongs to the first certificate")],
    ),
    ("redis.password_file", &[], SECRET),
    ("redis.tls_ca_file", &["redis.tls=true"], CERTIFICATE),
    ("postgres.password_file", &[], SECRET),
    ("postgres.tls_ca_file", &["postgres.tls=true"], CERTIFICATE),
    (
        "kafka.sasl_password_file",
        &["kafka.security=sasl_plaintext", "kafka.sasl_mechanism=PLAIN", "kafka.sasl_username=me"],
        SECRET,
    ),
    // The library accepts a directory there, too.
    ("kafka.ca_file", &["kafka.security=ssl"], &[MISSING, BELOW_A_FILE, NO_CERTIFICATE]),
    ("kafka.key_file", &["kafka.security=ssl", "kafka.cert_file=PLACE/junk"], SECRET),
    ("kafka.cert_file", &["kafka.security=ssl", "kafka.key_file=PLACE/key"], CERTIFICATE),
];

#[test]
fn x17_errors_of_configured_files_name_setting_file_and_cure() {
    let files = WrongFiles::create();
    let is_possible =
        |needed: &[&str]| cfg!(feature = "kafka-tls") || !needed.contains(&"kafka.security=ssl");
    for (setting, needed, wrong) in CASES.iter().filter(|(_, needed, _)| is_possible(needed)) {
        for (name, cure) in *wrong {
            let mut sets = cluster(&files);
            sets.extend(needed.iter().map(|set| set.replace(PLACE, &files.0.display().to_string())));
            sets.push(format!("{setting}={}", files.path(name)));
            assert_refused(&sets, &[setting, &files.path(name), "can't be used", cure]);
        }
    }
}

/// Runs `tidegate` and asserts that it fails with a message that has these words.
fn assert_fails(words: &[&str], expected: &[&str]) {
    let (code, said) = run_command(words);
    assert_eq!(code, Some(1), "{words:?}: {said}");
    for word in expected {
        assert!(said.contains(word), "{word:?} is missing for {words:?}: {said}");
    }
}

#[test]
fn x17_errors_of_configuration_files_name_flag_file_and_cure() {
    let files = WrongFiles::create();
    let missing = [MISSING, DIRECTORY, BELOW_A_FILE, ("bytes", "it is not UTF-8; name a TOML file")];
    for (name, cure) in missing {
        let file = files.path(name);
        for command in ["serve", "drain-plan"] {
            assert_fails(&[command, "--config", &file], &["--config", "TIDEGATE_CONFIG", &file, cure]);
        }
    }
    let junk = files.path("junk");
    assert_fails(&["serve", "--config", &junk], &["/junk", "TOML parse error at line 1"]);
}

#[test]
fn config_check_lists_every_file_that_can_not_be_used() {
    let files = WrongFiles::create();
    let wrong = [
        ("tls.cert_files, tls.key_files", "other.pem", "name the key that belongs to the first certificate"),
        ("admin.keys_file", "junk", "line 1: no entry of a key"),
        ("auth.key_files", "missing", MISSING.1),
        ("link.secret_file", "open", OPEN.1),
        ("limits.rules_file", "directory", DIRECTORY.1),
        ("webhooks.ca_file", "junk", NO_CERTIFICATE.1),
    ];
    let at = |name: &str| format!("\"{}\"", files.path(name));
    let text = format!(
        "[tls]\ncert_files = [{}]\nkey_files = [{}]\n[admin]\nkeys_file = {}\n[auth]\nkey_files = [{}, {}]\n[link]\nsecret_file = {}\n\
         [limits]\nrules_file = {}\n[webhooks]\nca_file = {}\n",
        at("certificate.pem"),
        at("other.pem"),
        at("junk"),
        at("key"),
        at("missing").replacen('"', "\"one=", 1),
        at("open"),
        at("directory"),
        at("junk"),
    );
    let config = files.path("tidegate.toml");
    fs::write(&config, text).expect("a file");
    let (code, said) = run_command(&["config", "check", "--config", &config]);
    assert_eq!(code, Some(1), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("can't be used: ")).collect();
    assert_eq!(lines.len(), wrong.len(), "{said}");
    for (setting, name, cure) in wrong {
        let named = format!("{} can't be used: ", files.path(name));
        let is_it = |line: &&str| {
            line.trim_start().starts_with(setting) && line.contains(&named) && line.contains(cure)
        };
        assert_eq!(lines.iter().copied().filter(is_it).count(), 1, "{setting}: {said}");
    }
    let (code, said) =
        run_command(&["config", "check", "--config", &config, "--set", "limits.in_flight_max=0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("limits.in_flight_max") && said.contains("7 problem(s)"), "{said}");
    // A drain of few clients fits.
    let without = ["--without-files", "--set", "limits.conns_max=1000"];
    let (code, said) = run_command(&[&["config", "check", "--config", &config], &without[..]].concat());
    assert_eq!(code, Some(0), "{said}");
}

/// Asserts that `serve` on this data directory fails with a message that has these words.
fn assert_unusable(data: &str, expected: &[&str]) {
    let words = ["serve", "--data", data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    assert_fails(&words, expected);
}

#[test]
fn x17_errors_of_the_data_directory_name_setting_file_and_cure() {
    let files = WrongFiles::create();
    let taken = "a file has that name; remove it, or name a directory that does not exist yet";
    for (name, cure) in [("junk", taken), ("junk/data", "its path leads through a file")] {
        let data = files.path(name);
        assert_unusable(&data, &["node.data", &data, cure]);
        assert_fails(
            &["token", "alice", "--data", &data],
            &["--data", &data, "its path leads through a file"],
        );
        assert_fails(&["up", "--data", &data], &["--data", &data, cure]);
    }
    let data = files.path("data");
    let at = |name: &str| Path::new(&data).join(name);
    fs::create_dir_all(at("token.key")).expect("a folder");
    close(Path::new(&data));
    let key = at("token.key").display().to_string();
    assert_unusable(&data, &["node.data", &key, "it is a directory"]);
    fs::remove_dir(at("token.key")).expect("the folder is empty");
    fs::write(at("token.key"), "junk").expect("a file");
    close(&at("token.key"));
    assert_unusable(
        &data,
        &[
            "node.data",
            &key,
            "is not 64 hex digits, as `openssl rand -hex 32` makes them; remove it to get a new key",
        ],
    );
    fs::remove_file(at("token.key")).expect("the file exists");
    // The draft of the address file, then the file itself.
    for name in ["node.tmp", "node.json"] {
        fs::create_dir_all(at(name).join("full")).expect("a folder");
        let file = at(name).display().to_string();
        assert_unusable(&data, &["keep node.data writable", &file]);
        fs::remove_dir_all(at(name)).expect("the folder exists");
    }
    fs::remove_dir_all(at("store")).expect("the node created a store");
    fs::write(at("store"), "junk").expect("a file");
    let store = at("store").display().to_string();
    assert_unusable(&data, &[&store, "set node.data to another directory"]);
}

/// Closes a file or directory to other accounts.
fn close(path: &Path) {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the path is owned by the test");
}

#[test]
fn x17_errors_of_node_files_and_exports_name_file_and_cure() {
    let files = WrongFiles::create();
    let data = files.path("data");
    let file = Path::new(&data).join("node.json");
    fs::create_dir_all(&data).expect("a folder");
    fs::write(&file, "{").expect("a file");
    let named = file.display().to_string();
    let asked = ["nodes", "--data", &data];
    assert_fails(&asked, &[&named, "--data", "is damaged: restart the node"]);
    fs::remove_file(&file).expect("the file exists");
    fs::create_dir(&file).expect("a folder");
    assert_fails(&asked, &[&named, "--data", "remove it, and restart the node"]);

    let to = files.path("new");
    for (name, cure) in
        [MISSING, DIRECTORY, BELOW_A_FILE, ("junk", "line 1: not an export of Tidegate; create one")]
    {
        let export = files.path(name);
        assert_fails(&["store", "import", &export, "--data", &to], &[&export, cure]);
    }
    let taken = files.path("junk");
    assert_fails(&["store", "import", "-", "--data", &taken], &["--data", &taken, "a file has that name"]);
    assert_fails(
        &["store", "check", "--data", &to],
        &[&to, "contains no store; name the data directory of a node"],
    );

    let own = fresh_data();
    let mut node = Process::spawn(&own, command(&own, &[]));
    node.signal(rustix::process::Signal::TERM);
    node.exit();
    let own = own.display().to_string();
    for name in ["junk", "missing/export", "directory"] {
        let output = files.path(name);
        let words = ["store", "export", "--data", &own, "--output", &output];
        assert_fails(
            &words,
            &["--output", &output, "name a file that does not exist, in a directory that does"],
        );
    }
}
