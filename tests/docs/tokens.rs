//! `docs/tokens.md`: its programs mint tokens that a node accepts, and claims have the documented effect.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tidegate::auth::{TokenFault, TokenIdentity, Verifier, create_key};
use tidegate_protocol::Code;

use super::{read, root, settle, unique::unique_name, with_block};

const PAGE: &str = "docs/tokens.md";

/// Folder of the programs.
const FOLDER: &str = "tests/third_party/tokens";

/// Runner, program, and language of its block on the page.
const PROGRAMS: [(&str, &str, &str); 5] = [
    ("python3", "mint.py", "python"),
    ("node", "mint.mjs", "js"),
    ("go run", "mint.go", "go"),
    ("java", "Mint.java", "java"),
    ("sh", "mint.sh", "sh"),
];

/// Key file of one test, removed at its end.
struct KeyFile {
    path: PathBuf,
    key: Vec<u8>,
}

impl KeyFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", unique_name()));
        let key = create_key(&path).expect("the folder of temporary files can be written");
        Self { path, key }
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// Returns the token that a program prints for these arguments.
fn mint(runner: &str, program: &str, key: &KeyFile, words: &[&str]) -> String {
    let mut words_of_runner = runner.split(' ');
    let mut command = Command::new(words_of_runner.next().unwrap_or_default());
    command.args(words_of_runner).arg(root().join(FOLDER).join(program)).arg(&key.path).args(words);
    let output = command.output().unwrap_or_else(|error| panic!("{runner}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a token is text").trim().to_owned()
}

fn sign(key: &[u8], algorithm: Algorithm, claims: &Value) -> String {
    jsonwebtoken::encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(key))
        .expect("it is signed")
}

fn verify(key: &[u8], claims: &Value) -> Result<TokenIdentity, Code> {
    Verifier::hs256(key).verify(&sign(key, Algorithm::HS256, claims), wall_ms()).map_err(TokenFault::code)
}

/// Returns the wall clock in ms since 1970.
fn wall_ms() -> u64 {
    u64::try_from(now(0)).expect("the clock is after 1970") * 1_000
}

/// Returns seconds since 1970, plus `later`.
fn now(later: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(now.as_secs()).expect("the year is near") + later
}

#[test]
fn page_contains_the_programs() {
    let mut page = read(PAGE);
    for (_, name, language) in PROGRAMS {
        let program = read(&format!("{FOLDER}/{name}"));
        page = with_block(PAGE, &page, name, &format!("```{language}\n{program}```\n"));
    }
    settle(PAGE, &page);
}

#[test]
fn each_program_mints_tokens_that_a_node_accepts() {
    let key = KeyFile::new("mint");
    for (runner, program, _) in PROGRAMS {
        let identity =
            |words| Verifier::hs256(&key.key).verify(&mint(runner, program, &key, words), wall_ms());
        let any = identity(&["alice"]).expect(program);
        assert_eq!((any.user.as_str(), any.device), ("alice", None), "{program}");
        let bound = identity(&["alice", "phone"]).expect(program);
        assert_eq!(bound.device.expect(program).as_str(), "phone", "{program}");
    }
}

/// The usual mistake of a backend: its library gets the text of the file as the key.
#[test]
fn text_of_the_key_file_is_another_key() {
    let key = KeyFile::new("text");
    let text = fs::read_to_string(&key.path).expect("the key was written");
    let token = sign(text.trim().as_bytes(), Algorithm::HS256, &json!({ "sub": "alice", "exp": now(60) }));
    let refused = Verifier::hs256(&key.key).verify(&token, wall_ms());
    assert_eq!(refused, Err(TokenFault::Signature));
    assert!(read(PAGE).contains(TokenFault::Signature.text()));
}

#[test]
fn claims_have_the_documented_effect() {
    let key = [7; 32];
    let accepted = [
        json!({ "sub": "alice", "exp": now(60) }),
        json!({ "sub": "A-z_0.9", "exp": now(-20), "dev": "phone" }),
        json!({ "sub": "a".repeat(64), "exp": now(60), "aud": "x", "iss": "y", "nbf": now(-60), "iat": now(3_600), "z": 1 }),
    ];
    for claims in accepted {
        assert!(verify(&key, &claims).is_ok(), "{claims}: {:?}", verify(&key, &claims));
    }
    let refused = [
        (json!({ "sub": "alice", "exp": now(-40) }), Code::TokenExpired),
        (json!({ "sub": "alice" }), Code::TokenInvalid),
        (json!({ "exp": now(60) }), Code::TokenInvalid),
        (json!({ "sub": "alice", "exp": 60.5 + now(0) as f64 }), Code::TokenInvalid),
        (json!({ "sub": "alice", "exp": now(60).to_string() }), Code::TokenInvalid),
        (json!({ "sub": "a".repeat(65), "exp": now(60) }), Code::TokenInvalid),
        (json!({ "sub": "alice", "exp": now(60), "dev": "a phone" }), Code::TokenInvalid),
        (json!({ "sub": "alice", "exp": now(60), "nbf": now(50) }), Code::TokenInvalid),
        (json!({ "sub": "alice", "exp": now(60), "prio": 10 }), Code::TokenInvalid),
        (json!({ "sub": "alice", "exp": now(60), "rooms": ["a*b"] }), Code::TokenInvalid),
    ];
    for (claims, code) in refused {
        assert_eq!(verify(&key, &claims).err(), Some(code), "{claims}");
    }
    let other = sign(&key, Algorithm::HS384, &json!({ "sub": "alice", "exp": now(60) }));
    assert_eq!(
        Verifier::hs256(&key).verify(&other, wall_ms()).err().map(TokenFault::code),
        Some(Code::TokenInvalid)
    );
}
