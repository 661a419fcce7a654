//! Authentication of clients: development tokens, signed with a key in the data directory or in a shared file.
//!
//! Only HS256; further algorithms and key sources belong here. Tokens are never logged, and never part of a URL.

use std::{
    io::{self, Write},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, errors::ErrorKind};
use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    Code,
    id::{DeviceId, UserId},
};

use crate::private;

/// Name of the key file in the data directory.
const KEY_FILE: &str = "token.key";

/// Tolerated clock difference between issuer and broker, in seconds.
const LEEWAY_S: u64 = 30;

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dev: Option<String>,
}

/// Verifier of tokens; it holds only keys, so it is cheap to share.
pub struct Verifier {
    key: DecodingKey,
    validation: Validation,
}

/// Identity that a valid token names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIdentity {
    /// User of the token.
    pub user: UserId,
    /// Only device that may use the token; `None` if any device may.
    pub device: Option<DeviceId>,
}

/// Refusal of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRefusal {
    /// Code for the client.
    pub code: Code,
    /// Reason in words; empty if the code says enough.
    pub reason: &'static str,
    /// Time until another refused token of the address is answered with its own code, if too many were refused.
    pub wait: Option<Duration>,
}

impl Verifier {
    /// Creates a verifier of HS256 tokens signed with `key`.
    pub fn hs256(key: &[u8]) -> Self {
        let mut validation = Validation::new(Algorithm::HS256);
        // The library would compare with the clock of the system; `verify` compares with the time of its caller.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.set_required_spec_claims(&["exp", "sub"]);
        Self { key: DecodingKey::from_secret(key), validation }
    }

    /// Verifies a token at the wall-clock time `wall_ms` (ms since 1970), and returns its identity, or the code and the
    /// reason of the refusal.
    pub fn verify(&self, token: &str, wall_ms: u64) -> Result<TokenIdentity, (Code, &'static str)> {
        let claims = match jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation) {
            Ok(data) => data.claims,
            Err(error) => {
                return Err(match error.kind() {
                    ErrorKind::InvalidSignature => {
                        (Code::TokenInvalid, "the token is signed with another key")
                    }
                    ErrorKind::InvalidAlgorithm => (Code::TokenInvalid, "only HS256 tokens are accepted"),
                    _ => (Code::TokenInvalid, "the token is no JWT with the claims sub and exp"),
                });
            }
        };
        if claims.exp < (wall_ms / 1_000).saturating_sub(LEEWAY_S) {
            return Err((Code::TokenExpired, ""));
        }
        let bad_id = |_| (Code::TokenInvalid, "sub and dev must match [A-Za-z0-9_.-]{1,64}");
        Ok(TokenIdentity {
            user: UserId::new(&claims.sub).map_err(bad_id)?,
            device: claims.dev.as_deref().map(DeviceId::new).transpose().map_err(bad_id)?,
        })
    }
}

/// Signs a development token for `user` that expires after `ttl`.
pub fn sign(key: &[u8], user: &str, device: Option<&str>, ttl: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    sign_until(key, user, device, (now + ttl).as_secs())
}

/// Signs a development token for `user` that expires at `exp`, in seconds since 1970.
pub fn sign_until(key: &[u8], user: &str, device: Option<&str>, exp: u64) -> String {
    let claims = Claims { sub: user.to_owned(), exp, dev: device.map(str::to_owned) };
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(key))
        .expect("HS256 over a small JSON object can't fail")
}

/// Reads the key of a data directory, and creates a random one at first use (mode 0600).
///
/// # Errors
/// The directory can't be created, or the file can't be read or is not 64 hex digits.
pub fn load_or_create_key(data: &Path) -> io::Result<Vec<u8>> {
    match load_key(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            private::create_dir_all(data)?;
            create_key(&data.join(KEY_FILE))
        }
        other => other,
    }
}

