//! Keys that verify tokens: each pins one algorithm, so a token can't choose how its key is used.

use std::{io, path::Path};

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};
use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::{
    Algorithm, DecodingKey, Validation,
    errors::ErrorKind,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse},
};
use rustls::pki_types::{SubjectPublicKeyInfoDer, pem::PemObject as _};
use serde_json::Value;

use super::{claims::Claims, fault::TokenFault, secret};
use crate::private;

/// Most keys of one set.
pub(super) const KEYS_MAX: usize = 64;

/// Largest `kid`, in bytes.
const ID_BYTES_MAX: usize = 256;

/// Size of the modulus of the smallest and of the largest RSA key, in bytes.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;

/// Size in bytes of the smallest accepted RSA key as DER; one with 2,048 bits has 292 or more.
const RSA_DER_BYTES_MIN: usize = 290;

/// Key with its algorithm, and the `kid` of its tokens.
#[derive(Debug)]
pub struct TokenKey {
    id: Option<Box<str>>,
    algorithm: Algorithm,
    decoding: DecodingKey,
    validation: Validation,
}

impl TokenKey {
    fn new(id: Option<&str>, algorithm: Algorithm, decoding: DecodingKey) -> Self {
        let mut validation = Validation::new(algorithm);
        // The library would compare with the clock of the system; `ClaimRules` compare with the time of the caller.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.set_required_spec_claims(&["exp", "sub"]);
        Self { id: id.map(Into::into), algorithm, decoding, validation }
    }

    /// Creates an HS256 key.
    pub fn hs256(secret: &[u8], id: Option<&str>) -> Self {
        Self::new(id, Algorithm::HS256, DecodingKey::from_secret(secret))
    }

    /// Parses a public key in PEM; its kind decides on the algorithm.
    ///
    /// # Errors
    /// It is no public key, or none of a supported kind; the text names the cure.
    pub fn from_pem(pem: &[u8], id: Option<&str>) -> Result<Self, String> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|error| {
            let why = private::pem_problem(&error);
            format!("no public key in it ({why}); make one with `openssl pkey -in private.pem -pubout`")
        })?;
        let der: &[u8] = der.as_ref();
        let is = |algorithm: &'static dyn VerificationAlgorithm| ParsedPublicKey::new(algorithm, der).is_ok();
        if is(&RSA_PKCS1_2048_8192_SHA256) {
            if der.len() < RSA_DER_BYTES_MIN {
                return Err("an RSA key of less than 2048 bits; make a larger one".into());
            }
            return Ok(Self::new(id, Algorithm::RS256, DecodingKey::from_rsa_der(der)));
        }
        if is(&ECDSA_P256_SHA256_FIXED) {
            return Ok(Self::new(id, Algorithm::ES256, DecodingKey::from_ec_der(der)));
        }
        if is(&ED25519) {
            return Ok(Self::new(id, Algorithm::EdDSA, DecodingKey::from_ed_der(der)));
        }
        Err("a public key of another kind; use RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA)".into())
    }

    /// Parses one key of a set (RFC 7517).
    ///
    /// # Errors
    /// It is secret, weak, or not for signatures of a supported algorithm.
    fn from_jwk(value: Value) -> Result<Self, String> {
        let jwk: Jwk = serde_json::from_value(value).map_err(|error| error.to_string())?;
        if jwk.common.public_key_use.as_ref().is_some_and(|it| *it != PublicKeyUse::Signature) {
            return Err("its use is not sig".into());
        }
        let id = jwk.common.key_id.as_deref();
        if id.is_some_and(|id| id.len() > ID_BYTES_MAX) {
            return Err(format!("its kid has more than {ID_BYTES_MAX} bytes"));
        }
        let decoded = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes()).unwrap_or_default();
        let (algorithm, named, is_sound) = match &jwk.algorithm {
            AlgorithmParameters::RSA(rsa) => {
                let is_sound = MODULUS_BYTES.contains(&decoded(&rsa.n).len()) && !decoded(&rsa.e).is_empty();
                (Algorithm::RS256, KeyAlgorithm::RS256, is_sound)
            }
            AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
                let point = [vec![4], decoded(&ec.x), decoded(&ec.y)].concat();
                let is_sound = ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).is_ok();
                (Algorithm::ES256, KeyAlgorithm::ES256, is_sound)
            }
            AlgorithmParameters::OctetKeyPair(ed) if ed.curve == EllipticCurve::Ed25519 => {
                let is_sound = ParsedPublicKey::new(&ED25519, decoded(&ed.x)).is_ok();
                (Algorithm::EdDSA, KeyAlgorithm::EdDSA, is_sound)
            }
            AlgorithmParameters::OctetKey(_) => return Err("a secret key (oct) in a public set".into()),
            _ => return Err("not of a supported kind".into()),
        };
        if jwk.common.key_algorithm.is_some_and(|it| it != named) {
            return Err(format!("its alg is not {algorithm:?}"));
        }
        if !is_sound {
            return Err(format!("no sound {algorithm:?} key"));
        }
        let decoding = DecodingKey::from_jwk(&jwk).map_err(|error| error.to_string())?;
        Ok(Self::new(id, algorithm, decoding))
    }

    /// Returns the `kid` of its tokens.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the only algorithm of its tokens.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns whether a check takes about a microsecond, so that it may run on a shard.
    pub(super) fn is_fast(&self) -> bool {
        self.algorithm == Algorithm::HS256
    }

    /// Checks the signature, and returns the claims.
    pub(super) fn open(&self, token: &str) -> Result<Claims, TokenFault> {
        let data = jsonwebtoken::decode::<Claims>(token, &self.decoding, &self.validation);
        data.map(|data| data.claims).map_err(|error| match error.kind() {
            ErrorKind::InvalidSignature => TokenFault::Signature,
            ErrorKind::InvalidAlgorithm => TokenFault::Algorithm,
            _ => TokenFault::Malformed,
        })
    }
}

