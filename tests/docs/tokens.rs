//! `docs/tokens.md`: its programs mint tokens that a node accepts, and claims have the documented effect.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header, decode_header};
use serde_json::{Value, json};
use tidegate::auth::{ClaimRules, Keyring, TokenFault, TokenIdentity, Verifier, create_key, read_keys};
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

/// Kinds of private keys, as openssl makes them, with the algorithms of their tokens.
const KINDS: [(&str, &[&str]); 3] = [
    ("RS256", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
    ("ES256", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
    ("EdDSA", &["-algorithm", "ed25519"]),
];

/// Runner, program, language of its block on the page, and the algorithms that it knows.
const SIGNERS: [(&str, &str, &str, &[&str]); 5] = [
    ("python3", "sign.py", "python", &["RS256"]),
    ("node", "sign.mjs", "js", &["RS256", "ES256", "EdDSA"]),
    ("go run", "sign.go", "go", &["RS256", "ES256", "EdDSA"]),
    ("java", "Sign.java", "java", &["RS256", "ES256", "EdDSA"]),
    ("sh", "sign.sh", "sh", &["RS256", "ES256", "EdDSA"]),
];

/// Private key of one test with the verifier of its tokens.
struct PrivateKey {
    path: PathBuf,
    algorithm: &'static str,
    verifier: Verifier,
}

impl PrivateKey {
    fn new(algorithm: &'static str, kind: &[&str]) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{algorithm}-{}.pem", unique_name()));
        let public = path.with_extension("pub");
        let openssl = |words: &[&str], from: Option<&Path>, to: &Path| {
            let mut command = Command::new("openssl");
            command
                .args(words)
                .args(from.map(|from| ["-in".as_ref(), from.as_os_str()]).into_iter().flatten());
            let output = command.arg("-out").arg(to).output().expect("openssl is installed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        openssl(&[&["genpkey"], kind].concat(), None, &path);
        openssl(&["pkey", "-pubout"], Some(&path), &public);
        let keys = read_keys(&public, Some("k1")).expect("a public key");
        fs::remove_file(public).expect("it was written");
        let verifier = Verifier::new(Arc::new(Keyring::new(keys, None)), ClaimRules::default());
        Self { path, algorithm, verifier }
    }
}

impl Drop for PrivateKey {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

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
fn mint(runner: &str, program: &str, key: &Path, words: &[&str]) -> String {
    let mut words_of_runner = runner.split(' ');
    let mut command = Command::new(words_of_runner.next().unwrap_or_default());
    command.args(words_of_runner).arg(root().join(FOLDER).join(program)).arg(key).args(words);
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
    let signers = SIGNERS.map(|(runner, name, language, _)| (runner, name, language));
    for (_, name, language) in PROGRAMS.into_iter().chain(signers) {
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
            |words| Verifier::hs256(&key.key).verify(&mint(runner, program, &key.path, words), wall_ms());
        let any = identity(&["alice"]).expect(program);
        // Without `iat` a revocation of all earlier tokens would refuse later ones, too.
        assert!(any.term.issued_ms.is_some(), "{program}");
        assert_eq!((any.user.as_str(), any.device), ("alice", None), "{program}");
        let bound = identity(&["alice", "phone"]).expect(program);
        assert_eq!(bound.device.expect(program).as_str(), "phone", "{program}");
    }
}

#[test]
fn each_program_signs_with_private_keys() {
    let keys = KINDS.map(|(algorithm, kind)| PrivateKey::new(algorithm, kind));
    let sign = |key: &PrivateKey, runner: &str, program: &str| {
        let token = mint(runner, program, &key.path, &["k1", "alice", "phone"]);
        let head = decode_header(&token).expect(program);
        assert_eq!((format!("{:?}", head.alg).as_str(), head.kid.as_deref()), (key.algorithm, Some("k1")));
        let identity = key.verifier.verify(&token, wall_ms());
        let identity = identity.unwrap_or_else(|fault| panic!("{program} {}: {fault:?}", key.algorithm));
        assert_eq!(
            (identity.user.as_str(), identity.device.as_ref().map(|it| it.as_str())),
            ("alice", Some("phone")),
            "{program}"
        );
        assert!(identity.term.issued_ms.is_some(), "{program}");
    };
    thread::scope(|scope| {
        for (runner, program, _, algorithms) in SIGNERS {
            let known = keys.iter().filter(|key| algorithms.contains(&key.algorithm));
            let known: Vec<&PrivateKey> = known.collect();
            assert_eq!(known.len(), algorithms.len(), "{program}");
            scope.spawn(move || known.into_iter().for_each(|key| sign(key, runner, program)));
        }
    });
    let stranger = PrivateKey::new("EdDSA", KINDS[2].1);
    let token = mint("sh", "sign.sh", &stranger.path, &["k1", "alice"]);
    assert_eq!(keys[2].verifier.verify(&token, wall_ms()), Err(TokenFault::Signature));
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