/// Writes a random key, as 64 hex digits, to a new file (mode 0600).
///
/// # Errors
/// The file exists already, or can't be created.
pub fn create_key(path: &Path) -> io::Result<Vec<u8>> {
    let key: [u8; 32] = rand::random();
    let at = |error: io::Error| {
        io::Error::new(error.kind(), format!("{} can't be created: {error}", path.display()))
    };
    let mut file = private::options().create_new(true).open(path).map_err(at)?;
    writeln!(file, "{}", HEXLOWER.encode(&key)).map_err(at)?;
    Ok(key.to_vec())
}

/// Reads the key of a data directory.
///
/// # Errors
/// The file is missing or unreadable, or is not 64 hex digits.
pub fn load_key(data: &Path) -> io::Result<Vec<u8>> {
    read_key(&data.join(KEY_FILE))
}

/// Reads a key file.
///
/// # Errors
/// The file is missing or unreadable, other accounts than its owner and group may read it, or it is not 64 hex digits.
pub fn read_key(path: &Path) -> io::Result<Vec<u8>> {
    let text = private::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => error,
        kind => io::Error::new(kind, format!("{}: {error}", path.display())),
    })?;
    let wrong = || format!("{} is not 64 hex digits; remove it to get a new key", path.display());
    decode_hex(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, wrong()))
}

fn decode_hex(text: &[u8]) -> Option<Vec<u8>> {
    HEXLOWER_PERMISSIVE.decode(text.trim_ascii()).ok().filter(|key| key.len() == 32)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt as _,
    };

    use super::*;
    use crate::clock::wall_ms;

    const KEY: &[u8] = b"a key of the test";

    #[test]
    fn signed_token_names_its_user() {
        let verifier = Verifier::hs256(KEY);
        let token = sign(KEY, "alice", Some("phone"), Duration::from_secs(60));
        let identity = verifier.verify(&token, wall_ms()).unwrap();
        assert_eq!(identity.user.as_str(), "alice");
        assert_eq!(identity.device.unwrap().as_str(), "phone");
    }

    #[test]
    fn key_is_64_hex_digits_of_either_case() {
        let digits = "00Ff".repeat(16);
        assert_eq!(decode_hex(format!("{digits}\n").as_bytes()), Some([0, 255].repeat(16)));
        for wrong in ["", &digits[2..], &digits.replace("00", "+0"), &format!("{digits}00")] {
            assert_eq!(decode_hex(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn world_readable_key_is_refused() {
        let file = std::env::temp_dir().join(format!("tidegate-key-{}", std::process::id()));
        let key = create_key(&file).unwrap();
        assert!(create_key(&file).is_err(), "an existing key is never overwritten");
        assert_eq!(read_key(&file).unwrap(), key);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert!(read_key(&file).unwrap_err().to_string().contains("chmod 600"));
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn forged_expired_and_unsigned_tokens_are_refused() {
        let verifier = Verifier::hs256(KEY);
        let code = |token: &str| verifier.verify(token, wall_ms()).unwrap_err().0;
        assert_eq!(code(&sign(b"another key", "alice", None, Duration::from_secs(60))), Code::TokenInvalid);
        assert_eq!(code("no.token.at-all"), Code::TokenInvalid);
        assert_eq!(code(""), Code::TokenInvalid);
        // {"alg":"none"} . {"sub":"alice","exp":99999999999}
        assert_eq!(
            code("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImV4cCI6OTk5OTk5OTk5OTl9."),
            Code::TokenInvalid
        );
        assert_eq!(code(&sign(KEY, "not an id", None, Duration::from_secs(60))), Code::TokenInvalid);
        let old = Claims { sub: "alice".into(), exp: 1_000, dev: None };
        let old = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &old, &EncodingKey::from_secret(KEY));
        let old = old.unwrap();
        assert_eq!(code(&old), Code::TokenExpired);
        let at = |seconds: u64| verifier.verify(&old, seconds * 1_000 + 999).err().map(|(code, _)| code);
        assert_eq!(at(1_000 + LEEWAY_S), None, "the leeway is tolerated");
        assert_eq!(at(1_000 + LEEWAY_S + 1), Some(Code::TokenExpired));
    }
}
