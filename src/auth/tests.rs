//! Tests of the verifier with HS256 keys.

use super::*;
use crate::clock::wall_ms;

/// Default of `auth.leeway_s`.
const LEEWAY_S: u64 = 30;

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
fn forged_expired_and_unsigned_tokens_are_refused() {
    let verifier = Verifier::hs256(KEY);
    let code = |token: &str| verifier.verify(token, wall_ms()).unwrap_err().code();
    assert_eq!(code(&sign(b"another key", "alice", None, Duration::from_secs(60))), Code::TokenInvalid);
    assert_eq!(code("no.token.at-all"), Code::TokenInvalid);
    assert_eq!(code(""), Code::TokenInvalid);
    // {"alg":"none"} . {"sub":"alice","exp":99999999999}
    assert_eq!(code("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImV4cCI6OTk5OTk5OTk5OTl9."), Code::TokenInvalid);
    assert_eq!(code(&sign(KEY, "not an id", None, Duration::from_secs(60))), Code::TokenInvalid);
    let old = sign_until(KEY, "alice", None, 1_000);
    assert_eq!(code(&old), Code::TokenExpired);
    let at = |seconds: u64| verifier.verify(&old, seconds * 1_000 + 999).err().map(TokenFault::code);
    assert_eq!(at(1_000 + LEEWAY_S), None, "the leeway is tolerated");
    assert_eq!(at(1_000 + LEEWAY_S + 1), Some(Code::TokenExpired));
}