/// Parses a set of public keys (RFC 7517). Keys that can't be used are left out, and described in the second list.
///
/// # Errors
/// It is no set, has too many keys, or none that can be used.
pub(super) fn parse_set(text: &[u8]) -> Result<(Vec<TokenKey>, Vec<String>), String> {
    #[derive(serde::Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_slice(text).map_err(|error| format!("no set of keys (JWKS): {error}"))?;
    if set.keys.len() > KEYS_MAX {
        return Err(format!("a set of more than {KEYS_MAX} keys"));
    }
    let (mut keys, mut unusable) = (Vec::new(), Vec::new());
    for value in set.keys {
        let name = value.get("kid").and_then(Value::as_str).unwrap_or("without kid");
        let name: String = name.chars().take(64).collect();
        match TokenKey::from_jwk(value) {
            Ok(key) => keys.push(key),
            Err(why) => unusable.push(format!("key {name}: {why}")),
        }
    }
    if keys.is_empty() {
        return Err(match unusable.first() {
            Some(first) => format!("a set without a usable key ({first})"),
            None => "a set without keys".into(),
        });
    }
    Ok((keys, unusable))
}

/// Reads a key file: 64 hex digits (HS256), a public key in PEM, or a set of public keys (JWKS). `id` is the `kid` of
/// the tokens; a set has its own.
///
/// # Errors
/// The file can't be read, is a secret that other accounts can read, or has other content; the text names the cure.
pub fn read_keys(path: &Path, id: Option<&str>) -> io::Result<Vec<TokenKey>> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let text = private::read_public(path)?;
    let start = text.trim_ascii_start();
    if start.starts_with(b"-----") {
        return Ok(vec![TokenKey::from_pem(&text, id).map_err(wrong)?]);
    }
    if start.starts_with(b"{") {
        if id.is_some() {
            return Err(wrong("a set of keys names the kid of each; write the file without `KID=`".into()));
        }
        let (keys, unusable) = parse_set(&text).map_err(wrong)?;
        return match unusable.first() {
            Some(first) => Err(wrong(format!("{first}; remove it from the set"))),
            None => Ok(keys),
        };
    }
    Ok(vec![TokenKey::hs256(&secret::read_key(path)?, id)])
}

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData as _};

    use super::*;

    #[test]
    fn kind_of_a_public_key_decides_on_its_algorithm() {
        let algorithm = |pair: &KeyPair| {
            TokenKey::from_pem(pair.public_key_pem().as_bytes(), None).map(|key| key.algorithm())
        };
        let made = |kind| KeyPair::generate_for(kind).unwrap();
        assert_eq!(algorithm(&made(&PKCS_ECDSA_P256_SHA256)), Ok(Algorithm::ES256));
        assert_eq!(algorithm(&made(&PKCS_ED25519)), Ok(Algorithm::EdDSA));
        let other = algorithm(&made(&PKCS_ECDSA_P384_SHA384)).unwrap_err();
        assert!(other.contains("another kind"), "{other}");
        let private = TokenKey::from_pem(made(&PKCS_ED25519).serialize_pem().as_bytes(), None).unwrap_err();
        assert!(private.contains("-pubout"), "{private}");
    }

    #[test]
    fn set_leaves_out_keys_that_can_not_be_used() {
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let x = BASE64URL_NOPAD.encode(pair.der_bytes());
        let good = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"a"}}"#);
        let parse = |keys: &[&str]| parse_set(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes());
        let secret = r#"{"kty":"oct","k":"AAAA","kid":"b"}"#;
        let small = r#"{"kty":"RSA","n":"AAAA","e":"AQAB","kid":"c"}"#;
        let encryption = good.replace("\"kid\"", "\"use\":\"enc\",\"kid\"");
        let other = good.replace("\"kid\"", "\"alg\":\"RS256\",\"kid\"");
        let (keys, unusable) = parse(&[&good, secret, small, &encryption, &other, "{}", "7"]).unwrap();
        assert_eq!((keys.len(), unusable.len()), (1, 6), "{unusable:?}");
        assert_eq!((keys[0].id(), keys[0].algorithm()), (Some("a"), Algorithm::EdDSA));
        assert!(parse(&[]).is_err() && parse(&[secret]).is_err());
        assert!(parse(&vec![&*good; KEYS_MAX + 1]).is_err());
        for garbage in [&b""[..], b"<html>", b"[]", b"{\"keys\":7}", &[0xff; 100]] {
            assert!(parse_set(garbage).is_err());
        }
    }
}
